"""How a question is asked about many files or sources: in this process, or in others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

T = TypeVar("T")
R = TypeVar("R")

_AT_ONCE = 1024
"""Items that threads may work ahead."""


class Ask(Protocol):
    """Like the built-in ``map``, in any process: function, items and results can be pickled."""

    def __call__(self, function: Callable[[T], R], items: Sequence[T], /, *, threads: int = 1) -> Iterator[R]:
        """Yield the result of each item, in order; a thread-safe function runs on so many threads."""
        ...


def ask_here(function: Callable[[T], R], items: Sequence[T], /, *, threads: int = 1) -> Iterator[R]:
    """Ask in this process."""
    if threads < 2 or len(items) < 2:
        yield from map(function, items)
        return
    with ThreadPoolExecutor(threads, "unistore-scan") as pool:
        for lo in range(0, len(items), _AT_ONCE):
            yield from pool.map(function, items[lo : lo + _AT_ONCE])
