"""Progress callbacks of conversions, exports and verifications."""

from __future__ import annotations

from typing import Protocol

__all__ = ["SILENT", "Progress"]


class Progress(Protocol):
    """Told how far something is."""

    def begin(self, stage: str, total: int) -> None:
        """A stage of `total` bytes begins."""
        ...

    def advance(self, amount: int) -> None:
        """So many more bytes are done."""
        ...

    def tell(self, line: str) -> None:
        """Something happened that the user should know, as that a worker was lost."""
        ...


class _Silent:
    """No-op."""

    def begin(self, stage: str, total: int) -> None:
        """Do nothing."""

    def advance(self, amount: int) -> None:
        """Do nothing."""

    def tell(self, line: str) -> None:
        """Do nothing."""


SILENT: Progress = _Silent()
