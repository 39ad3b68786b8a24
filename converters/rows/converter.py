"""Convert plain arrays: HDF5, ``.npy`` and ``.npz`` files whose arrays share axis 0, concatenated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.columns import Column, Merged, missing_value, reconcile, storable
from unistore.converters.common.exclusion import Exclusion
from unistore.converters.common.left_out import BOOKKEEPING, NOT_EVERYWHERE, NOT_MAPPED, left_out_notes
from unistore.converters.files.arrays import (
    NPY_NAME,
    SUFFIXES,
    ArrayFile,
    list_arrays,
    open_arrays,
    with_reversed_axes,
)
from unistore.converters.files.formats import has_ending
from unistore.converters.files.hdf5.attributes import AttributeCollector, Attributes, attribute_arrays
from unistore.converters.files.hdf5.file import location_of
from unistore.converters.files.npy.grouping import group_files
from unistore.converters.files.paths import expanded, relative_names, split_of
from unistore.converters.parts import Candidate, Found, LeftOut, Part, Parts, Scanned, Taken, Verdict
from unistore.converters.protocol import Converter, Facts, Finalized, Scan, Sources
from unistore.converters.rows.columns import column_problems, common_length, fields_of, nesting_problems
from unistore.converters.rows.options import RowsOptions
from unistore.errors import InputError, Problem, first_few, printable
from unistore.schemas.rows.fields import FAMILY_NAME, TABLE, row_field
from unistore.schemas.tables import Table
from unistore.system.sizes import count_of

T = TypeVar("T")

_REVERSE = "where rows are on the last axis: --reverse-axes"
_MATLAB = b"MATLAB 7.3 MAT-file"


class _Origin(NamedTuple):
    """Origin of a column: file of the part and array; for records also the field, and the rows per read."""

    file: int
    array: str
    field: str | None
    step: int = 0

    @property
    def name(self) -> str:
        """Array, and field of its records."""
        return self.array if self.field is None else f"{self.array}/{self.field}"


_ALIKE = 256
_origin = lru_cache(_ALIKE)(_Origin)


@lru_cache(_ALIKE)
def _same(items: tuple[tuple[str, T], ...]) -> dict[str, T]:
    """The same dictionary for the same items: those of many files are packed, and sent, as one."""
    return dict(items)


class _Group(NamedTuple):
    """Names of the files of a part, and their arrays as in `FileGroup`."""

    names: tuple[str, ...]
    arrays: tuple[str, ...] | None


@dataclass(frozen=True, kw_only=True)
class _Found(Scanned):
    """Columns of one part, and how to read them."""

    rows: int
    columns: dict[str, Column]
    origins: dict[str, _Origin]
    linked: tuple[str, ...]
    compressed: bool
    reading: int
    attributes: Attributes
    left_out: tuple[tuple[str, str], ...]


class RowsConverter(RowsOptions, Converter):
    """Converts plain arrays; see `RowsOptions`."""

    family: ClassVar[str] = FAMILY_NAME
    suffixes: ClassVar[tuple[str, ...]] = SUFFIXES

    def look(self, file: Candidate) -> Verdict:
        """Take every file that holds numbers; this family is asked last."""
        if not has_ending(file.path, self.suffixes):
            return LeftOut(f"is no {', '.join(self.suffixes)} file")
        listed = list_arrays(file.path, file.path.name, file.roots)
        if not any(storable(dtype) or dtype.names for _, dtype in listed.arrays.values()):
            return LeftOut("holds no arrays of numbers")
        return Taken("arrays", f"holds arrays ({', '.join(map(printable, list(listed.arrays)[:3]))})")

    def find(self, paths: Sequence[Path], exclusion: Exclusion) -> Found:
        """One part per file; ``.npy`` files of a folder may be columns of one part, see `group_files`."""
        files = [path for path in expanded(paths, self.suffixes) if not exclusion.is_other_family(path)]
        named = [
            each for each in zip(relative_names(files), files, strict=True) if not exclusion.covers(each[0])
        ]
        groups, problems = group_files(named)
        parts = Parts(roots=tuple(paths))
        for group in groups:
            detail = _Group(tuple(name for name, _ in group.files), group.arrays)
            parts.add(group.name, (path for _, path in group.files), detail)
        return Found(parts=parts, problems=problems)

    def scan(self, part: Part) -> _Found:
        """Read the headers of one part; see `Converter.scan`."""
        group: _Group = part.detail
        chosen = {key.strip("/") for key in self.map.values()}
        listed = [
            list_arrays(path, name, part.roots, lambda key: not chosen or key in chosen)
            for name, path in zip(group.names, part.files, strict=True)
        ]
        if self.reverse_axes:
            listed = [with_reversed_axes(each) for each in listed]
        arrays = _origins(group, listed)
        wanted = self._mapped_arrays(list(arrays), part.name)
        problems = [
            each
            for file in listed
            for each in file.problems
            if not self.map
            or each.dataset in {location_of(part.name, key).dataset for key in self.map.values()}
        ]
        shapes = {key: listed[arrays[key].file].arrays[arrays[key].array][0] for key in wanted.values()}
        rows, differing = common_length(shapes, part.name)
        if differing and not self.reverse_axes:
            backwards = {key: shape[::-1] for key, shape in shapes.items()}
            if not common_length(backwards, part.name)[1]:
                differing = [replace(each, cure=f"{_REVERSE}; or {each.cure}") for each in differing]
        problems += differing
        columns: dict[str, Column] = {}
        origins: dict[str, _Origin] = {}
        for column, key in wanted.items():
            shape, dtype = listed[arrays[key].file].arrays[arrays[key].array]
            for name, form, inner in fields_of(column, dtype, shape[1:]):
                place = location_of(part.name, key)
                problems += [
                    replace(problem, file=place.file, dataset=place.dataset)
                    for problem in column_problems(name, form)
                ]
                columns[name] = form
                file, array, *_ = arrays[key]
                origins[name] = _origin(file, array, inner, listed[file].steps.get(array, 0))
        problems += nesting_problems(list(columns), part.name)
        if not wanted and not problems:
            problems.append(Problem(part.name, "holds no arrays", kind="missing"))
        if problems:
            raise InputError(problems)
        return _Found(
            rows=rows,
            columns=_same(tuple(columns.items())),
            origins=_same(tuple(origins.items())),
            linked=tuple(dict.fromkeys(str(p) for e in listed for p in e.files if p not in part.files)),
            compressed=any(origin.array in listed[origin.file].compressed for origin in origins.values()),
            reading=max((file.reading for file in listed), default=0),
            attributes=listed[0].attributes,
            left_out=(
                *((key, NOT_MAPPED) for key in arrays if key not in wanted.values()),
                *((key, NOT_MAPPED) for file in listed for key in file.unreadable),
                *((key, BOOKKEEPING) for file in listed for key in file.bookkeeping),
            ),
        )

    def _mapped_arrays(self, present: Sequence[str], name: str) -> dict[str, str]:
        """Array in the part of each stored name."""
        if not self.map:
            return {key: key for key in present}
        absent = [key.strip("/") for key in self.map.values() if key.strip("/") not in present]
        if absent and self.columns == "exact":
            listed = printable(", ".join(present)) or "none"
            raise InputError(
                [
                    Problem.at(location_of(name, key), f"is not there; arrays: {listed}", kind="missing")
                    for key in absent
                ]
            )
        return {to: key.strip("/") for to, key in self.map.items() if key.strip("/") not in absent}

    def gather(self, parts: Parts, scanned: Sequence[_Found]) -> Scan:
        """Merge the columns of all parts; see `reconcile`."""
        named = ((name, each.columns) for name, each in zip(parts.names, scanned, strict=True))
        merged, problems = reconcile(named, self.columns)
        if not problems and not any(each.rows for each in scanned):
            problems.append(Problem(first_few(parts.names), "no rows", "check what wrote it", "empty"))
        if not problems and not merged:
            problems.append(Problem("files", "have no array in common", "convert them apart", "columns"))
        if problems:
            raise InputError(problems)
        texts, sources = AttributeCollector(), Sources()
        origins = lru_cache(_ALIKE)(lambda items: {key: list(of) for key, of in items if key in merged})
        count = alone = 0
        compressed, by_matlab = [], ""
        left_out: dict[tuple[str, str], None] = {}
        for name, files, group, each in zip(parts.names, parts.files(), parts.details, scanned, strict=True):
            count += len(files)
            alone += group.arrays == (NPY_NAME,)
            compressed += [name] * each.compressed
            left_out |= dict.fromkeys(each.left_out)
            partial = (origin for key, origin in each.origins.items() if key not in merged)
            left_out |= dict.fromkeys((origin.name, NOT_EVERYWHERE) for origin in partial)
            if not by_matlab and name.lower().endswith(".mat") and not self.reverse_axes:
                by_matlab = name if _by_matlab(files[0]) else ""
            sources.add(
                name=name,
                files=(*files, *each.linked),
                rows={TABLE: each.rows},
                split=split_of(name),
                detail={
                    "files": list(group.names),
                    "columns": origins(tuple(each.origins.items())),
                    **texts.detail(name, each.attributes, _stored(each, merged)),
                },
                reading=each.reading,
            )
        return Scan(
            family=FAMILY_NAME,
            sources=sources,
            tables=(
                Table(
                    name=TABLE,
                    fields=tuple(
                        row_field(name, form.dtype, form.row_shape, form.attributes)
                        for name, form in merged.items()
                    ),
                ),
            ),
            sample_table=TABLE,
            main_table=TABLE,
            options=self.recorded(),
            notes=(
                *_notes(count, alone, compressed, by_matlab, merged, sources),
                *left_out_notes(left_out),
                *texts.notes(),
            ),
        )

    def read(
        self, scan: Scan, table: str, source: int, lo: int, hi: int, out: Mapping[str, NDArray[Any]]
    ) -> None:
        """Read rows ``lo:hi`` of a source; see `Converter.read`."""
        detail, paths = scan.sources.details[source], scan.sources.paths(source)
        wanted: dict[int, dict[tuple[str, int], dict[str, str | None]]] = {}
        for column, target in out.items():
            if column not in detail["columns"]:
                target[...] = missing_value(target.dtype.name)
                continue
            file, array, inner, step = detail["columns"][column]
            wanted.setdefault(file, {}).setdefault((array, step or max(1, hi - lo)), {})[column] = inner
        for file, arrays in wanted.items():
            name = detail["files"][file]
            with open_arrays(Path(paths[file]), name, reverse_axes=self.reverse_axes) as read:
                for (array, step), columns in arrays.items():
                    for first in range(lo, hi, step):
                        targets = {column: out[column][first - lo :][:step] for column in columns}
                        whole = next(iter(targets.values())) if set(columns.values()) == {None} else None
                        rows = read(array, first, min(first + step, hi), whole)
                        for column, inner in columns.items():
                            if rows is not targets[column]:
                                values = rows if inner is None else rows[inner]
                                np.copyto(targets[column], values, casting="same_kind")

    def finalize(self, scan: Scan, facts: Sequence[Facts]) -> Finalized:
        """One sample per row, and the attributes of the files."""
        arrays = attribute_arrays(scan.sources.details)
        return replace(super().finalize(scan, facts), arrays=arrays)


def _by_matlab(path: str) -> bool:
    with Path(path).open("rb") as file:
        return file.read(len(_MATLAB)) == _MATLAB


def _origins(group: _Group, listed: Sequence[ArrayFile]) -> dict[str, _Origin]:
    """Origin of each array of a part, by name."""
    if group.arrays is not None:
        return {name: _origin(file, NPY_NAME, None) for file, name in enumerate(group.arrays)}
    return {name: _origin(0, name, None) for name in listed[0].arrays}


def _stored(found: _Found, merged: Mapping[str, Merged]) -> Callable[[str], bool]:
    """Function that says whether the object at a path is stored: all groups, and datasets of columns."""
    left_out = {origin.array for key, origin in found.origins.items() if key not in merged}
    left_out -= {origin.array for key, origin in found.origins.items() if key in merged}
    return lambda path: path not in left_out


def _notes(
    files: int,
    alone: int,
    compressed: Sequence[str],
    by_matlab: str,
    merged: Mapping[str, Merged],
    sources: Sources,
) -> list[str]:
    """Remarks; `alone` files are parts of one array, `by_matlab` is the first file that MATLAB wrote."""
    total = sum(sources.rows(TABLE))
    notes = [f"plain arrays: {total} rows of {printable(', '.join(merged))} from {count_of(files, 'file')}"]
    if alone > 1:
        notes.append(f"{alone} .npy files of like rows: parts of one array, one after the other")
    splits = sorted({split for split in sources.splits if split is not None})
    if splits:
        notes.append(f"splits taken from folder and file names: {', '.join(splits)}")
    if compressed:
        others = " and others" if len(compressed) > 1 else ""
        notes.append(
            f"{compressed[0]}{others}: compressed .npz, read from the start for every shard; "
            "np.savez (uncompressed) converts faster"
        )
    if by_matlab:
        name = by_matlab.rpartition("/")[2]
        notes.append(f"{name}: written by MATLAB, which reverses axes; {_REVERSE}")
    return notes
