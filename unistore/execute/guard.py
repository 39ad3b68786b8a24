"""Whether a source's files are still what the scan saw."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from unistore.converters.protocol import Source
from unistore.errors import ConversionError

__all__ = ["Guard", "guard_of", "reading"]

Guard = tuple[tuple[str, int, int], ...]
"""Path, size and modification time (ns) of every file of a source."""


def guard_of(source: Source) -> Guard:
    """Look at a source's files as they are now."""
    return tuple(
        (str(file), stat.st_size, stat.st_mtime_ns) for file in source.files for stat in [file.stat()]
    )


@contextmanager
def reading(source: Source, guard: Guard) -> Iterator[None]:
    """Tell a file that changed under the converter from one that is bad, and name the source of an error."""
    try:
        yield
    except Exception as error:  # a file that is replaced while it is read fails in any way
        _check_unchanged(guard)
        if not isinstance(error, OSError) or error.filename is not None:
            raise
        msg = f"{source.path}: reading failed ({error}); the same command continues"
        raise ConversionError(msg) from error
    _check_unchanged(guard)


def _check_unchanged(guard: Guard) -> None:
    """Raise if a file is no longer what the scan saw.

    Raises
    ------
    ConversionError
        Naming the file and what changed.
    """
    for path, size, modified in guard:
        try:
            stat = Path(path).stat()
        except OSError as error:
            msg = f"{path}: vanished while it was converted ({error.strerror}); bring it back and run again"
            raise ConversionError(msg) from error
        if (stat.st_size, stat.st_mtime_ns) != (size, modified):
            msg = (
                f"{path}: changed while it was converted ({size} → {stat.st_size} bytes); "
                "run again with --restart when nothing writes to it"
            )
            raise ConversionError(msg)
