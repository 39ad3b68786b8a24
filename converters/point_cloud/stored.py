"""Read the points of an open file in its own order and in storage order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.columns import missing_value
from unistore.converters.files.hdf5.file import location_of
from unistore.converters.point_cloud.coordinates import FiniteCheck
from unistore.converters.point_cloud.order import Partition, blocks, by_indices, in_storage_order
from unistore.converters.point_cloud.sorting import Read, reader
from unistore.converters.point_cloud.source import PointSource, Ranges, coordinate_names
from unistore.converters.point_cloud.workspace import Column, ColumnType, Workspace
from unistore.converters.protocol import Source
from unistore.errors import InputError
from unistore.schemas.tables import Field

_XYZ = "xyz"

Segmenter = Callable[[int, Callable[[], Read], Workspace], Partition]
"""``segmenter(points, read_all, work)`` makes segments for a cloud without any."""


class StoredPoints:
    """The points of an open file in storage order, some rows at a time.

    Raises
    ------
    InputError
        Naming invalid segments and, if they are read, coordinates.
    """

    def __init__(
        self,
        points: PointSource,
        source: Source,
        columns: Mapping[str, Field],
        segmenter: Segmenter,
        work: Workspace,
    ) -> None:
        self._work = work
        self._source = _SourcePoints(points, source, work)
        types = source.detail["columns"]
        self._reads: dict[str, Read] = {
            key: partial(self._source.column, key) for key in columns if key in types
        }
        own = points.segments()
        if own is None:
            self.partition = segmenter(points.rows, self._source.read_all, work)
        elif isinstance(own, Ranges):
            self.partition = Partition(None, own.lengths, own.numbers)
        else:
            self.partition = by_indices(own.rows, own.numbers, points.rows, work)
        self.offsets = self.partition.offsets
        self.xyz: Read = self._source.xyz
        """Coordinates, (hi - lo, 3)."""
        if self.partition.order is not None:
            wanted = {key: (_form(*types[key][1:]), read) for key, read in self._reads.items()}
            wanted[_XYZ] = _form(source.detail["xyz_dtype"], (3,)), self._source.xyz
            self._reads = dict(in_storage_order(self.partition.order, wanted, work))
            self.xyz = self._reads.pop(_XYZ)
            self.check()

    @property
    def wrong(self) -> bool:
        """Whether a coordinate read so far is not finite."""
        return bool(self._source.finite.problems)

    def check(self) -> None:
        """Raise `InputError` if rows read so far are invalid."""
        self._source.check()

    def steps(self) -> Iterator[tuple[int, int]]:
        """Ranges of at most a step of points that end with a segment, so that no segment is opened twice."""
        step = self._work.step
        for first, last in blocks(self.partition.lengths, step):
            end = int(self.offsets[last])
            for lo in range(int(self.offsets[first]), end, step):
                yield lo, min(lo + step, end)

    def column(self, key: str, field: Field, lo: int, hi: int) -> NDArray[Any]:
        """Rows of a column, (hi - lo, …), filled if the file lacks it."""
        if key not in self._reads:
            return np.full((hi - lo, *field.row_shape), missing_value(field.dtype), field.dtype)
        return self._reads[key](lo, hi)

    def source_rows(self, lo: int, hi: int) -> NDArray[np.int64]:
        """Rows of the source, (hi - lo,)."""
        order = self.partition.order
        return np.arange(lo, hi) if order is None else order.rows[lo:hi]


class _SourcePoints:
    """The points of an open file in its own order."""

    def __init__(self, points: PointSource, source: Source, work: Workspace) -> None:
        paths = source.detail["xyz"]
        locations = [location_of(source.name, path) for path in (paths if len(paths) == 3 else paths * 3)]
        self.finite = FiniteCheck(locations, points.rows)
        self._points, self._work = points, work
        self._names = coordinate_names(source.detail)
        self._dtype = np.dtype(source.detail["xyz_dtype"])
        self._kept: Column | None = None

    def check(self) -> None:
        """Raise `InputError` if rows read so far are invalid."""
        self._points.check()
        if self.finite.problems:
            raise InputError(self.finite.problems)

    def column(self, key: str, lo: int, hi: int) -> NDArray[Any]:
        """Rows of a column, (hi - lo, …)."""
        return self._points.block((key,), lo, hi)[0]

    def xyz(self, lo: int, hi: int) -> NDArray[Any]:
        """Coordinates, (hi - lo, 3)."""
        if self._kept is not None:
            return self._kept[lo:hi]
        xyz = np.empty((hi - lo, 3), self._dtype)
        for first in range(lo, hi, self._work.step):
            last = min(first + self._work.step, hi)
            part = xyz[first - lo : last - lo]
            axes = self._points.block(self._names, first, last)
            if len(axes) == 1:
                part[:] = axes[0]
            else:
                for axis, values in enumerate(axes):
                    part[:, axis] = values
            self.finite.update(first, part)
        return xyz

    def read_all(self) -> Read:
        """Read and check all coordinates, and keep them, as they will be read several times."""
        rows, step = self._points.rows, self._work.step
        kept = self._work.column((self._dtype.str, (3,)), rows)
        for lo in range(0, rows, step):
            hi = min(lo + step, rows)
            kept[lo:hi] = self.xyz(lo, hi)
        self.check()
        self._kept = kept
        return reader(kept)


def _form(dtype: str, row_shape: Sequence[int]) -> ColumnType:
    return np.dtype(dtype).newbyteorder("=").str, tuple(row_shape)
