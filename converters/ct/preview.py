"""Pictures of volumes: the middle plane of each axis, with windows, labels and masks laid over it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.preview import Measure, Preview, bare, parts_of
from unistore.schemas.ct.fields import LABELS, MASKS, VOLUMES, WINDOWS
from unistore.schemas.ct.geometry import Geometry, read_geometry
from unistore.schemas.indices import IndexColumn, StoreView, whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_OVERLAYS = 6
_POINTS = 200_000
_PERCENTILES = (1, 99)


def draw(store: StoreView, sample: int, figure: Figure) -> None:
    """Draw one volume."""
    extent = IndexColumn(store, f"{VOLUMES}/extent").take(np.array([sample]))[0].tolist()
    geometry = read_geometry(store, sample)
    spacing = geometry.spacing or [1.0, 1.0, 1.0]
    depth, height, width = np.maximum(np.multiply(extent, spacing), 1e-9).tolist()
    widths = [width / height, width / depth, height / depth]
    widths = [max(width, max(widths) / 4) for width in widths]
    figure.set_size_inches(10, float(np.clip(9.6 / sum(widths), 2.4, 5)) + 0.9)
    panels = figure.subplots(1, 3, width_ratios=widths)
    overlays = {path: f"C{number + 1}" for number, path in enumerate(_overlays(store))}
    shown = ""
    for axis, axes in enumerate(panels):
        rows, columns = (other for other in range(3) if other != axis)
        plane = geometry.plane(axis)
        name = f"axis {axis} of 3" if plane is None else f"axis {axis} of 3, {plane}"
        bare(axes, f"{name}: plane {extent[axis] // 2} of {extent[axis]}")
        axes.set_aspect(spacing[rows] / spacing[columns])
        if not all(extent):
            continue
        if store.has(f"{VOLUMES}/image"):
            shown = _show_image(axes, _slice(store, f"{VOLUMES}/image", sample, extent, axis))
        else:
            _show_points(store, axes, sample, extent, axis)
            axes.set_title(f"points of a window, summed along {name}")
        for path, colour in overlays.items():
            _show_overlay(axes, _slice(store, path, sample, extent, axis), colour)
    figure.suptitle(f"volume {sample}: {' × '.join(map(str, extent))}{_length(geometry)}{shown}")
    if overlays:
        marks = [
            panels[0].plot([], [], "s", color=colour, label=path.split("/")[1])[0]
            for path, colour in overlays.items()
        ]
        figure.legend(handles=marks, loc="outside lower center", ncols=len(marks))


def measures(store: StoreView) -> Iterator[Measure]:
    """Slices, and how much of a volume each window takes."""
    extents = whole(store, f"{VOLUMES}/extent").astype(np.float64)
    yield Measure(name="slices", values=extents[:, 0])
    for path in store.paths():
        if path.startswith(f"{WINDOWS}/") and path.endswith("/offsets"):
            share = 100 * np.diff(whole(store, path)) / np.maximum(extents.prod(axis=1), 1)
            yield Measure(name=f"% of voxels in {path.split('/')[1]}", values=share)


PREVIEW = Preview(draw=draw, measures=measures)


def _length(geometry: Geometry) -> str:
    if geometry.spacing is None:
        return ", spacing unknown"
    return f", {' × '.join(f'{length:g}' for length in geometry.spacing)} mm"


def _slice(store: StoreView, path: str, sample: int, extent: list[int], axis: int) -> NDArray[Any]:
    """Read the middle slice of an axis, (rows, columns). Bits are unpacked."""
    is_bits = path.endswith("/mask")
    middle = extent[axis] // 2
    lo = [0, 0, 0]
    hi = [*extent[:2], -(-extent[2] // 8)] if is_bits else list(extent)
    place = middle // 8 if is_bits and axis == 2 else middle
    lo[axis] = place
    hi[axis] = place + 1
    box = store.array(path).read_box([sample, *lo], [sample + 1, *hi])[0]
    if is_bits:
        box = np.unpackbits(box, axis=2, bitorder="little")
        box = box[:, :, middle % 8 :] if axis == 2 else box[:, :, : extent[2]]
    plane: NDArray[Any] = np.take(box, 0, axis=axis)
    return plane


def _show_image(axes: Axes, image: NDArray[Any]) -> str:
    values = image.astype(np.float32)
    finite = values[np.isfinite(values)]
    low, high = np.percentile(finite, _PERCENTILES).tolist() if finite.size else (0.0, 1.0)
    axes.imshow(values, cmap="gray", vmin=low, vmax=max(high, low + 1e-6))
    return f", shown from {low:.4g} to {high:.4g}"


def _show_overlay(axes: Axes, mask: NDArray[Any], colour: str) -> None:
    """Show the outline of a window, label or mask."""
    is_inside = mask != 0
    if 0 < is_inside.sum() < mask.size and min(mask.shape) > 1:
        axes.contour(is_inside, [0.5], colors=[colour], linewidths=0.9)


def _overlays(store: StoreView) -> list[str]:
    """Return labels first, then masks and windows. Of several, the first."""
    paths = [path for path in store.paths() if path.endswith(("/mask", "/label"))]
    groups = (LABELS, MASKS, WINDOWS)
    ordered = [path for path in paths if path.startswith(groups)]
    ordered.sort(key=lambda path: groups.index(path.partition("/")[0]))
    return ordered[:_OVERLAYS]


def _show_points(store: StoreView, axes: Axes, sample: int, extent: list[int], axis: int) -> None:
    """Show the points of the first window of a store without images, all along the axis."""
    path = next((path for path in store.paths() if path.endswith("/coords")), None)
    if path is None:
        return
    lo, hi = IndexColumn(store, f"{path.removesuffix('coords')}offsets").ranges(np.array([sample]))
    coords = store.array(path).read_ranges(*parts_of(int(lo[0]), int(hi[0]), _POINTS))
    sides = np.delete(extent, axis)
    bins = np.minimum(sides, 256)
    counts, *_ = np.histogramdd(np.delete(coords, axis, 1), bins, [(0, side) for side in sides])
    axes.imshow(np.log1p(counts), cmap="viridis", extent=(0, sides[1], sides[0], 0))
