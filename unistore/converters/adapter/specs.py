"""Checks and fields that follow from a schema."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from unistore.converters.schema import Column, Schema
from unistore.schemas.array_specs import (
    SAMPLES,
    SOURCE_BOUNDS,
    ArraySpec,
    ArraySpecs,
    Limit,
    table_of_offsets,
)
from unistore.schemas.ragged import RAGGED_SUFFIX, TEXT_SUFFIX, ragged_spec, ragged_specs, value_field
from unistore.schemas.tables import Field, own_axes
from unistore.system.types import Shape

FACTS = "sources/facts"
FORMAT = "sources/format"
# Attribute of the facts: names of those that the family says, and not the format
OF_FAMILY = "of_family"
CLASSES = "classes"  # Attribute of an array: names of its values
CLASS_KINDS = "biu"  # kinds of dtypes of numbers of classes
# Chunks of volumes, which samples read as boxes
_TILE = (32, 32, 32)
_SOURCES = (SOURCE_BOUNDS, -1)


def specs_by_schema(schema: Schema) -> ArraySpecs:
    """Return what the arrays of a store must be."""
    first = _first(schema.table, schema.columns)
    main_rows = first if schema.samples else SAMPLES
    arrays = _column_specs(schema.table, schema.columns, main_rows)
    samples = schema.sample_table
    required = (f"{samples}/offsets",) if schema.samples and not first else ()
    if schema.samples:
        if first:
            arrays[f"{samples}/offsets"] = _divides(first, (SAMPLES, 1))
        arrays[f"{samples}/source"] = ArraySpec(
            dtypes=("int32",), row_shape=(), rows=(SAMPLES, 0), indexes=_SOURCES, ascending=True
        )
        arrays |= _value_specs(samples, schema.per_sample, (SAMPLES, 0))
    arrays |= _value_specs("sources", schema.per_source, _SOURCES)
    if schema.spatial:
        limits = tuple(Limit(f"{schema.table}/{name}", (1, 2, 3)) for name in schema.spatial)
        arrays[f"{schema.table}/extent"] = ArraySpec(
            dtypes=("int32",), row_shape=(3,), rows=(SAMPLES, 0), least=0, limits=limits
        )
    for table, columns in schema.tables.items():
        first_of_table = _first(table, columns)
        arrays |= _column_specs(table, columns, first_of_table)
        if table in schema.of_samples:
            arrays[f"{samples}/{table}/offsets"] = _divides(first_of_table, (SAMPLES, 1))

    def other(path: str, paths: Collection[str]) -> ArraySpec:
        """Return the rule of an array of a column that `Family.choose` named."""
        table, first_of_table = schema.table, main_rows
        if required:
            first_of_table = min(_plain_paths(table, paths), default=SAMPLES)
            if path in required:
                return _divides(first_of_table, (SAMPLES, 1))
        for further in further_tables(schema, paths):
            if path.startswith(f"{further}/"):
                table, first_of_table = further, min(_plain_paths(further, paths), default=SAMPLES)
        if path.startswith(f"{table}/") and ragged_group(path, paths):
            return ragged_spec(path, (first_of_table, 1))
        if schema.samples and path.startswith(f"{schema.samples}/"):
            return ArraySpec(rows=(SAMPLES, 0))
        is_column = path.startswith(f"{table}/") and path != first_of_table
        return ArraySpec(rows=(first_of_table, 0)) if is_column else ArraySpec()

    return ArraySpecs(arrays=arrays, required=required, others=other, absent={FACTS: "{}"})


def further_tables(schema: Schema, paths: Collection[str]) -> list[str]:
    """Return the tables of a store besides those of rows, of samples and of ragged columns, by its arrays."""
    tables = [table_of_offsets(path, paths) for path in paths if path.startswith("sources/")]
    own = ("", schema.table, schema.samples)
    return [table for table in tables if table not in own and "/" not in table]


def _first(table: str, columns: Mapping[str, Column]) -> str:
    """Return the path of the column that decides how many rows a table has (empty: none is known)."""
    return next((f"{table}/{name}" for name, column in columns.items() if not column.ragged), "")


def _plain_paths(table: str, paths: Collection[str]) -> list[str]:
    """Return the paths of the columns of a table that are not ragged."""
    of_table = [path for path in paths if path.startswith(f"{table}/")]
    return [path for path in of_table if ragged_group(path, paths) is None]


def ragged_group(path: str, paths: Collection[str]) -> str | None:
    """Return the path of the ragged column that an array is one of both of, None if it is neither."""
    group, _, name = path.rpartition("/")
    is_one = name in ("data", "offsets") and group.endswith((TEXT_SUFFIX, RAGGED_SUFFIX))
    return group if is_one and f"{group}/offsets" in paths else None


def _divides(first: str, rows: tuple[str, int]) -> ArraySpec:
    """Return the rule of offsets of the rows of a table, by its first column."""
    return ArraySpec(dtypes=("int64",), row_shape=(), rows=rows, offsets_of=first)


def _column_specs(table: str, columns: Mapping[str, Column], rows: str) -> dict[str, ArraySpec]:
    """Return what the columns of a table must be, which has as many rows as the array `rows`."""
    specs: dict[str, ArraySpec] = {}
    for name, column in columns.items():
        path = f"{table}/{name}"
        if column.ragged:
            specs |= ragged_specs(path, (rows, 1))
        else:
            specs[path] = _spec(column, None if path == rows else (rows, 0))
    return specs


def _value_specs(table: str, columns: Mapping[str, Column], rows: tuple[str, int]) -> dict[str, ArraySpec]:
    """Return what values of samples or sources must be."""
    specs: dict[str, ArraySpec] = {}
    for name, column in columns.items():
        path = f"{table}/{name}"
        if column.ragged:
            specs |= ragged_specs(path, (rows[0], rows[1] + 1), strict=True)
        else:
            specs[path] = _spec(column, rows)
    return specs


def _spec(column: Column, rows: tuple[str, int] | None) -> ArraySpec:
    shape = None if column.axes is None else (None,) * len(column.axes)
    if column.classes:
        most = len(column.classes) - 1
        return ArraySpec(kinds=CLASS_KINDS, row_shape=shape, rows=rows, least=0, most=most)
    return ArraySpec(kinds=column.kinds, row_shape=shape, rows=rows, least=column.least)


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
        attributes={**(attributes or {}), **class_attribute(column.classes)},
    )


def ragged_field_of(
    path: str,
    column: Column,
    dtype: str,
    row_shape: Shape = (),
    attributes: Mapping[str, Any] | None = None,
) -> Field:
    """Return the field of the values of a ragged column, whose path is ``table/name``."""
    table, _, name = path.partition("/")
    values = value_field(name, table, dtype, row_shape, attributes or {})
    return replace(
        values,
        unit=column.unit,
        description=column.description or values.description,
        codec=column.codec,
        statistics=column.statistics and not name.endswith(TEXT_SUFFIX),
    )


def class_attribute(classes: Sequence[str]) -> dict[str, Any]:
    """Return the attribute that records the names of classes by their numbers."""
    return {CLASSES: {str(number): name for number, name in enumerate(classes)}} if classes else {}
