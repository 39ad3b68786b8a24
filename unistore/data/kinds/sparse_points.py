"""The `SparsePoints` sample kind: a sample is the voxels of a CT volume inside a window, as points."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from unistore.data.kinds.boxes import (
    EXTENT,
    IMAGE,
    BitBox,
    BoxReader,
    ImageBox,
    on_request,
    volume_columns,
)
from unistore.data.kinds.protocol import (
    Reach,
    SampleIndices,
    SampleKind,
    SampleReader,
    Shareable,
    require_arrays,
    select_keys,
)
from unistore.data.kinds.rows import Spans
from unistore.data.packed import Allocate, Batch, Packed
from unistore.errors import InputError
from unistore.schemas.ct.voxels import ValueRange, inside, largest_point
from unistore.schemas.ct.windows import PRESETS, Window, parse_window
from unistore.schemas.indices import IndexColumn, contradiction, require_rule, whole
from unistore.store.reader import Store
from unistore.system.arguments import MAX_EPOCH, Arguments, wrong_argument
from unistore.system.kernel import kernel
from unistore.system.types import AnyArray, Int64s, UInt8s
from unistore.zarr3.chunks import SharedChunks

# Coordinates of the set bits of a packed mask, in C order: of all, or of given ranks. The kernel finds them,
# and without one numpy.

# Up to this ratio of set bits to ranks, a table of the byte of every set bit is made
_TABLE_RATIO = 16
# Voxels unpacked at a time, one byte each, so that they stay in the processor's cache
_BLOCK_VOXELS = 4 << 20


def find_points(
    bits: UInt8s,
    ranks: Int64s | None,
    out: NDArray[np.int32],
) -> None:
    """Write the coordinates of set voxels of a packed mask.

    Parameters
    ----------
    bits : uint8 array of shape (D, H, ⌈W/8⌉)
        The mask as bits, lowest bit first. Bits of padding are 0.
    ranks : int64 array of shape (n,), or None
        Numbers of the set voxels to find, in C order and ascending, each below the number of set bits.
        None: all set voxels.
    out : int32 array of shape (n, 3)
        Receives depth, height and width index of each voxel, in C order.
    """
    library = kernel()
    arrays: list[AnyArray] = [bits, out] if ranks is None else [bits, ranks, out]
    if library is not None and all(array.flags.c_contiguous for array in arrays):
        address = None if ranks is None else ranks.ctypes.data
        written = library.unistore_find_points(
            bits.ctypes.data, *bits.shape, address, len(out), out.ctypes.data
        )
        if written == len(out):
            return
    if ranks is None:
        all_points(bits, out)
    else:
        points_at_ranks(bits, ranks, out)


def all_points(bits: UInt8s, out: NDArray[np.int32]) -> None:
    """Write the coordinates of all set voxels to `out`, as `find_points`, with NumPy only.

    Raises
    ------
    ValueError
        If `out` has more rows than voxels are set.
    """
    depth, height, columns = bits.shape
    step = max(1, _BLOCK_VOXELS // max(1, height * columns * 8))
    done = 0
    for first in range(0, depth, step):
        unpacked = np.unpackbits(bits[first : first + step].reshape(-1), bitorder="little")
        flat = np.flatnonzero(unpacked.view(np.bool_))
        _unravel(flat, (height, 8 * columns), first, out[done : done + len(flat)])
        done += len(flat)
    if done < len(out):
        msg = f"{done:,} voxels of the mask are set, but {len(out):,} are requested"
        raise ValueError(msg)


def points_at_ranks(bits: UInt8s, ranks: Int64s, out: NDArray[np.int32]) -> None:
    """Write the coordinates of the set voxels with the given ranks, as `find_points`, with NumPy only."""
    flat = bits.reshape(-1)
    places = np.flatnonzero(flat != 0)
    values = flat[places].astype(np.int64)
    counts = np.bitwise_count(values)
    ends = np.cumsum(counts, dtype=np.int64)
    if len(ends) and ends[-1] <= _TABLE_RATIO * len(ranks):
        byte = np.repeat(np.arange(len(values)), counts)[ranks]
    else:
        byte = np.searchsorted(ends, ranks, side="right")
    positions = ranks - (ends - counts)[byte]
    positions += 8 * values[byte]
    positions = _BIT_OF_RANK[positions] + 8 * places[byte]
    _unravel(positions, (bits.shape[1], 8 * bits.shape[2]), 0, out)


def _unravel(flat: AnyArray, plane: tuple[int, int], first: int, out: NDArray[np.int32]) -> None:
    height, width = plane
    if len(flat) and flat[-1] < 1 << 31:
        flat = flat.astype(np.int32)  # divides twice as fast
    line = flat // width
    np.subtract(flat, line * width, out=out[:, 2], casting="same_kind")
    plane_number = line // height
    np.subtract(line, plane_number * height, out=out[:, 1], casting="same_kind")
    np.add(plane_number, first, out=out[:, 0], casting="same_kind")


# At 8 · byte + r: position of the r-th set bit of a byte
_BIT_OF_RANK = np.array(
    [([bit for bit in range(8) if byte >> bit & 1] + 8 * [0])[:8] for byte in range(256)], np.int32
).reshape(-1)


# Bytes of the image that are read at a time to look up values of points
_SLAB = 8 << 20


class PointReader(SampleReader):
    """Reads batches of `SparsePoints`."""

    def __init__(self, store: Store, kind: SparsePoints, fields: Sequence[str], units: Int64s) -> None:
        self._kind = kind
        self._group = kind.group(store)
        self._volumes = units
        self._counts = np.empty(0, np.int64)
        self._source: _WindowPoints | _Mask
        if self._group is None:
            assert kind.window is not None
            is_hu = "hu" in (kind.values, store.root.options.get("values"))
            self._source = _CutMask(store, parse_window(kind.window), is_hu=is_hu)
        else:
            self._counts = IndexColumn(store, f"{self._group}/offsets").lengths()[self._volumes]
            self._volumes = self._volumes[self._counts >= kind.min_points]
            has_points = store.has(f"{self._group}/coords")
            self._source = (
                _WindowPoints(store, self._group) if has_points else _StoredMask(store, self._group)
            )
        self._values = BoxReader(store, fields, None, 1)
        forms = {"coords": (3, np.dtype(np.int32)), "values": (1, self._source.dtype)}
        self._forms = {key: form for key, form in forms.items() if key in fields}

    def __len__(self) -> int:
        return len(self._volumes)

    def shareable(self) -> Sequence[Shareable]:
        """Return the points found in the stored mask, if the store has one, for a Loader's cache."""
        return [self._source] if isinstance(self._source, _StoredMask) else []

    def reach(self) -> Reach:
        """Return whether `min_points` leaves any samples."""
        if len(self) or not len(self._counts):
            return Reach(len(self))
        least = self._kind.min_points
        largest_count = int(self._counts.max())
        points = f"{largest_count:,} points of {self._group}"
        problem = f"min_points={least:,} leaves no samples: the largest volume has {points}"
        return Reach(0, problem=problem, fitting=replace(self._kind, min_points=largest_count))

    def read(self, picks: SampleIndices, allocate: Allocate) -> Batch:
        """Read a batch; see `SampleReader.read`."""
        volumes = self._volumes[picks.index]
        no_boxes = np.zeros((len(volumes), 3), np.int64)
        batch = self._values.read_boxes(volumes, no_boxes, no_boxes, None, allocate)
        if self._forms:
            spans = Spans.draw(picks, *self._source.ranges(volumes), self._kind.max_points)
            out = {key: allocate((len(spans), width), dtype) for key, (width, dtype) in self._forms.items()}
            self._source.read(volumes, spans, out.get("coords"), out.get("values"))
            batch |= {key: Packed(values, spans.offsets) for key, values in out.items()}
        return batch


@dataclass(frozen=True, slots=True)
class SparsePoints(SampleKind):
    """Samples of a CT store: the voxels of one volume inside a window, as points.

    A sample has N points, in C order of the volume, and N differs, so batches are packed: ``coords`` of a
    batch has shape (sum of N, 3). Samples are equal whether the store has the window as points, has it as
    a mask, or has only the images.

    Keys of a sample:

    - ``coords`` (N, 3), int32: depth, height and width index of each voxel.
    - ``values`` (N, 1), in the dtype of the image: the voxels at these positions.

    Optional keys, read with ``fields=[…]``: those of `Volumes` that do not have a value per voxel, such as
    ``source``, ``name``, ``extent``, ``spacing``, ``origin`` and ``direction``.

    Parameters
    ----------
    window : str, optional
        Name of a window of the store, or of a distance field (``"sdf/<name>"``). Any other preset
        (``"mediastinum"``) or ``"name:width:level"`` is computed from the images while reading. None: the
        only window of the store.
    min_points : int, default 0
        Volumes with fewer points are not samples. If that leaves no volume, reading raises InputError.
        Not for a window that is computed while reading, because its points are not counted beforehand.
    max_points : int, optional
        Limit for the number of points. A larger sample is reduced to a uniform random subset, in C order,
        another one in every epoch. None: all points.
    values : {"hu"}, optional
        ``"hu"``: the images are in HU, even if all values of a volume are in -200…255. Without it,
        computing a window of such a volume while reading is an error. Not needed for a store that was
        converted with ``--values hu``. It does not change samples.

    Raises
    ------
    InputError
        If an argument is invalid, or `max_points` is below `min_points`. Opening a Dataset raises it if
        the store has no such window, or has several and `window` is None.

    Examples
    --------
    >>> kind = unistore.SparsePoints("lung", max_points=20_000)  # doctest: +SKIP
    >>> dataset = unistore.Dataset("ct.zarr", kind)  # doctest: +SKIP
    """

    reader: ClassVar = PointReader

    window: str | None = None
    min_points: int = 0
    max_points: int | None = None
    # Does not change samples, so it is no part of what tells runs and statistics apart
    values: Literal["hu"] | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        check = Arguments()
        check.text("window", self.window, none=True)
        check.integer("min_points", self.min_points, most=MAX_EPOCH)
        check.integer("max_points", self.max_points, 1, none=True)
        if self.values is not None:
            check.one_of("values", self.values, ("hu",))
        check.raise_problems()
        if self.max_points is not None and self.max_points < self.min_points:
            message = f"is {self.max_points:,}, but min_points is {self.min_points:,}"
            check.refuse("max_points", message, f"give at least {self.min_points}")
        check.raise_problems()

    @property
    def repeats(self) -> bool:
        """Whether samples are the same in every epoch and share no rows."""
        return self.max_points is None

    @property
    def whole(self) -> SampleKind | None:
        """The same points without limits."""
        return SparsePoints(self.window, values=self.values)

    def select(self, store: Store, fields: Sequence[str] | None) -> tuple[str, ...]:
        """Return the keys of samples; see `SampleKind.select`."""
        require_arrays(store, self, EXTENT)
        self.group(store)
        return select_keys(("coords", "values"), fields, (*on_request(store), *volume_columns(store)))

    def chosen(self, store: Store) -> SampleKind | None:
        """Return this kind with the name of a window of the store, or None if the store has no points."""
        groups = point_groups(store)
        if self.window is not None or len(groups) == 1:
            return self
        return replace(self, window=groups[0].removeprefix("windows/")) if groups else None

    def group(self, store: Store) -> str | None:
        """Return the path of the group of the window, or None if the window is computed from the images.

        Raises
        ------
        InputError
            If there is no such window, if none is named and the store has several, or if `min_points` is
            given for a window whose points are not counted.
        """
        groups = point_groups(store)
        if self.window is None and len(groups) == 1:
            return groups[0]
        for group in groups:
            if self.window in (group, group.removeprefix("windows/"), group.removeprefix("sdf/")):
                return group
        if self.window is None or not store.has(IMAGE) or not (self.window in PRESETS or ":" in self.window):
            names = [group.removeprefix("windows/") for group in groups]
            message = f"has no window {self.window!r}"
            if self.window is None:
                message = f"has {len(names)} windows, and none is chosen" if names else "has no window"
            fix = "convert again with unistore convert ct --window NAME"
            if names:
                fix = f"give one of {', '.join(map(repr, names))} as window=…, or {fix}"
            raise InputError.at(store.path, message, fix, "window")
        parse_window(self.window)
        if self.min_points:
            message = f"is {self.min_points:,}, but this store does not count the points of {self.window!r}"
            fix = f"remove min_points, or convert again with --window {self.window}"
            raise wrong_argument("min_points", message, fix)
        return None


class _WindowPoints:
    def __init__(self, store: Store, group: str) -> None:
        self._store = store
        require_rule(store, f"{group}/offsets", offsets_of=group)
        self._coords = store.array(f"{group}/coords")
        self._values = store.array(f"{group}/values")
        self.ranges = IndexColumn(store, f"{group}/offsets").ranges
        self._limits = point_limits(store, group)
        self._is_inside = np.zeros(len(self._limits), np.bool_)
        self.dtype = self._values.dtype

    def read(
        self, volumes: Int64s, spans: Spans, coords: NDArray[np.int32] | None, values: AnyArray | None
    ) -> None:
        if coords is not None:
            if self._coords.dtype == coords.dtype:
                spans.read(self._coords, coords)
            else:
                coords[...] = spans.read(self._coords)
            self._check(volumes, spans, coords)
        if values is not None:
            spans.read(self._values, values[:, 0])

    def _check(self, volumes: Int64s, spans: Spans, coords: NDArray[np.int32]) -> None:
        # A volume that was read whole is looked at once
        for i in np.flatnonzero(~self._is_inside[volumes]).tolist():
            highest = largest_point(coords[spans.offsets[i] : spans.offsets[i + 1]])
            if (highest >= self._limits[volumes[i]]).any():
                limits = self._limits[volumes[i]].tolist()
                message = (
                    f"volume {volumes[i]:,} has a point at {highest.tolist()}, outside its extent {limits}"
                )
                raise contradiction(self._store, self._coords.path, message)
            self._is_inside[volumes[i]] = spans.rows is None


class _Mask(ABC):
    # Values are the image's, or 1 where there is no image
    def __init__(self, store: Store) -> None:
        self._store = store
        self.extents = IndexColumn(store, EXTENT)
        self.image = ImageBox(store.array(IMAGE)) if store.has(IMAGE) else None
        self.dtype = np.dtype(np.uint8) if self.image is None else self.image.dtype

    @abstractmethod
    def ranges(self, volumes: Int64s) -> tuple[Int64s, Int64s]:
        """Return the range of the points of volumes (B,) among all points."""

    @abstractmethod
    def bits(self, volume: int, extent: list[int]) -> UInt8s:
        """Return the bits of a volume of the batch whose ranges were asked for last, (D, H, ⌈W/8⌉)."""

    def find(self, volume: int, extent: list[int], ranks: Int64s | None, out: NDArray[np.int32]) -> None:
        """Find the points of a volume with given ranks, by default all, (n, 3)."""
        find_points(self.bits(volume, extent), ranks, out)

    def read(
        self, volumes: Int64s, spans: Spans, coords: NDArray[np.int32] | None, values: AnyArray | None
    ) -> None:
        if coords is None:
            coords = np.empty((len(spans), 3), np.int32)
        extents = self.extents.take(volumes).tolist()
        for i, (volume, extent) in enumerate(zip(volumes.tolist(), extents, strict=True)):
            part = slice(int(spans.offsets[i]), int(spans.offsets[i + 1]))
            ranks = None if spans.rows is None else spans.rows[part]
            self.find(volume, extent, ranks, coords[part])
            if values is not None:
                self._look_up(volume, extent, coords[part], values[part, 0])

    def _look_up(self, volume: int, extent: list[int], coords: NDArray[np.int32], out: AnyArray) -> None:
        # `coords` are sorted by depth, so that a few planes at a time suffice
        if self.image is None:
            out[...] = 1
            return
        for first, planes in image_planes(self.image, volume, extent, coords[:, 0]):
            lo, hi = points_between(coords[:, 0], first, first + len(planes))
            z, y, x = coords[lo:hi].T
            out[lo:hi] = planes[z - first, y, x]


class _StoredMask(_Mask):
    def __init__(self, store: Store, group: str) -> None:
        super().__init__(store)
        self._path = f"{group}/mask"
        self._box = BitBox(store.array(self._path))
        self._offsets = IndexColumn(store, f"{group}/offsets")
        self._is_counted = np.zeros(store.sample_count, np.bool_)
        self.chunk_count = store.sample_count
        self._shared: SharedChunks | None = None  # points of whole volumes

    def share(self, chunks: SharedChunks | None) -> None:
        """Look up and keep points of volumes in a cache."""
        self._shared = chunks

    def find(self, volume: int, extent: list[int], ranks: Int64s | None, out: NDArray[np.int32]) -> None:
        """Find points, in the cache if there is one."""
        if self._shared is None:
            super().find(volume, extent, ranks, out)
            return
        lo, hi = self.ranges(np.array([volume]))
        shape = int(hi[0] - lo[0]), 3
        points = self._shared.get(volume, shape, out.dtype)
        if points is None and not self._shared.full:
            points = np.empty(shape, out.dtype)
            super().find(volume, extent, None, points)
            self._shared.add(volume, points)
        if points is None:
            super().find(volume, extent, ranks, out)
        elif ranks is None:
            out[...] = points
        else:
            np.take(points, ranks, axis=0, out=out, mode="clip")

    def ranges(self, volumes: Int64s) -> tuple[Int64s, Int64s]:
        return self._offsets.ranges(volumes)

    def bits(self, volume: int, extent: list[int]) -> UInt8s:
        depth, height, width = extent
        bits = self._box.bits(volume, (0, 0, 0), (depth, height, -(-width // 8)))
        if not self._is_counted[volume]:
            self._check(volume, bits, width)
        return bits

    def _check(self, volume: int, bits: UInt8s, width: int) -> None:
        # A mask must have as many bits as its offsets count, and none behind its width
        lo, hi = self.ranges(np.array([volume]))
        count = int(np.bitwise_count(bits).sum(dtype=np.int64))
        if count != hi[0] - lo[0]:
            message = f"volume {volume:,} has {count:,} voxels, but its offsets count {hi[0] - lo[0]:,}"
            raise contradiction(self._store, self._path, message)
        if width % 8 and (bits[:, :, -1] >> (width % 8)).any():
            raise contradiction(self._store, self._path, f"volume {volume} has bits outside its extent")
        self._is_counted[volume] = True


class _CutMask(_Mask):
    def __init__(self, store: Store, window: Window, *, is_hu: bool) -> None:
        super().__init__(store)
        self._window = window
        self._is_hu = is_hu
        self._is_inside = inside(window, self.dtype)
        self._bits: dict[int, UInt8s] = {}

    def ranges(self, volumes: Int64s) -> tuple[Int64s, Int64s]:
        extents = zip(volumes.tolist(), self.extents.take(volumes).tolist(), strict=True)
        self._bits = {volume: self._cut(volume, extent) for volume, extent in dict(extents).items()}
        counts = {volume: int(np.bitwise_count(bits).sum()) for volume, bits in self._bits.items()}
        hi = np.array([counts[volume] for volume in volumes.tolist()], np.int64)
        return np.zeros_like(hi), hi

    def bits(self, volume: int, extent: list[int]) -> UInt8s:  # noqa: ARG002  as of `_StoredMask`
        return self._bits[volume]

    def _cut(self, volume: int, extent: list[int]) -> UInt8s:
        assert self.image is not None
        depth, height, width = extent
        bits = np.empty((depth, height, -(-width // 8)), np.uint8)
        values_seen = ValueRange()
        for first, planes in image_planes(self.image, volume, extent):
            values_seen.add(planes)
            inside_window = self._is_inside(planes)
            bits[first : first + len(planes)] = np.packbits(inside_window, axis=-1, bitorder="little")
        unlike_hu = None if self._is_hu else values_seen.contradiction()
        if unlike_hu is not None:
            message = f"volume {volume:,} {unlike_hu}, but the window {self._window!r} needs Hounsfield units"
            fix = f'if the values are Hounsfield units, use SparsePoints("{self._window}", values="hu")'
            raise InputError.at(self._store.path, message, fix, "values")
        return bits


def image_planes(
    image: ImageBox,
    volume: int,
    extent: Sequence[int],
    depths: NDArray[np.int32] | None = None,
) -> Iterator[tuple[int, AnyArray]]:
    """Iterate over the planes of a volume, a few at a time.

    Parameters
    ----------
    image : ImageBox
        Reader of the images.
    volume : int
        Number of the volume.
    extent : sequence of int
        Depth, height and width of the volume.
    depths : int32 array of shape (n,), optional
        Depths of points, ascending. Planes without points are not read. None: all planes are read.

    Yields
    ------
    int
        Number of the first plane.
    array of shape (planes, height, width)
        Voxels of these planes.
    """
    depth, height, width = extent
    step = max(1, _SLAB // max(1, height * width * image.dtype.itemsize))
    for first in range(0, depth, step):
        last = min(first + step, depth)
        lo, hi = (0, 1) if depths is None else points_between(depths, first, last)
        if lo < hi:
            planes = np.empty((last - first, height, width), image.dtype)
            image.read(volume, (first, 0, 0), (last, height, width), planes)
            yield first, planes


def points_between(depths: NDArray[np.int32], first: int, last: int) -> tuple[int, int]:
    """Return the range of points in planes ``first:last``, as start and stop in their ascending `depths`."""
    # Bounds of the dtype of the keys: numpy would copy all keys into that of Python's integers
    lo, hi = np.searchsorted(depths, np.array((first, last), depths.dtype)).tolist()
    return lo, hi


def point_limits(store: Store, group: str) -> Int64s:
    """Return the exclusive limits of the coordinates of points, (V, 3) int64.

    They are the extent of the volume, or the resolution of the cube that a distance field was sampled in.
    """
    extents: Int64s = whole(store, EXTENT).astype(np.int64)
    if not store.has(f"{group}/resolution"):
        return extents
    cube = np.repeat(whole(store, f"{group}/resolution").astype(np.int64)[:, None], 3, axis=1)
    return np.where(cube > 0, cube, np.iinfo(np.int64).max)


def point_groups(store: Store) -> list[str]:
    """Return the paths of all groups with points of volumes: windows first, then distance fields."""
    groups = {
        path.rpartition("/")[0]
        for path in store.paths()
        if path.startswith(("windows/", "sdf/")) and path.endswith("/offsets")
    }
    return sorted(groups, key=lambda group: (group.startswith("sdf/"), group))
