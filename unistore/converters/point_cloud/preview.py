"""Views of segments: some of their points, and the columns that they are coloured by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

import numpy as np

from unistore.plugin import (
    Measure,
    Preview,
    StoreView,
    View,
    ViewLimits,
    count_of,
    limits,
    parts_of,
    stride,
    whole,
)
from unistore.schemas.point_cloud.fields import NO_SEGMENT, POINTS, SEGMENTS, quantum
from unistore.system.types import AnyArray, Float64s, Int64s, JsonObject

_FEW = 16
_PARTS = 512  # runs of points that are read of a segment that is too large to be read whole
_COLUMNS = 12
_CLASSES = 40  # an integer column with at most this many values is one of classes
# Columns that are coloured by first
_FIRST = ("classification", "label", "labels", "semantic", "segment", "instance", "pid")
_COLOURS = ("rgb", "color", "colors", "colour", "colours")


def view(store: StoreView, sample: int, detail: ViewLimits) -> View:
    """Return points of one segment, relative to its origin."""
    segment = int(_segments_of_samples(store)[sample])
    lo, hi = whole(store, f"{SEGMENTS}/offsets")[segment : segment + 2].tolist()
    names = _column_names(store)
    columns = {name: store.array(f"{POINTS}/{name}") for name in ("xyz", *names)}
    sizes = [prod(column.shape[1:]) * column.dtype.itemsize for column in columns.values()]
    row_bytes = sum(sizes)
    most = max(1, min(detail.points, detail.shown // (row_bytes + 1)))
    # Where the whole segment may be read, every n-th point is the better picture
    starts, stops = parts_of(lo, hi, max(1, detail.read // row_bytes), _PARTS)
    rows = int((stops - starts).sum())
    step = stride(rows, most)
    values = {name: column.read_ranges(starts, stops)[::step] for name, column in columns.items()}
    xyz = _local(store, segment, values.pop("xyz"))
    arrays: dict[str, AnyArray] = {"xyz": xyz.astype(np.float32)}
    columns_shown = []
    for number, (name, column) in enumerate(values.items()):
        names_of_classes = columns[name].attributes.get("classes", {})
        entry, arrays[f"column{number}"] = _coloured(column, names_of_classes)
        columns_shown.append({"name": name, "array": f"column{number}", **entry})
    note = "all points"
    points = hi - lo
    shown = len(xyz)
    if shown < points:
        note = f"{shown:,} of {points:,} points, about every {points // shown}th"
    head = {"columns": columns_shown, "note": note}
    title = count_of(points, "point")
    return View(widget="cloud", title=title, head=head, arrays=arrays, read=rows * row_bytes)


def measures(store: StoreView) -> Iterator[Measure]:
    """Points of every segment."""
    yield Measure(
        name="points",
        values=np.diff(whole(store, f"{SEGMENTS}/offsets"))[_segments_of_samples(store)],
        few=_FEW,
        fix="--min-points leaves out small ones; larger windows of --segment have more",
    )


PREVIEW = Preview(view=view, measures=measures)


def _segments_of_samples(store: StoreView) -> Int64s:
    return np.flatnonzero(whole(store, f"{SEGMENTS}/number") != NO_SEGMENT)


def _column_names(store: StoreView) -> list[str]:
    # Columns with a number a point, or a colour, those of classes first
    names = []
    for path in store.paths():
        name = path.removeprefix(f"{POINTS}/")
        if name in (path, "xyz") or store.array(path).dtype.kind not in "biuf":
            continue
        row_shape = store.array(path).shape[1:]
        if not row_shape or (row_shape == (3,) and name.lower() in _COLOURS):
            names.append(name)
    ranks = {name: rank for rank, name in enumerate(_FIRST)}

    def rank(name: str) -> tuple[int, bool]:
        # Classes first, then what was attached, which has no dtype of a source
        is_of_source = "source_dtype" in store.array(f"{POINTS}/{name}").attributes
        return ranks.get(name.lower(), len(ranks)), is_of_source

    names.sort(key=rank)
    return names[:_COLUMNS]


def _local(store: StoreView, segment: int, stored: AnyArray) -> Float64s:
    # Coordinates relative to the segment's origin, (n, 3)
    restoring = quantum(store)
    if restoring is not None:
        stored = restoring.restored(stored, int(whole(store, f"{SEGMENTS}/source")[segment]))
    local: Float64s = stored.astype(np.float64) - whole(store, f"{SEGMENTS}/origin")[segment]
    return local


def _coloured(values: AnyArray, names: Mapping[str, str]) -> tuple[JsonObject, AnyArray]:
    # How a column colours points, and its values: classes by number, colours in bytes
    if values.ndim == 2:
        if values.dtype.kind == "f":
            scale = 255 if values.max(initial=0) <= 1 else 1
            return {"kind": "rgb"}, np.clip(values * scale, 0, 255).astype(np.uint8)
        is_deep = values.max(initial=0) > 255
        return {"kind": "rgb"}, (values >> 8 if is_deep else values).astype(np.uint8)
    if values.dtype.kind in "biu":
        classes, numbers = np.unique(values, return_inverse=True)
        if len(classes) <= _CLASSES:
            labels = [names.get(str(number), number) for number in classes.tolist()]
            return {"kind": "class", "classes": labels}, numbers.astype(np.uint8)
    return {"kind": "number", "limits": limits(values)}, values.astype(np.float32)
