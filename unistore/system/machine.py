"""Cores and memory that this process may use: of the machine, or less in a container or batch job.

Containers and batch systems set limits by cgroups, version 1 or 2. The limit of a group applies to all groups
below it. So the limits of a process are those of its own group and of all visible groups above it. In a
container, the path that the kernel reports often does not exist, and its own group is the root of the mount.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path
from typing import NamedTuple

PROCESS = Path("/proc/self")
"""Folder with the process's ``cgroup`` file."""
MOUNTS = Path("/sys/fs/cgroup")
"""Where the cgroup file systems are mounted."""
UNLIMITED = 1 << 60
"""cgroup version 1 reports a number near 2**63 if there is no limit."""


def usable_cores(process: Path = PROCESS, mounts: Path = MOUNTS) -> float:
    """Return cores that this process may use: its affinity mask, or less if a cgroup has a CPU quota."""
    cores = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    return min(cores, cpu_quota(process, mounts) or cores)


def physical_memory() -> int | None:
    """Return bytes of memory of this machine; None where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def available_memory(proc: Path = Path("/proc"), mounts: Path = MOUNTS) -> int:
    """Return bytes that can still be allocated: what the kernel calls available, or less inside a cgroup."""
    limits = memory_limits(proc / "self", mounts)
    return min([_kernel_available(proc), *(max(0, limit - used) for limit, used in limits)])


def _kernel_available(proc: Path) -> int:
    words = _words(proc / "meminfo")
    if "MemAvailable:" in words:
        return int(words[words.index("MemAvailable:") + 1]) * 1024
    return (physical_memory() or 0) // 2  # systems without procfs, such as macOS


def _words(path: Path) -> list[str]:
    """Return words of a file of the kernel; empty if there is no such file."""
    try:
        return path.read_text().split()
    except OSError:
        return []


class MemoryLimit(NamedTuple):
    """Memory limit and use of one group, in bytes."""

    limit: int
    used: int
    """Without the page cache of files, which the kernel counts but can reclaim."""


def cpu_quota(process: Path = PROCESS, mounts: Path = MOUNTS) -> float | None:
    """Return the CPU quota of this process in cores; None: no quota."""
    return min(filter(None, (_quota(folder) for folder in _folders("cpu", process, mounts))), default=None)


def memory_limits(process: Path = PROCESS, mounts: Path = MOUNTS) -> list[MemoryLimit]:
    """Return the memory limits of all groups that this process belongs to."""
    folders = []
    for folder in _folders("memory", process, mounts):
        limit = _first_number(folder, "memory.max", "memory.limit_in_bytes")
        if limit is not None and limit < UNLIMITED:
            used = _first_number(folder, "memory.current", "memory.usage_in_bytes") or 0
            folders.append(MemoryLimit(limit, max(0, used - _page_cache(folder))))
    return folders


def _folders(controller: str, process: Path, mounts: Path) -> list[Path]:
    """Return folders of this process's groups of a controller, its own first, then those above it."""
    folders = []
    for _, mount, path in _groups(controller, process, mounts):
        own = mount / path.lstrip("/")
        folders += [folder for folder in (own, *own.parents) if folder.is_relative_to(mount)]
    return folders


def _groups(controller: str, process: Path, mounts: Path) -> list[tuple[int, Path, str]]:
    """Return version, mount and path of this process's groups of a controller."""
    try:
        lines = (process / "cgroup").read_text().splitlines()
    except OSError:
        return []
    groups = []
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            groups.append((2, mounts, path))
        elif controller in controllers.split(","):
            candidates = (mounts / controllers, mounts / controller)
            groups.append((1, next((mount for mount in candidates if mount.is_dir()), candidates[1]), path))
    return groups


def _quota(folder: Path) -> float | None:
    """Return the CPU quota of one group in cores; None: no quota."""
    words = _words(folder / "cpu.max")
    words = words or [*_words(folder / "cpu.cfs_quota_us"), *_words(folder / "cpu.cfs_period_us")]
    if len(words) != 2 or words[0] in ("max", "-1") or float(words[1]) <= 0:
        return None
    return float(words[0]) / float(words[1])


def _page_cache(folder: Path) -> int:
    """Return page cache of a group in bytes; version 1 has the sum over the groups below under ``total_``."""
    words = _words(folder / "memory.stat")
    sizes = dict(zip(words[::2], map(int, words[1::2]), strict=True))
    prefix = "total_" if "total_active_file" in sizes else ""
    return sum(sizes.get(f"{prefix}{name}_file", 0) for name in ("active", "inactive"))


def _first_number(folder: Path, *names: str) -> int | None:
    for name in names:
        for word in _words(folder / name):
            if word.isdecimal():  # others: "max"
                return int(word)
    return None


def file_system(folder: Path, mounts: Path = Path("/proc/mounts")) -> str:
    """Return the type of a folder's file system; ``"?"`` without `mounts`."""
    resolved = folder.resolve()
    deepest = 0
    kind = "?"
    for line in mounts.read_text().splitlines() if mounts.exists() else ():
        _, point, mounted_kind, *_ = line.split(" ")
        mounted = Path(point.replace("\\040", " "))
        # A later mount hides an earlier one at the same place.
        if resolved.is_relative_to(mounted) and len(mounted.parts) >= deepest:
            deepest = len(mounted.parts)
            kind = mounted_kind
    return kind


# Settings of malloc: freed memory is kept for reuse, as fresh pages cost as much as writing to them.

THRESHOLD = 32 << 20
"""Bytes of the largest block that is kept (the most that glibc allows), and of the free top of the heap."""
# of malloc.h
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3


def keep_freed_memory() -> None:
    """Make glibc keep freed blocks of up to 32 MiB for reuse; does nothing with other C libraries.

    By default, glibc maps blocks of 128 KiB and more anew until the first such block has been freed.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_TRIM_THRESHOLD, THRESHOLD)
        mallopt(M_MMAP_THRESHOLD, THRESHOLD)
