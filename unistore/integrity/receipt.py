"""The receipt of a comparison with the sources."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What was compared when a store was found equal to its sources.

    Attributes
    ----------
    values
        Values in the files of the sources that were compared.
    files
        Files that hold them.
    stored_values
        Values of the store that were compared with what the converter makes of the sources now.
    sample
        Share of the store and of the sources that was compared, 0 to 1.
    left_out
        Datasets of the compared files that are not in the store.
    """

    values: int
    files: int
    stored_values: int
    sample: float
    left_out: tuple[str, ...]

    @property
    def line(self) -> str:
        """One line for a log or a notebook."""
        part = "" if self.sample >= 1 else f" (a sample of {100 * self.sample:g} %)"
        if not self.files:  # the family has no second way to read its sources
            return f"as converted: {self.stored_values:,} stored values equal{part}"
        return f"lossless: {self.values:,} values of {self.files:,} files equal{part}"
