"""Which arrays of a file are columns, and which files belong together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from unistore.converters.adapter.sources import common_length
from unistore.converters.array import FieldOf
from unistore.converters.common.columns import NOT_MAPPED, is_text, storable
from unistore.converters.files.npy import NPY_NAME
from unistore.converters.formats.images import encoding_of
from unistore.converters.rows.grouping import group_files
from unistore.converters.rows.options import RowsOptions
from unistore.errors import AddOptions, first_few, location_of, printable
from unistore.plugin import (
    Array,
    Chosen,
    Claim,
    Column,
    FileSummary,
    Grouping,
    InputError,
    OpenFile,
    Problem,
    SourceFile,
    no,
    sure,
)
from unistore.schemas.ragged import RAGGED_SUFFIX, TEXT_SUFFIX
from unistore.system.types import Dtype, Shape

if TYPE_CHECKING:
    from unistore.converters.formats.split_groups import SplitGroup

_REVERSE = AddOptions(("--reverse-axes",), "if rows are on the last axis")
_MATLAB = b"MATLAB 7.3 MAT-file"
_JOINED = "files concatenated in natural order"
_FEW = 8  # rows that are searched for a first picture
SPLIT_GROUPS = "split_groups"  # metadata of a file: its groups that are splits, each with its rows
_ALIKE = 256  # arrays of many files have the same names and dtypes


_UNREADABLE = ("damaged", "filter", "unwritten")


def match(head: FileSummary) -> Claim:
    """Take every file that holds numbers. This family is asked last."""
    if not any(storable(dtype) or dtype.names for _, dtype in head.arrays.values()):
        # Arrays that cannot be read are why there are none: no other family would say so
        if unreadable := [problem for problem in head.problems if problem.kind in _UNREADABLE]:
            raise InputError(unreadable)
        return no("contains no arrays of numbers")
    return sure(f"contains arrays ({', '.join(map(printable, list(head.arrays)[:3]))})", "arrays")


def group(files: Sequence[SourceFile]) -> Grouping:
    """Group ``.npy`` files of a folder that are columns of the same rows, see `group_files`."""
    groups, problems = group_files(files)
    parts = sum(group.arrays == (NPY_NAME,) for group in groups)
    notes = []
    if parts > 1:
        notes.append(f"{parts:,} .npy files with rows of the same form are read as parts of one array")
    if partitions := _hive_partitions(files):
        notes.append(
            f"names of folders state {printable(first_few(partitions))} (Hive partitions of Parquet files), "
            "which is not stored; write it into the files as a column"
        )
    return Grouping(sources=[*groups], problems=problems, notes=notes)


def _hive_partitions(files: Sequence[SourceFile]) -> list[str]:
    """Return the columns whose values only folders of Parquet files state, as ``label=0/part.parquet``."""
    partitions: dict[str, None] = {}
    for file in files:
        if file.format == "parquet":
            folders = file.name.split("/")[:-1]
            partitions |= dict.fromkeys(folder.partition("=")[0] for folder in folders if "=" in folder[1:])
    return list(partitions)


class _Place(NamedTuple):
    """An array, or a field of an array of records, that becomes a column."""

    array: str
    field: str
    dtype: Dtype
    is_ragged: bool  # texts, pictures, or rows of any length
    is_picture: bool = False

    @property
    def key(self) -> str:
        """What ``--map`` calls it."""
        return f"{self.array}/{self.field}" if self.field else self.array


def choose(options: RowsOptions, head: FileSummary) -> Chosen:
    """Take all arrays, or those that ``--map`` names, of arrays of records every field."""
    ragged = {key: array for key, array in head.opened.of_any_length.items() if array.value_form is not None}
    shapes = {key: shape for key, (shape, _) in head.arrays.items()}
    shapes |= {key: array.shape for key, array in ragged.items()}
    dtypes = {key: dtype for key, (_, dtype) in head.arrays.items()}
    places: dict[str, list[_Place]] = {}
    for key in shapes:
        if key in ragged:
            array = ragged[key]
            places[key] = [_Place(key, "", array.dtype, True, _shows_picture(array))]
        elif key not in head.metadata:
            places[key] = _places_of(key, dtypes[key], head.opened)
    taken = _taken(options, head, places)
    if taken and all(place.is_ragged for place in taken.values()):
        message = "contains only texts or rows of variable length, but a store needs an array of numbers"
        raise InputError.at(head.file.name, message, "save an index of the rows with them", "columns")
    splits: Sequence[SplitGroup] = ()
    pictures = [place.key for place in taken.values() if place.is_picture]
    notes = [*_notes(head.file, options.reverse_axes, pictures)]
    if head.format == "hdf5":
        from unistore.converters.rows.splits import splits_in

        splits, notes_on_splits = splits_in(head, is_mapped=bool(options.map))
        notes += notes_on_splits
    columns = columns_of(tuple(taken.items()))
    read = {location_of(head.file.name, key).dataset for key in ragged}
    problems = [problem for problem in head.problems if problem.dataset not in read]
    left_out: dict[str, str] = {}
    if options.map:
        wanted = {location_of(head.file.name, key.strip("/")).dataset for key in options.map.values()}
        unmapped = [place.key for own in places.values() for place in own if place not in taken.values()]
        unmapped += [problem.dataset for problem in problems]
        left_out = dict.fromkeys(unmapped, NOT_MAPPED)
        problems = [problem for problem in problems if problem.dataset in wanted]
    problems += _length_problems(
        options, head.file.name, {one.array: shapes[one.array] for one in taken.values()}
    )
    return Chosen(
        columns,
        left_out,
        notes,
        problems,
        metadata={SPLIT_GROUPS: [[group.name, group.rows] for group in splits]} if splits else {},
        splits=[(group.split, group.rows) for group in splits],
    )


def _places_of(key: str, dtype: Dtype, opened: OpenFile) -> list[_Place]:
    """Return the columns that an array becomes: one, or one for each field of its records."""
    if dtype.names is None:
        return [_Place(key, "", dtype, is_ragged=False)]
    places = []
    for field in dtype.names:
        form = dtype[field]
        is_ragged = form.shape == () and is_text(form)
        is_picture = is_ragged and _shows_picture(FieldOf(opened.arrays[key], field))
        places.append(_Place(key, field, form.base, is_ragged, is_picture))
    return places


def _shows_picture(array: Array) -> bool:
    """Return whether the first of a few rows that is not empty is a PNG or JPEG. No text begins so."""
    if array.dtype.kind == "U":
        return False
    for row in array.objects(0, min(_FEW, array.shape[0])):
        value = row.tobytes() if isinstance(row, np.ndarray) else row
        if isinstance(value, bytes) and value:
            return encoding_of(value) is not None
    return False


def _taken(
    options: RowsOptions, head: FileSummary, places: Mapping[str, Sequence[_Place]]
) -> dict[str, _Place]:
    """Return what is stored, by its name in the store."""
    if not options.map:
        return {place.key: place for own in places.values() for place in own}
    by_key = {place.key: place for own in places.values() for place in own}
    taken: dict[str, _Place] = {}
    absent = []
    for name, text in options.map.items():
        key = text.strip("/")
        if key in by_key:
            taken[name] = by_key[key]
        elif key in places:
            taken |= {f"{name}/{place.field}": place for place in places[key]}
        else:
            absent.append(key)
    if absent and options.columns == "exact":
        shown_keys = printable(", ".join(by_key)) or "none"
        raise InputError([_absent_problem(head, key, shown_keys) for key in absent])
    return taken


def _absent_problem(head: FileSummary, key: str, arrays: str) -> Problem:
    from unistore.converters.formats.split_groups import OpenedSplits

    message = f"there is no such array; the arrays are {arrays}"
    fix = ""
    opened = head.opened
    if isinstance(opened, OpenedSplits) and key in opened.hdf5.all_arrays:
        message = f"is not in the splits {' and '.join(group.name for group in opened.splits)}"
        fix = f"--map NAME=/{key}, which stores it without the splits"
    return Problem.at(location_of(head.file.name, key), message, fix, "missing")


def _length_problems(options: RowsOptions, file: str, shapes: Mapping[str, Shape]) -> list[Problem]:
    """Problem of arrays of different lengths, with the option that helps where their last axes agree."""
    _, problems = common_length(shapes, file)
    if problems and not options.reverse_axes:
        _, longest = common_length({key: shape[::-1] for key, shape in shapes.items()}, file)
        if not longest:
            problems = [replace(problem, fix=(_REVERSE, *problem.fixes)) for problem in problems]
    return problems


def _notes(file: SourceFile, reverse_axes: bool, pictures: Sequence[str]) -> tuple[str, ...]:
    notes = []
    if pictures:
        shown = printable(first_few(pictures))
        decoding = "unistore convert trajectory --map action=DATASET decodes them"
        notes.append(f"{shown}: JPEG or PNG frames, stored as bytes; {decoding}")
    if not reverse_axes and file.name.lower().endswith(".mat") and file.head(len(_MATLAB)) == _MATLAB:
        notes.append(f"MATLAB wrote this file, which reverses axes; add {_REVERSE}")
    return tuple(notes)


@lru_cache(_ALIKE)
def columns_of(taken: tuple[tuple[str, _Place], ...]) -> Mapping[str, Column]:
    """Columns of arrays and of fields, given with their stored names."""
    columns = {}
    for name, place in taken:
        column = Column(
            kinds="biufS" if place.is_picture else "biuf",
            axes=None,
            description="" if place.is_ragged else f"array {name} of the sources, {_JOINED}",
            source=place.array,
            field=place.field,
            ragged=place.is_ragged,
        )
        suffix = ""
        if place.is_ragged:
            suffix = TEXT_SUFFIX if is_text(place.dtype) and not place.is_picture else RAGGED_SUFFIX
        columns[f"{name}{suffix}"] = column
    return columns
