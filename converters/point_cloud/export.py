"""Export point clouds in the sources' order, in their own format or as PointSuite files with row indices."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.exported import File, Values, array_values
from unistore.converters.point_cloud import layouts
from unistore.converters.point_cloud.cloud import Cloud, clouds, hdf5_file, kept_attributes, lazy_values
from unistore.converters.point_cloud.layouts import pointsuite_indices
from unistore.converters.point_cloud.pointsuite import COUNT, segment_number
from unistore.converters.point_cloud.source import Exported
from unistore.schemas.point_cloud.fields import NO_SEGMENT
from unistore.schemas.store_view import StoreView

_CLASSES = "classification"


def files(store: StoreView) -> Iterator[File]:
    """The exported file of every source."""
    own = [each for each in layouts.FORMATS if isinstance(each, Exported)]
    for cloud in clouds(store):
        known = next((each for each in own if cloud.layout["layout"] == each.NAME), None)
        yield _pointsuite(cloud) if known is None else known.exported(cloud)


def _pointsuite(cloud: Cloud) -> File:
    """``data/<column>``, ``segments/segment_0000/indices``, ``header`` as PointSuite writes them."""
    rows = cloud.rows
    values: dict[str, Values] = {}
    for axis, name in enumerate("xyz"):
        values[f"data/{name}"] = lazy_values(
            partial(cloud.coordinates, axis), (rows,), cloud.coordinate_dtype(axis)
        )
    for name in cloud.layout["columns"]:
        shape = (rows, *cloud.row_shape(name))
        values[f"data/{name}"] = lazy_values(partial(cloud.column, name), shape, cloud.own_dtype(name))
    classes = cloud.column(_CLASSES) if _CLASSES in cloud.layout["columns"] else None
    labelled = classes is not None and classes.ndim == 1 and classes.dtype.kind in "iu"
    real = [number for number, name in enumerate(cloud.numbers.tolist()) if name != NO_SEGMENT]
    attributes: dict[str, Mapping[str, Any]] = {}
    if cloud.layout["layout"] != pointsuite_indices.NAME:  # these files have their own
        attributes |= _summaries(list(values), classes if labelled else None, len(real))
    for segment in real:
        group = f"segments/segment_{cloud.numbers[segment]:04d}"
        count = int(cloud.bounds[segment + 1] - cloud.bounds[segment])
        values[f"{group}/indices"] = lazy_values(
            partial(cloud.indices, segment), (count,), np.dtype(np.int64)
        )
        attributes[group] = {COUNT: count}
        if labelled and classes is not None:
            labels = np.unique(classes[cloud.indices(segment)])
            values[f"{group}/unique_labels"] = array_values(labels)
    for path, own in _pointsuite_attributes(cloud).items():
        target = next((array for array in values if path.startswith(f"{array}/")), path)
        attributes[target] = {**attributes.get(target, {}), **own}
    return hdf5_file(cloud, values, attributes)


def _summaries(
    columns: Sequence[str], classes: NDArray[Any] | None, segments: int
) -> dict[str, Mapping[str, Any]]:
    """Summaries that PointSuite writes as attributes of groups."""
    fields = json.dumps([path.removeprefix("data/") for path in columns])
    found: dict[str, Mapping[str, Any]] = {"data": {"available_fields": fields}}
    if classes is not None:
        pairs = zip(*(each.tolist() for each in np.unique(classes, return_counts=True)), strict=True)
        found["label_statistics"] = {f"label_{label}": count for label, count in pairs}
    return {**found, "segments": {"num_segments": segments}}


def _pointsuite_attributes(cloud: Cloud) -> dict[str, dict[str, Any]]:
    """Attributes that a source had, at the paths of a PointSuite file.

    If the columns of several segments become one, it has the attributes of the first that has any.
    """
    targets = _pointsuite_paths(cloud.layout)
    found: dict[str, dict[str, Any]] = {}
    for path, values in kept_attributes(cloud).items():
        for target in _exported_paths(path, targets):
            found[target] = {**values, **found.get(target, {})}
    return found


def _pointsuite_paths(layout: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Paths in a PointSuite file, by path of the column (or of the group of columns) in the source."""
    xyz = layout["xyz"]
    axes = [f"data/{axis}" for axis in "xyz"]
    targets = (
        dict(zip(xyz, [(axis,) for axis in axes], strict=True)) if len(xyz) == 3 else {xyz[0]: tuple(axes)}
    )
    targets |= {path: (f"data/{name}",) for name, (path, _, _) in layout["columns"].items()}
    group = xyz[0].rpartition("/")[0]
    return {**targets, group: ("data",)} if group else targets


def _exported_paths(path: str, targets: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    group, _, rest = path.partition("/")
    if group != "segments" or not rest:
        return targets.get(path, (path,))
    key, _, column = rest.partition("/")
    if column in targets:
        return targets[column]
    segment = f"segments/segment_{segment_number(key):04d}"
    return (f"{segment}/{column}" if column else segment,)
