"""Fields (arrays of a store) and tables (arrays that share axis 0).

Axis 0 of every array is a row of a table. A sample is a few row ranges plus, for images and volumes, a box.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One array of a store.

    Attributes
    ----------
    path
        Path in the store: ``"points/xyz"``. All but the last part is the table's name.
    dtype
        numpy dtype name in native form: ``"int32"``, ``"float64"``, ``"bool"``.
    row_shape
        Shape after axis 0: ``()`` for a column, ``(3,)`` for coordinates, ``(D, H, W)`` for volumes.
    axes
        One name per axis, axis 0 included: ``("point", "coordinate")``. Arrays of a group and of the groups
        above it use the same name for the same axis; `own_axes` names axes that only one array has.
    unit
        Unit of the values (``"m"``, ``"HU"``, ``"s"``), or None.
    description
        One sentence.
    fill
        Value of padding and of unwritten chunks.
    tile
        Chunk shape inside a row where samples read boxes (``(32, 32, 32)``); None: whole rows.
    run
        Consecutive rows that one sample typically reads (1, or the median segment length).
    statistics
        Whether count, mean, std, min and max are accumulated while converting (float64, ddof 0).
    attributes
        Further attributes of the array (JSON).
    """

    path: str
    dtype: str
    row_shape: tuple[int, ...] = ()
    axes: tuple[str, ...]
    unit: str | None = None
    description: str = ""
    fill: int | float | bool = 0
    tile: tuple[int, ...] | None = None
    run: int = 1
    statistics: bool = False
    attributes: Mapping[str, object] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Last part of the path: the column's name in its table."""
        return self.path.rsplit("/", 1)[-1]

    @property
    def described(self) -> dict[str, object]:
        """`attributes`, and ``units`` and ``long_name`` of the CF conventions."""
        names = {"units": self.unit, "long_name": self.description or None}
        return {name: value for name, value in names.items() if value is not None} | dict(self.attributes)

    @property
    def row_bytes(self) -> int:
        """Uncompressed bytes of one row."""
        return prod(self.row_shape) * np.dtype(self.dtype).itemsize


def own_axes(column: str, axis: str, count: int) -> tuple[str, ...]:
    """Names of axes that only one column has: ``("rgb_component",)``; numbered from 1 if several."""
    name = f"{column.rpartition('/')[2]}_{axis}"
    return (name,) if count == 1 else tuple(f"{name}_{number}" for number in range(1, count + 1))


def bounds_field(path: str, axis: str, description: str) -> Field:
    """Offsets (n + 1,) i8 that divide rows into n ranges, one per `axis`: ``"segment"``, ``"volume"``."""
    return Field(path=path, dtype="int64", axes=(f"{axis}_bound",), description=description)


def offsets_of(lengths: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    """Offsets (n + 1,) i8 of n ranges that follow each other, from their lengths (n,)."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Arrays that share axis 0 and are cut into shards at the same rows.

    Attributes
    ----------
    name
        Path of the group: ``"points"``, ``"voxels/0.5"``.
    fields
        The columns; ``field.path`` is ``f"{name}/{field.name}"``. Column names may themselves hold
        slashes: ``steps/observation/joint`` is column ``observation/joint`` of ``steps``.
    spilled
        False: row counts are known from the scan and rows are read straight into shards.
        True: rows depend on the data; they are derived once per source, spilled, and packed afterwards.
    """

    name: str
    fields: tuple[Field, ...]
    spilled: bool = False

    def column(self, field: Field) -> str:
        """Name of a field's column in this table: its path without the table's name."""
        return field.path.removeprefix(f"{self.name}/")

    def columns(self) -> dict[str, Field]:
        """Fields by column name."""
        return {self.column(field): field for field in self.fields}
