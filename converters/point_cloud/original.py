"""Point clouds beside their files: coordinates, columns and segment indices, by h5py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.comparing import difference
from unistore.converters.common.originals import Compared, datasets_of, open_plain, summary
from unistore.converters.point_cloud.export import BATCHES, Cloud, clouds
from unistore.converters.protocol import Scan
from unistore.schemas.point_cloud.fields import NO_SEGMENT
from unistore.schemas.store_view import StoreView

__all__ = ["Originals"]

_INDICES = "pointsuite_indices"
_IN_SEGMENTS = "pointsuite_columns"

Read = Callable[[str], NDArray[Any]]


class Originals:
    """Compares the sources of a point cloud store, one by one."""

    def __init__(self, store: StoreView, scan: Scan) -> None:
        self._scan = scan
        self._clouds = {cloud.source.number: cloud for cloud in clouds(store)}

    def compare(self, number: int) -> Iterator[Compared]:
        """Coordinates, every column, and the rows of every segment."""
        source = self._scan.sources[number]
        cloud = self._clouds.pop(number)
        detail = source.detail
        with open_plain(source.path) as file:
            read = _reader(file, detail["layout"])

            def compared(what: str, stored: NDArray[Any], original: NDArray[Any]) -> Compared:
                found = difference(stored, original)
                return Compared(f"{source.name}: {what}", source.path, original.size, found)

            for axis in range(3):
                yield compared(f"{'xyz'[axis]}", cloud.coordinates(axis), _axis(read, detail["xyz"], axis))
            for name, (path, _, _) in detail["columns"].items():
                stored = cloud.column(name)
                original = read(path)[:, 3:] if detail["layout"] == BATCHES and path == "data" else read(path)
                yield compared(path, stored, original.reshape(stored.shape))
            for name, (path, _, _) in detail["segment_columns"].items():
                stored = cloud.segment_column(name)
                yield compared(path, stored, file[path][()].reshape(stored.shape))
            if detail["layout"] == _INDICES:
                yield from _indices(file, cloud, compared)

    def left_out(self, number: int) -> list[str]:
        """Datasets of a source that the store does not hold, or makes again from others."""
        detail = self._scan.sources[number].detail
        taken = {path for path, _, _ in (*detail["columns"].values(), *detail["segment_columns"].values())}
        taken |= set(detail["xyz"])
        with open_plain(self._scan.sources[number].path) as file:
            found = [name for name in datasets_of(file) if name not in taken]
        if detail["layout"] == _IN_SEGMENTS:
            found = [name for name in found if name.rpartition("/")[2] not in taken]
        return summary(name for name in found if not name.endswith("/indices"))


def _reader(file: Any, layout: str) -> Read:
    """Reads a column of an open file with a row a point: (N, …)."""
    if layout == BATCHES:
        return lambda path: _flat(file[path][()])
    if layout == _IN_SEGMENTS:
        names = sorted(file["segments"], key=lambda name: int(name.rpartition("_")[2]))
        return lambda path: np.concatenate([file[f"segments/{name}/{path}"][()] for name in names])
    return lambda path: file[path][()]


def _flat(rows: NDArray[Any]) -> NDArray[Any]:
    return rows.reshape(rows.shape[0] * rows.shape[1], *rows.shape[2:])


def _axis(read: Read, paths: list[str], axis: int) -> NDArray[Any]:
    return read(paths[axis]) if len(paths) == 3 else read(paths[0])[:, axis]


def _indices(
    file: Any, cloud: Cloud, compared: Callable[[str, NDArray[Any], NDArray[Any]], Compared]
) -> Iterator[Compared]:
    """Segment by segment by its number; a segment that only one of both has differs in shape."""
    stored = {
        number: cloud.indices(segment)
        for segment, number in enumerate(cloud.numbers.tolist())
        if number != NO_SEGMENT
    }
    names = {int(name.rpartition("_")[2]): name for name in file["segments"]}
    nothing = np.empty((0, 0), np.int64)
    for number in sorted({*stored, *names}):
        name = names.get(number, f"segment_{number:04d}")
        original = file[f"segments/{name}/indices"][()] if number in names else nothing
        yield compared(f"segments/{name}/indices", stored.get(number, nothing), original)
