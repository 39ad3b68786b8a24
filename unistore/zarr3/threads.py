"""Threads that encode: items dealt out, results in the items' order, few of them waiting.

Compressors, checksums and copies release the interpreter's lock, so that threads use the machine's cores.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, TypeVar

__all__ = ["Spread", "Threads", "in_turn"]

T = TypeVar("T")
R = TypeVar("R")


class Spread(Protocol):
    """How a function is applied to many items."""

    def __call__(self, function: Callable[[T], R], items: Iterable[T], ahead: int, /) -> Iterator[R]:
        """Yield the results in order; `ahead` of them, at most, wait to be taken."""
        ...


def in_turn(function: Callable[[T], R], items: Iterable[T], ahead: int, /) -> Iterator[R]:  # noqa: ARG001
    """One item after the other, on the calling thread."""
    return map(function, items)


class Threads:
    """Threads of one conversion; they end with it, since a pool that a fork copied hangs in the child.

    Parameters
    ----------
    count
        How many.
    """

    def __init__(self, count: int) -> None:
        self._pool = ThreadPoolExecutor(count, "unistore-encode")

    def stop(self) -> None:
        """End the threads; whoever still waits for a result, or asks for more, gets an error."""
        self._pool.shutdown(cancel_futures=True)

    def spread(self, function: Callable[[T], R], items: Iterable[T], ahead: int, /) -> Iterator[R]:
        """Apply `function` on the threads; the items are taken on the calling one."""
        waiting: deque[Future[R]] = deque()
        try:
            for item in items:
                waiting.append(self._pool.submit(function, item))
                if len(waiting) > ahead:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
