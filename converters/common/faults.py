"""Converting exceptions of libraries that read sources into problems of the source.

h5py, zipfile, OpenCV, json and NumPy raise many kinds of exceptions on damaged files, and no list of them
is complete. So whatever reads a source, in the scan and later, runs inside `as_problem`. Our own errors pass
unchanged. Any other exception becomes a Problem with its traceback for ``--debug``, since it may be our bug.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from traceback import format_exception

from unistore.errors import InputError, Location, Problem, UnistoreError, printable

_MAX_TEXT = 300


@contextmanager
def as_problem(location: Location | str, source: str = "") -> Iterator[None]:
    """Convert what a library raises while it reads a source into an `InputError`.

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
        message = f"cannot be read: {type(error).__name__}{f': {text[:_MAX_TEXT]}' if text else ''}"
        trace = "".join(format_exception(error))
        kind = "unreadable" if isinstance(error, OSError) else "damaged"
        problem = Problem.at(location, message, _cure(error), kind, source)
        raise InputError(replace(problem, trace=trace)) from error


def _cure(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return "are its shapes right? then give --memory, or fewer workers; else get or write it again"
    if isinstance(error, OSError) and error.errno is not None:
        return "check its disk and its rights, then run again"
    return "get or write it again; if other programs read it, report this with --debug"
