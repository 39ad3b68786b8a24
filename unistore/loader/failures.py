"""Errors that travel from a worker to the consumer."""

from __future__ import annotations

import contextlib
import pickle
import traceback
from typing import NamedTuple, NoReturn

from unistore.errors import LoaderError, SampleError


class WorkerTraceback(Exception):  # noqa: N818 - it says where an error was raised, and is none itself
    """The traceback of an error as its worker saw it; the ``__cause__`` of that error in the consumer."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class Failure(NamedTuple):
    """An error, its cause, pickled (None if that cannot be pickled), and the cause's traceback."""

    error: LoaderError
    cause: bytes | None
    trace: str


def in_one_line(error: BaseException) -> str:
    """Return the type of an error and the first line of its message."""
    message = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def caused(error: SampleError, cause: BaseException) -> SampleError:
    """Return an error with its cause."""
    error.__cause__ = cause
    return error


def pack_failure(error: LoaderError) -> Failure:
    """Pack an error with its cause, if that can be pickled and unpickled."""
    raised = error.__cause__
    if raised is None:
        return Failure(error, None, "")
    trace = "".join(traceback.format_exception(raised))
    # Where dask has been imported, pickle takes tracebacks and causes along, also those that do not travel.
    error.__cause__ = None
    raised.__traceback__ = raised.__cause__ = raised.__context__ = None
    cause: bytes | None = None
    with contextlib.suppress(Exception):  # of a cause that does not travel the traceback does
        packed = pickle.dumps(raised)
        pickle.loads(packed)  # noqa: S301 - made in the line above
        cause = packed
    return Failure(error, cause, trace)


def raise_failure(failure: Failure) -> NoReturn:
    """Raise a packed error with its cause, and the worker's traceback as the cause of that."""
    trace = WorkerTraceback(failure.trace)
    if failure.cause is None:
        raise failure.error from trace
    cause: BaseException = pickle.loads(failure.cause)  # noqa: S301 - from our worker
    cause.__cause__ = trace
    raise failure.error from cause
