"""Pictures of segments: from above and from the side, coloured by label or height, and their voxels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from unistore.converters.preview import Measure, Preview, parts_of
from unistore.schemas.indices import StoreView, whole
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


def draw(store: StoreView, sample: int, figure: Figure) -> None:
    """Draw one segment."""
    segment = int(_segments(store)[sample])
    lo, hi = whole(store, f"{SEGMENTS}/offsets")[segment : segment + 2].tolist()
    first, last = parts_of(lo, hi, _SHOWN)
    xyz = _xyz(store, segment, first, last)
    colours, labels = _labels(store, first, last)
    grids = [path.removesuffix("/coords") for path in store.paths() if path.endswith("/coords")]
    panels = figure.subplots(1, 3 if grids else 2)
    widths = np.ptp(xyz[:, :2], axis=0) if len(xyz) else np.zeros(2)
    for axes, (across, up), title in zip(
        panels, ((0, 1), (int(widths.argmax()), 2)), ("above", "the side"), strict=False
    ):
        axes.set(title=f"from {title}, by {colours}", xlabel="xyz"[across], ylabel="xyz"[up])
        axes.set_aspect("equal", adjustable="datalim")
        size = float(np.clip(6000 / max(1, len(xyz)), 1, 24))
        if labels is None:
            axes.scatter(xyz[:, across], xyz[:, up], s=size, c=xyz[:, 2], linewidths=0)
            continue
        for number, label in enumerate(np.unique(labels)):
            inside = xyz[labels == label]
            colour = f"C{number % 10}"
            axes.scatter(inside[:, across], inside[:, up], s=size, color=colour, label=label, linewidths=0)
    if labels is not None and len(np.unique(labels)) <= _LEGEND:
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper", title=colours)
    if grids:
        # Of several grids, the one with the fewest voxels is the plainest picture.
        sizes = {grid: float(grid.removeprefix("voxels/")) for grid in grids}
        _draw_voxels(store, max(sizes, key=sizes.__getitem__), segment, panels[2])
    shown = int((last - first).sum())
    part = "" if shown == hi - lo else f", {shown:,} of them shown"
    figure.suptitle(f"segment {sample}: {count_of(hi - lo, 'point')}{part}")


def measures(store: StoreView) -> Iterator[Measure]:
    """Points of every segment."""
    yield Measure(
        name="points",
        values=np.diff(whole(store, f"{SEGMENTS}/offsets"))[_segments(store)],
        few=_FEW,
        cure="--min-points leaves out small ones; larger windows of --segment have more",
    )


PREVIEW = Preview(draw=draw, measures=measures)


def _segments(store: StoreView) -> NDArray[np.int64]:
    """Return rows of ``segments`` that are samples."""
    return np.flatnonzero(whole(store, f"{SEGMENTS}/number") != NO_SEGMENT)


def _xyz(
    store: StoreView, segment: int, first: NDArray[np.int64], last: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return coordinates relative to the segment's origin, (n, 3)."""
    stored = store.array(f"{POINTS}/xyz").read_ranges(first, last)
    restoring = quantum(store)
    if restoring is not None:
        stored = restoring.restored(stored, int(whole(store, f"{SEGMENTS}/source")[segment]))
    local: NDArray[np.float64] = stored.astype(np.float64) - whole(store, f"{SEGMENTS}/origin")[segment]
    return local


def _labels(
    store: StoreView, first: NDArray[np.int64], last: NDArray[np.int64]
) -> tuple[str, NDArray[np.int64] | None]:
    """What colours show, and the label of every point. Height and None if all points have one label."""
    names = [path.removeprefix(f"{POINTS}/") for path in store.paths() if path.startswith(f"{POINTS}/")]
    label_names = [name for name in names if name.lower() in _LABELS]
    for name in sorted(label_names, key=lambda name: _LABELS.index(name.lower())):
        array = store.array(f"{POINTS}/{name}")
        if array.dtype.kind in "biu" and len(array.shape) == 1:
            values = array.read_ranges(first, last).astype(np.int64)
            if len(np.unique(values)) > 1:
                return name, values
    return "height", None


def _draw_voxels(store: StoreView, grid: str, segment: int, axes: Axes) -> None:
    """Draw the voxels from above, coloured by their points."""
    lo, hi = whole(store, f"{grid}/offsets")[segment : segment + 2].tolist()
    first, last = parts_of(lo, hi, _SHOWN)
    cells = store.array(f"{grid}/coords").read_ranges(first, last)
    counts = store.array(f"{grid}/counts").read_ranges(first, last)
    size = float(grid.removeprefix("voxels/"))
    axes.set_title(f"{count_of(hi - lo, 'voxel')} of {size:g}, from above")
    axes.set_aspect("equal", adjustable="datalim")
    lowest_first = np.argsort(counts)
    centres = (cells[lowest_first, :2] + 0.5) * size
    points = axes.scatter(centres[:, 0], centres[:, 1], c=counts[lowest_first], s=12, marker="s")
    axes.figure.colorbar(points, ax=axes, label="points")
