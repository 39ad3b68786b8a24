"""Checks of the arrays that a family chooses: lengths, dtypes, names, fields of records."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.columns import Column as Form
from unistore.converters.common.columns import length_table, storable
from unistore.converters.plugin import Chosen, Column, Family, Head, Schema
from unistore.converters.seam.faults import fault
from unistore.errors import Problem, location_of, printable
from unistore.schemas.tables import name_problem

# Arrays of many files have the same names, dtypes and row shapes
_ALIKE = 256
_CURE = "write the file again, or leave it out"


class Place(NamedTuple):
    """Where the rows of a column are."""

    file: int  # number of the file in its source
    array: str  # its name in the file
    field: str  # of its records; empty: the array is no array of records
    step: int  # most rows that are read at a time; 0: any number

    @property
    def name(self) -> str:
        """Array, and field of its records."""
        return f"{self.array}/{self.field}" if self.field else self.array


class Pick(NamedTuple):
    """A column that a family chooses, and its array."""

    name: str
    column: Column
    dtype: np.dtype[Any]
    row_shape: tuple[int, ...]
    place: Place


class Picked(NamedTuple):
    """All columns of a source; the same object for sources that are alike."""

    columns: Mapping[str, Column]
    forms: Mapping[str, Form]
    places: Mapping[str, Place]
    problems: Sequence[tuple[str, Problem]]  # with the array, or the column; their files are empty


@lru_cache(_ALIKE)
def picked_of(picks: tuple[Pick, ...]) -> Picked:
    """Forms of the columns of a source, and what is wrong with these."""
    forms = {}
    problems: list[tuple[str, Problem]] = []
    for name, column, dtype, row_shape, _ in picks:
        forms[name] = form = _form_of(dtype, row_shape, column.field)
        wrong = (*_schema_problems(column, dtype, row_shape), *_store_problems(name, form))
        problems += [(column.source or name, problem) for problem in wrong]
        if column.spatial:  # volumes of any extent are rows of one form
            forms[name] = Form(form.dtype, ())
        elif column.dtype:
            forms[name] = Form(column.dtype, form.row_shape)
    return Picked(
        columns={pick.name: pick.column for pick in picks},
        forms=forms,
        places={pick.name: pick.place for pick in picks},
        problems=[*problems, *_nesting_problems(list(forms))],
    )


def check_columns(chosen: Chosen, head: Head, picked: Picked, *, has_map: bool) -> tuple[int, list[Problem]]:
    """Number of rows of a source, and what is wrong.

    `has_map`: the family has an option ``map``, which cures may name.
    """
    file = head.file.name
    keys = [column.source or name for name, column in chosen.columns.items()]
    missing = [key for key in keys if key not in head.arrays]
    problems = [Problem(file, f"holds no {key}", _CURE, "missing") for key in missing]
    rows, differing = common_length({key: head.arrays[key][0] for key in keys if key not in missing}, file)
    if not any(problem.kind == "length" for problem in chosen.problems):
        problems += differing
    for key, problem in picked.problems:
        where = location_of(file, key)
        problems.append(replace(problem, file=where.file, dataset=where.dataset))
    if not has_map:
        problems = [replace(problem, cure=_CURE) for problem in problems]
    return rows, [*chosen.problems, *problems]


def check_extents(columns: Mapping[str, Column], head: Head) -> tuple[tuple[int, ...], list[Problem]]:
    """Extent of the volumes of a source, empty if it has none, and the problem of columns that differ."""
    shapes = {
        name: head.arrays[column.source or name][0] for name, column in columns.items() if column.spatial
    }
    extents = {name: shape[1:] for name, shape in shapes.items()}
    if len(set(extents.values())) > 1:
        message = f"volumes differ in extent: {extents}"
        return (), [Problem(head.file.name, message, "resample them to one grid", "shape")]
    return next(iter(extents.values()), ()), []


def check_derived(
    plugin: Family, schema: Schema, source: str, table: str, given: Mapping[str, NDArray[Any]]
) -> int:
    """Number of rows that `Family.derive` gave, which must be as the schema declares them."""
    declared = schema.derived.get(table, {})
    if given.keys() != declared.keys():
        message = f"gave columns {sorted(given)} of {table}, declared are {sorted(declared)}"
        raise fault(plugin, "derive", source, message)
    for name, column in declared.items():
        rows = given[name]
        if rows.dtype != np.dtype(column.dtype) or rows.shape[1:] != column.shape:
            message = f"gave {table}/{name} as {rows.dtype} with rows {rows.shape[1:]}, declared are "
            raise fault(plugin, "derive", source, f"{message}{column.dtype} with rows {column.shape}")
    counts = {name: len(rows) for name, rows in given.items()}
    if len(set(counts.values())) != 1:
        raise fault(plugin, "derive", source, f"gave columns of {table} that differ in length: {counts}")
    return next(iter(counts.values()))


def how_to_take(names: Iterable[str]) -> str:
    """Remedy: take only some arrays."""
    options = " ".join(f"--map {shlex.quote(f'{name}={name}')}" for name in names)
    if not options:
        return "save arrays whose axis 0 counts the rows"
    return f"take the arrays that belong together, as in {options}"


def _how_to_rename(column: str) -> str:
    plain = "".join(char if char.isascii() and char.isalnum() else "_" for char in column).strip("_")
    return f"rename it, as in --map {shlex.quote(printable(f'{plain}_2={column}'))}"


def common_length(shapes: Mapping[str, tuple[int, ...]], name: str) -> tuple[int, list[Problem]]:
    """Number of rows of all arrays, or a Problem with the table of lengths."""
    starts = {shape[:1] for shape in shapes.values()}
    if len(starts) <= 1 and () not in starts:
        return sum(next(iter(starts), ())), []
    lengths = {printable(key): shape[0] if shape else None for key, shape in shapes.items()}
    table = length_table({key: "scalar" if length is None else length for key, length in lengths.items()})
    length_counts = Counter(length for length in lengths.values() if length is not None)
    most = length_counts.most_common(1)[0][0] if length_counts else None
    cure = how_to_take(key for key, length in lengths.items() if length is not None and length == most)
    return 0, [Problem(name, f"arrays do not share axis 0; their lengths:\n{table}\n   ", cure, "length")]


def _form_of(dtype: np.dtype[Any], row_shape: tuple[int, ...], field: str) -> Form:
    """Form of an array, or of a field of its records."""
    if not field or dtype.fields is None:
        return Form(dtype.str, row_shape)
    inner = dtype.fields[field][0]
    return Form(inner.base.str, (*row_shape, *inner.shape))


def _schema_problems(column: Column, dtype: np.dtype[Any], row_shape: tuple[int, ...]) -> Iterator[Problem]:
    """What the schema says of a column, and an array is not."""
    if column.axes is None or not storable(dtype):
        return
    if dtype.kind not in column.kinds or len(row_shape) != len(column.axes):
        shape = ", ".join(map(str, ("n", *row_shape)))
        expected = f"{1 + len(column.axes)} axes of kind {' or '.join(column.kinds)}"
        yield Problem("", f"is {dtype} ({shape}), expected {expected}", _CURE, "dtype")


def _store_problems(name: str, form: Form) -> Sequence[Problem]:
    """What keeps a column out of any store."""
    problems = []
    if not storable(np.dtype(form.dtype)):
        message = f"has dtype {np.dtype(form.dtype)}, which is not bool, integer or float of up to 8 bytes"
        problems.append(Problem("", message, "store numbers, or leave it out with --map", "dtype"))
    if (reason := name_problem(name)) is not None:
        cure = _how_to_rename(name)
        problems.append(Problem("", f"cannot be an array's name: {reason}", cure, "name"))
    if prod(form.row_shape) == 0:
        message = f"has rows of shape {form.row_shape}, which hold no values"
        problems.append(Problem("", message, "leave it out with --map", "empty"))
    return problems


def _nesting_problems(columns: Sequence[str]) -> Iterator[tuple[str, Problem]]:
    """Problems of arrays whose path is inside another array."""
    for column in columns:
        for outer in columns:
            if column.startswith(f"{outer}/"):
                message = f"lies inside the array {outer!r}"
                yield column, Problem("", message, _how_to_rename(column), "name")
