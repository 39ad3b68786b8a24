"""Views of volumes: block means of all voxels, and one plane of every axis in full resolution."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from unistore.plugin import (
    IndexColumn,
    Measure,
    Preview,
    StoreView,
    View,
    ViewLimits,
    limits,
    parts_of,
    stride,
    whole,
)
from unistore.schemas.ct.fields import IMAGE, LABELS, MASKS, VOLUMES, WINDOWS
from unistore.schemas.ct.geometry import read_geometry
from unistore.schemas.ct.windows import PRESETS
from unistore.system.types import AnyArray, Float64s, Int64s, JsonObject, UInt8s

_OVERLAYS = 6
_SLAB_BYTES = 32 << 20
# Cosine from which on slices count as going toward the head
_UPWARD = 0.9


def view(store: StoreView, sample: int, detail: ViewLimits) -> View:
    """Return one volume, or the points of its first window where the store has no image."""
    extent = IndexColumn(store, f"{VOLUMES}/extent").take(np.array([sample]))[0].tolist()
    has_image = store.has(IMAGE)
    points = [path for path in store.paths() if path.startswith(WINDOWS) and path.endswith("/coords")]
    if points and not has_image:
        return _points(store, points[0].removesuffix("/coords"), sample, extent, detail)
    volume = _VolumeBlocks(store, sample, extent, detail)
    geometry = read_geometry(store, sample)
    image = volume.means() if has_image else np.zeros(volume.shape, np.uint8)
    arrays = {"image": image}
    overlays: list[JsonObject] = []
    for path in _overlays(store):
        voxels = volume.middles(path)
        arrays[f"overlay{len(overlays)}"] = voxels
        # Windows repeat what the image says
        overlay: JsonObject = {"name": path.split("/")[1], "shown": not path.startswith(WINDOWS)}
        names = store.array(path).attributes.get("classes", {})
        numbers = np.unique(voxels[voxels > 0]).tolist()
        if numbers not in ([], [1]):
            overlay["classes"] = [[number, names.get(str(number), number)] for number in numbers]
        overlays.append(overlay)
    middle = [length // 2 for length in extent]
    planes = _planes(store, sample, extent, middle) if has_image and max(volume.block) > 1 else {}
    if sum(plane.nbytes for plane in planes.values()) <= detail.shown // 2:
        arrays |= planes
    unit = store.array(IMAGE).attributes.get("units") or "" if has_image else ""
    window = limits(image)
    head = {
        "shape": extent,
        "block": volume.block,
        "spacing": geometry.spacing,
        "planes": [geometry.plane(axis) for axis in range(3)],
        "head_up": geometry.direction is not None and geometry.direction[0] > _UPWARD,
        "unit": unit,
        "window": window,
        "range": np.nan_to_num([image.min(initial=0), image.max(initial=1)]).tolist(),
        "presets": _presets(unit, window),
        "overlays": overlays,
        "full": middle,
        "note": volume.note(),
    }
    spacing = "spacing unknown"
    if geometry.spacing is not None:
        spacing = f"{' × '.join(f'{length:g}' for length in geometry.spacing)} mm"
    title = f"{' × '.join(map(str, extent))} voxels, {spacing}"
    return View(widget="volume", title=title, head=head, arrays=arrays, read=volume.read)


def measures(store: StoreView) -> Iterator[Measure]:
    """Slices, and how much of a volume each window takes."""
    extents = whole(store, f"{VOLUMES}/extent").astype(np.float64)
    yield Measure(name="slices", values=extents[:, 0])
    for path in store.paths():
        if path.startswith(f"{WINDOWS}/") and path.endswith("/offsets"):
            share = 100 * np.diff(whole(store, path)) / np.maximum(extents.prod(axis=1), 1)
            yield Measure(name=f"% of voxels in {path.split('/')[1]}", values=share)


PREVIEW = Preview(view=view, measures=measures)


def block_means(voxels: AnyArray, block: Sequence[int]) -> Float64s:
    """Return the means of blocks. Blocks at the ends may be smaller."""
    sums = voxels
    lengths = []
    for axis, length in enumerate(block):
        starts = np.arange(0, voxels.shape[axis], length)
        sums = np.add.reduceat(sums, starts, axis=axis, dtype=np.float64)
        lengths.append(np.diff(starts, append=voxels.shape[axis]))
    depth, height, width = np.ix_(*lengths)
    means: Float64s = sums / (depth * height * width)
    return means


class _VolumeBlocks:
    """Reads one volume in slabs of whole blocks."""

    def __init__(self, store: StoreView, sample: int, extent: Sequence[int], detail: ViewLimits) -> None:
        self._store = store
        self._sample = sample
        self._extent = extent
        self.read = 0  # bytes that were read
        column = store.array(IMAGE) if store.has(IMAGE) else None
        itemsize = 1 if column is None else column.dtype.itemsize
        edge = detail.edge
        self._divide(edge)
        while edge > 8 and np.prod(self.shape) * itemsize > detail.shown * 2 // 3:
            edge -= 4
            self._divide(edge)
        # Of a volume that is too large to be read, some layers of chunks
        self._layer = self.block[0]
        if column is not None and np.prod(extent) * itemsize > detail.read:
            layer = min(column.chunk_shape[1], extent[0])
            layers = max(4, detail.read // (layer * extent[1] * extent[2] * itemsize))
            self.block[0] = max(self.block[0], stride(extent[0], layers))
            self._layer = min(layer, self.block[0])

    def _divide(self, edge: int) -> None:
        """Divide the volume into at most `edge` blocks along each axis."""
        self.block = [stride(length, edge) for length in self._extent]

    @property
    def shape(self) -> list[int]:
        """The blocks of each axis."""
        return [-(-length // size) for length, size in zip(self._extent, self.block, strict=True)]

    def note(self) -> str:
        """Say what the voxels of the view are."""
        if max(self.block) == 1:
            return "all voxels"
        means = f"means of {' × '.join(map(str, self.block))} voxels"
        if self._layer < self.block[0]:
            means += f", of {self._layer} of every {self.block[0]} slices"
        return means

    def means(self) -> AnyArray:
        """The means of blocks of the image."""
        dtype = self._store.array(IMAGE).dtype
        is_whole = dtype.kind in "iu"
        out = np.zeros(self.shape, dtype if is_whole else np.float32)
        for first, slab in self._slabs(IMAGE, self._extent[2]):
            means = block_means(slab, self.block)
            out[first : first + len(means)] = np.round(means) if is_whole else means
        return out

    def middles(self, path: str) -> UInt8s:
        """The voxel in the middle of every block of a mask or label."""
        is_bits = path.endswith("/mask")
        width = self._extent[2]
        out = np.zeros(self.shape, np.uint8)
        for first, slab in self._slabs(path, -(-width // 8) if is_bits else width):
            shape = (*slab.shape[:2], width)
            depth, height, columns = map(_middles, shape, self.block)
            rows = slab[depth][:, height]
            if is_bits:
                rows = np.unpackbits(rows, axis=2, bitorder="little")
            # A number of a class stays what it is where it fits
            values = np.clip(rows[:, :, columns].astype(np.int64), 0, 255)
            out[first : first + len(values)] = values
        return out

    def _slabs(self, path: str, width: int) -> Iterator[tuple[int, AnyArray]]:
        """The number of the first block, and slices of whole blocks, or of one block in part."""
        depth, height, _ = self._extent
        array = self._store.array(path)
        layer = self.block[0]
        blocks = 1
        if self._layer == layer:
            blocks = max(1, _SLAB_BYTES // (max(1, height * width * array.dtype.itemsize) * layer))
        for first in range(0, self.shape[0], blocks):
            lo = first * layer
            hi = min(depth, lo + (blocks - 1) * layer + self._layer)
            slab = array.read_box([self._sample, lo, 0, 0], [self._sample + 1, hi, height, width])[0]
            self.read += slab.nbytes
            yield first, slab


def _middles(length: int, block: int) -> Int64s:
    """The indices of the middles of the blocks of an axis."""
    return np.minimum(np.arange(0, length, block) + block // 2, length - 1)


def _planes(
    store: StoreView, sample: int, extent: Sequence[int], middle: Sequence[int]
) -> Mapping[str, AnyArray]:
    """Read the plane in the middle of each axis, (rows, columns)."""
    planes = {}
    for axis, number in enumerate(middle):
        lo = [0, 0, 0]
        hi = [*extent]
        lo[axis] = number
        hi[axis] = number + 1
        box = store.array(IMAGE).read_box([sample, *lo], [sample + 1, *hi])
        planes[f"plane{axis}"] = box[0].take(0, axis=axis)
    return planes if all(extent) else {}


def _presets(unit: str, window: Sequence[float]) -> list[JsonObject]:
    presets: list[JsonObject] = [{"name": "nearly all values", "low": window[0], "high": window[1]}]
    return presets + [
        {"name": preset.name.replace("_", " "), "low": preset.low, "high": preset.high}
        for preset in PRESETS.values()
        if unit == "HU"
    ]


def _overlays(store: StoreView) -> list[str]:
    """Labels first, then attached whole numbers, masks and windows. Of several, the first."""
    image_shape = store.array(IMAGE).shape if store.has(IMAGE) else ()
    overlays = []
    for group in (LABELS, VOLUMES, MASKS, WINDOWS):
        for path in store.paths():
            if not path.startswith(group):
                continue
            array = store.array(path)
            is_attached = path != IMAGE and array.shape == image_shape and array.dtype.kind in "biu"
            if path.endswith(("/mask", "/label")) or is_attached:
                overlays.append(path)
    return overlays[:_OVERLAYS]


def _points(store: StoreView, group: str, sample: int, extent: list[int], detail: ViewLimits) -> View:
    """The points of a window, coloured by their values."""
    lo, hi = (int(bound[0]) for bound in IndexColumn(store, f"{group}/offsets").ranges(np.array([sample])))
    starts, stops = parts_of(lo, hi, detail.points)
    coords = store.array(f"{group}/coords").read_ranges(starts, stops)
    values = store.array(f"{group}/values").read_ranges(starts, stops).astype(np.float32)
    column = {"name": "value", "kind": "number", "array": "column0", "limits": limits(values)}
    note = "all points"
    if len(coords) < hi - lo:
        note = f"{len(coords):,} of {hi - lo:,} points, in evenly spread runs"
    head = {"columns": [column], "note": f"{note}, of the window {group.split('/')[1]}"}
    return View(
        widget="cloud",
        title=f"{' × '.join(map(str, extent))} voxels",
        head=head,
        arrays={"xyz": coords[:, ::-1].astype(np.float32), "column0": values},
        read=coords.nbytes * 2,
    )
