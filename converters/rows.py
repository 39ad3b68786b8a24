"""Plain arrays: HDF5, ``.npy`` and ``.npz`` files whose arrays share axis 0, one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.converters.array_files import SUFFIXES, list_arrays, open_arrays
from unistore.converters.columns import (
    Column,
    Columns,
    Merged,
    check_mode,
    missing_value,
    reconcile,
    storable,
)
from unistore.converters.detection import Detection
from unistore.converters.hdf5 import place
from unistore.converters.paths import expand, relative_names, split_of
from unistore.converters.protocol import Emit, Facts, Scan, Settled, Source
from unistore.errors import InputError, Problem
from unistore.schemas.arrays import name_problem
from unistore.schemas.rows import MODALITY, TABLE, row_field
from unistore.schemas.tables import Table

__all__ = ["RowsConverter", "detect"]

_CURE = "take the arrays that belong together by name: --map image=data --map label=label"


class _Origin(NamedTuple):
    """Where a column comes from: an array of the file, and its field if its dtype is structured."""

    array: str
    field: str | None


class _Found(NamedTuple):
    """What one file contributes."""

    rows: int
    columns: dict[str, Column]
    origins: dict[str, _Origin]
    files: tuple[Path, ...]
    compressed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsConverter:
    """Converts plain arrays.

    Attributes
    ----------
    map
        Stored name by the array's name in the file. If given, only these arrays are taken.
    columns
        What to do with arrays that some files lack: ``"exact"`` refuses, ``"union"`` fills them (NaN for
        floats, else 0), ``"intersection"`` leaves them out.
    """

    modality: ClassVar[str] = MODALITY

    map: Mapping[str, str] = field(default_factory=dict)
    columns: Columns = "exact"

    def __post_init__(self) -> None:
        check_mode(self.columns)

    def scan(self, paths: Sequence[Path]) -> Scan:
        """Look at every file's headers; see `Converter.scan`.

        Raises
        ------
        InputError
            With every problem of every file: unreadable, different lengths, dtypes that are no numbers,
            arrays that differ between files.
        """
        files = expand(paths, SUFFIXES)
        names = relative_names(files)
        found: list[tuple[str, Path, _Found]] = []
        problems: list[Problem] = []
        for name, path in zip(names, files, strict=True):
            try:
                found.append((name, path, self._look(path, name, paths)))
            except InputError as error:
                problems += error.problems
        merged, differences = reconcile([(name, each.columns) for name, _, each in found], self.columns)
        problems += differences
        if not problems and not sum(each.rows for _, _, each in found):
            problems.append(Problem(f"{len(files)} file(s)", "hold no rows", kind="empty"))
        if not problems and not merged:
            problems.append(Problem(f"{len(files)} files", "have no array in common", _CURE, "columns"))
        if problems:
            raise InputError(problems)
        return self._scanned(found, merged)

    def _look(self, path: Path, name: str, roots: Sequence[Path]) -> _Found:
        """Rows and columns of one file, or an InputError with all its problems."""
        listed = list_arrays(path, name, roots)
        wanted = self._wanted(list(listed.arrays), name)
        problems = [each for each in listed.problems if not self.map or _concerns(each, name, self.map)]
        rows, differing = _common_length({key: listed.arrays[key][0] for key in wanted.values()}, name)
        problems += differing
        columns: dict[str, Column] = {}
        origins: dict[str, _Origin] = {}
        for column, key in wanted.items():
            shape, dtype = listed.arrays[key]
            for part, form, part_field in _parts(column, dtype, shape[1:]):
                problems += _form_problems(part, form, place(name, key))
                columns[part] = form
                origins[part] = _Origin(key, part_field)
        problems += _nesting(list(columns), name)
        if not wanted and not problems:
            problems.append(Problem(name, "holds no arrays", kind="missing"))
        if problems:
            raise InputError(problems)
        compressed = any(origin.array in listed.compressed for origin in origins.values())
        return _Found(rows, columns, origins, listed.files, compressed)

    def _wanted(self, present: Sequence[str], name: str) -> dict[str, str]:
        """Array in the file by stored name."""
        if not self.map:
            return {key: key for key in present}
        absent = [key.strip("/") for key in self.map.values() if key.strip("/") not in present]
        if absent and self.columns == "exact":
            listed = ", ".join(present) or "none"
            raise InputError(
                [
                    Problem(place(name, key), f"is not there; arrays: {listed}", kind="missing")
                    for key in absent
                ]
            )
        return {to: key.strip("/") for to, key in self.map.items() if key.strip("/") not in absent}

    def _scanned(self, found: Sequence[tuple[str, Path, _Found]], merged: Mapping[str, Merged]) -> Scan:
        sources = tuple(
            Source(
                path=path,
                name=name,
                files=each.files,
                rows={TABLE: each.rows},
                split=split_of(name),
                detail={column: list(origin) for column, origin in each.origins.items() if column in merged},
            )
            for name, path, each in found
        )
        fields = tuple(row_field(name, m.dtype, m.row_shape, m.attributes) for name, m in merged.items())
        total = sum(each.rows for _, _, each in found)
        notes = [f"plain arrays: {total} rows of {', '.join(merged)} from {len(found)} file(s)"]
        splits = sorted({source.split for source in sources if source.split is not None})
        if splits:
            notes.append(f"splits taken from folder and file names: {', '.join(splits)}")
        compressed = [name for name, _, each in found if each.compressed]
        if compressed:
            notes.append(
                f"{compressed[0]}{' and others' * (len(compressed) > 1)}: compressed .npz, "
                "read from the start for every shard; np.savez (uncompressed) converts faster"
            )
        return Scan(
            modality=MODALITY,
            sources=sources,
            tables=(Table(name=TABLE, fields=fields),),
            sample_table=TABLE,
            main_table=TABLE,
            options={"map": dict(self.map), "columns": self.columns},
            notes=tuple(notes),
        )

    def read(
        self, scan: Scan, table: str, source: int, lo: int, hi: int, out: Mapping[str, NDArray[Any]]
    ) -> None:
        """Read rows ``lo:hi`` of a source; see `Converter.read`."""
        origin = scan.sources[source]
        by_array: dict[str, dict[str, str | None]] = {}
        for column, target in out.items():
            if column not in origin.detail:
                target[...] = missing_value(target.dtype.name)
                continue
            array, part = origin.detail[column]
            by_array.setdefault(array, {})[column] = part
        with open_arrays(origin.path, origin.name) as read:
            for array, columns in by_array.items():
                rows = read(array, lo, hi)
                for column, part in columns.items():
                    np.copyto(out[column], rows if part is None else rows[part], casting="same_kind")

    def derive(self, scan: Scan, source: int, emit: Emit) -> Facts:
        """Nothing is derived: rows are read straight into shards."""
        return {}

    def settle(self, scan: Scan, facts: Sequence[Facts]) -> Settled:
        """One sample a row."""
        rows = [source.rows[TABLE] for source in scan.sources]
        return Settled(
            arrays=(), samples=sum(rows), sample_source=np.repeat(np.arange(len(rows), dtype=np.int64), rows)
        )

    def pack(
        self, scan: Scan, table: Table, column: str, source: int, rows: NDArray[Any], out: NDArray[Any]
    ) -> None:
        """Copy rows; never called by a runner, since no table is spilled."""
        np.copyto(out, rows, casting="same_kind")


def _common_length(shapes: Mapping[str, tuple[int, ...]], name: str) -> tuple[int, list[Problem]]:
    """Rows that all arrays share, or a Problem holding the table of lengths."""
    lengths = {key: shape[0] if shape else None for key, shape in shapes.items()}
    if len(set(lengths.values())) <= 1 and None not in lengths.values():
        return next((length for length in lengths.values() if length is not None), 0), []
    width = max(map(len, lengths))
    table = "\n".join(
        f"    {key.ljust(width)}  {'scalar' if length is None else length}" for key, length in lengths.items()
    )
    return 0, [Problem(name, f"arrays do not share axis 0; their lengths:\n{table}\n   ", _CURE, "length")]


def _parts(
    column: str, dtype: np.dtype[Any], row_shape: tuple[int, ...]
) -> list[tuple[str, Column, str | None]]:
    """One column for a plain dtype, one a field for a structured one."""
    if dtype.names is None or dtype.fields is None:
        return [(column, Column(dtype.str, row_shape), None)]
    parts: list[tuple[str, Column, str | None]] = []
    for part in dtype.names:
        base, inner = dtype.fields[part][0].base, dtype.fields[part][0].shape
        parts.append((f"{column}/{part}", Column(base.str, (*row_shape, *inner)), part))
    return parts


def _form_problems(column: str, form: Column, location: str) -> list[Problem]:
    problems = []
    if not storable(np.dtype(form.dtype)):
        message = f"has dtype {np.dtype(form.dtype)}, which is not bool, integer or float of up to 8 bytes"
        problems.append(Problem(location, message, "store numbers, or leave it out with --map", "dtype"))
    if (reason := name_problem(column)) is not None:
        cure = "rename it with --map NAME=ARRAY"
        problems.append(Problem(location, f"cannot be an array's name: {reason}", cure, "name"))
    if prod(form.row_shape) == 0:
        message = f"has rows of shape {form.row_shape}, which hold no values"
        problems.append(Problem(location, message, "leave it out with --map", "empty"))
    return problems


def _nesting(columns: Sequence[str], name: str) -> list[Problem]:
    """An array cannot lie inside another one."""
    inner = [(column, outer) for column in columns for outer in columns if column.startswith(f"{outer}/")]
    cure = "rename one with --map NAME=ARRAY"
    return [
        Problem(place(name, column), f"lies inside the array {outer!r}", cure, "name")
        for column, outer in inner
    ]


def _concerns(problem: Problem, name: str, wanted: Mapping[str, str]) -> bool:
    return problem.location in {place(name, key) for key in wanted.values()}


def detect(paths: Sequence[Path]) -> Detection | None:
    """Recognise files of arrays that share axis 0; asked last, since this takes whatever fits."""
    try:
        files = expand(paths, SUFFIXES)
    except InputError:
        return None
    known = [path for path in files if path.suffix.lower() in SUFFIXES]
    if not known or len(known) < len(files):
        return None
    kinds = ", ".join(sorted({path.suffix.lower() for path in known}))
    return Detection(MODALITY, "arrays", f"{len(known)} file(s) of arrays ({kinds}), of no other family")
