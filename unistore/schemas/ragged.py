"""Columns with any number of values in a row, ``<column>_ragged/{data, offsets}``, and texts, ``_utf8``."""

from __future__ import annotations

from collections.abc import Mapping

from unistore.schemas.array_specs import BYTES, TEXT, ArraySpec, spec_of
from unistore.schemas.tables import Field, own_axes
from unistore.system.types import Shape

# Endings of the group of a column: numbers, as the scans of a lidar; texts, byte for byte as in the source.
RAGGED_SUFFIX = "_ragged"
TEXT_SUFFIX = "_utf8"


def ragged_field(column: str, table: str, dtype: str, row_shape: Shape, **attributes: object) -> Field:
    """``data`` of a column with any number of values, (*row_shape) each, in a row."""
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
    """``data`` of a column of texts."""
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
    """``data`` of a column, by its name with the suffix."""
    if name.endswith(TEXT_SUFFIX):
        return text_field(name.removesuffix(TEXT_SUFFIX), table, **attributes)
    return ragged_field(name.removesuffix(RAGGED_SUFFIX), table, dtype, row_shape, **attributes)


def ragged_spec(path: str, rows: tuple[str, int] | None) -> ArraySpec:
    """Spec of ``data`` or ``offsets`` of a column. `rows`: what has as many rows as the offsets."""
    group, _, name = path.rpartition("/")
    if name == "data":
        return ArraySpec(beside=(f"{group}/offsets",)) if group.endswith(RAGGED_SUFFIX) else BYTES
    return spec_of("int64", rows=rows, offsets_of=f"{group}/data")


def ragged_specs(group: str, rows: tuple[str, int], *, strict: bool = False) -> dict[str, ArraySpec]:
    """Specs of both arrays of a column. `strict`: texts are UTF-8, and not bytes as a file has them."""
    data, offsets = (f"{group}/{name}" for name in ("data", "offsets"))
    of_data = TEXT if strict and group.endswith(TEXT_SUFFIX) else ragged_spec(data, rows)
    return {data: of_data, offsets: ragged_spec(offsets, rows)}
