"""Read the sources of a point cloud store, each in the row order of its file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from unistore.errors import StoreError
from unistore.schemas.indices import StoreView, contradiction, source_bounds, whole
from unistore.schemas.point_cloud import rules
from unistore.schemas.point_cloud.fields import NO_SEGMENT, POINTS, SEGMENTS, Quantum, quantum
from unistore.schemas.rules import RuleView
from unistore.system.types import AnyArray, Int64s, Shape


@dataclass(frozen=True, kw_only=True)
class Cloud:
    """One source of a point cloud store: rows ``lo:hi`` of ``points``.

    Attributes
    ----------
    store : StoreView
        The store.
    number : int
        Number of the source.
    name : str
        Name of the source.
    lo, hi : int
        First row of ``points``, and the row after the last.
    layout, header : mapping
        Layout and header of its file, as the store has them.
    segments : range
        Its segments, including the one for points outside all segments (number -1).
    bounds : int64 array of shape (S + 1,)
        Bounds of its segments in ``points``.
    numbers : int64 array of shape (S,)
        Numbers of its segments.
    quantum : Quantum or None
        Scale and offset of quantised coordinates. None: they are not quantised.
    """

    store: StoreView
    number: int
    name: str
    lo: int
    hi: int
    layout: Mapping[str, Any]
    header: Mapping[str, Any]
    segments: range
    bounds: Int64s
    numbers: Int64s
    quantum: Quantum | None

    @cached_property
    def order(self) -> Int64s:
        """Row in the source of each stored point, (points,) i8."""
        return self._stored("source_row")

    @cached_property
    def rows(self) -> int:
        """Rows of the source."""
        return int(self.order.max(initial=-1)) + 1

    def column(self, name: str) -> AnyArray:
        """Return a column of the points in the source's order, (N, …)."""
        return self._in_order(self._stored(name))

    def coordinates(self, axis: int) -> AnyArray:
        """Return x, y or z in the source's order, (N,) f8 or f4."""
        values = np.ascontiguousarray(self._stored("xyz")[:, axis])
        if self.quantum is not None:
            values = self.quantum.restored(values, self.number, axis)
        return self._in_order(values)

    def indices(self, segment: int) -> Int64s:
        """Return the rows of one of its segments, counted from 0, in the source, (n,)."""
        lo, hi = (self.bounds[segment : segment + 2] - self.lo).tolist()
        return self.order[lo:hi]

    def real_segments(self) -> dict[int, int]:
        """Number of each segment by position, without the points of no segment."""
        numbers = enumerate(self.numbers.tolist())
        return {position: number for position, number in numbers if number != NO_SEGMENT}

    def segment_column(self, name: str) -> AnyArray:
        """Return a column of its segments, (S, …)."""
        return self.store.array(f"{SEGMENTS}/{name}").read(self.segments.start, self.segments.stop)

    def points_of_batch(self) -> int:
        """Return the points of each segment.

        Raises
        ------
        StoreError
            If segments differ in length.
        """
        lengths = np.diff(self.bounds)
        points = self.hi - self.lo
        if (lengths * len(lengths) != points).any():
            message = f"the segments of {self.name} differ in length, expected batches of the same length"
            raise contradiction(self.store, f"{SEGMENTS}/offsets", message)
        return points // max(1, len(lengths))

    def row_shape(self, name: str) -> Shape:
        """Row shape of a column of the points."""
        return self.store.array(f"{POINTS}/{name}").shape[1:]

    def _stored(self, name: str) -> AnyArray:
        return self.store.array(f"{POINTS}/{name}").read(self.lo, self.hi)

    def _in_order(self, stored: AnyArray) -> AnyArray:
        values = np.empty((self.rows, *stored.shape[1:]), stored.dtype)
        values[self.order] = stored
        return values


def clouds(store: StoreView) -> Iterator[Cloud]:
    """Yield every source of a store.

    Raises
    ------
    StoreError
        If the segments of a source do not hold all of its rows.
    """
    view = RuleView(store)
    for problem in (*rules.segments(view), *rules.source_rows(view)):
        msg = f"{store.path}: {problem}"
        raise StoreError(msg)
    rows = source_bounds(store, POINTS).tolist()
    names = store.text("sources/path")
    layouts = store.text("sources/layout")
    headers = store.text("sources/header") if store.has("sources/header/data") else ["{}"] * len(names)
    owner, numbers, offsets = (whole(store, f"{SEGMENTS}/{name}") for name in ("source", "number", "offsets"))
    restoring = quantum(store)
    for source, name in enumerate(names):
        first, last = (int(np.searchsorted(owner, source, side)) for side in ("left", "right"))
        yield Cloud(
            store=store,
            number=source,
            name=name,
            lo=rows[source],
            hi=rows[source + 1],
            layout=json.loads(layouts[source]),
            header=json.loads(headers[source]),
            segments=range(first, last),
            bounds=offsets[first : last + 1],
            numbers=numbers[first:last],
            quantum=restoring,
        )
