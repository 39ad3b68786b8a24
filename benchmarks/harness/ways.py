"""A way of loading samples, and what it yields."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Kind = Literal["documents", "plain", "peer", "unistore"]
"""``documents``: what users have today. ``plain``: h5py, memmap. ``peer``: another library."""


def _nothing() -> None:
    """Nothing to close."""


@dataclass(frozen=True, slots=True)
class Feed:
    """An opened way.

    Attributes
    ----------
    batches
        Endless; every batch has the benchmark's number of samples.
    ahead
        Batches that may have been made before they are asked for: a round passes over them before it times.
    warm_up
        Batches to pass over before the first round, where it begins slower than it goes on.
    close
        Ends threads and processes.
    """

    batches: Iterator[Any]
    ahead: int = 0
    warm_up: int = 2
    close: Callable[[], None] = _nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One contender.

    Attributes
    ----------
    name, setting
        What it is; how it is set (workers, …).
    kind
        Whose it is.
    make
        Function of the script (found by name in the child process) that opens it.
    arguments
        Passed to `make`.
    files
        What it reads: evicted from the page cache before its first batch, and its size on disk.
    imports
        Modules imported before the clock of the first batch starts.
    slow
        Takes part in every third round only.
    samples
        Samples of its batches where it differs from the others'.
    """

    name: str
    setting: str = ""
    kind: Kind
    make: Callable[..., Feed]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    files: tuple[Path, ...] = ()
    imports: tuple[str, ...] = ("torch",)
    slow: bool = False
    samples: int | None = None

    @property
    def key(self) -> str:
        """Name and setting."""
        return f"{self.name}, {self.setting}" if self.setting else self.name


def endless(loader: Any) -> Iterator[Any]:
    """Batches of one epoch after another."""
    while True:
        yield from loader
