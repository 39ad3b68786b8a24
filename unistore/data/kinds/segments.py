"""The `Segments` sample kind: a sample is one segment of a point cloud, with any number of points."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from unistore.data.kinds.columns import row_axes
from unistore.data.kinds.protocol import (
    INDEX,
    SOURCE,
    Reach,
    RowValues,
    SampleIndices,
    SampleKind,
    SampleReader,
    require_arrays,
    select_keys,
)
from unistore.data.kinds.rows import Spans
from unistore.data.packed import Allocate, Batch, Packed, offsets_from_lengths, packed_copy
from unistore.order.subset import subset
from unistore.schemas.indices import IndexColumn, contradiction, require_rule
from unistore.schemas.point_cloud.fields import NO_SEGMENT, Quantum, quantum
from unistore.store.reader import Store
from unistore.system.arguments import MAX_EPOCH, Arguments, wrong_argument
from unistore.system.kernel import kernel
from unistore.system.types import AnyArray, Float64s, Int64s

# Point coordinates from their stored form: quantised i4, f4 or f8.
#
# Defined in float64, in this order of operations: ``absolute = q * scale + offset``, or, for decimals,
# ``absolute = (q + offset) / scale``; ``local = float32(absolute - origin)``. Results equal the definition
# bit for bit. Blocks stay in the processor's cache, and quantised values are decoded into the memory of the
# result.

_BLOCK_POINTS = 16384  # Points converted at a time: their float64 values fit into the second-level cache

_TILE = 2048  # Repetitions of a row of three numbers: with half as many, numpy takes twice as long


def quantised_view(out: AnyArray) -> NDArray[np.int32]:
    """Return the part of `out` to read quantised coordinates into, so that `convert` decodes in place.

    Parameters
    ----------
    out : float32 or float64 array of shape (N, 3)
        Memory of the decoded coordinates.

    Returns
    -------
    int32 array of shape (N, 3)
        A view of `out`: all of it for float32, its second half for float64.
    """
    # `convert` works from front to back, so it never overwrites values that it has not read yet
    memory = out.reshape(-1).view(np.int32)
    return memory[len(memory) - out.size :].reshape(out.shape)


def convert(
    stored: AnyArray,
    out: NDArray[np.floating[Any]],
    form: Quantum | None,
    source: int,
    origin: Float64s | None = None,
) -> None:
    """Decode the stored coordinates of one source into `out`.

    Parameters
    ----------
    stored : int32, float32 or float64 array of shape (N, 3)
        Coordinates as the store holds them. Quantised ones may be the `quantised_view` of `out`.
    out : C-contiguous float32 or float64 array of shape (N, 3)
        Receives the absolute coordinates, in the units of the source, minus `origin` if it is given.
    form : Quantum or None
        Scale and offset of each source. None: the coordinates are not quantised.
    source : int
        Row of the source in `form`.
    origin : float64 array of shape (3,), optional
        Point that is subtracted from every coordinate. None: nothing is subtracted.
    """
    library = kernel()
    in_rows = stored.flags.c_contiguous and out.flags.c_contiguous and len(stored) == len(out)
    if library is not None and form is not None and stored.dtype == np.int32 and in_rows:
        rows = [form.scale[source], form.offset[source], np.zeros(3) if origin is None else origin]
        doubles = [np.ascontiguousarray(row, np.float64) for row in rows]
        addresses = [row.ctypes.data for row in doubles]
        is_float64 = out.dtype == np.float64
        library.unistore_dequantise(
            stored.ctypes.data, len(out), *addresses, form.decimal, is_float64, out.ctypes.data
        )
        return
    steps: list[_Step] = []
    if form is not None:
        scale, offset = (row[source].astype(np.float64).tobytes() for row in form[:2])
        steps += _scaling(scale, offset, form.decimal)
    if origin is not None:
        steps.append((np.subtract, _tiled(origin, len(out))))
    values = stored.reshape(-1)
    target = out.reshape(-1)
    memory = np.empty(min(len(values), 3 * _BLOCK_POINTS))
    for lo in range(0, len(values), 3 * _BLOCK_POINTS):
        part = values[lo : lo + 3 * _BLOCK_POINTS]
        work = memory[: len(part)]
        np.copyto(work, part)
        for operation, tile in steps:
            _row_wise(operation, work, tile)
        target[lo : lo + len(part)] = work


_Step: TypeAlias = tuple[np.ufunc, Float64s | float]


@lru_cache(64)  # 100 KB each
def _scaling(scale_bytes: bytes, offset_bytes: bytes, is_decimal: bool) -> tuple[_Step, ...]:
    scale = np.frombuffer(scale_bytes)
    offset = np.frombuffer(offset_bytes)
    is_common = (scale == scale[0]).all()
    scaled = np.divide if is_decimal else np.multiply
    steps: list[_Step] = [(scaled, float(scale[0]) if is_common else _tiled(scale, _TILE))]
    # x + 0.0 is x unless x is -0.0, which no product of an integer and a positive scale is
    if offset.any() or not (is_decimal or (scale > 0).all()):
        steps.insert(0 if is_decimal else 1, (np.add, _tiled(offset, _TILE)))
    return tuple(steps)


def _row_wise(operation: np.ufunc, work: Float64s, tile: Float64s | float) -> None:
    if isinstance(tile, float):
        operation(work, tile, out=work)
        return
    whole_rows = len(work) // len(tile) * len(tile)
    rows = work[:whole_rows].reshape(-1, len(tile))
    remainder = work[whole_rows:]
    operation(rows, tile, out=rows)
    operation(remainder, tile[: len(remainder)], out=remainder)


def _tiled(row: Float64s, points: int) -> Float64s:
    doubles = row.astype(np.float64)
    return np.frombuffer(doubles.tobytes() * max(1, min(points, _TILE)), np.float64)


_XYZ = "points/xyz"
_POINTS = "points/"
_SEGMENTS = "segments/"
_VOXELS = "voxels/"
_VOXEL_KEYS = {"voxel_coords": "coords", "voxel_counts": "counts", "point_voxel": "point_voxel"}
# Keys that a segment has for itself; a column of that name is handed out as ``points.<name>``
_OWN = frozenset({INDEX, SOURCE, "xyz", "origin", "bounds", "number", "offsets", *_VOXEL_KEYS})
_ON_REQUEST = ("source_row", "number", "bounds")
_SIZE = re.compile(r"[0-9]+(\.[0-9]*)?")  # Names of voxel grids
_BLOCK_SEGMENTS = 1 << 20  # Segment numbers looked at together
_MOST_CELLS = 1 << 31  # Voxels along an axis, which int32 can count
Int32s: TypeAlias = NDArray[np.int32]


class SegmentReader(SampleReader):
    """Reads batches of `Segments`."""

    def __init__(self, store: Store, kind: Segments, fields: Sequence[str], units: Int64s) -> None:
        self._kind = kind
        require_rule(store, "segments/offsets", offsets_of="points")
        self._offsets = IndexColumn(store, "segments/offsets")
        self._outside = _outside_segments(store, len(self._offsets) - 1)
        self._units = units
        self._least = max(kind.min_points, 0 if kind.exactly is None else 1)
        self._most = self._median = 0
        if self._least:
            lengths = self._offsets.lengths()[self._rows(self._units)]
            self._most = int(lengths.max(initial=0))
            self._median = int(np.median(lengths)) if len(lengths) else 0
            self._units = self._units[lengths >= self._least]
        self._xyz = _Coordinates(store, kind) if "xyz" in fields else None
        self._is_unmoved = kind.unmoved(store)
        whole_segments = {key: f"{_SEGMENTS}{key}" for key in ("origin", "number", "bounds")}
        segments = _segment_columns(store) | whole_segments
        self._values = RowValues(store, fields, segments, "segments/source")
        points = _point_columns(store) | {"source_row": "points/source_row"}
        self._points = {key: store.array(points[key]) for key in fields if key in points}
        self._axis_names = {key: row_axes(store, points[key]) for key in self._points}
        self._axis_names["xyz"] = ("coordinate",)
        self._voxel_keys = [key for key in _VOXEL_KEYS if kind.voxel is not None and key in fields]
        needed = {*self._voxel_keys, *(["point_voxel"] if kind.sample == "grid" else [])}
        self._grid: _StoredGrid | _ComputedGrid | None = None
        if needed:
            group = kind.voxel_group(store)
            self._grid = _ComputedGrid(store, kind) if group is None else _StoredGrid(store, group, needed)

    def __len__(self) -> int:
        return len(self._units)

    def axis_names(self, key: str) -> Sequence[str]:
        return self._axis_names.get(key, ())

    def reach(self) -> Reach:
        if len(self) or not self._least:
            return Reach(len(self))
        problem = (
            f"min_points={self._least:,} leaves no samples: the largest segment has {self._most:,} points, "
            f"the median is {self._median:,}"
        )
        fitting = replace(self._kind, min_points=max(self._median, 1)) if self._most else None
        return Reach(0, problem=problem, fitting=fitting)

    def _rows(self, samples: Int64s) -> Int64s:
        # sample s is row s + (segments of no sample before it): the k-th of those stands behind s - k samples
        return samples + np.searchsorted(self._outside, samples, side="right")

    def read(self, picks: SampleIndices, allocate: Allocate) -> Batch:
        rows = self._rows(self._units[picks.index])
        lo, hi = self._offsets.ranges(rows)
        voxels = None if self._grid is None else self._grid.read(rows, lo, hi)
        spans = self._draw(picks, lo, hi, voxels)
        batch = self._values.read(rows, allocate)
        if "origin" in batch and self._is_unmoved:
            batch["origin"].values[...] = 0
        if self._xyz is not None:
            batch["xyz"] = self._packed(self._xyz.read(rows, spans, allocate), spans)
        for key, array in self._points.items():
            out = allocate((len(spans), *array.shape[1:]), array.dtype)
            batch[key] = self._packed(spans.read(array, out), spans)
        if voxels is not None:
            for key in self._voxel_keys:
                of_points = key == "point_voxel"
                values = spans.take(voxels.values[key]) if of_points else voxels.values[key]
                values = packed_copy(values, allocate).values
                grid = Packed(values, voxels.offsets, group="voxel")
                batch[key] = self._packed(values, spans) if of_points else grid
        return batch

    def _draw(self, picks: SampleIndices, lo: Int64s, hi: Int64s, voxels: _Voxels | None) -> Spans:
        is_grid = self._kind.sample == "grid"
        if self._kind.exactly is None and not is_grid:
            return Spans.draw(picks, lo, hi, self._kind.max_points)
        rows = []
        words = picks.random_words(1)[:, 0].tolist()
        for i, (start, stop) in enumerate(pairwise(offsets_from_lengths(hi - lo).tolist())):
            cells = voxels.values["point_voxel"][start:stop] if is_grid and voxels is not None else None
            rows.append(draw_rows(self._kind, stop - start, cells, picks, i, words[i]))
        return Spans.of(lo, hi, rows)

    def _packed(self, values: AnyArray, spans: Spans) -> Packed:
        if self._kind.exactly is None:
            return Packed(values, spans.offsets)
        return Packed(values.reshape(-1, self._kind.exactly, *values.shape[1:]))


@dataclass(frozen=True, slots=True)
class Segments(SampleKind):
    """Samples of a point cloud: the points of one segment.

    A sample has N points, and N differs from segment to segment, so batches are packed: ``xyz`` of a batch
    has shape (sum of N, 3), and segment i is ``xyz[offsets[i]:offsets[i + 1]]``. With `exactly`, all samples
    have the same number of points, and batches are dense: (B, N, 3).

    Keys of a sample:

    - ``xyz`` (N, 3), float32 or float64: positions in the units of the source; see `coordinates`.
    - ``origin`` (3,), float64: the minimum of the segment, or 0 if ``"auto"`` leaves ``xyz`` unchanged.
      Except with ``coordinates="absolute"``, ``xyz + origin`` is the absolute position.
    - every column of the points by its name, such as ``intensity``: (N,) or (N, k), in the stored dtype.
    - every value of the segment by its name, such as ``label``, in the stored dtype. It is called
      ``segment_label`` if the points have a ``label``, too.
    - with `voxel`, all int32: ``voxel_coords`` (V, 3), the coordinates of the V occupied voxels;
      ``voxel_counts`` (V,), the points of the whole segment in each voxel; ``point_voxel`` (N,), the voxel of
      each point, below V.

    Optional keys, read with ``fields=[…]``: ``source``, the name of the file; ``source_row`` (N,), the row of
    each point in it; ``number``, the number of the segment in its file, such as the N of ``segment_N``;
    ``bounds`` (2, 3), the least and the greatest coordinates.

    Parameters
    ----------
    coordinates : {"auto", "local", "absolute"}, default "auto"
        ``"local"``: float32, relative to the segment: ``float32(absolute - origin)``. ``"absolute"``:
        float64, exact. ``"auto"``: the values of the source, unchanged, if they are float32; otherwise as
        ``"local"``.
    max_points : int, optional
        Limit for the number of points. A larger segment is reduced to a uniform random subset, in point
        order, another one in every epoch. Not together with `exactly`. None: all points.
    voxel : float, optional
        Edge of a voxel, in the units of the coordinates. Adds the three voxel keys; in a batch, voxels have
        their own offsets, ``voxel_offsets``. A grid of this size in the store is read, any other size is
        computed, with equal results. None: no voxels.
    min_points : int, default 0
        Segments with fewer points are not samples. If that leaves no segment, reading raises InputError.
    exactly : int, optional
        Number of points of every sample. Larger segments are reduced as with `max_points`. Points of smaller
        ones are repeated, all equally often except for the remainder. Segments without points are not
        samples. None: samples keep their size.
    sample : {"random", "grid"}, default "random"
        Points that `max_points` and `exactly` choose from. ``"random"``: all points. ``"grid"``: one random
        point of each voxel, another one in every epoch; needs `voxel`. Without those two, a sample has all of
        them.

    Raises
    ------
    InputError
        If an argument is invalid, `exactly` is given together with `max_points`, or ``sample="grid"``
        without `voxel`.

    Examples
    --------
    Segments of any size:

    >>> dataset = unistore.Dataset("clouds.zarr", unistore.Segments())  # doctest: +SKIP

    Dense batches (B, 1024, 3) for a PointNet:

    >>> dataset = unistore.Dataset("clouds.zarr", unistore.Segments(exactly=1024))  # doctest: +SKIP

    One point per voxel of edge 0.5, at most 4096 of them, without tiny segments:

    >>> kind = unistore.Segments(voxel=0.5, sample="grid", max_points=4096, min_points=16)  # doctest: +SKIP
    """

    reader: ClassVar = SegmentReader

    coordinates: Literal["auto", "local", "absolute"] = "auto"
    max_points: int | None = None
    voxel: float | None = None
    min_points: int = 0
    exactly: int | None = None
    sample: Literal["random", "grid"] = "random"

    def __post_init__(self) -> None:
        check = Arguments()
        check.one_of("coordinates", self.coordinates, ("auto", "local", "absolute"))
        check.integer("max_points", self.max_points, 1, none=True)
        check.number("voxel", self.voxel, none=True)
        check.integer("min_points", self.min_points, most=MAX_EPOCH)
        check.integer("exactly", self.exactly, 1, none=True)
        check.one_of("sample", self.sample, ("random", "grid"))
        if self.sample == "grid" and self.voxel is None:
            message = "is 'grid', one point of each voxel, but no size of voxels is given"
            check.refuse("sample", message, "add for example voxel=0.5")
        if self.exactly is not None and self.max_points is not None:
            check.refuse("exactly", "does not work together with max_points", "give only one of the two")
        check.raise_problems()

    @property
    def repeats(self) -> bool:
        return self.max_points is None and self.exactly is None and self.sample == "random"

    @property
    def whole(self) -> SampleKind | None:
        return replace(self, max_points=None)

    def select(self, store: Store, fields: Sequence[str] | None) -> tuple[str, ...]:
        require_arrays(store, self, _XYZ, f"{_SEGMENTS}offsets")
        default_keys = ["xyz", "origin", *_point_columns(store), *_segment_columns(store)]
        if self.voxel is not None:
            default_keys += _VOXEL_KEYS
        return select_keys(default_keys, fields, (SOURCE, *_ON_REQUEST))

    def unmoved(self, store: Store) -> bool:
        """Return whether ``xyz`` is the float32 of the sources, unchanged."""
        return self.coordinates == "auto" and store.array(_XYZ).dtype == np.float32

    def voxel_group(self, store: Store) -> str | None:
        """Return the path of the stored voxel grid of size `voxel`, or None if the store has none."""
        groups = _voxel_groups(store)
        return None if self.voxel is None else groups.get(float(self.voxel))

    def with_precomputed(self, store: Store) -> list[Segments]:
        """Return this kind with each voxel size that the store has, from the smallest size."""
        sizes = sorted(_voxel_groups(store))
        return [replace(self, voxel=int(size) if size.is_integer() else size) for size in sizes]


def draw_rows(
    kind: Segments,
    length: int,
    point_voxel: Int32s | None,
    picks: SampleIndices,
    sample: int,
    word: int,
) -> Int64s:
    """Draw the points of one sample, as `max_points`, `exactly` and `sample` of its kind say.

    Parameters
    ----------
    kind : Segments
        The sample kind.
    length : int
        Number of points of the segment.
    point_voxel : int32 array of shape (length,) or None
        Voxel of each point; one point of each voxel is drawn first. None: all points can be drawn.
    picks : SampleIndices
        The samples of the batch, whose seed, epoch and index determine the draw.
    sample : int
        Position of the sample in the batch.
    word : int
        Random number, below 2**64, that chooses the subset.

    Returns
    -------
    int64 array
        Rows of the segment, ascending. Rows repeat if `exactly` exceeds their number.
    """
    rows = np.arange(length)
    if point_voxel is not None:
        order = picks.generator(sample).permutation(length)
        _, first = np.unique(point_voxel[order], return_index=True)
        rows = np.sort(order[first])
    limit = kind.exactly or kind.max_points
    if limit is not None and len(rows) > limit:
        return rows[subset(len(rows), limit, word)]
    if kind.exactly is not None and len(rows) < kind.exactly:
        times, remainder = divmod(kind.exactly, len(rows))
        extra = rows[subset(len(rows), remainder, word)]
        rows = np.sort(np.concatenate([np.tile(rows, times), extra]))
    return rows


class _Voxels(NamedTuple):
    offsets: Int64s  # (B + 1,) voxels of each segment
    values: dict[str, Int32s]  # by sample key, one segment after the other


def _voxel_groups(store: Store) -> dict[float, str]:
    """Return the path of each stored voxel grid by the size of its voxels."""
    groups = {}
    for path in store.paths():
        if path.startswith(_VOXELS) and path.endswith("/coords"):
            size, group = path.split("/")[1], path.rpartition("/")[0]
            if not _SIZE.fullmatch(size):
                raise contradiction(store, group, f"'{size}' is not a number, but the size of a voxel is")
            groups[float(size)] = group
    return groups


class _StoredGrid:
    def __init__(self, store: Store, group: str, keys: Collection[str]) -> None:
        require_rule(store, f"{group}/offsets", offsets_of=group)
        self._offsets = IndexColumn(store, f"{group}/offsets")
        self._arrays = {key: store.array(f"{group}/{_VOXEL_KEYS[key]}") for key in keys}

    def read(self, rows: Int64s, lo: Int64s, hi: Int64s) -> _Voxels:
        first, stop = self._offsets.ranges(rows)
        values = {}
        for key, array in self._arrays.items():
            stored = array.read_ranges(lo, hi) if key == "point_voxel" else array.read_ranges(first, stop)
            # counts are u4 and far below 2**31: torch computes with int32, hardly with uint32
            values[key] = stored.view(np.int32)
        return _Voxels(offsets_from_lengths(stop - first), values)


class _ComputedGrid:
    # As a conversion computes voxels
    def __init__(self, store: Store, kind: Segments) -> None:
        assert kind.voxel is not None
        self._size = float(kind.voxel)
        self._xyz = _Coordinates(store, replace(kind, coordinates="absolute"))
        self._origin = IndexColumn(store, "segments/origin")

    def read(self, rows: Int64s, lo: Int64s, hi: Int64s) -> _Voxels:
        spans = Spans(lo, hi, offsets_from_lengths(hi - lo))
        xyz = self._xyz.read(rows, spans, np.empty)
        xyz -= np.repeat(self._origin.take(rows), hi - lo, axis=0)
        xyz /= self._size
        cells = np.floor(xyz, out=xyz)
        if cells.max(initial=0) >= _MOST_CELLS:
            message = (
                f"is {self._size:g}, but a segment is {cells.max():.3g} voxels wide, more than int32 allows"
            )
            raise wrong_argument("voxel", message, "give a larger voxel")
        parts = [voxels_of(cells[start:stop].astype(np.int32)) for start, stop in pairwise(spans.offsets)]
        lengths = np.array([len(part["voxel_counts"]) for part in parts], np.int64)
        none = voxels_of(np.empty((0, 3), np.int32))
        values = {key: np.concatenate([none[key], *(part[key] for part in parts)]) for key in _VOXEL_KEYS}
        return _Voxels(offsets_from_lengths(lengths), values)


def voxels_of(cells: Int32s) -> dict[str, Int32s]:
    """Return the voxel keys of a segment.

    Parameters
    ----------
    cells : int32 array of shape (N, 3)
        Voxel coordinates of each point.

    Returns
    -------
    dict
        ``voxel_coords`` (V, 3), sorted by x, y, z; ``voxel_counts`` (V,); ``point_voxel`` (N,). All int32.
    """
    order = np.lexsort(cells.T[::-1])
    ordered = cells[order]
    is_first = np.ones(len(cells), np.bool_)
    is_first[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    starts = np.flatnonzero(is_first)
    point_voxel = np.empty(len(cells), np.int32)
    point_voxel[order] = np.cumsum(is_first) - 1
    counts = np.diff(starts, append=len(cells)).astype(np.int32)
    return {"voxel_coords": ordered[starts], "voxel_counts": counts, "point_voxel": point_voxel}


class _Coordinates:
    def __init__(self, store: Store, kind: Segments) -> None:
        self._array = store.array(_XYZ)
        is_absolute = kind.coordinates == "absolute"
        self._dtype = np.dtype(np.float64 if is_absolute else np.float32)
        self._local = not is_absolute and not kind.unmoved(store)
        self._origin = IndexColumn(store, "segments/origin")
        require_rule(store, "segments/source", indexes="sources/path/offsets")
        self._source = IndexColumn(store, "segments/source")
        self._quantum = quantum(store)

    def read(self, rows: Int64s, spans: Spans, allocate: Allocate) -> NDArray[np.floating]:
        out = allocate((len(spans), 3), self._dtype)
        memory = out if self._array.dtype == self._dtype else None
        if self._quantum is not None:
            memory = quantised_view(out)
        stored = spans.read(self._array, memory)
        if not self._local and self._quantum is None:
            if memory is None:
                out[...] = stored
            return out
        origins = self._origin.take(rows) if self._local else [None] * len(rows)
        sources = self._source.take(rows).tolist()
        for source, origin, (lo, hi) in zip(sources, origins, pairwise(spans.offsets.tolist()), strict=True):
            convert(stored[lo:hi], out[lo:hi], self._quantum, source, origin)
        return out


def _point_columns(store: Store) -> dict[str, str]:
    names = [path.removeprefix(_POINTS) for path in store.paths() if path.startswith(_POINTS)]
    columns = [name for name in names if name not in ("xyz", "source_row")]
    return {f"points.{name}" if name in _OWN else name: f"{_POINTS}{name}" for name in columns}


def _segment_columns(store: Store) -> dict[str, str]:
    names = [path.removeprefix(_SEGMENTS) for path in store.paths() if path.startswith(_SEGMENTS)]
    columns = [name for name in names if name not in _OWN and "/" not in name]
    points = _point_columns(store)
    return {f"segment_{name}" if name in points else name: f"{_SEGMENTS}{name}" for name in columns}


def _outside_segments(store: Store, segments: int) -> Int64s:
    # Their number is -1: points of no segment
    if segments == store.sample_count:
        return np.empty(0, np.int64)
    numbers = store.array("segments/number")
    blocks = [
        lo + np.flatnonzero(numbers.read_box([lo], [min(lo + _BLOCK_SEGMENTS, segments)]) == NO_SEGMENT)
        for lo in range(0, segments, _BLOCK_SEGMENTS)
    ]
    rows = np.concatenate(blocks) if blocks else np.empty(0, np.int64)
    if segments - len(rows) != store.sample_count:
        message = (
            f"numbers {segments - len(rows):,} segments, but the root states {store.sample_count:,} samples"
        )
        raise contradiction(store, "segments/number", message)
    return rows - np.arange(len(rows))
