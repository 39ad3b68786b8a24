"""Progress callbacks of conversions, exports and verifications."""

from __future__ import annotations

from typing import Protocol


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
