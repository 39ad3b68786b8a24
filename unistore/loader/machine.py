"""How much memory the loader may plan with."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["available_memory"]

UNLIMITED = 1 << 60
"""cgroup version 1 writes a number near 2**63 where there is no limit."""


def available_memory(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that can still be allocated: what the kernel calls available, or less inside a cgroup.

    Parameters
    ----------
    proc, cgroups
        Where the kernel shows them.
    """
    available = _meminfo(proc)
    for folder in _own_cgroups(proc, cgroups):
        limit = _number(folder / "memory.max") or _number(folder / "memory.limit_in_bytes")
        used = _number(folder / "memory.current") or _number(folder / "memory.usage_in_bytes")
        if limit is not None and limit < UNLIMITED:
            available = min(available, max(0, limit - (used or 0)))
    return available


def _meminfo(proc: Path) -> int:
    try:
        for line in (proc / "meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _own_cgroups(proc: Path, cgroups: Path) -> list[Path]:
    """Memory cgroup of this process and those above it, as far as they can be seen."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return []
    folders = []
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            mount = cgroups
        elif "memory" in controllers.split(","):
            mount = cgroups / "memory"
        else:
            continue
        inside = mount / path.lstrip("/")
        folders += [folder for folder in (inside, *inside.parents) if folder.is_relative_to(mount)]
    return folders


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # absent, or "max"
        return None
