"""Where a file has the columns of its events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.converters.plugin import Array, Opened

ALIASES: Mapping[str, tuple[str, ...]] = {
    "t": ("t", "ts", "time", "timestamp", "timestamps"),
    "x": ("x", "xs"),
    "y": ("y", "ys"),
    "p": ("p", "ps", "pol", "polarity", "polarities", "on"),
}
"""Names that files give to each column."""
PLACES = ("events", "CD/events", "data", "")
"""Groups or arrays of records that are looked at: of DSEC, Prophesee and ``.npy``, and the file itself."""


class Place(NamedTuple):
    """Where a column is: an array, and a field of its records if it has some."""

    array: str
    field: str


Layout = Mapping[str, Place]
"""Place of each column."""


def find_layout(opened: Opened, group: str = "") -> Layout | None:
    """Return where the columns are, in one group or array if it is named; None if they are nowhere."""
    for place in (group,) if group else PLACES:
        above, _, name = place.rpartition("/")
        if name and opened.members(above).get(name) == "array":
            names = opened.arrays[place].dtype.names or ()
            fields = _columns_among(names)
            if fields is not None:
                return {column: Place(place, field) for column, field in fields.items()}
            continue
        members = [member for member, kind in opened.members(place).items() if kind == "array"]
        arrays = _columns_among(members)
        if arrays is not None:
            prefix = f"{place}/" if place else ""
            return {column: Place(f"{prefix}{array}", "") for column, array in arrays.items()}
    return None


def _columns_among(names: Iterator[str] | tuple[str, ...] | list[str]) -> dict[str, str] | None:
    """Return the name of each column; None if one is missing, or has several names."""
    columns = {}
    for column, aliases in ALIASES.items():
        present = [name for name in names if name in aliases]
        if len(present) != 1:
            return None
        columns[column] = present[0]
    return columns


def read_columns(opened: Opened, layout: Layout, lo: int, hi: int) -> dict[str, NDArray[Any]]:
    """Read rows of all columns, each array once."""
    arrays = {place.array for place in layout.values()}
    rows = {array: opened.arrays[array][lo:hi] for array in arrays}
    return {column: _field(rows[place.array], place) for column, place in layout.items()}


def time_blocks(opened: Opened, layout: Layout) -> Iterator[tuple[int, NDArray[Any]]]:
    """Read all times some at a time, each time with the number of the first."""
    place = layout["t"]
    for lo, rows in opened.arrays[place.array].blocks():
        yield lo, _field(rows, place)


def _field(rows: NDArray[Any], place: Place) -> NDArray[Any]:
    return rows[place.field] if place.field else rows


def original_arrays(columns: Mapping[str, Array], layout: Layout) -> dict[str, Array]:
    """Return the arrays of a file, given their columns."""
    arrays = {}
    records: dict[str, dict[str, Array]] = {}
    for column, place in layout.items():
        if place.field:
            records.setdefault(place.array, {})[place.field] = columns[column]
        else:
            arrays[place.array] = columns[column]
    return arrays | {name: Array(_Records(fields)) for name, fields in records.items()}


class _Records:
    """Records of columns."""

    def __init__(self, fields: Mapping[str, Array]) -> None:
        self._fields = fields
        self.dtype = np.dtype([(name, array.dtype) for name, array in fields.items()])
        self.shape = next(iter(fields.values())).shape

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        columns = {name: array[rows] for name, array in self._fields.items()}
        records = np.empty(len(next(iter(columns.values()))), self.dtype)
        for name, values in columns.items():
            records[name] = values
        return records
