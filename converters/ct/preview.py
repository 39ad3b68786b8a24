"""Pictures of volumes: the middle plane of each axis, with windows, labels and masks laid over it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.preview import Measure, Preview, bare, parts_of
from unistore.schemas.ct.fields import LABELS, MASKS, VOLUMES, WINDOWS
from unistore.schemas.ct.geometry import Geometry, read_geometry
from unistore.schemas.indices import Column, StoreView, whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_OVERLAYS = 6
_POINTS = 200_000
_PERCENTILES = (1, 99)


def draw(store: StoreView, sample: int, figure: Figure) -> None:
    """Draw one volume."""
    extent = Column(store, f"{VOLUMES}/extent").take(np.array([sample]))[0].tolist()
    geometry = read_geometry(store, sample)
    caption = ", spacing unknown"
    if geometry.spacing is not None:
        caption = f", {' × '.join(f'{length:g}' for length in geometry.spacing)} mm"
    spacing = geometry.spacing or [1.0, 1.0, 1.0]
    widths = _widths(extent, spacing)
    figure.set_size_inches(10, float(np.clip(9.6 / sum(widths), 2.4, 5)) + 0.9)
    panels = figure.subplots(1, 3, width_ratios=widths)
    overlays = _overlays(store)
    ranges: list[str] = []
    for axis, axes in enumerate(panels):
        rows, columns = (other for other in range(3) if other != axis)
        bare(axes, f"{_axis_name(geometry, axis)}: plane {extent[axis] // 2} of {extent[axis]}")
        axes.set_aspect(spacing[rows] / spacing[columns])
        if not all(extent):
            continue
        if store.has(f"{VOLUMES}/image"):
            ranges.append(_show_image(axes, _slice(store, f"{VOLUMES}/image", sample, extent, axis)))
        else:
            _show_points(store, axes, sample, extent, axis, geometry)
        for number, path in enumerate(overlays):
            mask = _slice(store, path, sample, extent, axis)
            _show_overlay(axes, mask, f"C{number + 1}", outline=path.startswith(WINDOWS))
    figure.suptitle(f"volume {sample}: {' × '.join(map(str, extent))}{caption}{''.join(ranges[:1])}")
    if overlays:
        marks = [
            panels[0].plot([], [], "s", color=f"C{i + 1}", label=path.split("/")[1])[0]
            for i, path in enumerate(overlays)
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


def _axis_name(geometry: Geometry, axis: int) -> str:
    """Return what an axis is called: its number, and the planes across it if they are known."""
    plane = geometry.plane(axis)
    return f"axis {axis} of 3" if plane is None else f"axis {axis} of 3, {plane}"


def _widths(extent: list[int], spacing: list[float]) -> list[float]:
    """Widths of the panels at one height, within reason."""
    depth, height, width = np.maximum(np.multiply(extent, spacing), 1e-9).tolist()
    widths = [width / height, width / depth, height / depth]
    return [max(width, max(widths) / 4) for width in widths]


def _slice(store: StoreView, path: str, sample: int, extent: list[int], axis: int) -> NDArray[Any]:
    """The middle slice of an axis, (rows, columns); bits are unpacked."""
    bits = path.endswith("/mask")
    lo = [0, 0, 0]
    hi = list(extent)
    lo[axis] = extent[axis] // 2
    hi[axis] = extent[axis] // 2 + 1
    if bits:
        lo[2] = lo[2] // 8
        hi[2] = -(-hi[2] // 8)
    box = store.array(path).read_box([sample, *lo], [sample + 1, *hi])[0]
    if bits:
        box = np.unpackbits(box, axis=2, bitorder="little")
        bit = extent[2] // 2 % 8
        box = box[:, :, bit : bit + 1] if axis == 2 else box[:, :, : extent[2]]
    plane: NDArray[Any] = np.take(box, 0, axis=axis)
    return plane


def _show_image(axes: Axes, image: NDArray[Any]) -> str:
    values = image.astype(np.float32)
    finite = values[np.isfinite(values)]
    low, high = np.percentile(finite, _PERCENTILES).tolist() if finite.size else (0.0, 1.0)
    axes.imshow(values, cmap="gray", vmin=low, vmax=max(high, low + 1e-6))
    return f", shown from {low:.4g} to {high:.4g}"


def _show_overlay(axes: Axes, mask: NDArray[Any], colour: str, *, outline: bool) -> None:
    """A label or mask as a tint; the outline of a window, which may be nearly everywhere."""
    from matplotlib.colors import to_rgba

    if outline:
        if 0 < mask.sum() < mask.size and min(mask.shape) > 1:
            axes.contour(mask, [0.5], colors=[colour], linewidths=0.9)
        return
    tint = np.zeros((*mask.shape, 4), np.float32)
    tint[mask != 0] = to_rgba(colour, 0.4)
    axes.imshow(tint, interpolation="nearest")


def _overlays(store: StoreView) -> list[str]:
    """Labels first, then masks and windows; of several, the first."""
    overlay_paths = [
        path
        for group in (LABELS, MASKS, WINDOWS)
        for path in store.paths()
        if path.startswith(f"{group}/") and path.endswith(("/mask", "/label"))
    ]
    return overlay_paths[:_OVERLAYS]


def _show_points(
    store: StoreView, axes: Axes, sample: int, extent: list[int], axis: int, geometry: Geometry
) -> None:
    """Of a store without images: the points of its first window, all along the axis."""
    paths = [path for path in store.paths() if path.endswith("/coords")]
    if not paths:
        return
    lo, hi = Column(store, f"{paths[0].removesuffix('coords')}offsets").ranges(np.array([sample]))
    coords = store.array(paths[0]).read_ranges(*parts_of(int(lo[0]), int(hi[0]), _POINTS))
    rows, columns = (other for other in range(3) if other != axis)
    bins = [min(extent[rows], 256), min(extent[columns], 256)]
    counts, *_ = np.histogram2d(
        coords[:, rows], coords[:, columns], bins, range=[[0, extent[rows]], [0, extent[columns]]]
    )
    axes.imshow(np.log1p(counts), cmap="viridis", extent=(0, extent[columns], extent[rows], 0))
    axes.set_title(f"{paths[0].split('/')[1]}, summed along {_axis_name(geometry, axis)}")
