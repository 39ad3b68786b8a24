"""Whether a source's files are still what the scan saw."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.faults import as_problem
from unistore.converters.protocol import Scan, Source
from unistore.errors import ConversionError, UnistoreError
from unistore.system.packed import Packed

__all__ = ["FileState", "Guard", "Guards", "guard_of", "guards_of", "reading", "sizes_of"]


class FileState(NamedTuple):
    """A file as it was: path, size in bytes, times of its last modification and status change in ns.

    Whoever writes to a file can set its modification time back, but not its status change time (``ctime``).
    That changes with rights and links, too.
    """

    path: str
    size: int
    modified: int
    changed: int


Guard = tuple[FileState, ...]
"""Every file of a source."""


Guards = Packed[Guard]
"""Those of all sources."""


def guards_of(scan: Scan) -> Guards:
    """Look at the files of all sources."""
    return Packed(map(guard_of, scan.sources))


def sizes_of(guards: Guards) -> NDArray[np.int64]:
    """Bytes of the files of each source."""
    return np.fromiter((sum(file.size for file in guard) for guard in guards), np.int64, len(guards))


def guard_of(source: Source) -> Guard:
    """Look at a source's files as they are now."""
    return tuple(_state_of(str(file)) for file in source.files)


def _state_of(file: str) -> FileState:
    stat = os.stat(file)  # noqa: PTH116  at half of what a Path takes
    return FileState(file, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)


@contextmanager
def reading(source: Source, guard: Guard) -> Iterator[None]:
    """Read a source: what is raised is its Problem, unless a file changed meanwhile.

    Raises
    ------
    InputError
        See `as_problem`.
    ConversionError
        If a file is no longer what the scan saw.
    """
    try:
        with as_problem(source.name, source.name):
            yield
    except UnistoreError:  # a file that is replaced while it is read fails in any way
        _check_unchanged(guard)
        raise
    _check_unchanged(guard)


def _check_unchanged(guard: Guard) -> None:
    """Raise if a file is no longer what the scan saw.

    Raises
    ------
    ConversionError
        Naming the file and what changed.
    """
    for before in guard:
        try:
            now = _state_of(before.path)
        except OSError as error:
            msg = (
                f"{before.path}: vanished while it was converted ({error.strerror}); "
                "bring it back and run again"
            )
            raise ConversionError(msg) from error
        if (now.size, now.modified) != (before.size, before.modified):
            msg = (
                f"{before.path}: changed while it was converted ({before.size} → {now.size} bytes); "
                "run again with --restart when nothing writes to it"
            )
            raise ConversionError(msg)
        if now.changed != before.changed:
            msg = (
                f"{before.path}: its content, rights or links changed while it was converted, its size and "
                "modification time did not; the same command continues and reads it anew"
            )
            raise ConversionError(msg)
