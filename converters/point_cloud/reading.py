"""Reading the points of one file in its own row order, whatever its layout, some rows at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Protocol

import h5py
import numpy as np
from numpy.typing import NDArray

from unistore.converters.files.hdf5 import file as hdf5
from unistore.converters.files.hdf5.file import place
from unistore.converters.point_cloud.in_segments import Segments, raise_first
from unistore.converters.point_cloud.layout import BATCHES, IN_SEGMENTS, INDICES
from unistore.converters.point_cloud.scratch import BLOCK, Scratch
from unistore.converters.point_cloud.segments import Partition, by_indices, consecutive
from unistore.converters.protocol import Source

__all__ = ["Points", "open_points"]


class Points(Protocol):
    """One open file. Every method raises `InputError` where values cannot be read or are contradictory.

    Attributes
    ----------
    rows
        Points of the source.
    """

    rows: int

    def xyz(self, lo: int, hi: int) -> NDArray[Any]:
        """Coordinates of rows ``lo:hi``, (hi - lo, 3), f4 or f8."""
        ...

    def column(self, key: str, lo: int, hi: int) -> NDArray[Any]:
        """Rows ``lo:hi`` of one column of the points, (hi - lo, …), by stored name, in native byte order."""
        ...

    def segment_column(self, key: str) -> NDArray[Any]:
        """One column of the segments, (S, …), by stored name."""
        ...

    def partition(self, scratch: Scratch) -> Partition | None:
        """Segments as the file has them; None if it has none."""
        ...

    def check(self) -> None:
        """Raise what was found wrong with the rows read so far."""
        ...


class _Columns:
    """Datasets of one row a point, with row indices of the segments or without segments."""

    step: ClassVar[int] = 1 << 18
    """Rows whose axes are put side by side while they are in the processor's cache."""

    def __init__(
        self, file: h5py.File, name: str, detail: Mapping[str, Any], segments: Segments | None
    ) -> None:
        self._file, self._name, self._detail, self._segments = file, name, detail, segments
        self._datasets: dict[str, h5py.Dataset] = {}
        self._decoded: dict[str, tuple[int, NDArray[Any]]] = {}
        self.rows = self._count()

    def _count(self) -> int:
        return int(self._file[self._detail["xyz"][0]].shape[0])

    def xyz(self, lo: int, hi: int) -> NDArray[Any]:
        dtype = np.dtype(self._detail["xyz_dtype"])
        paths = self._detail["xyz"]
        if len(paths) == 1:
            return self._read(paths[0], lo, hi)[:, :3].astype(dtype, copy=False)
        xyz = np.empty((hi - lo, 3), dtype)
        for first in range(lo, hi, self.step):
            last = min(first + self.step, hi)
            for axis, path in enumerate(paths):
                xyz[first - lo : last - lo, axis] = self._read(path, first, last)
        return xyz

    def column(self, key: str, lo: int, hi: int) -> NDArray[Any]:
        return self._read(self._detail["columns"][key][0], lo, hi)

    def segment_column(self, key: str) -> NDArray[Any]:
        path = self._detail["segment_columns"][key][0]
        return hdf5.read_rows(self._file[path], place(self._name, path))

    def partition(self, scratch: Scratch) -> Partition | None:
        if self._segments is None:
            return None
        return by_indices(self._segments.indices(self.rows), self._segments.numbers, self.rows, scratch)

    def check(self) -> None:
        """Nothing: what is wrong is raised while it is read."""

    def _read(self, path: str, lo: int, hi: int) -> NDArray[Any]:
        """Rows ``lo:hi`` of a dataset; chunks that hold further rows are kept, not decoded again.

        Small ones are in the cache that HDF5 has for a dataset as long as it is open.
        """
        if path not in self._datasets:
            self._datasets[path] = self._file[path]
        dataset, location = self._datasets[path], place(self._name, path)
        chunk = dataset.chunks[0] if hdf5.chunk_memory(dataset) else 0
        if 4 * chunk <= hi - lo:
            return hdf5.read_rows(dataset, location, lo, hi)
        first, rows = self._decoded.get(path, (0, np.empty(0)))
        if lo < first or hi > first + len(rows):
            self._decoded.pop(path, None)
            first = lo // chunk * chunk
            rows = hdf5.read_rows(dataset, location, first, min(-(-hi // chunk) * chunk, dataset.shape[0]))
            self._decoded[path] = first, rows
        return rows[lo - first : hi - first]


class _Batches(_Columns):
    """Datasets (B, P, …): one row a segment."""

    def _count(self) -> int:
        count, self._each = self._file["data"].shape[:2]
        return int(count * self._each)

    def column(self, key: str, lo: int, hi: int) -> NDArray[Any]:
        path, _, row_shape = self._detail["columns"][key]
        rows = self._read(path, lo, hi)
        return (rows[:, 3:] if path == "data" else rows).reshape(hi - lo, *row_shape)

    def segment_column(self, key: str) -> NDArray[Any]:
        rows = super().segment_column(key)
        return rows.reshape(len(rows), *self._detail["segment_columns"][key][2])

    def partition(self, scratch: Scratch) -> Partition:
        count = self.rows // max(1, self._each)
        return consecutive(np.full(count, self._each, np.int64), np.arange(count, dtype=np.int64))

    def _read(self, path: str, lo: int, hi: int) -> NDArray[Any]:
        """Points ``lo:hi`` of all batches, one after the other."""
        first, last = lo // self._each, -(-hi // self._each)
        rows = super()._read(path, first, last)
        lo, hi = lo - first * self._each, hi - first * self._each
        return rows.reshape(-1, *rows.shape[2:])[lo:hi]


class _InSegments(_Columns):
    """Columns inside every segment: the source's rows are those of the segments, by number."""

    step = BLOCK

    def __init__(self, file: h5py.File, name: str, detail: Mapping[str, Any], segments: Segments) -> None:
        self._held = segments
        self._lengths = segments.lengths(detail["xyz"][0])
        self._offsets = np.concatenate(([0], np.cumsum(self._lengths)))
        forms = {path: (dtype, tuple(shape)) for path, dtype, shape in detail["columns"].values()}
        one = len(detail["xyz"]) == 1
        forms |= {
            path: (dtype, (3,) if one else ())
            for path, dtype in zip(detail["xyz"], detail["xyz_stored"], strict=True)
        }
        self._forms = forms
        super().__init__(file, name, detail, None)

    def _count(self) -> int:
        return int(self._offsets[-1])

    def partition(self, scratch: Scratch) -> Partition:
        return consecutive(self._lengths, self._held.numbers)

    def check(self) -> None:
        raise_first(self._held.problems, self._name)

    def _read(self, path: str, lo: int, hi: int) -> NDArray[Any]:
        return self._held.column(path, np.dtype(self._forms[path]), self._offsets, lo, hi)


@contextmanager
def open_points(source: Source) -> Iterator[Points]:
    """Open one source of a scan; nothing stays open afterwards.

    Raises
    ------
    InputError
        Where the file cannot be opened.
    """
    detail = source.detail
    roots = [Path(root) for root in detail["roots"]]
    with hdf5.open_hdf5(source.path, source.name) as file:
        if detail["layout"] == BATCHES:
            yield _Batches(file, source.name, detail, None)
        elif detail["layout"] == IN_SEGMENTS:
            yield _InSegments(file, source.name, detail, Segments(file, source.name, roots))
        else:
            segments = Segments(file, source.name, roots) if detail["layout"] == INDICES else None
            yield _Columns(file, source.name, detail, segments)
