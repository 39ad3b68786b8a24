"""The `Events` sample kind: a sample is the events of a window of a recording."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from unistore.data.kinds.protocol import (
    Reach,
    RowValues,
    SampleIndices,
    SampleKind,
    SampleReader,
    require_arrays,
    select_keys,
    source_keys,
)
from unistore.data.kinds.rows import Ragged
from unistore.data.packed import Allocate, Batch, Packed, offsets_from_lengths, packed_copy, range_of_rows
from unistore.schemas.events.fields import (
    BESIDE,
    COLUMNS,
    HEIGHTS,
    MARK_ROWS,
    MARKS,
    MARKS_OF,
    POLARITIES,
    RECORDINGS,
    ROWS,
    T_OFFSETS,
    TIMES,
    WIDTHS,
)
from unistore.schemas.indices import require_rule, table_columns, whole
from unistore.store.reader import Store
from unistore.system.arguments import Arguments
from unistore.system.types import AnyArray, Float64s, Int64s, Shape, UInt8s

_EVENTS = {"t": TIMES, "x": COLUMNS, "y": ROWS, "p": POLARITIES}
_START = "start"
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?) *(us|ms|s)")
_MICROSECONDS = {"us": 1, "ms": 1_000, "s": 1_000_000}
_DEFAULT_WINDOW = "50ms"
UInt16s: TypeAlias = NDArray[np.uint16]


class EventReader(SampleReader):
    """Reads batches of `Events`.

    Windows are cut from times or, with `count`, from the numbers of events. Both are called places.
    """

    def __init__(self, store: Store, kind: Events, fields: Sequence[str], units: Int64s) -> None:
        self._kind = kind
        self._fields = fields
        self._recordings = units
        require_rule(store, RECORDINGS, offsets_of="events")
        require_rule(store, MARKS_OF, offsets_of="marks")
        self._offsets = whole(store, RECORDINGS)
        self._marks = whole(store, MARKS)
        self._mark_offsets = whole(store, MARKS_OF)
        read = {"t", *fields, *("xyp" if {"voxel", "frame"}.intersection(fields) else "")}
        paths = {key: path for key, path in _columns_of(store).items() if key in read}
        self._arrays = {key: store.array(path) for key, path in paths.items()}
        size = int(whole(store, HEIGHTS).max(initial=1)), int(whole(store, WIDTHS).max(initial=1))
        images = {
            "voxel": (voxel_grid, (kind.voxel or 0, *size), np.dtype(np.float32)),
            "frame": (event_counts, (2, *size), np.dtype(np.int32)),
        }
        self._images = {key: image for key, image in images.items() if key in fields}
        self._sources = RowValues(store, fields, {}, "recordings/source")
        beside = _keys_beside(store)
        self._beside = {key: store.array(path) for key, path in beside.items() if key in fields}
        self._times = {table: whole(store, f"{table}/t") for table in self._tables}
        self._bounds = {table: whole(store, f"sources/{table}/offsets") for table in self._tables}
        self._clocks = whole(store, T_OFFSETS)
        # First place of each recording, and how many it has
        bounds = self._offsets if kind.count is not None else self._mark_offsets
        lo = bounds[self._recordings]
        hi = bounds[self._recordings + 1]
        self._origins = lo.copy()
        self._extents = hi - lo
        if kind.count is None:
            has_events = hi > lo
            self._origins[has_events] = self._marks[lo[has_events]]
            last = self._marks[hi[has_events] - 1]
            self._extents[has_events] = last - self._origins[has_events] + 1
        counts = (self._extents - kind.length) // kind.step + 1
        self._first = offsets_from_lengths(np.maximum(counts, 0))

    @property
    def _tables(self) -> set[str]:
        return {key.partition(".")[0] for key in self._beside}

    def __len__(self) -> int:
        return int(self._first[-1])

    def reach(self) -> Reach:
        if len(self):
            return Reach(len(self))
        longest = int(self._extents.max(initial=0))
        if self._kind.count is None:
            problem = (
                f"window={self._kind.window!r} leaves no samples: the longest recording has {longest:,} us"
            )
            fitting = replace(self._kind, window=f"{longest}us") if longest else None
        else:
            problem = (
                f"count={self._kind.count:,} leaves no samples: the longest recording has {longest:,} events"
            )
            fitting = replace(self._kind, count=longest) if longest else None
        return Reach(0, problem=problem, fitting=fitting)

    def read(self, picks: SampleIndices, allocate: Allocate) -> Batch:
        which = range_of_rows(self._first, picks.index)
        moved = (picks.index - self._first[which]) * self._kind.step
        if self._kind.random:
            room = self._extents[which] - self._kind.length + 1
            moved = picks.below(room[:, None])[:, 0]
        starts = self._origins[which] + moved
        recordings = self._recordings[which]
        if self._kind.count is None:
            lo, hi, times = self._by_time(recordings, starts)
        else:
            lo = starts
            hi = starts + self._kind.count
            times = list(self._arrays["t"].read_ranges(lo, hi).reshape(len(lo), self._kind.count))
            starts = np.array([window_times[0] for window_times in times], np.int64)
        offsets = offsets_from_lengths(hi - lo)
        columns: dict[str, AnyArray] = {}
        if "t" in self._fields:
            columns["t"] = allocate((int(offsets[-1]),), np.dtype(np.int64))
            np.concatenate([columns["t"][:0], *times], out=columns["t"])
        for key, column in self._arrays.items():
            if key != "t":
                memory = allocate if key in self._fields else np.empty
                out = memory((int(offsets[-1]), *column.shape[1:]), column.dtype)
                columns[key] = column.read_ranges(lo, hi, out)
        batch = {key: Packed(columns[key], offsets) for key in self._fields if key in columns}
        if _START in self._fields:
            batch[_START] = packed_copy(starts, allocate)
        for key, (make, shape, dtype) in self._images.items():
            batch[key] = Packed(allocate((len(picks), *shape), dtype))
            for number, image in enumerate(batch[key].values):
                selected = slice(offsets[number], offsets[number + 1])
                x, y, p = (columns[name][selected] for name in "xyp")
                image[...] = make(times[number].astype(np.int64), x, y, p, shape)
        if self._beside:
            stops = starts + self._kind.length
            if self._kind.count is not None:
                stops = np.array([window_times[-1] for window_times in times], np.int64) + 1
            batch |= self._read_beside(recordings, starts, stops, allocate)
        return batch | self._sources.read(recordings, allocate)

    def _read_beside(
        self, recordings: Int64s, starts: Int64s, stops: Int64s, allocate: Allocate
    ) -> dict[str, Packed]:
        batch = {}
        for table in self._tables:
            lo = np.empty(len(recordings), np.int64)
            hi = np.empty(len(recordings), np.int64)
            for number, recording in enumerate(recordings.tolist()):
                first, last = self._bounds[table][recording : recording + 2].tolist()
                times = self._times[table][first:last].astype(np.int64)
                bounds = np.array([starts[number], stops[number]]) + self._clocks[recording]
                lo[number], hi[number] = first + np.searchsorted(times, bounds)
            offsets = offsets_from_lengths(hi - lo)
            for key, array in self._beside.items():
                if key.startswith(f"{table}."):
                    out = allocate((int(offsets[-1]), *array.shape[1:]), array.dtype)
                    batch[key] = Packed(array.read_ranges(lo, hi, out), offsets)
        return batch

    def _by_time(self, recordings: Int64s, starts: Int64s) -> tuple[Int64s, Int64s, list[AnyArray]]:
        # Between two marks, and there by time
        stops = starts + self._kind.length
        lo = np.empty(len(recordings), np.int64)
        hi = np.empty(len(recordings), np.int64)
        for number, recording in enumerate(recordings.tolist()):
            first, last = self._offsets[recording : recording + 2].tolist()
            marks = self._marks[self._mark_offsets[recording] : self._mark_offsets[recording + 1]]
            earlier, later = np.searchsorted(marks, (starts[number], stops[number])).tolist()
            lo[number] = first + max(0, earlier - 1) * MARK_ROWS
            hi[number] = min(first + later * MARK_ROWS, last)
        read = self._arrays["t"].read_ranges(lo, hi)
        bounds = offsets_from_lengths(hi - lo)
        times = []
        for number in range(len(recordings)):
            times_read = read[bounds[number] : bounds[number + 1]]
            begin, end = _between(times_read, starts[number], stops[number])
            hi[number] = lo[number] + end
            lo[number] += begin
            times.append(times_read[begin:end])
        return lo, hi, times


@dataclass(frozen=True, slots=True)
class Events(SampleKind):
    """Samples of recordings of event cameras: the events of a window.

    A window has N events, so batches are packed: ``t`` of a batch has shape (sum of N,), and window i is
    ``t[offsets[i]:offsets[i + 1]]``. Voxels and frames are dense: (B, …).

    Keys of a sample, in the order of time:

    - ``t`` (N,), int64: time in microseconds; ``x`` and ``y`` (N,), uint16: column and row of the pixel;
      ``p`` (N,), uint8: polarity, 1 or 0.
    - with `voxel`, instead: ``voxel`` (B, H, W), float32.
    - with `frame`, instead: ``frame`` (2, H, W), int32.

    Optional keys, read with ``fields=[…]``: the keys that `voxel` or `frame` replace; ``start``, int64,
    the time at which the window begins; ``source``; and data recorded with the events, of the time of the
    window: ``frames.t``, ``frames.image`` and ``boxes.<field>``, with variable length.

    Parameters
    ----------
    window : str, optional
        Duration of a window with its unit: ``"50ms"``, ``"500us"``, ``"0.1s"``. An event at the end of a
        window belongs to the next one. Not together with `count`. None: 50 ms, or no duration if `count`
        is given.
    count : int, optional
        Number of events of a window, instead of a duration. None: windows have a duration.
    stride : str or int, optional
        From the start of a window to the start of the next one: a duration, or with `count` a number of
        events. The first window begins with the first event of the recording; an incomplete last window
        is left out. None: windows follow each other without a gap.
    voxel : int, optional
        Number of bins B of ``voxel``; H and W are the size of the largest sensor of the store. With the
        first and last time of the window, ``position = (B - 1) * (t - first) / (last - first)``. An event
        adds ``2 p - 1`` to the two bins around its position, in shares that depend on the distance (Zhu
        et al., Unsupervised Event-based Learning of Optical Flow, Depth, and Egomotion, CVPR 2019,
        equation 1). Sums are float64: first the shares of the earlier bins, then the shares of the later
        bins, in the order of the events. None: no voxels.
    frame : bool, default False
        Whether samples have ``frame``: the number of events of each pixel, with p = 0 and with p = 1.
    random : bool, default False
        True: each window begins anywhere in its recording, elsewhere in every epoch. An epoch has as many
        windows as without.

    Raises
    ------
    InputError
        If an argument is invalid, or `window` is given together with `count`. Reading raises it if every
        recording is shorter than a window.

    Examples
    --------
    Windows of 20 ms as voxels of 5 bins, at random places:

    >>> kind = unistore.Events(window="20ms", voxel=5, random=True)  # doctest: +SKIP
    >>> dataset = unistore.Dataset("events.zarr", kind)  # doctest: +SKIP

    Windows of 4096 events each:

    >>> kind = unistore.Events(count=4096)  # doctest: +SKIP
    """

    reader: ClassVar = EventReader

    window: str | None = None
    count: int | None = None
    stride: str | int | None = None
    voxel: int | None = None
    frame: bool = False
    random: bool = False

    def __post_init__(self) -> None:
        check = Arguments()
        expected = 'a duration with a unit, such as "50ms", "500us" or "0.1s"'
        check.expect("window", self.window, _microseconds(self.window) > 0, expected, none=True)
        check.integer("count", self.count, 1, none=True)
        if self.count is None:
            check.expect("stride", self.stride, _microseconds(self.stride) > 0, expected, none=True)
        else:
            if self.window is not None:
                check.refuse("window", "does not work together with count", "give only window or only count")
            check.integer("stride", self.stride, 1, none=True)
        check.integer("voxel", self.voxel, 1, none=True)
        check.flag("frame", self.frame)
        check.flag("random", self.random)
        check.raise_problems()
        if self.window is None and self.count is None:
            object.__setattr__(self, "window", _DEFAULT_WINDOW)

    @property
    def repeats(self) -> bool:
        return not self.random and self.step >= self.length

    @property
    def length(self) -> int:
        """Length of a window: microseconds, or with `count` the number of events."""
        return _microseconds(self.window) if self.count is None else self.count

    @property
    def step(self) -> int:
        """From one window to the next: microseconds, or with `count` the number of events."""
        if self.stride is None:
            return self.length
        return self.stride if isinstance(self.stride, int) else _microseconds(self.stride)

    @property
    def whole(self) -> SampleKind | None:
        return Ragged()

    def select(self, store: Store, fields: Sequence[str] | None) -> tuple[str, ...]:
        require_arrays(store, self, *_EVENTS.values(), RECORDINGS, MARKS, MARKS_OF)
        images = [key for key, is_asked in (("voxel", self.voxel), ("frame", self.frame)) if is_asked]
        on_request = [_START, *_columns_of(store), *_keys_beside(store), *source_keys(store)]
        if images:
            return select_keys(images, fields, on_request)
        return select_keys(_EVENTS, fields, on_request)


def _columns_of(store: Store) -> dict[str, str]:
    # attached ones as well
    key_of_path = {value: key for key, value in _EVENTS.items()}
    return {key_of_path.get(path, path.rpartition("/")[2]): path for path in table_columns(store, "events")}


def _keys_beside(store: Store) -> dict[str, str]:
    paths = [path for path in store.paths() if path.partition("/")[0] in BESIDE]
    return {path.replace("/", "."): path for path in paths}


def _microseconds(duration: object) -> int:
    match = _DURATION.fullmatch(duration) if isinstance(duration, str) else None
    if match is None:
        return 0
    value = float(match[1]) * _MICROSECONDS[match[2]]
    return round(value) if abs(value - round(value)) < 1e-6 else 0


def _between(times: AnyArray, start: np.int64, stop: np.int64) -> tuple[int, int]:
    # numpy would convert all times to the dtype of a bound that has another one
    latest = np.iinfo(times.dtype).max
    bounds = np.minimum((start, stop), latest).astype(times.dtype)
    begin, end = np.searchsorted(times, bounds).tolist()
    return begin, len(times) if stop > latest else end


def voxel_grid(t: Int64s, x: UInt16s, y: UInt16s, p: UInt8s, shape: Shape) -> Float64s:
    """Return the voxels of the events of a window, as `Events` defines them.

    Parameters
    ----------
    t : int64 array of shape (N,)
        Times in microseconds, ascending.
    x, y : uint16 array of shape (N,)
        Column and row of each event.
    p : uint8 array of shape (N,)
        Polarity, 0 or 1.
    shape : (int, int, int)
        Number of bins, height and width.

    Returns
    -------
    float64 array of shape (bins, height, width)
        Zeros if there are no events.
    """
    bins, height, width = shape
    if not len(t):
        return np.zeros(shape)
    duration = max(1, int(t[-1] - t[0]))
    position = (bins - 1) * (t - t[0]) / duration
    earlier = position.astype(np.int64)
    later = np.minimum(earlier + 1, bins - 1)
    share = position - earlier
    sign = 2.0 * p - 1
    pixel = y.astype(np.int64) * width + x
    plane = height * width
    cells = np.concatenate((earlier * plane + pixel, later * plane + pixel))
    weights = np.concatenate((sign * (1 - share), sign * share))
    grid = np.bincount(cells, weights, bins * height * width)
    return np.asarray(grid, np.float64).reshape(shape)


def event_counts(_: Int64s, x: UInt16s, y: UInt16s, p: UInt8s, shape: Shape) -> Int64s:
    """Return the number of events of each pixel and polarity.

    Parameters
    ----------
    _ : int64 array of shape (N,)
        Times, which are not used.
    x, y : uint16 array of shape (N,)
        Column and row of each event.
    p : uint8 array of shape (N,)
        Polarity, 0 or 1.
    shape : (2, int, int)
        Two polarities, height and width.

    Returns
    -------
    int64 array of shape (2, height, width)
        Counts of events with p = 0, then with p = 1.
    """
    polarities, height, width = shape
    cells = (p.astype(np.int64) * height + y) * width + x
    return np.bincount(cells, minlength=polarities * height * width).reshape(shape)
