"""Progress callbacks of conversions, exports and verifications, and counts of this process."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeAlias


class Progress(Protocol):
    """Receives the progress of an operation. Implement it for a display of your own.

    An object may also have ``begin_items(stage, total)``, which begins a stage of `total` files or sources.
    `total` is 0 if their number is not known, for example while scanning. `advance` then counts these. An
    object without it is not told of such stages.

    Examples
    --------
    >>> class Lines:  # doctest: +SKIP
    ...     def begin(self, stage, total):
    ...         print(stage, total)
    ...
    ...     def advance(self, amount):
    ...         pass
    ...
    ...     def tell(self, line):
    ...         print(line)
    >>> unistore.convert("clouds/", "clouds.zarr", progress=Lines())  # doctest: +SKIP
    """

    def begin(self, stage: str, total: int) -> None:
        """Begin a stage of `total` bytes."""

    def advance(self, amount: int) -> None:
        """Count `amount` more bytes as done, also within a shard or a source.

        Below 0 if a worker process was lost, and its step runs again.
        """

    def tell(self, line: str) -> None:
        """Print a message for the user, such as that a worker died."""


class _Silent:
    def begin(self, stage: str, total: int) -> None: ...
    def advance(self, amount: int) -> None: ...
    def tell(self, line: str) -> None: ...


NO_PROGRESS: Progress = _Silent()

Listener: TypeAlias = Callable[[int], None]  # is told how many more bytes are done

# As users give it: an object, whether there are bars, or bars in a terminal.
ProgressLike: TypeAlias = Progress | bool | None

# Of this process, and of its processes that convert, under the names of `unistore.loader.iteration.Stats`:
# ``retries``, ``shard_hits``, ``shard_misses``, ``cache_hits``, ``cache_misses``; ``waited_ms`` for
# other jobs of a conversion. ``cache_hits`` of one are copies of sources in a bucket that were there
COUNTS: Counter[str] = Counter()


def begin_items(progress: Progress, stage: str, total: int = 0) -> Listener:
    """Begin a stage that counts files or sources, not bytes, and return what counts them.

    A `total` of 0 says that nothing is counted. Nothing is told to objects that have no such stages.
    """
    begin: Any = getattr(progress, "begin_items", None)
    if begin is None:
        return ignore
    begin(stage, total)
    return progress.advance


# Bytes that are done within a step. Code far below the one that shows them says so by `advanced`; worker
# processes send them. What is said outside of a `portion` counts for nothing: only a step knows how many
# bytes it has altogether, and which part of them reading and writing are

_TOLD_EVERY = 0.1  # Seconds between two messages of a step


def ignore(_: int) -> None:
    """Take no notice of what was done."""


class _Thread(threading.local):
    listener: Listener = staticmethod(ignore)
    left = 0.0  # bytes of the portion that are not done
    weight = 0.0


_thread = _Thread()


def listener() -> Listener:
    """Return what is told the bytes that this thread has done, to be told those of another one, too."""
    return _thread.listener


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Tell a listener the bytes that steps of this thread have done."""
    before = _thread.listener
    _thread.listener = listener
    try:
        yield
    finally:
        _thread.listener = before


class StepBytes:
    """Passes on the bytes of one step, several times a second at most. `told` says how many."""

    def __init__(
        self,
        listener: Listener,
        *,
        every: float = _TOLD_EVERY,  # seconds
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.told = 0
        self._listener = listener
        self._every = every
        self._clock = clock
        self._waiting = 0
        self._last = clock()
        self._lock = threading.Lock()  # threads of a step call it

    def __call__(self, amount: int) -> None:
        with self._lock:
            self._waiting += amount
            now = self._clock()
            if now < self._last + self._every:
                return
            self._last = now
            self.told += self._waiting
            self._listener(self._waiting)
            self._waiting = 0


@contextmanager
def step_bytes() -> Iterator[StepBytes]:
    """Count the bytes that a step of this thread passes on to its listener."""
    counter = StepBytes(_thread.listener)
    with listening(counter):
        yield counter


@contextmanager
def portion(nbytes: int, weight: float = 1.0) -> Iterator[None]:
    """Count what this thread does inside as `nbytes` at most, and as so many once it is done.

    Each byte that `advanced` is told counts `weight` of one. What is done inside of a portion within counts
    for that one.
    """
    outer = _thread.left, _thread.weight
    _thread.left, _thread.weight = float(nbytes), weight
    try:
        yield
        _tell(_thread.left)
    finally:
        _thread.left, _thread.weight = outer


def advanced(nbytes: int) -> None:
    """Say that the step of this thread has read or written `nbytes` more."""
    part = min(nbytes * _thread.weight, _thread.left)
    if part > 0:
        _thread.left -= part
        _tell(part)


def _tell(part: float) -> None:
    if part >= 1:
        _thread.listener(int(part))
