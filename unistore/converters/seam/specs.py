"""Checks and fields that follow from a schema."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from unistore.converters.schema import Column, Schema
from unistore.schemas.array_specs import SAMPLES, ArraySpec, ArraySpecs, Limit
from unistore.schemas.ragged import RAGGED_SUFFIX, TEXT_SUFFIX, ragged_spec
from unistore.schemas.tables import Field, own_axes
from unistore.system.hints import Shape

FACTS = "sources/facts"
FORMAT = "sources/format"
# Attribute of the facts: names of those that the family says, and not the format
OF_FAMILY = "of_family"
# Chunks of volumes, which samples read as boxes
_TILE = (32, 32, 32)
_SOURCES = ("sources/path/offsets", -1)
_SMALLEST_INT = -(1 << 63)
_LARGEST = int(np.finfo(np.float64).max)


def specs_by_schema(schema: Schema) -> ArraySpecs:
    """Return what the arrays of a store must be."""
    plain = [name for name in schema.columns if name not in schema.ragged]
    first = next((f"{schema.table}/{name}" for name in plain), "")
    main_rows = first if schema.samples else SAMPLES
    arrays: dict[str, ArraySpec] = {}
    for name in plain:
        path = f"{schema.table}/{name}"
        arrays[path] = _spec(schema.columns[name], None if path == main_rows else (main_rows, 0))
    if schema.samples:
        samples = (SAMPLES, 0)
        arrays[f"{schema.samples}/offsets"] = ArraySpec(
            dtypes=("int64",), row_shape=(), rows=(SAMPLES, 1), offsets_of=first
        )
        arrays[f"{schema.samples}/source"] = ArraySpec(
            dtypes=("int32",), row_shape=(), rows=samples, indexes=_SOURCES, ascending=True
        )
        for name, column in schema.per_sample.items():
            arrays[f"{schema.samples}/{name}"] = _spec(column, samples)
    for name, column in schema.per_source.items():
        arrays[f"sources/{name}"] = _spec(column, _SOURCES)
    if schema.spatial:
        limits = tuple(Limit(f"{schema.table}/{name}", (1, 2, 3)) for name in schema.spatial)
        arrays[f"{schema.table}/extent"] = ArraySpec(
            dtypes=("int32",), row_shape=(3,), rows=(SAMPLES, 0), least=0, limits=limits
        )
    for table, columns in schema.tables.items():
        arrays |= _table_specs(table, columns)

    def other(path: str, paths: Collection[str]) -> ArraySpec:
        for table in stored_tables(paths):
            columns = sorted(column for column in paths if column.startswith(f"{table}/"))
            table_specs = _table_specs(
                table, {column.removeprefix(f"{table}/"): Column() for column in columns}
            )
            if path in table_specs:
                return replace(
                    table_specs[path], kinds="", row_shape=() if path == table_offsets(table) else None
                )
        group, _, name = path.rpartition("/")
        is_value = name in ("data", "offsets") and group.endswith((TEXT_SUFFIX, RAGGED_SUFFIX))
        if is_value and group.startswith(f"{schema.table}/") and f"{group}/offsets" in paths:
            return ragged_spec(path, (SAMPLES, 1))
        is_column = path.startswith(f"{schema.table}/") and not schema.columns
        return ArraySpec(rows=(main_rows, 0)) if is_column else ArraySpec()

    return ArraySpecs(arrays=arrays, main_rows=main_rows, others=other, absent={FACTS: "{}"})


def _table_specs(table: str, columns: Mapping[str, Column]) -> dict[str, ArraySpec]:
    """Return what the arrays of a further table must be: its columns, and the offsets of the sources."""
    first = f"{table}/{next(iter(columns))}"
    specs = {}
    for name, column in columns.items():
        path = f"{table}/{name}"
        specs[path] = _spec(column, None if path == first else (first, 0))
    specs[table_offsets(table)] = ArraySpec(
        dtypes=("int64",), row_shape=(), rows=("sources/path/offsets", 0), offsets_of=first
    )
    return specs


def table_offsets(table: str) -> str:
    """Return the path of the offsets that divide the rows of a further table by source."""
    return f"sources/{table}/offsets"


def stored_tables(paths: Collection[str]) -> list[str]:
    """Further tables of a store, by the paths of its arrays. Offsets beside ``data`` are those of texts."""
    groups = [path.removesuffix("/offsets") for path in paths if path.endswith("/offsets")]
    unspecified = [group for group in groups if group.startswith("sources/") and f"{group}/data" not in paths]
    return [group.removeprefix("sources/") for group in unspecified]


def _spec(column: Column, rows: tuple[str, int] | None) -> ArraySpec:
    shape = None if column.axes is None else (None,) * len(column.axes)
    return ArraySpec(kinds=column.kinds, row_shape=shape, rows=rows, least=column.least)


def number_dtype(column: Column) -> str:
    """Return the dtype of a number of samples or sources."""
    return "float64" if column.kinds == "f" else "int64"


def is_number(value: object, dtype: str) -> bool:
    """Return whether a value is a number that a dtype of `number_dtype` holds."""
    if not isinstance(value, (int, float, np.integer, np.floating, np.bool_)):
        return False
    if dtype == "float64":
        return isinstance(value, (float, np.floating)) or abs(int(value)) <= _LARGEST
    return (not isinstance(value, (float, np.floating)) or float(value).is_integer()) and (
        _SMALLEST_INT <= int(value) <= -1 - _SMALLEST_INT
    )


def field_of(
    path: str,
    column: Column,
    axis: str,
    dtype: str,
    row_shape: Shape = (),
    run: int = 1,
    attributes: Mapping[str, Any] | None = None,
) -> Field:
    """Return the field of a column."""
    name = path.rpartition("/")[2]
    inner = own_axes(name, "axis", len(row_shape))
    if column.axes is not None:
        inner = tuple(f"{name}_{inner_axis}" for inner_axis in column.axes)
    return Field(
        path=path,
        dtype=dtype,
        row_shape=row_shape,
        axes=(axis, *inner),
        unit=column.unit,
        description=column.description,
        run=run,
        tile=_TILE if column.spatial else None,
        codec=column.codec,
        statistics=column.statistics,
        attributes=attributes or {},
    )
