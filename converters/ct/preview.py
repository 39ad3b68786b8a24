"""Views of volumes: block means of all voxels, and one plane of every axis in full resolution."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from unistore.converters.preview import Measure, Preview, parts_of
from unistore.converters.views import View, ViewLimits, limits, stride
from unistore.schemas.ct.fields import IMAGE, LABELS, MASKS, VOLUMES, WINDOWS
from unistore.schemas.ct.geometry import read_geometry
from unistore.schemas.ct.windows import PRESETS
from unistore.schemas.indices import ArrayView, IndexColumn, StoreView, whole
from unistore.system.hints import AnyArray, Float64s, JsonObject, UInt8s

_OVERLAYS = 6
_SLAB_BYTES = 32 << 20
# Cosine from which on slices count as going toward the head
_UPWARD = 0.9


def view(store: StoreView, sample: int, detail: ViewLimits) -> View:
    """Return one volume, or the points of its first window where the store has no image."""
    extent = IndexColumn(store, f"{VOLUMES}/extent").take(np.array([sample]))[0].tolist()
    points = [path for path in store.paths() if path.startswith(WINDOWS) and path.endswith("/coords")]
    if not store.has(IMAGE) and points:
        return _points(store, points[0], sample, extent, detail)
    volume = _VolumeBlocks(store, sample, extent, detail)
    geometry = read_geometry(store, sample)
    image, read = volume.means() if store.has(IMAGE) else (np.zeros(volume.shape, np.uint8), 0)
    arrays = {"image": image}
    overlays: list[JsonObject] = []
    for path in _overlays(store):
        voxels, nbytes = volume.every(path)
        arrays[f"overlay{len(overlays)}"] = voxels
        overlay: JsonObject = {"name": path.split("/")[1]}
        overlay["shown"] = not path.startswith(WINDOWS)  # windows repeat what the image says
        names = store.array(path).attributes.get("classes", {})
        numbers = np.unique(voxels[voxels > 0]).tolist()
        if numbers not in ([], [1]):
            overlay["classes"] = [[number, names.get(str(number), number)] for number in numbers]
        overlays.append(overlay)
        read += nbytes
    middle = [length // 2 for length in extent]
    planes = _planes(store, sample, extent, middle) if store.has(IMAGE) and max(volume.block) > 1 else {}
    if sum(plane.nbytes for plane in planes.values()) <= detail.shown // 2:
        arrays |= planes
    unit = store.array(IMAGE).attributes.get("units") or "" if store.has(IMAGE) else ""
    window = limits(image)
    head = {
        "shape": extent,
        "block": volume.block,
        "spacing": geometry.spacing,
        "planes": [geometry.plane(axis) for axis in range(3)],
        "head_up": geometry.direction is not None and geometry.direction[0] > _UPWARD,
        "unit": unit,
        "window": window,
        "range": [float(np.nan_to_num(bound)) for bound in (image.min(initial=0), image.max(initial=1))],
        "presets": _presets(unit, window),
        "overlays": overlays,
        "full": middle,
        "note": volume.note(),
    }
    spacing = "spacing unknown"
    if geometry.spacing is not None:
        spacing = f"{' × '.join(f'{length:g}' for length in geometry.spacing)} mm"
    title = f"{' × '.join(map(str, extent))} voxels, {spacing}"
    return View(widget="volume", title=title, head=head, arrays=arrays, read=read)


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
    counts = np.ones((1, 1, 1))
    for axis, length in enumerate(block):
        starts = np.arange(0, voxels.shape[axis], length)
        sums = np.add.reduceat(sums, starts, axis=axis, dtype=np.float64)
        lengths = np.diff(starts, append=voxels.shape[axis])
        counts = counts * lengths.reshape([-1 if one == axis else 1 for one in range(3)])
    return sums / counts


class _VolumeBlocks:
    # Reads one volume in slabs of whole blocks
    def __init__(self, store: StoreView, sample: int, extent: Sequence[int], detail: ViewLimits) -> None:
        self._store = store
        self._sample = sample
        self._extent = extent
        column = store.array(IMAGE) if store.has(IMAGE) else None
        itemsize = 1 if column is None else column.dtype.itemsize
        edge = detail.edge
        self.block = [stride(length, edge) for length in extent]
        while edge > 8 and np.prod(self.shape) * itemsize > detail.shown * 2 // 3:
            edge -= 4
            self.block = [stride(length, edge) for length in extent]
        # Of a volume that is too large to be read, some layers of chunks
        self._layer = self.block[0]
        if column is not None and np.prod(extent) * itemsize > detail.read:
            self._layer = min(column.chunk_shape[1], extent[0])
            layer_bytes = self._layer * extent[1] * extent[2] * itemsize
            layers = max(4, detail.read // layer_bytes)
            self.block[0] = max(self.block[0], stride(extent[0], int(layers)))
            self._layer = min(self._layer, self.block[0])

    @property
    def shape(self) -> list[int]:
        # The blocks of each axis
        return [
            stride(length, size) if length else 0
            for length, size in zip(self._extent, self.block, strict=True)
        ]

    def note(self) -> str:
        # Say what the voxels of the view are
        if max(self.block) == 1:
            return "all voxels"
        means = f"means of {' × '.join(map(str, self.block))} voxels"
        if self._layer < self.block[0]:
            means += f", of {self._layer} of every {self.block[0]} slices"
        return means

    def means(self) -> tuple[AnyArray, int]:
        # The means of blocks, and the bytes that were read
        array = self._store.array(IMAGE)
        dtype = array.dtype if array.dtype.kind in "iu" else np.dtype(np.float32)
        out = np.zeros(self.shape, dtype)
        read = 0
        for first, slab in self._slabs(array, self._extent[2]):
            read += slab.nbytes
            means = block_means(slab, self.block)
            out[first : first + len(means)] = np.round(means) if dtype.kind in "iu" else means
        return out, read

    def every(self, path: str) -> tuple[UInt8s, int]:
        # The voxel in the middle of every block of a mask or label, and the bytes that were read
        is_bits = path.endswith("/mask")
        width = self._extent[2]
        out = np.zeros(self.shape, np.uint8)
        read = 0
        for first, slab in self._slabs(self._store.array(path), -(-width // 8) if is_bits else width):
            read += slab.nbytes
            middles = [
                np.minimum(np.arange(0, length, step) + step // 2, length - 1)
                for length, step in zip((*slab.shape[:2], width), self.block, strict=True)
            ]
            rows = slab[middles[0]][:, middles[1]]
            if is_bits:
                rows = np.unpackbits(rows, axis=2, bitorder="little")
            values = rows[:, :, middles[2]]
            # A number of a class stays what it is where it fits
            out[first : first + len(values)] = np.where(values > 0, np.minimum(values, 255), 0)
        return out, read

    def _slabs(self, array: ArrayView, width: int) -> Iterator[tuple[int, AnyArray]]:
        # The number of the first block, and slices of whole blocks, or of one block in part
        depth, height, _ = self._extent
        slice_bytes = max(1, height * width * array.dtype.itemsize)
        blocks = max(1, _SLAB_BYTES // (slice_bytes * self.block[0]))
        if self._layer < self.block[0]:
            blocks = 1
        for first in range(0, self.shape[0], blocks):
            lo = first * self.block[0]
            hi = min(depth, (first + blocks) * self.block[0])
            if self._layer < self.block[0]:
                hi = min(hi, lo + self._layer)
            box = array.read_box([self._sample, lo, 0, 0], [self._sample + 1, hi, height, width])
            yield first, box[0]


def _planes(
    store: StoreView, sample: int, extent: Sequence[int], middle: Sequence[int]
) -> Mapping[str, AnyArray]:
    # Read the plane in the middle of each axis, (rows, columns)
    planes = {}
    for axis in range(3):
        lo = [sample, 0, 0, 0]
        hi = [sample + 1, *extent]
        lo[axis + 1] = middle[axis]
        hi[axis + 1] = middle[axis] + 1
        plane = store.array(IMAGE).read_box(lo, hi)[0]
        planes[f"plane{axis}"] = np.take(plane, 0, axis=axis)
    return planes if all(extent) else {}


def _presets(unit: str, window: Sequence[float]) -> list[JsonObject]:
    own = {"name": "nearly all values", "low": window[0], "high": window[1]}
    known = PRESETS.values() if unit == "HU" else ()
    named = [{"name": one.name.replace("_", " "), "low": one.low, "high": one.high} for one in known]
    return [own, *named]


def _overlays(store: StoreView) -> list[str]:
    # Labels first, then attached whole numbers, masks and windows. Of several, the first
    image_shape = store.array(IMAGE).shape if store.has(IMAGE) else ()
    paths = []
    for path in store.paths():
        array = store.array(path)
        is_attached = path != IMAGE and array.shape == image_shape and array.dtype.kind in "biu"
        if path.endswith(("/mask", "/label")) or is_attached:
            paths.append(path)
    groups = (LABELS, VOLUMES, MASKS, WINDOWS)
    ordered = [path for path in paths if path.startswith(groups)]
    ordered.sort(key=lambda path: groups.index(path.partition("/")[0]))
    return ordered[:_OVERLAYS]


def _points(store: StoreView, path: str, sample: int, extent: list[int], detail: ViewLimits) -> View:
    # The points of a window, coloured by their values
    group = path.removesuffix("/coords")
    lo, hi = IndexColumn(store, f"{group}/offsets").ranges(np.array([sample]))
    starts, stops = parts_of(int(lo[0]), int(hi[0]), detail.points)
    coords = store.array(path).read_ranges(starts, stops)
    arrays = {"xyz": coords[:, ::-1].astype(np.float32)}
    columns = []
    if store.has(f"{group}/values"):
        values = store.array(f"{group}/values").read_ranges(starts, stops).astype(np.float32)
        arrays["column0"] = values
        columns.append({"name": "value", "kind": "number", "array": "column0", "limits": limits(values)})
    shown = len(coords)
    total = int(hi[0] - lo[0])
    note = "all points" if shown == total else f"{shown:,} of {total:,} points, in evenly spread runs"
    head = {"columns": columns, "note": f"{note}, of the window {group.split('/')[1]}"}
    title = f"{' × '.join(map(str, extent))} voxels"
    return View(widget="cloud", title=title, head=head, arrays=arrays, read=coords.nbytes * 2)
