"""Plain arrays: HDF5, ``.npy`` and ``.npz`` files whose arrays share axis 0, one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.columns import (
    Column,
    Merged,
    missing_value,
    reconcile,
)
from unistore.converters.common.exclusion import Collected, Exclusion
from unistore.converters.detection import Detection
from unistore.converters.files.arrays import NPY_NAME, SUFFIXES, ArrayFile, list_arrays, open_arrays
from unistore.converters.files.hdf5.file import place
from unistore.converters.files.npy.parts import Part, parts_of
from unistore.converters.files.paths import expand, relative_names, split_of
from unistore.converters.protocol import Converter, Facts, Scan, Settled, Source
from unistore.converters.rows.forms import CURE, common_length, fields_of, form_problems, nesting
from unistore.converters.rows.options import RowsOptions
from unistore.errors import InputError, Problem, printable
from unistore.schemas.rows.fields import FAMILY_NAME, TABLE, row_field
from unistore.schemas.tables import Table

__all__ = ["RowsConverter", "detect"]


class _Origin(NamedTuple):
    """Where a column comes from: a file of the part, its array; of records the field, and rows at a time."""

    file: int
    array: str
    field: str | None
    step: int = 0


class _Found(NamedTuple):
    """What one part contributes."""

    part: Part
    rows: int
    columns: dict[str, Column]
    origins: dict[str, _Origin]
    files: tuple[Path, ...]
    compressed: bool
    reading: int


class RowsConverter(RowsOptions, Converter):
    """Converts plain arrays; see `RowsOptions`."""

    family: ClassVar[str] = FAMILY_NAME

    def scan(self, paths: Sequence[Path]) -> Scan:
        """Look at every file's headers; see `Converter.scan`.

        Raises
        ------
        InputError
            With every problem of every file: unreadable, different lengths, dtypes that are no numbers,
            arrays that differ between files.
        """
        files = expand(paths, SUFFIXES)
        exclusion = Exclusion(self.exclude)
        named = [
            each for each in zip(relative_names(files), files, strict=True) if not exclusion.covers(each[0])
        ]
        found: list[_Found] = []
        parts, problems = parts_of(named)
        collected = Collected(problems)
        for part in parts:
            if exclusion.covers(part.name):
                continue
            with collected.attempt(part.name, part.name):
                found.append(self._look(part, paths))
        merged, differences = reconcile([(each.part.name, each.columns) for each in found], self.columns)
        problems += differences
        if not problems and not sum(each.rows for each in found):
            names = ", ".join(each.part.name for each in found[:5]) + (", …" if len(found) > 5 else "")
            problems.append(Problem(names, "no rows", "check what wrote it", "empty"))
        if not problems and not merged:
            problems.append(Problem(f"{len(files)} files", "have no array in common", CURE, "columns"))
        if problems:
            raise InputError(problems)
        return self._scanned(found, merged, exclusion)

    def _look(self, part: Part, roots: Sequence[Path]) -> _Found:
        """Rows and columns of one part, or an InputError with all its problems."""
        listed = [list_arrays(path, name, roots) for name, path in part.files]
        arrays = _arrays(part, listed)
        wanted = self._wanted(list(arrays), part.name)
        problems = [
            each
            for file in listed
            for each in file.problems
            if not self.map or each.location in {place(part.name, key) for key in self.map.values()}
        ]
        shapes = {key: listed[arrays[key].file].arrays[arrays[key].array][0] for key in wanted.values()}
        rows, differing = common_length(shapes, part.name)
        problems += differing
        columns: dict[str, Column] = {}
        origins: dict[str, _Origin] = {}
        for column, key in wanted.items():
            shape, dtype = listed[arrays[key].file].arrays[arrays[key].array]
            for name, form, inner in fields_of(column, dtype, shape[1:]):
                problems += form_problems(name, form, place(part.name, key))
                columns[name] = form
                steps = listed[arrays[key].file].steps
                origins[name] = arrays[key]._replace(field=inner, step=steps.get(arrays[key].array, 0))
        problems += nesting(list(columns), part.name)
        if not wanted and not problems:
            problems.append(Problem(part.name, "holds no arrays", kind="missing"))
        if problems:
            raise InputError(problems)
        compressed = any(origin.array in listed[origin.file].compressed for origin in origins.values())
        files = dict.fromkeys(
            [path for _, path in part.files] + [path for each in listed for path in each.files]
        )
        reading = max((file.reading for file in listed), default=0)
        return _Found(part, rows, columns, origins, tuple(files), compressed, reading)

    def _wanted(self, present: Sequence[str], name: str) -> dict[str, str]:
        """Array in the part by stored name."""
        if not self.map:
            return {key: key for key in present}
        absent = [key.strip("/") for key in self.map.values() if key.strip("/") not in present]
        if absent and self.columns == "exact":
            listed = printable(", ".join(present)) or "none"
            raise InputError(
                [
                    Problem(place(name, key), f"is not there; arrays: {listed}", kind="missing")
                    for key in absent
                ]
            )
        return {to: key.strip("/") for to, key in self.map.items() if key.strip("/") not in absent}

    def _scanned(self, found: Sequence[_Found], merged: Mapping[str, Merged], exclusion: Exclusion) -> Scan:
        sources = tuple(
            Source(
                path=each.part.files[0][1],
                name=each.part.name,
                files=each.files,
                rows={TABLE: each.rows},
                split=split_of(each.part.name),
                detail={
                    "files": [name for name, _ in each.part.files],
                    "columns": {key: list(origin) for key, origin in each.origins.items() if key in merged},
                },
                reading=each.reading,
            )
            for each in found
        )
        fields = tuple(
            row_field(name, form.dtype, form.row_shape, form.attributes) for name, form in merged.items()
        )
        return Scan(
            family=FAMILY_NAME,
            sources=sources,
            tables=(Table(name=TABLE, fields=fields),),
            sample_table=TABLE,
            main_table=TABLE,
            options=self.recorded(),
            notes=(*_notes(found, merged, sources), *exclusion.notes()),
        )

    def read(
        self, scan: Scan, table: str, source: int, lo: int, hi: int, out: Mapping[str, NDArray[Any]]
    ) -> None:
        """Read rows ``lo:hi`` of a source; see `Converter.read`."""
        origin = scan.sources[source]
        wanted: dict[int, dict[tuple[str, int], dict[str, str | None]]] = {}
        for column, target in out.items():
            if column not in origin.detail["columns"]:
                target[...] = missing_value(target.dtype.name)
                continue
            file, array, inner, step = origin.detail["columns"][column]
            wanted.setdefault(file, {}).setdefault((array, step or max(1, hi - lo)), {})[column] = inner
        for file, arrays in wanted.items():
            with open_arrays(origin.files[file], origin.detail["files"][file]) as read:
                for (array, step), columns in arrays.items():
                    for first in range(lo, hi, step):
                        targets = {column: out[column][first - lo :][:step] for column in columns}
                        whole = next(iter(targets.values())) if set(columns.values()) == {None} else None
                        rows = read(array, first, min(first + step, hi), whole)
                        for column, inner in columns.items():
                            if rows is not targets[column]:
                                values = rows if inner is None else rows[inner]
                                np.copyto(targets[column], values, casting="same_kind")

    def settle(self, scan: Scan, facts: Sequence[Facts]) -> Settled:
        """One sample a row."""
        rows = np.array([source.rows[TABLE] for source in scan.sources], np.int64)
        return Settled(
            arrays=(), samples=int(rows.sum()), sample_source=np.arange(len(rows)), sample_runs=rows
        )


def _arrays(part: Part, listed: Sequence[ArrayFile]) -> dict[str, _Origin]:
    """Where each array of a part lies, by its name."""
    if part.arrays is not None:
        return {name: _Origin(file, NPY_NAME, None) for file, name in enumerate(part.arrays)}
    return {name: _Origin(0, name, None) for name in listed[0].arrays}


def _notes(found: Sequence[_Found], merged: Mapping[str, Merged], sources: Sequence[Source]) -> list[str]:
    total, files = sum(each.rows for each in found), sum(len(each.part.files) for each in found)
    notes = [f"plain arrays: {total} rows of {printable(', '.join(merged))} from {files} file(s)"]
    parts = [each for each in found if each.part.arrays == (NPY_NAME,)]
    if len(parts) > 1:
        notes.append(f"{len(parts)} .npy files of like rows: parts of one array, one after the other")
    splits = sorted({source.split for source in sources if source.split is not None})
    if splits:
        notes.append(f"splits taken from folder and file names: {', '.join(splits)}")
    compressed = [each.part.name for each in found if each.compressed]
    if compressed:
        others = " and others" if len(compressed) > 1 else ""
        notes.append(
            f"{compressed[0]}{others}: compressed .npz, read from the start for every shard; "
            "np.savez (uncompressed) converts faster"
        )
    return notes


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
    return Detection(FAMILY_NAME, "arrays", f"{len(known)} file(s) of arrays ({kinds}), of no other family")
