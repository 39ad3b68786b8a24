"""One sample = one segment of a point cloud: a ragged number of points."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from unistore.data.kinds.protocol import INDEX, SOURCE, Picks, SourceNames, require_arrays, select_keys
from unistore.data.kinds.rows import Spans
from unistore.data.packed import Allocate, Batch, Packed, packed_copy
from unistore.errors import InputError
from unistore.schemas.indices import Column, contradiction
from unistore.schemas.point_cloud.fields import NO_SEGMENT, quantum
from unistore.store.reader import Store
from unistore.system.arguments import Arguments
from unistore.system.hints import AnyArray, Float64s, Int64s

# Point coordinates from their stored form: quantised i4, f4 or f8.
#
# Defined in float64, in this order of operations: ``absolute = q * scale + offset``, or, for decimals,
# ``absolute = (q + offset) / scale``; ``local = float32(absolute - origin)``. Results equal the definition
# bit for bit. Blocks stay in the processor's cache, and quantised values are decoded into the memory of the
# result.

_BLOCK_POINTS = 16384
"""Points converted at a time: their float64 values fit into the second-level cache."""

_TILE = 2048
"""Repetitions of a row of three numbers: with half as many, numpy takes twice as long."""


def quantised_view(out: AnyArray) -> NDArray[np.int32]:
    """Part of the memory of `out` for its quantised coordinates (N, 3) i4, to be converted in place.

    All of the memory for float32, the second half for float64: a conversion from front to back never
    overwrites values that are not yet read.
    """
    memory = out.reshape(-1).view(np.int32)
    return memory[len(memory) - out.size :].reshape(out.shape)


class Dequantiser:
    """Converts coordinates of one source to float64, or relative to an origin."""

    def __init__(
        self,
        # (3,) each, the source's own; None: coordinates are not quantised
        scale: Float64s | None = None,
        offset: Float64s | None = None,
        *,
        decimal: bool = False,  # whether they are those of decimals
    ) -> None:
        self._decimal = decimal
        self._scaled: np.ufunc = np.divide if decimal else np.multiply
        self._scale: Float64s | float | None = None
        self._offset: Float64s | None = None
        if scale is None or offset is None:
            return
        self._scale = float(scale[0]) if (scale == scale[0]).all() else _tiled(scale)
        # x + 0.0 is x unless x is -0.0, which no product of an integer and a positive scale is
        if offset.any() or (not decimal and not (scale > 0).all()):
            self._offset = _tiled(offset)

    def convert(
        self,
        stored: AnyArray,  # (N, 3); quantised ones may be `quantised_view` of `out`
        out: NDArray[np.floating[Any]],  # (N, 3) float32 or float64
        origin: Float64s | None = None,  # (3,)
    ) -> None:
        """Write ``absolute``, or with an origin ``absolute - origin``, to `out`.

        Parameters
        ----------
        stored
            (N, 3), as stored; quantised ones may be `quantised_view` of `out`.
        out
            (N, 3) float32 or float64.
        origin
            (3,) float64.
        """
        source = stored.reshape(-1)
        target = out.reshape(-1)
        origins = None if origin is None else _tiled(origin, len(out))
        memory = np.empty(min(len(source), 3 * _BLOCK_POINTS))
        for lo in range(0, len(source), 3 * _BLOCK_POINTS):
            part = source[lo : lo + 3 * _BLOCK_POINTS]
            work = memory[: len(part)]
            np.copyto(work, part)
            if self._decimal:
                _row_wise(np.add, work, self._offset)
            _row_wise(self._scaled, work, self._scale)
            if not self._decimal:
                _row_wise(np.add, work, self._offset)
            _row_wise(np.subtract, work, origins)
            target[lo : lo + len(part)] = work


def _row_wise(operation: np.ufunc, work: Float64s, tile: Float64s | float | None) -> None:
    """Apply an operation with a number or a repeated row (3,), `tile`, to flat `work`, in place."""
    if isinstance(tile, float):
        operation(work, tile, out=work)
    elif tile is not None:
        whole = len(work) // len(tile) * len(tile)
        rows = work[:whole].reshape(-1, len(tile))
        remainder = work[whole:]
        operation(rows, tile, out=rows)
        operation(remainder, tile[: len(remainder)], out=remainder)


def _tiled(row: Float64s, points: int = _TILE) -> Float64s:
    """`row` (3,) repeated for up to `_TILE` points, flat."""
    return np.frombuffer(row.tobytes() * max(1, min(points, _TILE)), np.float64)


_XYZ = "points/xyz"
_POINTS = "points/"
_SEGMENTS = "segments/"
_VOXELS = "voxels/"
_VOXEL_KEYS = {"voxel_coords": "coords", "voxel_counts": "counts", "point_voxel": "point_voxel"}
_OWN = frozenset({INDEX, SOURCE, "xyz", "origin", "bounds", "number", "offsets", *_VOXEL_KEYS})
"""Keys that a segment has for itself; a column of that name is handed out as ``points.<name>``."""
_ON_REQUEST = ("source_row", "number", "bounds")
_SIZE = re.compile(r"[0-9]+(\.[0-9]*)?")
"""Names of voxel grids."""
_BLOCK_SEGMENTS = 1 << 20
"""Segment numbers looked at together."""


@dataclass(frozen=True, slots=True)
class Segments:
    """Samples of a point cloud: the points of one segment, ragged.

    Keys: ``xyz`` (N, 3); ``origin`` (3,) float64, the segment's minimum, or 0 where ``"auto"`` leaves ``xyz``
    unmoved: under ``"auto"`` and ``"local"``, ``xyz + origin`` is where points are; every column of the
    points under its own name, (N,) or (N, k) in the stored dtype; values of the whole segment, such as
    ``label`` where objects are labelled (``segment_label`` where the points have a ``label`` too). On
    request: ``source``, ``source_row`` (N,), ``number``, ``bounds`` (2, 3).

    Parameters
    ----------
    coordinates
        ``"auto"``: where sources are float32, ``xyz`` is theirs, unmoved and exact; else as ``"local"``.
        ``"local"``: ``xyz`` is float32, ``float32(absolute - origin)``. ``"absolute"``: float64, exact.
    max_points
        Of larger segments, a uniform subset of this size in point order, another one each epoch.
    voxel
        Size of a voxel grid that the store holds; adds ``voxel_coords`` (V, 3) int32, ``voxel_counts`` (V,)
        int32 (points in each voxel of the whole segment; ragged group ``voxel``) and ``point_voxel`` (N,)
        int32, each point's voxel inside the sample.
    """

    coordinates: Literal["auto", "local", "absolute"] = "auto"
    max_points: int | None = None
    voxel: float | None = None

    def __post_init__(self) -> None:
        check = Arguments()
        check.one_of("coordinates", self.coordinates, ("auto", "local", "absolute"))
        check.integer("max_points", self.max_points, 1, none=True)
        check.number("voxel", self.voxel, none=True)
        check.raise_problems()

    @property
    def repeats(self) -> bool:
        """See `SampleKind.repeats`."""
        return self.max_points is None

    def select(self, store: Store, fields: Sequence[str] | None) -> tuple[str, ...]:
        """Keys of samples; see `SampleKind.select`."""
        require_arrays(store, self, _XYZ, f"{_SEGMENTS}offsets")
        natural = ["xyz", "origin", *_point_columns(store), *_segment_columns(store)]
        if self.voxel is not None:
            self.voxel_group(store)
            natural += _VOXEL_KEYS
        return select_keys(natural, fields, (SOURCE, *_ON_REQUEST))

    def bind(self, store: Store, fields: Sequence[str], units: Int64s | None) -> SegmentReader:
        """Reader of the segments `units`."""
        return SegmentReader(store, self, fields, units)

    def unmoved(self, store: Store) -> bool:
        """Whether ``xyz`` is the float32 of the sources."""
        return self.coordinates == "auto" and store.array(_XYZ).dtype == np.float32

    def voxel_group(self, store: Store) -> str:
        """Path of the voxel grid of this size.

        Raises
        ------
        InputError
            Listing the sizes that the store holds.
        """
        groups = {
            path.split("/")[1]: path.rpartition("/")[0]
            for path in store.paths()
            if path.startswith(_VOXELS) and path.endswith("/coords")
        }
        for size, group in groups.items():
            if not _SIZE.fullmatch(size):
                raise contradiction(store, group, f"{size!r} is not the size of a voxel, expected a number")
            if self.voxel is not None and float(size) == float(self.voxel):
                return group
        held = ", ".join(sorted(groups, key=float)) or "none"
        msg = (
            f"{store.path}: no voxel grid of size {self.voxel}; the store holds: {held} "
            f"(unistore convert point-cloud --voxel-size {self.voxel})"
        )
        raise InputError(msg)


class SegmentReader:
    """Reads segments; see `SampleReader`."""

    def __init__(self, store: Store, kind: Segments, fields: Sequence[str], units: Int64s | None) -> None:
        self._kind = kind
        self._offsets = Column(store, "segments/offsets")
        self._units = units
        self._outside = _outside_segments(store, len(self._offsets) - 1)
        self._xyz = _Coordinates(store, kind) if "xyz" in fields else None
        self._unmoved = "origin" in fields and kind.unmoved(store)
        self._names = SourceNames(store, "segments/source") if SOURCE in fields else None
        points = {**_point_columns(store), "source_row": "points/source_row"}
        segments = {
            **_segment_columns(store),
            **{key: f"segments/{key}" for key in ("origin", "number", "bounds")},
        }
        self._points = {key: store.array(points[key]) for key in fields if key in points}
        self._segments = {key: Column(store, segments[key]) for key in fields if key in segments}
        self._voxels = {}
        if kind.voxel is not None and not _VOXEL_KEYS.keys().isdisjoint(fields):
            group = kind.voxel_group(store)
            self._voxel_offsets = Column(store, f"{group}/offsets")
            self._voxels = {
                key: store.array(f"{group}/{name}") for key, name in _VOXEL_KEYS.items() if key in fields
            }
            if "point_voxel" in self._voxels:
                self._points["point_voxel"] = self._voxels.pop("point_voxel")
        self._length = store.sample_count if units is None else len(units)

    def __len__(self) -> int:
        return self._length

    def read(self, picks: Picks, allocate: Allocate) -> Batch:
        """Read a batch of segments."""
        samples = picks.index if self._units is None else self._units[picks.index]
        # sample s is row s + (segments of no sample before it): the k-th of those stands behind s - k samples
        rows = samples + np.searchsorted(self._outside, samples, side="right")
        spans = Spans.draw(picks, *self._offsets.ranges(rows), self._kind.max_points)
        batch: Batch = {}
        if self._xyz is not None:
            batch["xyz"] = Packed(self._xyz.read(rows, spans, allocate), spans.offsets)
        for key, column in self._segments.items():
            batch[key] = packed_copy(column.take(rows), allocate)
            if key == "origin" and self._unmoved:
                batch[key].values[...] = 0
        for key, array in self._points.items():
            out = allocate((len(spans), *array.shape[1:]), array.dtype)
            batch[key] = Packed(spans.read(array, out), spans.offsets)
        if self._voxels:
            inside = Spans.draw(picks, *self._voxel_offsets.ranges(rows))
            for key, array in self._voxels.items():
                out = allocate((len(inside), *array.shape[1:]), array.dtype)
                # counts are u4 and far below 2**31: torch computes with int32, hardly with uint32
                values = inside.read(array, out).view(np.int32)
                batch[key] = Packed(values, inside.offsets, group="voxel")
        if self._names is not None:
            batch[SOURCE] = packed_copy(self._names.take(rows), allocate)
        return batch


class _Coordinates:
    """Reads ``xyz`` in the asked form."""

    def __init__(self, store: Store, kind: Segments) -> None:
        self._array = store.array(_XYZ)
        self._float32 = kind.coordinates != "absolute"
        self._local = self._float32 and not kind.unmoved(store)
        self._origin = Column(store, "segments/origin")
        self._source = Column(store, "segments/source")
        self._quantum = quantum(store)
        self._dequantisers: dict[int, Dequantiser] = {}

    def read(self, rows: Int64s, spans: Spans, allocate: Allocate) -> NDArray[np.floating]:
        dtype = np.dtype(np.float32 if self._float32 else np.float64)
        out = allocate((len(spans), 3), dtype)
        direct = self._array.dtype == dtype
        if self._quantum is not None:
            stored = spans.read(self._array, quantised_view(out))
        elif direct:
            stored = spans.read(self._array, out)
        else:
            stored = spans.read(self._array)
        if not self._local and self._quantum is None:
            if not direct:
                out[...] = stored
            return out
        origins = self._origin.take(rows) if self._local else [None] * len(rows)
        sources = self._source.take(rows).tolist()
        for source, origin, (lo, hi) in zip(sources, origins, pairwise(spans.offsets.tolist()), strict=True):
            self._dequantiser(source).convert(stored[lo:hi], out[lo:hi], origin)
        return out

    def _dequantiser(self, source: int) -> Dequantiser:
        dequantiser = self._dequantisers.get(source)
        if dequantiser is None:
            dequantiser = Dequantiser()
            if self._quantum is not None:
                scale, offset, decimal = self._quantum
                dequantiser = Dequantiser(scale[source], offset[source], decimal=decimal)
            if len(self._dequantisers) >= 64:  # 200 KB each
                self._dequantisers.clear()
            self._dequantisers[source] = dequantiser
        return dequantiser


def _point_columns(store: Store) -> dict[str, str]:
    """Path of each column of the points by its key; ``xyz`` and ``source_row`` apart."""
    names = [path.removeprefix(_POINTS) for path in store.paths() if path.startswith(_POINTS)]
    return {
        f"points.{name}" if name in _OWN else name: f"{_POINTS}{name}"
        for name in names
        if name not in ("xyz", "source_row")
    }


def _segment_columns(store: Store) -> dict[str, str]:
    """Path of each further value of a segment by its key."""
    names = [path.removeprefix(_SEGMENTS) for path in store.paths() if path.startswith(_SEGMENTS)]
    point_columns = _point_columns(store)
    return {
        f"segment_{name}" if name in point_columns else name: f"{_SEGMENTS}{name}"
        for name in names
        if name not in _OWN and "/" not in name
    }


def _outside_segments(store: Store, segments: int) -> Int64s:
    """Samples before each segment that is not a sample (number −1: points of no segment), ascending."""
    if segments == store.sample_count:
        return np.empty(0, np.int64)
    numbers = store.array("segments/number")
    blocks = [
        lo + np.flatnonzero(numbers.read_box([lo], [min(lo + _BLOCK_SEGMENTS, segments)]) == NO_SEGMENT)
        for lo in range(0, segments, _BLOCK_SEGMENTS)
    ]
    rows = np.concatenate(blocks) if blocks else np.empty(0, np.int64)
    if segments - len(rows) != store.sample_count:
        message = f"numbers {segments - len(rows)} segments, the root counts {store.sample_count} samples"
        raise contradiction(store, "segments/number", message)
    return rows - np.arange(len(rows))
