"""One sample = the events of a window of a recording, by time or by number; voxels and frames of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.data.kinds.protocol import Picks, SourceValues, require_arrays, select_keys, source_keys
from unistore.data.kinds.reach import Reach
from unistore.data.packed import Allocate, Batch, Packed, offsets_from_lengths, packed_copy
from unistore.schemas.events.fields import (
    COLUMNS,
    HEIGHTS,
    MARK_ROWS,
    MARKS,
    MARKS_OF,
    POLARITIES,
    RECORDINGS,
    ROWS,
    TIMES,
    WIDTHS,
)
from unistore.schemas.indices import whole
from unistore.store.reader import Store
from unistore.system.arguments import Arguments

_EVENTS = {"t": TIMES, "x": COLUMNS, "y": ROWS, "p": POLARITIES}
_START = "start"
_SOURCES = "recordings/source"
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?) *(us|ms|s)")
_MICROSECONDS = {"us": 1, "ms": 1_000, "s": 1_000_000}
_DEFAULT_WINDOW = "50ms"


@dataclass(frozen=True, slots=True)
class Events:
    """Samples of recordings of event cameras: the events of a window.

    Keys: ``t`` (N,) int64 microseconds, ``x``, ``y`` (N,) uint16, ``p`` (N,) uint8, 1 or 0: ragged, in the
    order of time. With `voxel` or `frame`, those instead, dense, and the others on request. Also on request:
    ``start``, int64, when the window begins; ``source``.

    Parameters
    ----------
    window
        Duration of a window with its unit: ``"50ms"``, ``"500us"``, ``"0.1s"``. An event at its end belongs
        to the next one. None, without `count`: 50 ms.
    count
        Number of events of a window, instead of a duration.
    stride
        From the start of a window to that of the next one: a duration, or with `count` a number of events.
        None: the window. Windows begin with the first event of the recording; what is left at its end gives
        none.
    voxel
        Number of bins B of ``voxel`` (B, H, W) float32, (height, width) of the store's largest sensor. With
        the first and last time of the window, ``position = (B - 1) * (t - first) / (last - first)``: an event
        adds ``2 p - 1`` to both bins around its position, in shares of its distance from the other one (Zhu
        et al., Unsupervised Event-based Learning of Optical Flow, Depth, and Egomotion, CVPR 2019, equation
        1). Sums are float64, first the shares of the earlier bins and then those of the later ones, in the
        order of the events.
    frame
        Whether there is ``frame`` (2, H, W) int32: how many events of p = 0, and of p = 1, each pixel has.
    random
        True: each window begins anywhere in its recording, elsewhere in each epoch. An epoch has as many
        windows as without.
    """

    window: str | None = None
    count: int | None = None
    stride: str | int | None = None
    voxel: int | None = None
    frame: bool = False
    random: bool = False

    def __post_init__(self) -> None:
        check = Arguments()
        expected = 'a duration with its unit, as in "50ms", "500us" or "0.1s"'
        check.expect("window", self.window, _microseconds(self.window) > 0, expected, none=True)
        check.integer("count", self.count, 1, none=True)
        check.expect(
            "window", self.window, self.window is None or self.count is None, "no window beside count"
        )
        if self.count is None:
            check.expect("stride", self.stride, _microseconds(self.stride) > 0, expected, none=True)
        else:
            check.integer("stride", self.stride, 1, none=True)
        check.integer("voxel", self.voxel, 1, none=True)
        check.flag("frame", self.frame)
        check.flag("random", self.random)
        check.raise_problems()
        if self.window is None and self.count is None:
            object.__setattr__(self, "window", _DEFAULT_WINDOW)

    @property
    def repeats(self) -> bool:
        """See `SampleKind.repeats`."""
        return not self.random and self.step >= self.length

    @property
    def length(self) -> int:
        """Microseconds, or with `count` events, of a window."""
        return _microseconds(self.window) if self.count is None else self.count

    @property
    def step(self) -> int:
        """Microseconds, or with `count` events, from one window to the next."""
        if self.stride is None:
            return self.length
        return self.stride if isinstance(self.stride, int) else _microseconds(self.stride)

    def select(self, store: Store, fields: Sequence[str] | None) -> tuple[str, ...]:
        """Keys of samples; see `SampleKind.select`."""
        require_arrays(store, self, *_EVENTS.values(), RECORDINGS, MARKS, MARKS_OF)
        images = [key for key, wanted in (("voxel", self.voxel), ("frame", self.frame)) if wanted]
        on_request = [_START, *source_keys(store)]
        if images:
            return select_keys(images, fields, [*_EVENTS, *on_request])
        return select_keys(_EVENTS, fields, on_request)

    def bind(self, store: Store, fields: Sequence[str], units: NDArray[np.int64] | None) -> EventReader:
        """Reader of the windows of the recordings `units`."""
        return EventReader(self, store, fields, units)


def _microseconds(duration: object) -> int:
    """Return a duration in microseconds; 0 if it is none, or no whole number of them."""
    match = _DURATION.fullmatch(duration) if isinstance(duration, str) else None
    if match is None:
        return 0
    value = float(match[1]) * _MICROSECONDS[match[2]]
    return round(value) if abs(value - round(value)) < 1e-6 else 0


class _Windows(NamedTuple):
    """Windows of a batch."""

    lo: NDArray[np.int64]  # first event of each
    hi: NDArray[np.int64]  # and the one behind its last
    starts: NDArray[np.int64]  # when they begin
    times: Sequence[NDArray[Any]]  # of the events of each, uint32 or int64


class EventReader:
    """Reads windows of recordings; see `SampleReader`."""

    def __init__(
        self, kind: Events, store: Store, fields: Sequence[str], units: NDArray[np.int64] | None
    ) -> None:
        self._kind = kind
        self._fields = [key for key in fields if key in (*_EVENTS, _START, "voxel", "frame")]
        self._recordings = np.arange(store.sample_count) if units is None else units
        self._offsets = whole(store, RECORDINGS)
        self._marks = whole(store, MARKS)
        self._mark_offsets = whole(store, MARKS_OF)
        self._arrays = {key: store.array(path) for key, path in _EVENTS.items()}
        self._size = int(whole(store, HEIGHTS).max(initial=1)), int(whole(store, WIDTHS).max(initial=1))
        self._sources = SourceValues(store, fields, _SOURCES)
        counts = (self._extents() - kind.length) // kind.step + 1
        self._first = offsets_from_lengths(np.maximum(counts, 0))

    def _extents(self) -> NDArray[np.int64]:
        """Return how long each recording lasts in microseconds, or with `count` its number of events."""
        recordings = self._recordings
        if self._kind.count is not None:
            counts: NDArray[np.int64] = np.diff(self._offsets)[recordings]
            return counts
        lo, hi = self._mark_offsets[recordings], self._mark_offsets[recordings + 1]
        extents = np.zeros(len(recordings), np.int64)
        has_events = hi > lo
        extents[has_events] = self._marks[hi[has_events] - 1] - self._marks[lo[has_events]] + 1
        return extents

    def __len__(self) -> int:
        return int(self._first[-1])

    def reach(self) -> Reach:
        """See `CuttingReader.reach`."""
        if len(self):
            return Reach(samples=len(self))
        longest = int(self._extents().max(initial=0))
        if self._kind.count is not None:
            what = f"no recording has {self._kind.count} events: the most are {longest}"
            return Reach(0, problem=what, fitting=replace(self._kind, count=longest) if longest else None)
        what = f"no recording lasts {self._kind.window}: the longest has {longest} us"
        return Reach(0, problem=what, fitting=replace(self._kind, window=f"{longest}us") if longest else None)

    def read(self, picks: Picks, allocate: Allocate) -> Batch:
        """Read a batch of windows."""
        place = np.searchsorted(self._first, picks.index, side="right") - 1
        recordings = self._recordings[place]
        starts = self._starts(picks, place)
        windows = self._by_time(recordings, starts) if self._kind.count is None else self._by_count(starts)
        offsets = offsets_from_lengths(windows.hi - windows.lo)
        columns = self._columns(windows, offsets, allocate)
        batch: Batch = {}
        for key in self._fields:
            if key in _EVENTS:
                batch[key] = Packed(columns[key], offsets)
            elif key == _START:
                batch[key] = packed_copy(windows.starts, allocate)
            elif key == "voxel":
                batch[key] = self._voxels(windows, columns, offsets, allocate)
            else:
                batch[key] = self._frames(columns, offsets, allocate)
        return batch | self._sources.read(recordings, allocate)

    def _starts(self, picks: Picks, place: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return when the windows begin, or with `count` their first events."""
        recordings = self._recordings[place]
        if self._kind.count is None:
            first = self._marks[self._mark_offsets[recordings]]
        else:
            first = self._offsets[recordings]
        moved: NDArray[np.int64] = (picks.index - self._first[place]) * self._kind.step
        if self._kind.random:
            room = self._extents()[place] - self._kind.length + 1
            moved = picks.below(room[:, None])[:, 0]
        return np.asarray(first + moved)

    def _by_time(self, recordings: NDArray[np.int64], starts: NDArray[np.int64]) -> _Windows:
        """Find the events of windows: between two marks, and there among the times that are read."""
        stops = starts + self._kind.length
        outer_lo = np.empty(len(recordings), np.int64)
        outer_hi = np.empty(len(recordings), np.int64)
        for number, recording in enumerate(recordings.tolist()):
            first, last = self._offsets[recording], self._offsets[recording + 1]
            marks = self._marks[self._mark_offsets[recording] : self._mark_offsets[recording + 1]]
            earlier, later = np.searchsorted(marks, (starts[number], stops[number]))
            outer_lo[number] = first + max(0, earlier - 1) * MARK_ROWS
            is_inside = later < len(marks) - 1  # the last mark is that of the last event
            outer_hi[number] = first + later * MARK_ROWS if is_inside else last
        times = self._arrays["t"].read_ranges(outer_lo, outer_hi)
        bounds = offsets_from_lengths(outer_hi - outer_lo)
        lo, hi = outer_lo.copy(), outer_lo.copy()
        inside = []
        for number in range(len(recordings)):
            part = times[bounds[number] : bounds[number + 1]]
            begin, end = _between(part, starts[number], stops[number])
            lo[number] += begin
            hi[number] += end
            inside.append(part[begin:end])
        return _Windows(lo, hi, starts, inside)

    def _by_count(self, first: NDArray[np.int64]) -> _Windows:
        assert self._kind.count is not None
        stop = first + self._kind.count
        times = self._arrays["t"].read_ranges(first, stop).reshape(len(first), self._kind.count)
        return _Windows(first, stop, times[:, 0], list(times))

    def _columns(
        self, windows: _Windows, offsets: NDArray[np.int64], allocate: Allocate
    ) -> dict[str, NDArray[Any]]:
        """Read the columns that are delivered, and those that images are made of."""
        shape = (int(offsets[-1]),)
        columns: dict[str, NDArray[Any]] = {}
        if "t" in self._fields:
            columns["t"] = allocate(shape, np.dtype(np.int64))
            for lo, times in zip(offsets[:-1].tolist(), windows.times, strict=True):
                columns["t"][lo : lo + len(times)] = times
        has_images = not {"voxel", "frame"}.isdisjoint(self._fields)
        for key in "xyp":
            array = self._arrays[key]
            if key in self._fields:
                columns[key] = array.read_ranges(windows.lo, windows.hi, allocate(shape, array.dtype))
            elif has_images:
                columns[key] = array.read_ranges(windows.lo, windows.hi)
        return columns

    def _voxels(
        self,
        windows: _Windows,
        columns: dict[str, NDArray[Any]],
        offsets: NDArray[np.int64],
        allocate: Allocate,
    ) -> Packed:
        assert self._kind.voxel is not None
        out = allocate((len(offsets) - 1, self._kind.voxel, *self._size), np.dtype(np.float32))
        for number, grid in enumerate(out):
            part = slice(offsets[number], offsets[number + 1])
            x, y, p = (columns[key][part] for key in "xyp")
            grid[...] = voxel_grid(windows.times[number].astype(np.int64), x, y, p, grid.shape)
        return Packed(out)

    def _frames(
        self, columns: dict[str, NDArray[Any]], offsets: NDArray[np.int64], allocate: Allocate
    ) -> Packed:
        out = allocate((len(offsets) - 1, 2, *self._size), np.dtype(np.int32))
        for number, counts in enumerate(out):
            part = slice(offsets[number], offsets[number + 1])
            x, y, p = (columns[key][part] for key in "xyp")
            counts[...] = event_counts(x, y, p, counts.shape)
        return Packed(out)


def _between(times: NDArray[Any], start: np.int64, stop: np.int64) -> tuple[int, int]:
    """Return the places of the first of rising times that are not before `start`, and `stop`."""
    # numpy would convert all times to the dtype of a bound that has another one
    latest = np.iinfo(times.dtype).max
    begin = int(np.searchsorted(times, times.dtype.type(min(start, latest))))
    if stop > latest:
        return begin, len(times)
    return begin, int(np.searchsorted(times, times.dtype.type(stop)))


def voxel_grid(
    t: NDArray[np.int64],
    x: NDArray[np.uint16],
    y: NDArray[np.uint16],
    p: NDArray[np.uint8],
    shape: tuple[int, ...],
) -> NDArray[np.float64]:
    """Return the voxels of events as `Events.voxel` defines them, of a shape (bins, height, width)."""
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
    cells = np.concatenate((earlier, later)) * (height * width)
    cells += np.concatenate((pixel, pixel))
    weights = np.concatenate((sign * (1 - share), sign * share))
    grid = np.bincount(cells, weights, bins * height * width)
    return np.asarray(grid, np.float64).reshape(shape)


def event_counts(
    x: NDArray[np.uint16], y: NDArray[np.uint16], p: NDArray[np.uint8], shape: tuple[int, ...]
) -> NDArray[np.int64]:
    """Return how many events of each polarity each pixel has, of a shape (2, height, width)."""
    polarities, height, width = shape
    cells = (p.astype(np.int64) * height + y) * width + x
    return np.bincount(cells, minlength=polarities * height * width).reshape(shape)
