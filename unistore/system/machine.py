"""What this process may use: cores and memory, of the machine or less in a container; and its folder."""

# The limit of a cgroup applies to all groups below it, so the limits of a process are those of its own
# group and of all visible groups above it. In a container, the path that the kernel reports often does not
# exist, and its own group is the root of the mount

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
from pathlib import Path
from typing import NamedTuple

PROCESS = Path("/proc/self")  # Folder with the process's ``cgroup`` file
MOUNTS = Path("/sys/fs/cgroup")  # Where the cgroup file systems are mounted
UNLIMITED = 1 << 60  # cgroup version 1 reports a number near 2**63 if there is no limit


def usable_cores(process: Path = PROCESS, mounts: Path = MOUNTS) -> float:
    """Return cores that this process may use: its affinity mask, or less if a cgroup has a CPU quota."""
    cores = float(os.cpu_count() or 1)
    if hasattr(os, "sched_getaffinity"):
        cores = float(len(os.sched_getaffinity(0)))
    return min(cores, cpu_quota(process, mounts) or cores)


def available_memory(proc: Path = Path("/proc"), mounts: Path = MOUNTS) -> int:
    """Return bytes that can still be allocated: what the kernel calls available, or less inside a cgroup."""
    words = _words(proc / "meminfo")
    if "MemAvailable:" in words:
        available = int(words[words.index("MemAvailable:") + 1]) * 1024
    else:  # systems without procfs, such as macOS
        available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    for limit, used in memory_limits(proc / "self", mounts):
        available = min(available, max(0, limit - used))
    return available


def _text(*paths: Path) -> str:
    for path in paths:
        with contextlib.suppress(OSError):
            return path.read_text()
    return ""


def _words(*paths: Path) -> list[str]:
    return _text(*paths).split()


class MemoryLimit(NamedTuple):
    """Memory limit and use of one group, in bytes."""

    limit: int
    used: int  # Without the page cache of files, which the kernel counts but can reclaim


def cpu_quota(process: Path = PROCESS, mounts: Path = MOUNTS) -> float | None:
    """Return the CPU quota of this process in cores. None: no quota."""
    quotas = []
    for folder in _folders("cpu", process, mounts):
        former = [*_words(folder / "cpu.cfs_quota_us"), *_words(folder / "cpu.cfs_period_us")]
        words = _words(folder / "cpu.max") or former
        if len(words) == 2 and words[0] not in ("max", "-1") and float(words[1]) > 0:
            quotas.append(float(words[0]) / float(words[1]))
    return min(filter(None, quotas), default=None)


def memory_limits(process: Path = PROCESS, mounts: Path = MOUNTS) -> list[MemoryLimit]:
    """Return the memory limits of all groups that this process belongs to."""
    limits = []
    for folder in _folders("memory", process, mounts):
        limit = _words(folder / "memory.max", folder / "memory.limit_in_bytes")
        if limit and limit[0].isdecimal() and int(limit[0]) < UNLIMITED:
            usage = _words(folder / "memory.current", folder / "memory.usage_in_bytes") or ["0"]
            used = max(0, int(usage[0]) - _page_cache(folder))
            limits.append(MemoryLimit(int(limit[0]), used))
    return limits


def _folders(controller: str, process: Path, mounts: Path) -> list[Path]:
    folders: list[Path] = []
    for line in _text(process / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            mount = mounts
        elif controller in controllers.split(","):
            mount = mounts / controllers
            mount = mount if mount.is_dir() else mounts / controller
        else:
            continue
        own = mount / path.lstrip("/")
        folders += [folder for folder in (own, *own.parents) if folder.is_relative_to(mount)]
    return folders


def _page_cache(folder: Path) -> int:
    # Version 1 has the sum over the groups below under ``total_``
    words = _words(folder / "memory.stat")
    sizes = dict(zip(words[::2], map(int, words[1::2]), strict=True))
    prefix = "total_" if "total_active_file" in sizes else ""
    return sum(sizes.get(f"{prefix}{name}_file", 0) for name in ("active", "inactive"))


def data_memory() -> int | None:
    """Return the bytes of this process that ``RLIMIT_DATA`` counts. None: the system does not say."""
    try:
        pages = int((PROCESS / "statm").read_text().split()[5])
    except OSError:
        return None
    return pages * resource.getpagesize()


def file_system(folder: Path, mounts: Path = Path("/proc/mounts")) -> str:
    """Return the type of a folder's file system, ``"?"`` without `mounts`."""
    resolved = folder.resolve()
    deepest = 0
    kind = "?"
    for line in _text(mounts).splitlines():
        _, point, mounted_kind, *_ = line.split(" ")
        mounted = Path(point.replace("\\040", " "))
        # A later mount hides an earlier one at the same place.
        if resolved.is_relative_to(mounted) and len(mounted.parts) >= deepest:
            deepest = len(mounted.parts)
            kind = mounted_kind
    return kind


# Settings of malloc: freed memory is kept for reuse, as fresh pages cost as much as writing to them.

# Bytes of the largest block that is kept (the most that glibc allows), and of the free top of the heap
THRESHOLD = 32 << 20
# of malloc.h
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3


def keep_freed_memory() -> None:
    """Make glibc keep freed blocks of up to 32 MiB for reuse."""
    # By default, glibc maps blocks of 128 KiB and more anew until the first such block has been freed
    with contextlib.suppress(AttributeError, OSError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_TRIM_THRESHOLD, THRESHOLD)
        mallopt(M_MMAP_THRESHOLD, THRESHOLD)


def absolute(path: str | os.PathLike[str]) -> str:
    """Return a path that leads to the same place after `os.chdir`, and in a process that runs elsewhere.

    Links and ``..`` are left as they are, which only the file system can resolve.
    """
    text = os.fspath(path)
    if text.startswith("/"):
        return text
    try:
        return os.path.join(os.getcwd(), text)  # noqa: PTH109, PTH118  of thousands of parts
    except FileNotFoundError:  # this folder was removed, and nothing is below it
        return text
