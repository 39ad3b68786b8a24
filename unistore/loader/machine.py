"""Available memory of this process."""

from __future__ import annotations

import os
from pathlib import Path

from unistore.system.cgroups import MOUNTS, memory_limits


def available_memory(proc: Path = Path("/proc"), cgroups: Path = MOUNTS) -> int:
    """Bytes that can still be allocated: what the kernel calls available, or less inside a cgroup.

    Parameters
    ----------
    proc, cgroups
        Mount points of procfs and of the cgroups.
    """
    left = [max(0, limit - used) for limit, used in memory_limits(proc / "self", cgroups)]
    return min([_meminfo(proc), *left])


def _meminfo(proc: Path) -> int:
    try:
        for line in (proc / "meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass  # systems without procfs, such as macOS
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
