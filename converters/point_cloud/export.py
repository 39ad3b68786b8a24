"""Export of point clouds: every file in its own layout, in the order of its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.exported import File, Values, array_values
from unistore.converters.plugin import Array
from unistore.converters.point_cloud.cloud import Cloud, clouds, hdf5_file, kept_attributes
from unistore.converters.point_cloud.family import PointCloud
from unistore.converters.point_cloud.layouts import pointsuite_columns, pointsuite_indices
from unistore.converters.point_cloud.pointsuite import COUNT
from unistore.converters.point_cloud.restore import numbered, own_arrays, segment_group
from unistore.converters.seam.formats import format_by_ending, formats_of
from unistore.converters.seam.stored import file_of_format
from unistore.schemas.indices import StoreView

# Formats that are exported as they were
_WRITTEN = ("las", "laz")
_CLASSES = "classification"
_IN_SEGMENTS = (pointsuite_columns.NAME, pointsuite_indices.NAME)


def files(store: StoreView) -> Iterator[File]:
    """The exported file of every source: ``.npz`` and what a format writes as it was, all others as HDF5."""
    formats = formats_of(PointCloud.formats)
    for cloud in clouds(store):
        values = own_arrays(cloud)
        name = cloud.source.name
        if name.lower().endswith(".npz"):
            yield File(name=name, form="npz", source=cloud.source.number, values=values)
            continue
        opening = format_by_ending(formats, name)
        if opening.name in _WRITTEN:
            notes = (f"{opening.name}: values, order and header are those of the source",)
            yield replace(file_of_format(opening, cloud.source, _arrays(values), cloud.header), notes=notes)
            continue
        attributes: dict[str, Mapping[str, Any]] = {}
        if cloud.layout["layout"] in _IN_SEGMENTS:
            for segment, number in cloud.real_segments():
                attributes[segment_group(number)] = {COUNT: cloud.length(segment)}
        for path, own in kept_attributes(cloud).items():
            target = numbered(path)
            attributes[target] = {**attributes.get(target, {}), **own}
        if cloud.layout["layout"] == pointsuite_indices.NAME and _CLASSES in cloud.layout["columns"]:
            for path, labels in _labels_of_segments(cloud).items():
                values[path] = array_values(labels)
        yield hdf5_file(cloud, values, attributes)


@dataclass(frozen=True, eq=False)
class _Column:
    """A column whose rows are all read when some are wanted: they stand elsewhere in the store."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    whole: Callable[[], NDArray[Any]]

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        return self.whole()[rows]


def _arrays(values: Mapping[str, Values]) -> dict[str, Array]:
    """Columns by name, of which one is in memory at a time."""

    @lru_cache(maxsize=1)
    def whole(name: str) -> NDArray[Any]:
        return values[name].whole()

    return {
        name: Array(_Column(column.shape, column.dtype, partial(whole, name)))
        for name, column in values.items()
    }


def _labels_of_segments(cloud: Cloud) -> dict[str, Any]:
    """Classes in each segment, which PointSuite files list beside its rows."""
    classes = cloud.column(_CLASSES)
    if classes.ndim != 1 or classes.dtype.kind not in "iu":
        return {}
    return {
        f"{segment_group(number)}/unique_labels": np.unique(classes[cloud.indices(segment)])
        for segment, number in cloud.real_segments()
    }
