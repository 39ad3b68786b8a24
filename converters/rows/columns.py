"""Check arrays that become columns of plain rows: lengths, dtypes, fields, names."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from unistore.converters.common.columns import Column, length_table, storable
from unistore.converters.files.hdf5.file import location_of
from unistore.errors import Problem, printable
from unistore.schemas.tables import name_problem

_ALIKE = 256
"""Arrays of many files have the same names, dtypes and row shapes."""


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
    known = Counter(length for length in lengths.values() if length is not None)
    most = known.most_common(1)[0][0] if known else None
    cure = how_to_take(key for key, length in lengths.items() if length is not None and length == most)
    return 0, [Problem(name, f"arrays do not share axis 0; their lengths:\n{table}\n   ", cure, "length")]


@lru_cache(_ALIKE)
def fields_of(
    column: str, dtype: np.dtype[Any], row_shape: tuple[int, ...]
) -> Sequence[tuple[str, Column, str | None]]:
    """Name, column and field: one for a plain dtype, one per field for a structured dtype."""
    if dtype.names is None or dtype.fields is None:
        return ((column, Column(dtype.str, row_shape), None),)
    fields: list[tuple[str, Column, str | None]] = []
    for key in dtype.names:
        base, inner = dtype.fields[key][0].base, dtype.fields[key][0].shape
        fields.append((f"{column}/{key}", Column(base.str, (*row_shape, *inner)), key))
    return fields


@lru_cache(_ALIKE)
def column_problems(column: str, form: Column) -> Sequence[Problem]:
    """Problems of a column's dtype, name and row shape; their file is empty."""
    problems = []
    if not storable(np.dtype(form.dtype)):
        message = f"has dtype {np.dtype(form.dtype)}, which is not bool, integer or float of up to 8 bytes"
        problems.append(Problem("", message, "store numbers, or leave it out with --map", "dtype"))
    if (reason := name_problem(column)) is not None:
        cure = _how_to_rename(column)
        problems.append(Problem("", f"cannot be an array's name: {reason}", cure, "name"))
    if prod(form.row_shape) == 0:
        message = f"has rows of shape {form.row_shape}, which hold no values"
        problems.append(Problem("", message, "leave it out with --map", "empty"))
    return problems


def nesting_problems(columns: Sequence[str], name: str) -> list[Problem]:
    """Problems of arrays whose path is inside another array."""
    inner = [(column, outer) for column in columns for outer in columns if column.startswith(f"{outer}/")]
    return [
        Problem.at(
            location_of(name, column),
            f"lies inside the array {outer!r}",
            _how_to_rename(column),
            "name",
        )
        for column, outer in inner
    ]
