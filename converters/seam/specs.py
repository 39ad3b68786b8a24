"""Checks and fields that follow from a schema."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from unistore.converters.plugin import Column, Schema
from unistore.schemas.array_spec import SAMPLES, ArraySpec
from unistore.schemas.array_specs import ArraySpecs
from unistore.schemas.tables import Field

FACTS = "sources/facts"
FORMAT = "sources/format"
_SOURCES = ("sources/path/offsets", -1)


def specs_of(schema: Schema) -> ArraySpecs:
    """What the arrays of a store must be."""
    names = list(schema.columns)
    first = f"{schema.table}/{names[0]}"
    ragged = bool(schema.samples)
    main_rows = first if ragged else SAMPLES
    arrays: dict[str, ArraySpec] = {}
    for name in names:
        path = f"{schema.table}/{name}"
        rows = None if path == main_rows else (main_rows, 0)
        arrays[path] = _spec(schema.columns[name], rows)
    if ragged:
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
    return ArraySpecs(arrays=arrays, main_rows=main_rows, others=_other)


def _spec(column: Column, rows: tuple[str, int] | None) -> ArraySpec:
    shape = (None,) * len(column.axes)
    return ArraySpec(kinds=column.kinds, row_shape=shape, rows=rows, least=column.least)


def _other(path: str, paths: Collection[str]) -> ArraySpec:
    del path, paths
    return ArraySpec()


def field_of(
    path: str,
    column: Column,
    axis: str,
    dtype: str,
    row_shape: tuple[int, ...] = (),
    run: int = 1,
    attributes: Mapping[str, Any] | None = None,
) -> Field:
    """The field of a column."""
    name = path.rpartition("/")[2]
    return Field(
        path=path,
        dtype=dtype,
        row_shape=row_shape,
        axes=(axis, *(f"{name}_{each}" for each in column.axes)),
        unit=column.unit,
        description=column.description,
        run=run,
        statistics=column.statistics,
        attributes=attributes or {},
    )
