"""What a converter is: options in the constructor, then look, find, scan, gather, derive, settle, read.

======================  ==============================  =====================================================
``look(file)``          once a file                     is it one of the family's, by its content
``find(paths)``         once                            which files make a source together, by their names
``scan(part)``          once a source                   its headers: shapes and dtypes
``gather(scanned)``     once                            what holds for all sources: tables and their columns
``derive(source)``      once a source, if needed        all its values: what only they tell, or rows to keep
``settle(facts)``       once                            index arrays, and the final form of derived tables
``read(rows)``          in any order, any process       rows that a shard needs
======================  ==============================  =====================================================

A converter is a frozen dataclass of its options that can be pickled. It keeps no open file between calls and
opens sources itself (h5py handles never cross a process). It imports neither the store nor the engine.
`unistore.converters.survey` asks the first, `unistore.converters.scanning` the next three,
`unistore.conversion` the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.exclusion import Exclusion
from unistore.converters.files.paths import expand, relative_names
from unistore.converters.parts import Candidate, Found, Part, Scanned, Verdict
from unistore.converters.scan import Scan, Settled, Source, Sources
from unistore.schemas.tables import Table
from unistore.system.packed import Packed

__all__ = [
    "Candidate",
    "Converter",
    "Emit",
    "Facts",
    "Found",
    "Part",
    "Scan",
    "Scanned",
    "Settled",
    "Source",
    "Sources",
    "Verdict",
]

Facts = Mapping[str, NDArray[Any]]
"""Small arrays that a source contributes to the index (segment lengths, origins, …)."""

Emit = Callable[[str, str, NDArray[Any]], None]
"""``emit(table, column, rows)`` appends rows, axis 0 first, to a spilled column of this source.

Rows of one column may come in several dtypes: ``pack`` is given each run of the same as it came."""


class Converter(Protocol):
    """Reads one family of sources: base of frozen dataclasses whose fields are the options.

    Attributes
    ----------
    family
        Name of the family: ``"point_cloud"``.
    concurrent
        Whether ``scan`` and ``read`` may be at work on several sources at once, in threads: for files that
        are read without HDF5, which threads may not share.
    by_content
        Whether ``scan`` tells in `Scanned.certain` if a file is surely of the family: no other family is then
        asked about it.
    planar
        Whether ``read_planes`` can read a part of a row, so that rows larger than memory can be written.
    """

    family: ClassVar[str]
    concurrent: ClassVar[bool] = False
    by_content: ClassVar[bool] = False
    planar: ClassVar[bool] = False
    exclude: tuple[str, ...]

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Lower-case endings of the files that are taken from folders; mostly a constant of the class."""
        ...

    def look(self, file: Candidate) -> Verdict:
        """Whether a file is one of the family's, by its name and content; files of others are left out.

        What is raised is the file's Problem. Another file may be looked for, not into: only a partner, as an
        image has in its mask, may change the verdict.
        """
        ...

    def find(self, paths: Sequence[Path], exclusion: Exclusion) -> Found:
        """Which files make a source together, by names alone; here each file of `suffixes` is a source.

        Parameters
        ----------
        paths
            Files and folders as the user gave them.
        exclusion
            What is to be left out. Parts whose names it covers need not be left out here, but files that
            are another family's (`Exclusion.is_other_family`) are to be passed over.

        Raises
        ------
        InputError
            If a path does not exist, holds nothing suitable, or leads elsewhere.
        """
        files = Packed(path for path in expand(paths, self.suffixes) if not exclusion.is_other_family(path))
        named = zip(relative_names(files), files, strict=True)
        return Found(parts=Packed(Part(name=name, files=(path,), roots=tuple(paths)) for name, path in named))

    def scan(self, part: Part) -> Scanned:
        """What a source holds, without reading all values; in any order, in any process.

        Raises
        ------
        InputError
            With every problem of the source.
        """
        ...

    def gather(self, parts: Sequence[Part], scanned: Sequence[Any]) -> Scan:
        """Bring all sources to one form; `scanned` holds what ``scan`` gave for each of `parts`.

        Where other sources have problems, this is called for those that have none, to report what these
        contradict each other in.

        Raises
        ------
        InputError
            With everything that the sources do not agree on.
        """
        ...

    def derive(self, scan: Scan, source: int, emit: Emit, folder: Path | None) -> Facts:
        """Read a source once, emit its rows of every spilled table, and return its index facts.

        Called if a table of the scan is spilled, or it needs facts. `folder` is an empty one for files of
        what memory does not hold, of which none is left there; None: hold everything in memory, which is
        faster, and takes `Source.memory_in_core`.
        """
        return {}

    def settle(self, scan: Scan, facts: Sequence[Facts]) -> Settled:
        """Index arrays and final spilled tables; ``facts`` in source order (empty if nothing is derived).

        Here for families without any of both: each row of the main table is a sample.
        """
        rows = np.array(scan.sources.rows(scan.main_table), np.int64)
        return Settled(
            arrays=(), samples=int(rows.sum()), sample_source=np.arange(len(rows)), sample_runs=rows
        )

    def read(
        self, scan: Scan, table: str, source: int, lo: int, hi: int, out: Mapping[str, NDArray[Any]]
    ) -> None:
        """Read rows ``lo:hi`` (counted inside the source) of a direct table.

        ``out[column]`` has shape ``(hi - lo, *row_shape)``, is already filled with the field's fill value
        and is written in place, so that smaller rows are padded without a copy.
        """
        msg = f"{type(self).__name__} has no table {table!r} that is read"
        raise NotImplementedError(msg)

    def read_planes(
        self, scan: Scan, table: str, source: int, lo: int, hi: int, out: Mapping[str, NDArray[Any]]
    ) -> None:
        """Read planes ``lo:hi`` (of axis 1) of the only row that a source has in a direct table.

        ``out[column]``, any of the table's columns, has shape ``(1, hi - lo, …)``, is already filled with the
        field's fill value, and becomes what these planes of the row are after ``read``.
        """
        msg = f"{type(self).__name__} reads whole rows"
        raise NotImplementedError(msg)

    def pack(
        self, scan: Scan, table: Table, column: str, source: int, rows: NDArray[Any], out: NDArray[Any]
    ) -> None:
        """Copy spilled rows of one dtype into the shard's memory, converting to the settled one."""
        np.copyto(out, rows, casting="same_kind")
