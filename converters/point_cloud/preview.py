"""Pictures of segments: from above and from the side, coloured by label or height, and their voxels."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from unistore.converters.preview import Measure, Preview, parts_of
from unistore.schemas.indices import Column, StoreView, whole
from unistore.schemas.point_cloud.fields import NO_SEGMENT, POINTS, SEGMENTS, quantum
from unistore.system.sizes import count_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Points or voxels that are drawn, at most
_SHOWN = 40_000
_FEW = 16
_LABELS = ("classification", "label", "labels", "semantic", "segment", "instance", "pid")
_LEGEND = 8
# The voxel grid with about as many cells across is drawn
_CELLS = 40
_MOST_CELLS = 400


def draw(store: StoreView, sample: int, figure: Figure) -> None:
    """Draw one segment."""
    row = _rows(store)[sample : sample + 1]
    lo, hi = (int(bound[0]) for bound in Column(store, f"{SEGMENTS}/offsets").ranges(row))
    first, last = parts_of(lo, hi, _SHOWN)
    xyz = _xyz(store, row, first, last)
    grid = _grid(store, float(np.ptp(xyz[:, :2], axis=0).max()) if len(xyz) else 0.0)
    panels = figure.subplots(1, 2 if grid is None else 3, squeeze=False)[0]
    along = int(np.argmax(np.ptp(xyz[:, :2], axis=0))) if len(xyz) else 0
    colours, labels = _labels(store, first, last)
    for axes, (across, up), title in zip(panels, ((0, 1), (along, 2)), ("above", "the side"), strict=False):
        axes.set_title(f"from {title}, by {colours}")
        axes.set_xlabel("xyz"[across])
        axes.set_ylabel("xyz"[up])
        _scatter(axes, xyz[:, across], xyz[:, up], xyz[:, 2], labels)
    if labels is not None and len(np.unique(labels)) <= _LEGEND:
        marks = [
            panels[0].plot([], [], "o", color=f"C{i % 10}", label=str(label))[0]
            for i, label in enumerate(np.unique(labels))
        ]
        figure.legend(handles=marks, loc="outside right upper", title=colours)
    if grid is not None:
        _draw_voxels(store, grid, row, panels[2])
    shown = int((last - first).sum())
    part = "" if shown == hi - lo else f", {shown:,} of them shown"
    figure.suptitle(f"segment {sample}: {count_of(hi - lo, 'point')}{part}")


def measures(store: StoreView) -> Iterator[Measure]:
    """Points of every segment."""
    yield Measure(
        name="points",
        values=np.diff(whole(store, f"{SEGMENTS}/offsets"))[_rows(store)],
        few=_FEW,
        cure="--min-points leaves out small ones; larger windows of --segment have more",
    )


PREVIEW = Preview(draw=draw, measures=measures)


def _rows(store: StoreView) -> NDArray[np.int64]:
    """Rows of ``segments`` that are samples."""
    return np.flatnonzero(whole(store, f"{SEGMENTS}/number") != NO_SEGMENT)


def _xyz(
    store: StoreView, row: NDArray[np.int64], first: NDArray[np.int64], last: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Coordinates relative to the segment's origin, (n, 3)."""
    stored = store.array(f"{POINTS}/xyz").read_ranges(first, last)
    restoring = quantum(store)
    if restoring is None:
        xyz = stored.astype(np.float64)
    else:
        xyz = restoring.restored(stored, int(Column(store, f"{SEGMENTS}/source").take(row)[0]))
    local: NDArray[np.float64] = xyz - Column(store, f"{SEGMENTS}/origin").take(row)[0]
    return local[np.isfinite(local).all(axis=1)] if not np.isfinite(local).all() else local


def _labels(
    store: StoreView, first: NDArray[np.int64], last: NDArray[np.int64]
) -> tuple[str, NDArray[np.int64] | None]:
    """What colours show, and the label of every point; height and None if all points have one label."""
    names = [path.removeprefix(f"{POINTS}/") for path in store.paths() if path.startswith(f"{POINTS}/")]
    label_names = [name for name in names if name.lower() in _LABELS]
    for name in sorted(label_names, key=lambda name: _LABELS.index(name.lower())):
        array = store.array(f"{POINTS}/{name}")
        if array.dtype.kind in "biu" and len(array.shape) == 1:
            values = array.read_ranges(first, last).astype(np.int64)
            if len(np.unique(values)) > 1:
                return name, values
    return "height", None


def _scatter(
    axes: Axes,
    across: NDArray[np.float64],
    up: NDArray[np.float64],
    height: NDArray[np.float64],
    labels: NDArray[np.int64] | None,
) -> None:
    axes.set_aspect("equal", adjustable="datalim")
    if not len(across):
        axes.text(0.5, 0.5, "no points", ha="center", va="center", transform=axes.transAxes)
        return
    size = float(np.clip(6000 / len(across), 1, 24))
    if labels is None or len(labels) != len(across):
        axes.scatter(across, up, s=size, c=height, cmap="viridis", linewidths=0)
        return
    for number, label in enumerate(np.unique(labels)):
        of = labels == label
        axes.scatter(across[of], up[of], s=size, color=f"C{number % 10}", linewidths=0)


def _grid(store: StoreView, extent: float) -> str | None:
    """Group of the voxel grid to draw."""
    groups = [
        path.removesuffix("/coords")
        for path in store.paths()
        if path.startswith("voxels/") and path.endswith("/coords")
    ]
    return min(
        groups, key=lambda group: abs(math.log(max(extent, 1e-9) / _size(group) / _CELLS)), default=None
    )


def _size(group: str) -> float:
    return float(group.removeprefix("voxels/"))


def _draw_voxels(store: StoreView, group: str, row: NDArray[np.int64], axes: Axes) -> None:
    """Points of each column of voxels, from above."""
    from matplotlib.ticker import MaxNLocator

    lo, hi = (int(bound[0]) for bound in Column(store, f"{group}/offsets").ranges(row))
    first, last = parts_of(lo, hi, _SHOWN)
    cells = store.array(f"{group}/coords").read_ranges(first, last)[:, :2]
    counts = store.array(f"{group}/counts").read_ranges(first, last)
    axes.set_title(f"{count_of(hi - lo, 'voxel')} of {_size(group):g}, from above")
    axes.set_aspect("equal", adjustable="datalim")
    if not len(cells):
        return
    ends = cells.max(axis=0).astype(np.int64) + 1
    image = axes.hist2d(
        (cells[:, 0] + 0.5) * _size(group),
        (cells[:, 1] + 0.5) * _size(group),
        bins=np.minimum(ends, _MOST_CELLS).tolist(),
        range=[(0, end * _size(group)) for end in ends.tolist()],
        weights=counts,
        cmin=1,
        cmap="viridis",
    )[3]
    axes.figure.colorbar(image, ax=axes, label="points", ticks=MaxNLocator(integer=True))
