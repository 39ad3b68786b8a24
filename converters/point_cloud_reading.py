"""Reading the points of one file in its own row order, whatever its layout, one column at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import h5py
import numpy as np
from numpy.typing import NDArray

from unistore.converters import hdf5
from unistore.converters.hdf5 import place
from unistore.converters.point_cloud_in_segments import Segments
from unistore.converters.point_cloud_layout import BATCHES, IN_SEGMENTS, INDICES
from unistore.converters.point_cloud_segments import Partition, by_indices, consecutive
from unistore.converters.protocol import Source

__all__ = ["Points", "open_points"]


class Points(Protocol):
    """One open file. Every method raises `InputError` where values cannot be read or are contradictory."""

    def axes(self) -> list[NDArray[Any]]:
        """x, y and z, (N,) each, f4 or f8, in the order of the source's rows."""
        ...

    def column(self, key: str) -> NDArray[Any]:
        """One column of the points, (N, …), by stored name, in native byte order."""
        ...

    def segment_column(self, key: str) -> NDArray[Any]:
        """One column of the segments, (S, …), by stored name."""
        ...

    def partition(self, rows: int) -> Partition | None:
        """Segments as the file has them; None if it has none."""
        ...


class _Columns:
    """Datasets of one row a point, with row indices of the segments or without segments."""

    def __init__(
        self, file: h5py.File, name: str, detail: Mapping[str, Any], segments: Segments | None
    ) -> None:
        self._file, self._name, self._detail, self._segments = file, name, detail, segments

    def axes(self) -> list[NDArray[Any]]:
        dtype = np.dtype(self._detail["xyz_dtype"])
        paths = self._detail["xyz"]
        if len(paths) == 3:
            return [self._read(path).astype(dtype, copy=False) for path in paths]
        whole = self._read(paths[0])
        return [whole[:, axis].astype(dtype) for axis in range(3)]

    def column(self, key: str) -> NDArray[Any]:
        return self._read(self._detail["columns"][key][0])

    def segment_column(self, key: str) -> NDArray[Any]:
        return self._read(self._detail["segment_columns"][key][0])

    def partition(self, rows: int) -> Partition | None:
        if self._segments is None:
            return None
        return by_indices(self._segments.indices(rows), self._segments.numbers, rows)

    def _read(self, path: str) -> NDArray[Any]:
        return hdf5.read_rows(self._file[path], place(self._name, path))


class _Batches(_Columns):
    """Datasets (B, P, …): one row a segment."""

    def axes(self) -> list[NDArray[Any]]:
        points = self._read("data")
        flat = points.reshape(-1, points.shape[2])
        return [flat[:, axis].astype(self._detail["xyz_dtype"]) for axis in range(3)]

    def column(self, key: str) -> NDArray[Any]:
        path, _, row_shape = self._detail["columns"][key]
        rows = self._read(path)
        if path == "data":
            return rows[:, :, 3:].reshape(-1, *row_shape)
        return rows.reshape(rows.shape[0] * rows.shape[1], *row_shape)

    def segment_column(self, key: str) -> NDArray[Any]:
        path, _, row_shape = self._detail["segment_columns"][key]
        rows = self._read(path)
        return rows.reshape(len(rows), *row_shape)

    def partition(self, rows: int) -> Partition:
        count, per_segment = self._file["data"].shape[:2]
        return consecutive(np.full(count, per_segment, np.int64), np.arange(count, dtype=np.int64))


class _InSegments(_Columns):
    """Columns inside every segment: the source's rows are those of the segments, by number."""

    def __init__(self, file: h5py.File, name: str, detail: Mapping[str, Any], segments: Segments) -> None:
        super().__init__(file, name, detail, None)
        self._held = segments
        self._lengths = segments.lengths(detail["xyz"][0])

    def axes(self) -> list[NDArray[Any]]:
        stored, paths = self._detail["xyz_stored"], self._detail["xyz"]
        target = np.dtype(self._detail["xyz_dtype"])
        if len(paths) == 1:
            whole = self._held.column(paths[0], np.dtype(stored[0]), (3,), self._lengths)
            return [whole[:, axis].astype(target) for axis in range(3)]
        return [
            self._held.column(path, np.dtype(dtype), (), self._lengths).astype(target, copy=False)
            for path, dtype in zip(paths, stored, strict=True)
        ]

    def column(self, key: str) -> NDArray[Any]:
        path, dtype, row_shape = self._detail["columns"][key]
        return self._held.column(path, np.dtype(dtype), tuple(row_shape), self._lengths)

    def partition(self, rows: int) -> Partition:
        return consecutive(self._lengths, self._held.numbers)


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
