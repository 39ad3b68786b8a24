"""Convert exceptions of libraries that read sources into problems of the source."""

# h5py, zipfile, OpenCV, json and NumPy raise so many kinds of exceptions on damaged files that no list is
# complete: any exception but our own, and Ctrl-C, becomes a Problem, with its traceback for `--debug`,
# since it may be our bug.

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from traceback import format_exception

from unistore.errors import InputError, Location, Problem, UnistoreError, printable
from unistore.system.foreign import NO_FAULTS

# Kind of the problem of a file that the disk or its rights do not give: nothing is known of its content
UNREADABLE = "unreadable"
CHECK_DISK = "check the disk and the permissions of the file, then run again"
_CLOSE_WRITER = "wait until that program has closed the file, or stop it, then run again"

# Fixes of a file that ends early or contradicts itself, and of one that was written wrong
COPY_AGAIN = "copy or download it again"
WRITE_AGAIN = "write or download it again"

# Kind of the problem of a file that takes more memory than there is: nothing says that it is damaged
OUT_OF_MEMORY = "memory"
MORE_MEMORY = (
    "give more --memory or fewer --workers; if the file states wrong sizes, write or download it again"
)

_MAX_TEXT = 300
# What libraries say that raise other errors for want of memory: OpenCV, HDF5, Rust, C++, zstd, LZ4
_NO_MEMORY = re.compile(
    r"insufficient memory|not enough memory|out ?of ?memory|bad_alloc|memory allocation|allocation_failed|"
    r"(?:cannot|unable to|failed to|can't) allocate",
    re.IGNORECASE,
)
_SYSTEM_ERROR = re.compile(r"error message = '([^']+)'")


def is_read_error(error: BaseException) -> bool:
    """Return whether the system failed to read, not the file: HDF5 says so only in its text."""
    is_of_system = isinstance(error, OSError) and error.errno is not None
    return is_of_system or "read failed" in str(error)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether a library found no memory, whatever it raises then."""
    return isinstance(error, MemoryError) or _NO_MEMORY.search(str(error)) is not None


def is_unreadable(error: InputError) -> bool:
    """Return whether one of the problems is that a file could not be read."""
    return any(problem.kind == UNREADABLE for problem in error.problems)


def reason_of(error: BaseException) -> str:
    """Return the text of an error on one line. Of HDF5's, what the system said."""
    if _is_locked(error):
        return "another program has it open for writing (HDF5 is unable to lock the file)"
    said_by_system = _SYSTEM_ERROR.search(str(error))
    return said_by_system[1] if said_by_system else " ".join(str(error).split())


@contextmanager
def as_problem(location: Location | str, source: str = "") -> Iterator[None]:
    """Convert what a library raises while it reads a source into an `InputError` with its type and text."""
    try:
        yield
    except (UnistoreError, *NO_FAULTS):
        raise
    except BaseException as error:
        text = printable(reason_of(error))
        named = f"{type(error).__name__}{f': {text[:_MAX_TEXT]}' if text else ''}"
        message = f"cannot be read: {named}"
        kind = UNREADABLE if is_read_error(error) or isinstance(error, OSError) else "damaged"
        if is_out_of_memory(error):
            message = f"cannot be read in the available memory: {named}"
            kind = OUT_OF_MEMORY
        trace = "".join(format_exception(error))
        problem = Problem.at(location, message, fix_of(error), kind, source)
        raise InputError(replace(problem, trace=trace)) from error


def _is_locked(error: BaseException) -> bool:
    # HDF5 names the lock in its text only; locks that a file system lacks have another error of the system
    return isinstance(error, BlockingIOError) and "unable to lock file" in str(error)


def fix_of(error: BaseException) -> str:
    """Return what to do about an error of a library that reads a source."""
    if _is_locked(error):
        return _CLOSE_WRITER
    if is_out_of_memory(error):
        return MORE_MEMORY
    if is_read_error(error):
        return CHECK_DISK
    return f"{WRITE_AGAIN}; if other programs read it, report this with the output of --debug"
