"""Compare a point cloud store with its files: coordinates, columns, segments, read without the converter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.originals import Compared, difference
from unistore.converters.files.hdf5.attributes import attribute_texts
from unistore.converters.files.hdf5.original_attributes import compare_attributes
from unistore.converters.point_cloud.cloud import Cloud, clouds
from unistore.converters.point_cloud.layouts import format_named
from unistore.converters.point_cloud.source import Original, coordinate_names, segment_values
from unistore.converters.scan import Scan
from unistore.errors import Location
from unistore.schemas.point_cloud.fields import NO_SEGMENT
from unistore.schemas.store_view import StoreView


class Originals:
    """Compares the sources of a point cloud store, one by one."""

    def __init__(self, store: StoreView, scan: Scan) -> None:
        self._scan = scan
        self._clouds = {cloud.source.number: cloud for cloud in clouds(store)}
        self._attributes = attribute_texts(store, len(self._clouds))

    def compare(self, number: int) -> Iterator[Compared]:
        """Coordinates, every column, the rows of every segment, and the attributes of an HDF5 file."""
        source = self._scan.sources[number]
        cloud = self._clouds.pop(number)
        detail = source.detail
        with format_named(detail["layout"]).open_original(source) as original:

            def compared(what: str, stored: NDArray[Any], values: NDArray[Any]) -> Compared:
                found = difference(stored, values)
                return Compared(Location(source.name, what), source.path, values.size, found)

            names = coordinate_names(detail)
            for axis in range(3):
                own = original.column(names[axis]) if len(names) == 3 else original.column(names[0])[:, axis]
                yield compared("xyz"[axis], cloud.coordinates(axis), own)
            for name, (path, _, _) in detail["columns"].items():
                stored = cloud.column(name)
                yield compared(path, stored, original.column(name).reshape(stored.shape))
            for name, (path, _, _) in detail["segment_columns"].items():
                stored = cloud.segment_column(name)
                values = segment_values(detail, name, original.segment_column)
                yield compared(path, stored, values.reshape(stored.shape))
            yield from _indices(original, cloud, compared)
        yield from compare_attributes(source.name, source.path, self._attributes[number])

    def left_out(self, number: int) -> list[str]:
        """Datasets and attributes of a source that are not in the store."""
        source = self._scan.sources[number]
        with format_named(source.detail["layout"]).open_original(source) as original:
            return list(original.left_out)


def _indices(
    original: Original, cloud: Cloud, compared: Callable[[str, NDArray[Any], NDArray[Any]], Compared]
) -> Iterator[Compared]:
    """Compare the rows of each segment; a segment that only one side has differs in shape."""
    if original.indices is None:
        return
    stored = {
        number: cloud.indices(segment)
        for segment, number in enumerate(cloud.numbers.tolist())
        if number != NO_SEGMENT
    }
    nothing = np.empty((0, 0), np.int64)
    for number in sorted({*stored, *original.indices}):
        path, read = original.indices.get(number, (f"segment {number}", lambda: nothing))
        yield compared(path, stored.get(number, nothing), read())
