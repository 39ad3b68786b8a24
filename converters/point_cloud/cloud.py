"""The sources of a point cloud store, in their own row order, for export and comparison."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.exported import File, SourceRows, Values, cast_exactly, sources_of
from unistore.converters.files.hdf5.attributes import attribute_texts, parse_attributes
from unistore.converters.files.hdf5.file import SUFFIXES
from unistore.errors import StoreError
from unistore.schemas.indices import StoreView, contradiction, whole
from unistore.schemas.point_cloud.fields import NO_SEGMENT, POINTS, SEGMENTS, Quantum, quantum


@dataclass(frozen=True, kw_only=True)
class Cloud:
    """One source of a point cloud store, in its own row order.

    Attributes
    ----------
    store, source
        Store and source; its points are rows ``source.lo:source.hi`` of ``points``.
    first, last
        Range of its segments, including the one of number -1.
    bounds
        (last - first + 1,) bounds of its segments in ``points``.
    numbers
        (last - first,) numbers of its segments.
    quantum
        Scale and offset, (2, 3) f8, of quantised coordinates; None if they are floats.
    """

    store: StoreView
    source: SourceRows
    layout: Mapping[str, Any]
    header: Mapping[str, Any]
    first: int
    last: int
    bounds: NDArray[np.int64]
    numbers: NDArray[np.int64]
    quantum: Quantum | None

    @cached_property
    def order(self) -> NDArray[np.int64]:
        """Row in the source of each stored point, (points,) i8.

        Raises
        ------
        StoreError
            If they are not all rows from 0 on.
        """
        order: NDArray[np.int64] = self._stored("source_row")
        rows = int(order.max(initial=-1)) + 1
        complete = order.min(initial=0) >= 0 and rows <= len(order)
        if not complete or not np.bincount(order, minlength=rows).all():
            where = f"{self.store.path}: points/source_row of {self.source.name}"
            msg = f"{where} does not hold every row from 0 on"
            raise StoreError(msg)
        return order

    @property
    def rows(self) -> int:
        """Rows of the source."""
        return int(self.order.max(initial=-1)) + 1

    def column(self, name: str) -> NDArray[Any]:
        """A column of the points in the source's order, (N, …)."""
        return self._in_order(self._stored(name))

    def coordinates(self, axis: int) -> NDArray[Any]:
        """x, y or z in the source's order, (N,) f8 or f4."""
        values = np.ascontiguousarray(self._stored("xyz")[:, axis])
        if self.quantum is not None:
            values = self.quantum.restored(values, self.source.number, axis)
        return self._in_order(values)

    def coordinate_dtype(self, axis: int) -> np.dtype[Any]:
        """Dtype that x, y or z had in the source."""
        stored = self.layout["xyz_stored"]
        dtype: np.dtype[Any] = np.dtype(stored[axis % len(stored)])
        return dtype

    def indices(self, segment: int) -> NDArray[np.int64]:
        """Rows of one of its segments (counted from 0), (n,)."""
        lo, hi = (self.bounds[segment : segment + 2] - self.source.lo).tolist()
        return self.order[lo:hi]

    def length(self, segment: int) -> int:
        """Points of one of its segments."""
        return int(self.bounds[segment + 1] - self.bounds[segment])

    def real_segments(self) -> list[tuple[int, int]]:
        """Position and number of each segment, without the points of no segment."""
        return [
            (position, number)
            for position, number in enumerate(self.numbers.tolist())
            if number != NO_SEGMENT
        ]

    def segment_column(self, name: str) -> NDArray[Any]:
        """A column of its segments, (S, …)."""
        return self.store.array(f"{SEGMENTS}/{name}").read_ranges([self.first], [self.last])

    def row_shape(self, name: str) -> tuple[int, ...]:
        """Row shape of a column of the points."""
        return self.store.array(f"{POINTS}/{name}").shape[1:]

    def _stored(self, name: str) -> NDArray[Any]:
        return self.store.array(f"{POINTS}/{name}").read_ranges([self.source.lo], [self.source.hi])

    def _in_order(self, stored: NDArray[Any]) -> NDArray[Any]:
        values = np.empty((self.rows, *stored.shape[1:]), stored.dtype)
        values[self.order] = stored
        return values


def clouds(store: StoreView) -> Iterator[Cloud]:
    """Every source of a point cloud store."""
    layouts = store.text("sources/layout")
    sources = sources_of(store)
    headers = store.text("sources/header") if store.has("sources/header/data") else ["{}"] * len(sources)
    owner, numbers, offsets = (whole(store, f"{SEGMENTS}/{name}") for name in ("source", "number", "offsets"))
    restoring = quantum(store)
    for source in sources:
        first, last = (int(np.searchsorted(owner, source.number, side)) for side in ("left", "right"))
        bounds = offsets[first : last + 1]
        if [bounds[0], bounds[-1]] != [source.lo, source.hi]:
            message = f"source {source.number} has points {bounds[0]} to {bounds[-1]}, expected all its rows"
            raise contradiction(store, f"{SEGMENTS}/offsets", message)
        if len(np.unique(numbers[first:last])) < last - first:
            message = f"source {source.number} has two segments of one number"
            raise contradiction(store, f"{SEGMENTS}/number", message)
        yield Cloud(
            store=store,
            source=source,
            layout=json.loads(layouts[source.number]),
            header=json.loads(headers[source.number]),
            first=first,
            last=last,
            bounds=bounds,
            numbers=numbers[first:last],
            quantum=restoring,
        )


def hdf5_file(
    cloud: Cloud, values: Mapping[str, Values], attributes: Mapping[str, Mapping[str, Any]]
) -> File:
    """The HDF5 file that a source is exported as, with arrays and attributes by path."""
    name = cloud.source.name
    return File(
        name=name if name.lower().endswith(SUFFIXES) else f"{name}.h5",
        form="hdf5",
        source=cloud.source.number,
        values=values,
        attributes=attributes,
        compressed=True,
    )


def lazy_values(read: Callable[[], NDArray[Any]], shape: tuple[int, ...], dtype: np.dtype[Any]) -> Values:
    """Values that are read on demand, all at once, and fit the dtype exactly."""
    return Values(shape, dtype, lambda: iter([cast_exactly(read(), dtype)]))


def kept_attributes(cloud: Cloud) -> dict[str, dict[str, Any]]:
    """Attributes that a source had, by path and name."""
    count = len(cloud.store.array("sources/rows"))
    return parse_attributes(attribute_texts(cloud.store, count)[cloud.source.number])
