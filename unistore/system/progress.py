"""Progress callbacks of conversions, exports and verifications."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Receives the progress of an operation."""

    def begin(self, stage: str, total: int) -> None:
        """A stage of `total` bytes begins."""
        ...

    def advance(self, amount: int) -> None:
        """`amount` more bytes are done."""
        ...

    def tell(self, line: str) -> None:
        """A message for the user, such as that a worker died."""
        ...


class _Silent:
    """No-op."""

    def begin(self, stage: str, total: int) -> None:
        """Do nothing."""

    def advance(self, amount: int) -> None:
        """Do nothing."""

    def tell(self, line: str) -> None:
        """Do nothing."""


NO_PROGRESS: Progress = _Silent()
