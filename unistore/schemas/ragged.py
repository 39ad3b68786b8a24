"""Columns with any number of values in a row, ``<column>_ragged/{data, offsets}``, and texts, ``_utf8``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from unistore.schemas.array_specs import BYTES, ArraySpec, spec_of
from unistore.schemas.declared_rules import Declared
from unistore.schemas.tables import Field, own_axes
from unistore.system.types import Shape

# Endings of the group of a column: numbers, as the scans of a lidar; texts, byte for byte as in the source.
RAGGED_SUFFIX = "_ragged"
TEXT_SUFFIX = "_utf8"


def ragged_field(column: str, table: str, dtype: str, row_shape: Shape, **attributes: object) -> Field:
    """Return the field ``data`` of a column with any number of values of shape `row_shape` in a row."""
    group = f"{table}/{column}{RAGGED_SUFFIX}"
    return Field(
        path=f"{group}/data",
        dtype=dtype,
        row_shape=row_shape,
        axes=(*own_axes(group, "item", 1), *own_axes(column, "dimension", len(row_shape))),
        description=f"{column}: the values of all rows, back to back",
        attributes=attributes,
    )


def text_field(column: str, table: str, **attributes: object) -> Field:
    """Return the field ``data`` of a column of texts."""
    group = f"{table}/{column}{TEXT_SUFFIX}"
    return Field(
        path=f"{group}/data",
        dtype="uint8",
        axes=own_axes(group, "byte", 1),
        description=f"{column}: the texts of all rows, back to back, byte for byte as in the source",
        attributes={"encoding": "utf-8", **attributes},
    )


def value_field(
    name: str, table: str, dtype: str, row_shape: Shape, attributes: Mapping[str, object]
) -> Field:
    """Return the field ``data`` of a column, by its name with the suffix."""
    if name.endswith(TEXT_SUFFIX):
        return text_field(name.removesuffix(TEXT_SUFFIX), table, **attributes)
    return ragged_field(name.removesuffix(RAGGED_SUFFIX), table, dtype, row_shape, **attributes)


def ragged_arrays(group: str, rows: tuple[str, int], *otherwise: ArraySpec) -> dict[str, Declared]:
    """Declare ``group/{data, offsets}`` of a column with any number of values, or bytes, in a row.

    Parameters
    ----------
    group
        Path of the column, or a template of it. Columns that do not end in ``_ragged`` have bytes.
    rows
        Of the offsets.
    otherwise
        What ``data`` or ``offsets`` are if the other one is not there. None: they are never alone.
    """
    data, offsets = f"{group}/data", f"{group}/offsets"
    values = ArraySpec() if group.endswith(RAGGED_SUFFIX) else BYTES
    return {
        data: (replace(values, beside=(offsets,)), *otherwise),
        offsets: (spec_of("int64", rows=rows, offsets_of=data), *otherwise),
    }


def table_columns(table: str, rows: str) -> dict[str, Declared]:
    """Declare the columns of a table that the files name, which has as many rows as the array `rows`."""
    plain = ArraySpec(rows=(rows, 0))
    ragged = ragged_arrays(f"{table}/<column>{RAGGED_SUFFIX}", (rows, 1), plain)
    texts = ragged_arrays(f"{table}/<column>{TEXT_SUFFIX}", (rows, 1), plain)
    return {**ragged, **texts, f"{table}/<column>": plain}
