"""Errors that travel from a worker to the consumer."""

from __future__ import annotations

import contextlib
import pickle
from typing import NamedTuple, NoReturn

from unistore.errors import LoaderError


class Failure(NamedTuple):
    """An error, and its pickled cause; None if the cause cannot be pickled."""

    error: LoaderError
    cause: bytes | None


def pack_failure(error: LoaderError) -> Failure:
    """Pack an error with its cause, if that can be pickled and unpickled."""
    cause: bytes | None = None
    with contextlib.suppress(Exception):  # a cause that does not travel is still in the traceback's text
        packed = pickle.dumps(error.__cause__)
        pickle.loads(packed)  # noqa: S301 - made in the line above
        cause = packed
    return Failure(error, cause)


def raise_failure(failure: Failure) -> NoReturn:
    """Raise a packed error with its cause."""
    cause = None if failure.cause is None else pickle.loads(failure.cause)  # noqa: S301 - from our worker
    raise failure.error from cause
