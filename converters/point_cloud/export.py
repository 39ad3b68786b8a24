"""Export of point clouds: every file in its own layout, in the order of its rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from unistore.converters.common.exported import File, array_values
from unistore.converters.point_cloud.cloud import Cloud, clouds, hdf5_file, kept_attributes
from unistore.converters.point_cloud.layouts import pointsuite_columns, pointsuite_indices
from unistore.converters.point_cloud.pointsuite import COUNT
from unistore.converters.point_cloud.restore import numbered, own_arrays, segment_group
from unistore.schemas.indices import StoreView

_CLASSES = "classification"
_IN_SEGMENTS = (pointsuite_columns.NAME, pointsuite_indices.NAME)


def files(store: StoreView) -> Iterator[File]:
    """The exported file of every source: ``.npz`` as it was, all others as HDF5."""
    for cloud in clouds(store):
        values = own_arrays(cloud)
        name = cloud.source.name
        if name.lower().endswith(".npz"):
            yield File(name=name, form="npz", source=cloud.source.number, values=values)
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


def _labels_of_segments(cloud: Cloud) -> dict[str, Any]:
    """Classes in each segment, which PointSuite files list beside its rows."""
    classes = cloud.column(_CLASSES)
    if classes.ndim != 1 or classes.dtype.kind not in "iu":
        return {}
    return {
        f"{segment_group(number)}/unique_labels": np.unique(classes[cloud.indices(segment)])
        for segment, number in cloud.real_segments()
    }
