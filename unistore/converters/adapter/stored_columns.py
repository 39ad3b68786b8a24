"""Rules and fields of the columns that a schema names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from unistore.converters.schema import Column, Schema
from unistore.errors import Problem
from unistore.schemas.array_specs import SAMPLES, SOURCE_BOUNDS, ArrayInfo, ArraySpec, Limit, spec_of
from unistore.schemas.declared_rules import ArraySpecs, Declared, text_columns
from unistore.schemas.ragged import TEXT_SUFFIX, ragged_arrays, table_columns, value_field
from unistore.schemas.tables import Field, own_axes
from unistore.system.types import Shape

METADATA = "sources/facts"
FORMAT = "sources/format"
# Attribute of the metadata: names of those that the family says, and not the format
OF_FAMILY = "of_family"
CLASSES = "classes"  # Attribute of an array: names of its values
CLASS_KINDS = "biu"  # kinds of dtypes of numbers of classes
# Chunks of volumes, which samples read as boxes
_TILE = (32, 32, 32)
_SOURCES = (SOURCE_BOUNDS, -1)
_SAMPLES = (SAMPLES, 0)


def specs_by_schema(schema: Schema) -> ArraySpecs:
    """Return what the arrays of a store must be."""
    main_rows = f"{schema.table}/" if schema.samples else SAMPLES
    arrays = _column_specs(schema.table, schema.columns, main_rows)
    samples = schema.sample_table
    optional: dict[str, Declared] = {**text_columns(METADATA, (SOURCE_BOUNDS, 0), absent="{}")}
    if schema.samples:
        arrays[f"{samples}/offsets"] = _divides(f"{schema.table}/")
        arrays[f"{samples}/source"] = spec_of("int32", rows=_SAMPLES, indexes=_SOURCES, ascending=True)
        arrays |= _value_specs(samples, schema.per_sample, _SAMPLES)
        optional[f"{samples}/<column>"] = ArraySpec(rows=_SAMPLES)
    arrays |= _value_specs("sources", schema.per_source, _SOURCES)
    if schema.spatial:
        limits = tuple(Limit(f"{schema.table}/{name}", (1, 2, 3)) for name in schema.spatial)
        arrays[f"{schema.table}/extent"] = spec_of("int32", 3, rows=_SAMPLES, least=0, limits=limits)
    for table, columns in schema.tables.items():
        arrays |= _column_specs(table, columns, f"{table}/")
        if table in schema.of_samples:
            arrays[f"{samples}/{table}/offsets"] = _divides(f"{table}/")
    # of columns and tables that `Family.choose` names
    optional |= table_columns(schema.table, main_rows)
    optional |= table_columns("<table>", "<table>/")

    def check(arrays: Mapping[str, ArrayInfo]) -> Iterator[Problem]:
        if not any(path.startswith(f"{schema.table}/") for path in arrays):
            yield Problem(schema.table, "contains no array", kind="missing")

    return ArraySpecs(arrays=arrays, optional=optional, check=check)


def _divides(table: str) -> ArraySpec:
    """Return the rule of the offsets of samples in the rows of a table."""
    return spec_of("int64", rows=(SAMPLES, 1), offsets_of=table)


def _column_specs(table: str, columns: Mapping[str, Column], rows: str) -> dict[str, Declared]:
    """Return what the columns of a table must be, which has as many rows as the array `rows`."""
    first = next((name for name, column in columns.items() if not column.ragged), "")
    specs: dict[str, Declared] = {}
    if rows == f"{table}/" and first:
        rows = f"{table}/{first}"
    for name, column in columns.items():
        path = f"{table}/{name}"
        if column.ragged:
            specs |= ragged_arrays(path, (rows, 1))
        else:
            specs[path] = replace(rule_of_column(column), rows=None if path == rows else (rows, 0))
    return specs


def _value_specs(table: str, columns: Mapping[str, Column], rows: tuple[str, int]) -> dict[str, Declared]:
    """Return what values of samples or sources must be. Texts are UTF-8, and not bytes as a file has them."""
    specs: dict[str, Declared] = {}
    bounds = rows[0], rows[1] + 1
    for name, column in columns.items():
        path = f"{table}/{name}"
        if column.ragged:
            is_text = name.endswith(TEXT_SUFFIX)
            specs |= text_columns(path, bounds) if is_text else ragged_arrays(path, bounds)
        else:
            specs[path] = replace(rule_of_column(column), rows=rows)
    return specs


def rule_of_column(column: Column) -> ArraySpec:
    """Return what the dtype, axes and values of a column must be."""
    shape = None if column.axes is None else (None,) * len(column.axes)
    if column.classes:
        return ArraySpec(kinds=CLASS_KINDS, row_shape=shape, least=0, most=len(column.classes) - 1)
    return ArraySpec(kinds=column.kinds, row_shape=shape, least=column.least)


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
        rule=rule_of_column(column),
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
