"""Memory and processor time of a process and its children, and the page cache."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

_MIB = 1 << 20


def _processes(root: int) -> list[int]:
    """A process and its descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, waiting = [], [root]
    while waiting:
        process = waiting.pop()
        found.append(process)
        waiting += children.get(process, [])
    return found


def own_memory(root: int) -> float:
    """MiB that a process and its children hold for themselves: anonymous and shared memory, by share (PSS).

    Mapped files are left out: their pages can be dropped at any time.
    """
    total = 0
    for process in _processes(root):
        try:
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith(("Pss_Anon", "Pss_Shmem")))
    return total * 1024 / _MIB


def processor_seconds(root: int) -> float:
    """Processor time that a process and its children have used."""
    total = 0
    for process in _processes(root):
        try:
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(map(int, fields[11:15]))
    return total / os.sysconf("SC_CLK_TCK")


def bytes_read(root: int) -> int | None:
    """Bytes that a process and its children had read from disks; None: the kernel does not count them."""
    total = 0
    for process in _processes(root):
        try:
            lines = Path(f"/proc/{process}/io").read_text().splitlines()
        except FileNotFoundError:
            if process == root:
                return None
            continue
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))
    return total


def busy_seconds() -> float:
    """Processor time that everything on the machine has used."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    idle = int(fields[3]) + int(fields[4])
    return (sum(map(int, fields[:8])) - idle) / os.sysconf("SC_CLK_TCK")


def _files(places: Iterable[Path]) -> list[Path]:
    found: list[Path] = []
    for place in places:
        found += [place] if place.is_file() else sorted(p for p in place.rglob("*") if p.is_file())
    return found


def disk(places: Iterable[Path]) -> int:
    """Bytes of files."""
    return sum(file.stat().st_size for file in _files(places))


def evict(places: Iterable[Path]) -> None:
    """Drop files from the page cache, as after a restart of the machine."""
    for file in _files(places):
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def warm(places: Iterable[Path]) -> None:
    """Read files once, so that they are in the page cache."""
    buffer = bytearray(4 << 20)
    for file in _files(places):
        with file.open("rb", buffering=0) as stream:
            while stream.readinto(buffer):
                pass
