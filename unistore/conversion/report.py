"""The `Report` of a conversion."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from unistore.system.sizes import count_of, size
from unistore.system.types import JsonObject

if TYPE_CHECKING:
    from unistore.converters.detection import CountReport


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Report:
    """Result of a finished conversion.

    Attributes
    ----------
    destination : str
        Folder or URL of the store.
    family : str
        Name of the family.
    samples : int
        Number of rows of the table of samples: frames, episodes, volumes, segments. A `Dataset` may make
        more or fewer samples of them, such as clips of frames or transitions of episodes.
    sources : int
        Number of sources.
    source_bytes : int
        Size of the files that were read.
    raw_bytes, stored_bytes : int
        Size of all arrays, uncompressed and stored.
    files : int
        Number of files of the store.
    tasks : int
        Number of tasks. 0 for a job that began after the seal.
    resumed : int
        Number of tasks that an earlier run had finished.
    digest : str
        Checksum of the seal.
    sample_table : str
        Name of the table of samples.
    unfinished_parts : tuple of int
        Numbers of the other jobs (``part="3/8"``) that have not finished. The store is not sealed then:
        `digest` is empty, `files` and `stored_bytes` are 0.
    notes : tuple of str
        Notes for the user.
    skipped : tuple of dict
        One entry for each problem that caused something to be skipped; see `unistore.conversion.skipping`.
    verdicts : tuple of dict
        Results of the files below the given paths: ``verdict`` (``"taken"``, ``"left out"``,
        ``"refused"``), ``why``, ``files`` (their number), and the names of the first as ``examples``.
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
    unfinished_parts: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    skipped: tuple[Mapping[str, Any], ...] = ()
    verdicts: tuple[CountReport, ...] = ()

    @classmethod
    def from_json(cls, plain: JsonObject) -> Report:
        """Return a report from the JSON of its fields, in which tuples are lists."""
        lists = {name: tuple(value) for name, value in plain.items() if isinstance(value, list)}
        return cls(**{**plain, **lists})

    def __repr__(self) -> str:
        noun = self.sample_table.rpartition("/")[2]
        samples = f"{self.samples:,} {noun} from {count_of(self.sources, 'source')}"
        left_out = f", {len(self.skipped)} skipped" if self.skipped else ""
        left_out += ", unfinished" if self.unfinished_parts else ""
        return f"Report({self.destination!r}: {samples}, {size(self.stored_bytes)}{left_out})"
