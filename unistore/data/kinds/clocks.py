"""The clocks of a trajectory store: times of rows, and rows of one clock at the times of another."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from unistore.data.kinds.steps import step_paths
from unistore.data.packed import range_of_rows
from unistore.schemas.indices import ArrayView, require_rule, whole
from unistore.schemas.trajectory.clocks import clocks_of, in_nanoseconds, offsets_path, table_of
from unistore.schemas.trajectory.fields import STEPS, column_group, sample_key
from unistore.store.reader import Store
from unistore.system.types import AnyArray, Float64s, Int64s

Align: TypeAlias = Literal["previous", "nearest", "linear"]
Mask: TypeAlias = NDArray[np.bool_]


class Clock(ABC):
    """Base class of clocks: the times at which the rows of a table were recorded.

    Times ascend, or stay equal, within a range of rows.
    """

    @abstractmethod
    def times(self, rows: Int64s) -> AnyArray:
        """Return the times of rows (n,), which may be in any order."""

    def search(self, times: AnyArray, lo: Int64s, hi: Int64s) -> Int64s:
        """Find the first row of each range that is later than a time.

        Parameters
        ----------
        times : array of shape (n,)
            One time for each range.
        lo, hi : int64 array of shape (n,)
            Range i has rows ``lo[i]:hi[i]``.

        Returns
        -------
        int64 array of shape (n,)
            The rows; `hi` if no row of the range is later.
        """
        return _bisect(lambda rows, _: self.times(rows), times, lo, hi)


def _bisect(times_of: Callable[[Int64s, Mask], AnyArray], times: AnyArray, lo: Int64s, hi: Int64s) -> Int64s:
    lo = lo.copy()
    hi = hi.copy()
    while (which := lo < hi).any():
        middle = (lo[which] + hi[which]) // 2
        is_behind = times_of(middle, which) <= times[which]
        lo[which] = np.where(is_behind, middle + 1, lo[which])
        hi[which] = np.where(is_behind, hi[which], middle)
    return lo


class StoredClock(Clock):
    """A clock with stored timestamps. A search reads few chunks and remembers the first time of each.

    Parameters
    ----------
    column : ArrayView
        Timestamps of the rows, (rows,).
    convert : callable, default numpy.asarray
        Converts timestamps to times. It keeps their order.
    """

    def __init__(
        self,
        column: ArrayView,  # (rows,) timestamps
        convert: Callable[[AnyArray], AnyArray] = np.asarray,  # makes times of them, in the same order
    ) -> None:
        self._column = column
        self._convert = convert
        self._step = column.chunk_shape[0]
        chunks = -(-len(column) // self._step)
        self._firsts = np.zeros(chunks, convert(np.empty(0, column.dtype)).dtype)
        self._is_known = np.zeros(chunks, bool)

    def times(self, rows: Int64s) -> AnyArray:
        return self._convert(self._column.read_rows(rows))

    def search(self, times: AnyArray, lo: Int64s, hi: Int64s) -> Int64s:
        if not len(times) or not len(self._column):
            return lo.copy()
        first = lo // self._step
        last = np.maximum(hi - 1, lo) // self._step
        chunk = _bisect(lambda chunks, _: self._first(chunks), times, first + 1, last + 1) - 1
        needed, which_chunk = np.unique(chunk, return_inverse=True)
        starts = np.minimum(needed * self._step, len(self._column))
        ends = np.minimum(starts + self._step, len(self._column))
        values = self._column.read_ranges(starts, ends)
        inside = chunk * self._step
        place = which_chunk * self._step - inside  # all chunks but the last have as many rows
        return _bisect(
            lambda rows, which: self._convert(values[rows + place[which]]),
            times,
            np.maximum(lo, inside),
            np.maximum(lo, np.minimum(hi, inside + self._step)),
        )

    def _first(self, chunks: Int64s) -> AnyArray:
        new = np.unique(chunks[~self._is_known[chunks]])
        if len(new):
            self._firsts[new] = self.times(new * self._step)
            self._is_known[new] = True
        return self._firsts[chunks]


class CountedClock(Clock):
    """A clock with a rate. Times are in nanoseconds, and each range of rows begins at a time of its own.

    Parameters
    ----------
    rate : float
        Rows per second.
    offsets : int64 array of shape (ranges + 1,)
        First row of each range, from 0.
    begin : callable
        Called with the numbers of ranges, (n,); returns the times of their first rows.
    """

    def __init__(
        self,
        rate: float,  # rows a second
        offsets: Int64s,  # (ranges + 1,) rows of the ranges, from 0 on
        begin: Callable[[Int64s], Int64s],  # gives the times of the first rows of ranges (n,)
    ) -> None:
        self._rate = rate
        self._offsets = offsets
        self._begin = begin

    def times(self, rows: Int64s) -> AnyArray:
        ranges = range_of_rows(self._offsets, rows)
        passed = np.rint((rows - self._offsets[ranges]) * (1e9 / self._rate))
        times: Int64s = self._begin(ranges) + passed.astype(np.int64)
        return times


def previous(clock: Clock, times: AnyArray, lo: Int64s, hi: Int64s) -> Int64s:
    """Find the last row of each range ``lo:hi`` that is not later than its time, or ``lo - 1``."""
    return clock.search(times, lo, hi) - 1


def nearest(clock: Clock, times: AnyArray, lo: Int64s, hi: Int64s) -> Int64s:
    """Find the row of each range ``lo:hi`` that is nearest to its time.

    Of two rows that are equally near, the earlier one; of rows with equal times, the last one. Ranges
    must not be empty.
    """
    behind = clock.search(times, lo, hi)
    before = np.maximum(behind - 1, lo)
    after = np.minimum(behind, hi - 1)
    time_before = clock.times(before)
    time_after = clock.times(after)
    is_after = (behind == lo) | (time_after - times < times - time_before)
    before[is_after] = previous(clock, time_after[is_after], after[is_after], hi[is_after])
    return before


class Clocks:
    """The clocks of a trajectory store by name.

    Attributes
    ----------
    columns : dict of str to mapping
        For each clock, the path of each of its columns by key. Timestamps of clocks other than the steps
        are not among them.
    """

    columns: dict[str, Mapping[str, str]]

    def __init__(self, store: Store) -> None:
        self._store = store
        self._described = clocks_of(store)
        self._clocks: dict[str, Clock] = {}
        self.columns = {STEPS: step_paths(store)}
        for name in self._described:
            if name == STEPS:
                continue
            inside = [path for path in store.paths() if path.startswith(f"{table_of(name)}/")]
            values = [path for path in inside if path != self._timestamps(name)]
            self.columns[name] = {sample_key(path): column_group(path) for path in values}

    def _timestamps(self, name: str) -> str | None:
        # None: the clock has a rate, or nothing tells its times
        return self._described[name].timestamps if name in self._described else None

    def has_times(self, *names: str) -> bool:
        """Return whether the store has times for all of these clocks."""
        return all(name in self._described for name in names)

    def of(self, key: str) -> str | None:
        """Return the name of the clock of a key, or of the clock itself. None: there is no such name."""
        if key in self.columns:
            return key
        return next((name for name, columns in self.columns.items() if key in columns), None)

    def offsets(self, name: str) -> Int64s:
        """Return the offsets of the rows of each episode in the table of a clock, (episodes + 1,) int64."""
        require_rule(self._store, offsets_path(name), offsets_of=table_of(name))
        return whole(self._store, offsets_path(name))

    def timestamps_at(self, name: str, rows: Int64s) -> AnyArray:
        """Return the timestamps of rows of a clock.

        Parameters
        ----------
        name : str
            Name of the clock.
        rows : int64 array of any shape
            Rows of its table.

        Returns
        -------
        array of the shape of `rows`
            As stored; for a clock with a rate, int64 nanoseconds.
        """
        path = self._timestamps(name)
        read = self.clock(name).times if path is None else self._store.array(path).read_rows
        return read(rows.reshape(-1)).reshape(rows.shape)

    def clock(self, name: str) -> Clock:
        """Return a clock by name.

        Its times are in nanoseconds. For a clock with a rate, they count from the first step of the episode.
        """
        if name not in self._clocks:
            stored = self._described[name]
            if stored.timestamps is not None:
                convert = partial(in_nanoseconds, unit=stored.unit)
                self._clocks[name] = StoredClock(self._store.array(stored.timestamps), convert)
            else:
                assert stored.rate is not None
                begin = np.zeros_like if name == STEPS else self._first_steps
                self._clocks[name] = CountedClock(stored.rate, self.offsets(name), begin)
        return self._clocks[name]

    def _first_steps(self, episodes: Int64s) -> Int64s:
        return self.clock(STEPS).times(self.offsets(STEPS)[episodes])


class Ticks(NamedTuple):
    """Ticks of a clock, with times in nanoseconds.

    Attributes
    ----------
    rows : int64 array of shape (B,)
        Rows of the table of the clock.
    episodes : int64 array of shape (B,)
        Episode of each tick.
    times : int64 array of shape (B,)
        Time of each tick.
    first, last : int64 array of shape (B,)
        Times of the first and the last tick of the episode.
    """

    rows: Int64s
    episodes: Int64s
    times: Int64s
    first: Int64s
    last: Int64s


class Places(NamedTuple):
    """Rows for the steps of windows.

    Attributes
    ----------
    rows : int64 array of shape (B, k)
        Rows inside the episode; if the episode has no rows, any row.
    is_real : bool array of shape (B, k)
        Whether the row is the requested one, not padding.
    weights : float64 array of shape (B, k), optional
        Share of the following row in an interpolated value. None: no interpolation.
    """

    rows: Int64s
    is_real: Mask
    weights: Float64s | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFinder:
    """Finds rows of one table around the ticks of a clock. Times are in nanoseconds.

    Attributes
    ----------
    offsets : int64 array of shape (episodes + 1,)
        First row of each episode in the table.
    clock : Clock or None
        Times of the rows. None: the ticks are rows of this table.
    steps : int64 array of shape (k,)
        Rows, or times, counted from the tick.
    in_time : bool, default False
        Whether `steps` are times.
    align : {"previous", "nearest", "linear"}, default "previous"
        Row that is used for a time, as in `Windows`.
    tolerance : int, optional
        Largest distance between a row and its time. None: any distance.
    shift : int, default 0
        Time to add to the times of the rows, because their clock is early.
    """

    offsets: Int64s
    clock: Clock | None
    steps: Int64s
    in_time: bool = False
    align: Align = "previous"
    tolerance: int | None = None
    shift: int = 0

    def places(self, ticks: Ticks) -> Places:
        """Return the rows for the steps around each tick."""
        lo = self.offsets[ticks.episodes]
        hi = self.offsets[ticks.episodes + 1]
        if self.in_time:
            return self._places_in_time(ticks, lo, hi)
        first = ticks.rows
        is_near = np.ones(len(first), bool)
        if self.clock is not None:
            first, is_near = self._find(ticks.times - self.shift, lo, hi)
            is_near |= first < lo  # what begins late is near from then on
        rows = first[:, None] + self.steps
        is_inside = (rows >= lo[:, None]) & (rows < hi[:, None])
        return Places(_inside(rows, lo[:, None], hi[:, None]), is_inside & is_near[:, None])

    def reaches(self, ticks: Ticks) -> Mask:
        """Return whether all rows for a tick are in its episode and near enough, (B,) bool."""
        steps = self.steps if self.in_time else np.array([self.steps.min(), self.steps.max()])
        is_real = replace(self, steps=steps).places(ticks).is_real
        all_real: Mask = np.logical_and.reduce(is_real, axis=1)
        return all_real

    def _places_in_time(self, ticks: Ticks, lo: Int64s, hi: Int64s) -> Places:
        shape = len(ticks.times), len(self.steps)
        tick_times = ticks.times[:, None] + (self.steps - self.shift)
        bounds = np.stack([lo, hi, ticks.first - self.shift, ticks.last - self.shift])
        lo, hi, first, last = np.repeat(bounds, shape[1], axis=1)
        rows, is_real = self._find(tick_times.ravel(), lo, hi)
        weights = None
        if self.align == "linear":
            weights = self._weights(rows, tick_times.ravel(), hi, is_real).reshape(shape)
        else:
            is_real &= self._is_during(tick_times.ravel(), lo, hi, first, last)
        return Places(_inside(rows, lo, hi).reshape(shape), is_real.reshape(shape), weights)

    def _find(self, wanted: Int64s, lo: Int64s, hi: Int64s) -> tuple[Int64s, Mask]:
        # Int64s that stand for times, and whether they are there and near, ``lo - 1`` where none is
        assert self.clock is not None
        rows = lo - 1
        filled = hi > lo
        find = nearest if self.align == "nearest" else previous
        rows[filled] = find(self.clock, wanted[filled], lo[filled], hi[filled])
        is_near = rows >= lo
        if self.tolerance is not None:
            distance = np.abs(self.clock.times(rows[is_near]) - wanted[is_near])
            is_near[is_near] = distance <= self.tolerance
        return rows, is_near

    def _is_during(self, wanted: Int64s, lo: Int64s, hi: Int64s, first: Int64s, last: Int64s) -> Mask:
        # Between the first and last of the episode's ticks, or of its rows
        assert self.clock is not None
        filled = hi > lo
        first[filled] = np.minimum(first[filled], self.clock.times(lo[filled]))
        last[filled] = np.maximum(last[filled], self.clock.times(hi[filled] - 1))
        return (wanted >= first) & (wanted <= last)

    def _weights(self, rows: Int64s, wanted: Int64s, hi: Int64s, is_real: Mask) -> Float64s:
        # What is behind the last row, or far from one, is not real
        assert self.clock is not None
        weights = np.zeros(len(rows), np.float64)
        is_last = is_real & (rows + 1 == hi)
        is_real[is_last] = self.clock.times(rows[is_last]) == wanted[is_last]
        between = np.flatnonzero(is_real & (rows + 1 < hi))
        before = self.clock.times(rows[between])
        after = self.clock.times(rows[between] + 1)
        passed = wanted[between] - before
        weights[between] = passed / (after - before)
        if self.tolerance is not None:
            is_real[between] &= (passed == 0) | (after - wanted[between] <= self.tolerance)
        return weights


def _inside(rows: Int64s, lo: Int64s, hi: Int64s) -> Int64s:
    # Row 0 where episodes have no rows
    return np.where(hi > lo, np.clip(rows, lo, hi - 1), 0)
