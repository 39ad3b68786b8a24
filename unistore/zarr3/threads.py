"""Maps that yield results in the order of the items: on threads, or on the calling thread.

Compressors, checksums and copies release the GIL, so that threads run in parallel.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class OrderedMap(Protocol):
    """Like the built-in ``map``, with a bound on the results that wait to be taken."""

    def __call__(self, function: Callable[[T], R], items: Iterable[T], max_pending: int, /) -> Iterator[R]:
        """Yield the results in order; at most `max_pending` of them wait to be taken."""
        ...


def serial_map(function: Callable[[T], R], items: Iterable[T], max_pending: int, /) -> Iterator[R]:  # noqa: ARG001
    """``map`` on the calling thread."""
    return map(function, items)


def ordered_map(
    pool: ThreadPoolExecutor, function: Callable[[T], R], items: Iterable[T], max_pending: int
) -> Iterator[R]:
    """`OrderedMap` on the threads of a pool; the items are iterated on the calling thread."""
    pending: deque[Future[R]] = deque()
    try:
        for item in items:
            pending.append(pool.submit(function, item))
            if len(pending) > max_pending:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        for future in pending:
            future.cancel()


class EncoderThreads:
    """Thread pool of one conversion; not kept longer, as a pool inherited by a forked child hangs there."""

    def __init__(self, count: int) -> None:
        self._pool = ThreadPoolExecutor(count, "unistore-encode")

    def stop(self) -> None:
        """End the threads; waiting for a result or submitting more raises an error."""
        self._pool.shutdown(cancel_futures=True)

    def ordered_map(self, function: Callable[[T], R], items: Iterable[T], max_pending: int, /) -> Iterator[R]:
        """See `OrderedMap`."""
        return ordered_map(self._pool, function, items, max_pending)
