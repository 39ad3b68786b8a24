"""The border to the libraries that read sources: whatever they raise is the source's Problem.

h5py, zipfile, OpenCV, json and numpy raise many kinds of errors where a file is damaged, and no list of them
is complete. So every look at a source stands inside `as_problem`, in the scan and in each later step. What is
raised on purpose passes; the rest names the file, can be left out as any other Problem, and keeps its
traceback for ``--debug``, since it may be a fault of ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from traceback import format_exception

from unistore.errors import InputError, Problem, UnistoreError, printable

__all__ = ["as_problem"]

_LONGEST = 300


@contextmanager
def as_problem(location: str, source: str = "") -> Iterator[None]:
    """Turn what a library raises while a source is read into an `InputError`.

    Parameters
    ----------
    location
        File, or file and dataset.
    source
        As `Problem.source`.

    Raises
    ------
    InputError
        From any exception but a `UnistoreError`, with its type and text.
    """
    try:
        yield
    except UnistoreError:
        raise
    except Exception as error:
        text = printable(" ".join(str(error).split()))
        message = f"cannot be read: {type(error).__name__}{f': {text[:_LONGEST]}' if text else ''}"
        trace = "".join(format_exception(error))
        kind = "unreadable" if isinstance(error, OSError) else "damaged"
        problem = Problem(printable(location), message, _cure(error), kind, source, trace)
        raise InputError(problem) from error


def _cure(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return "are its shapes right? then give --memory, or fewer workers; else get or write it again"
    if isinstance(error, OSError) and error.errno is not None:
        return "check its disk and its rights, then run again"
    return "get or write it again; if other programs read it, report this with --debug"
