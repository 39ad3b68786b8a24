"""Report of a finished conversion."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from unistore.system.sizes import count_of, size


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Report:
    """Report of a finished conversion.

    ``samples`` counts the rows of ``sample_table``: frames, episodes, volumes, segments. A `Dataset` may make
    more or fewer samples of them: clips of frames, transitions of episodes. ``source_bytes`` are the sizes of
    the files read, ``raw_bytes`` the uncompressed and ``stored_bytes`` the stored sizes of all arrays;
    ``resumed`` counts the tasks that an earlier run had finished; ``skipped`` has an entry for each problem
    for which something was left out (see `unistore.conversion.skipping`). ``verdicts`` counts the files under
    the given paths: ``verdict`` (``"taken"``, ``"left out"``, ``"refused"``), ``why``, ``files``, and the
    names of the first as ``examples``.
    """

    destination: str
    family: str
    samples: int
    sources: int
    source_bytes: int
    raw_bytes: int
    stored_bytes: int
    files: int
    tasks: int
    resumed: int
    digest: str
    sample_table: str = "samples"
    notes: tuple[str, ...] = ()
    skipped: tuple[Mapping[str, Any], ...] = ()
    verdicts: tuple[Mapping[str, Any], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "notes", tuple(self.notes))
        object.__setattr__(self, "skipped", tuple(self.skipped))
        object.__setattr__(self, "verdicts", tuple(self.verdicts))

    def __repr__(self) -> str:
        samples = (
            f"{self.samples:,} {self.sample_table.rpartition('/')[2]} from {count_of(self.sources, 'source')}"
        )
        left_out = f", {len(self.skipped)} skipped" if self.skipped else ""
        return f"Report({self.destination!r}: {samples}, {size(self.stored_bytes)}{left_out})"
