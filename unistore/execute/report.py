"""What a conversion tells while it runs, and what it did once it is done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = ["Progress", "Report", "Silent"]


class Progress(Protocol):
    """Told how far a conversion is."""

    def begin(self, stage: str, total: int) -> None:
        """A stage of `total` bytes begins."""
        ...

    def advance(self, amount: int) -> None:
        """So many more bytes are done."""
        ...

    def tell(self, line: str) -> None:
        """Something happened that the user should know, as that a worker was lost."""
        ...


class Silent:
    """Tells nobody."""

    def begin(self, stage: str, total: int) -> None:
        """Do nothing."""

    def advance(self, amount: int) -> None:
        """Do nothing."""

    def tell(self, line: str) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a conversion did.

    ``source_bytes`` are the sizes of the files read, ``raw_bytes`` the uncompressed and ``stored_bytes`` the
    stored sizes of all arrays; ``resumed`` counts the tasks that an earlier run had finished; ``skipped``
    holds what was left out because of its problems (see `unistore.execute.skipping`).
    """

    destination: str
    modality: str
    samples: int
    sources: int
    source_bytes: int
    raw_bytes: int
    stored_bytes: int
    files: int
    tasks: int
    resumed: int
    digest: str
    notes: tuple[str, ...] = ()
    skipped: tuple[Mapping[str, Any], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "notes", tuple(self.notes))
        object.__setattr__(self, "skipped", tuple(self.skipped))
