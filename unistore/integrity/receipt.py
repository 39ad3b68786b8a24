"""The receipt of a comparison with the sources."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Receipt"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What a comparison with the sources came to.

    Attributes
    ----------
    values
        Values of the sources that were compared, each as it stands in its file.
    files
        Files they stand in.
    stored_values
        Values of the store that were compared with what the converter makes of the sources now.
    sample
        Share of the store and of the sources that was compared, 0 to 1.
    left_out
        What the compared files hold besides, and the store does not.
    """

    values: int
    files: int
    stored_values: int
    sample: float
    left_out: tuple[str, ...]

    @property
    def line(self) -> str:
        """The line to keep."""
        part = "" if self.sample >= 1 else f" (a sample of {100 * self.sample:g} %)"
        if not self.files:  # the family has no second way to read its sources
            return f"as converted: {self.stored_values:,} stored values equal{part}"
        return f"lossless: {self.values:,} values of {self.files:,} files equal{part}"
