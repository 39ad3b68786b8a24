"""Progress callbacks of conversions, exports and verifications, and what a process counts."""

from __future__ import annotations

from collections import Counter
from typing import Protocol, TypeAlias


class Progress(Protocol):
    """Receives the progress of an operation."""

    def begin(self, stage: str, total: int) -> None:
        """Begin a stage of `total` bytes."""

    def advance(self, amount: int) -> None:
        """Count `amount` more bytes as done."""

    def tell(self, line: str) -> None:
        """Print a message for the user, such as that a worker died."""


class _Silent:
    def begin(self, stage: str, total: int) -> None: ...
    def advance(self, amount: int) -> None: ...
    def tell(self, line: str) -> None: ...


NO_PROGRESS: Progress = _Silent()

# As users give it: an object, whether there are bars, or bars in a terminal.
ProgressLike: TypeAlias = Progress | bool | None

# Of this process, and of its processes that convert, under the names of `unistore.loader.iteration.Stats`:
# ``retries``, ``shard_hits``, ``shard_misses``, ``cache_hits``, ``cache_misses``; ``waited_ms`` for
# other jobs of a conversion. ``cache_hits`` of one are copies of sources in a bucket that were there
COUNTS: Counter[str] = Counter()
