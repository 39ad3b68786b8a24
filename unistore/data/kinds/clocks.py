"""The clocks of a store of episodes: which columns each has, and rows of one at the times of another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from unistore.data.clock import Clock, CountedClock, Rows, StoredClock, nearest, previous
from unistore.data.kinds.steps import step_paths
from unistore.schemas.indices import whole
from unistore.schemas.trajectory.clocks import clocks_of, in_nanoseconds, offsets_path, table_of
from unistore.schemas.trajectory.fields import STEPS, column_group, sample_key
from unistore.store.reader import Store

Align: TypeAlias = Literal["previous", "nearest", "linear"]
Mask: TypeAlias = NDArray[np.bool_]


class Clocks:
    """Clocks of a store by name: their columns by sample key, rows of each episode, and times of rows.

    Attributes
    ----------
    columns
        Path of each column by sample key, by clock; without the timestamps of other clocks than the steps.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._told = clocks_of(store)
        self._found: dict[str, Clock] = {}
        self.columns: dict[str, Mapping[str, str]] = {STEPS: step_paths(store)}
        for name in self._told:
            if name != STEPS:
                self.columns[name] = self._columns_of(name)

    def _columns_of(self, name: str) -> Mapping[str, str]:
        inside = [path for path in self._store.paths() if path.startswith(f"{table_of(name)}/")]
        return {sample_key(path): column_group(path) for path in inside if path != self.timestamps(name)}

    def timestamps(self, name: str) -> str | None:
        """Path of the timestamps of a clock; None: it has a rate, or nothing tells its times."""
        return self._told.get(name, {}).get("timestamps")

    def has_times(self, name: str) -> bool:
        """Whether anything tells the times of a clock."""
        return name in self._told

    def of(self, key: str) -> str | None:
        """Name of the clock of a sample key, or of the clock itself; None: there is none such."""
        if key in self.columns:
            return key
        return next((name for name, columns in self.columns.items() if key in columns), None)

    def keys(self, name: str) -> Sequence[str]:
        """Sample keys of a clock's name, or of a key itself."""
        return list(self.columns.get(name, [name]))

    def offsets(self, name: str) -> Rows:
        """Rows of each episode in the table of a clock, (episodes + 1,)."""
        return whole(self._store, offsets_path(name))

    def timestamps_at(self, name: str, rows: Rows) -> NDArray[Any]:
        """Timestamps of rows of a clock, in any shape, as they are stored; of a rate, nanoseconds."""
        path = self.timestamps(name)
        flat = rows.reshape(-1)
        values = self.clock(name).times(flat) if path is None else self._store.array(path).read_rows(flat)
        return values.reshape(rows.shape)

    def clock(self, name: str) -> Clock:
        """Times of the rows of a clock, in nanoseconds; those of rates begin with the steps of an episode."""
        if name not in self._found:
            self._found[name] = self._made(name)
        return self._found[name]

    def _made(self, name: str) -> Clock:
        stored = self._told[name]
        if "timestamps" in stored:
            convert = partial(in_nanoseconds, unit=stored["unit"])
            return StoredClock(self._store.array(stored["timestamps"]), convert)
        begin = np.zeros_like if name == STEPS else self._first_steps
        return CountedClock(stored["rate"], self.offsets(name), begin)

    def _first_steps(self, episodes: Rows) -> Rows:
        """Times of the first steps of episodes (n,)."""
        return self.clock(STEPS).times(self.offsets(STEPS)[episodes])


class Ticks(NamedTuple):
    """Ticks that windows are around, (B,) each; times are in nanoseconds.

    Attributes
    ----------
    rows, episodes, times
        Rows of the clock's table, their episodes, and their times.
    first, last
        Times of the first and the last tick of these episodes.
    """

    rows: Rows
    episodes: Rows
    times: Rows
    first: Rows
    last: Rows


class Places(NamedTuple):
    """Rows for the steps of windows, (B, k) each.

    Attributes
    ----------
    rows
        Rows of the table, all of them in their episodes (any row, where these have none).
    is_real
        Whether the row is the one that was asked for.
    weights
        How much of the row after it is in a value between both; None: none of it.
    """

    rows: Rows
    is_real: Mask
    weights: NDArray[np.float64] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Finds rows of one table around the ticks of a clock; times are in nanoseconds.

    Attributes
    ----------
    offsets
        Rows of each episode in the table, (episodes + 1,).
    clock
        Times of its rows; None: the ticks are its rows.
    steps
        Rows, or times, from a tick on, (k,).
    in_time
        Whether `steps` are times.
    align
        Which row stands for a time.
    tolerance
        Most time between a row and what it stands for.
    shift
        What is added to the times of the rows, since their clock is early.
    """

    offsets: Rows
    clock: Clock | None
    steps: Rows
    in_time: bool = False
    align: Align = "previous"
    tolerance: int | None = None
    shift: int = 0

    def places(self, ticks: Ticks) -> Places:
        """Find the rows for ticks."""
        lo = self.offsets[ticks.episodes]
        hi = self.offsets[ticks.episodes + 1]
        if self.in_time:
            return self._places_in_time(ticks, lo, hi)
        first, is_near = self._anchors(ticks, lo, hi)
        rows = first[:, None] + self.steps
        is_inside = (rows >= lo[:, None]) & (rows < hi[:, None])
        return Places(_inside(rows, lo[:, None], hi[:, None]), is_inside & is_near[:, None])

    def reaches(self, ticks: Ticks) -> Mask:
        """Whether all rows for a tick are real, (B,)."""
        ends = np.array([self.steps.min(), self.steps.max()])
        steps = self.steps if self.in_time else ends
        is_real = replace(self, steps=steps).places(ticks).is_real
        all_real: Mask = np.logical_and.reduce(is_real, axis=1)
        return all_real

    def _places_in_time(self, ticks: Ticks, lo: Rows, hi: Rows) -> Places:
        """Find the rows for times around ticks."""
        shape = len(ticks.times), len(self.steps)
        tick_times = ticks.times[:, None] + (self.steps - self.shift)
        bounds = np.stack([lo, hi, ticks.first - self.shift, ticks.last - self.shift])
        lo, hi, first, last = np.repeat(bounds, shape[1], axis=1)
        rows, is_real = self._found(tick_times.ravel(), lo, hi)
        weights = None
        if self.align == "linear":
            weights = self._weights(rows, tick_times.ravel(), hi, is_real).reshape(shape)
        else:
            is_real &= self._is_during(tick_times.ravel(), lo, hi, first, last)
        return Places(_inside(rows, lo, hi).reshape(shape), is_real.reshape(shape), weights)

    def _anchors(self, ticks: Ticks, lo: Rows, hi: Rows) -> tuple[Rows, Mask]:
        """Rows that stand for the ticks, and whether they are near; what begins late is near from then on."""
        if self.clock is None:
            return ticks.rows, np.ones(len(ticks.rows), bool)
        rows, is_near = self._found(ticks.times - self.shift, lo, hi)
        return rows, is_near | (rows < lo)

    def _found(self, wanted: Rows, lo: Rows, hi: Rows) -> tuple[Rows, Mask]:
        """Rows that stand for times, and whether they are there and near; ``lo - 1`` where none is."""
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

    def _is_during(self, wanted: Rows, lo: Rows, hi: Rows, first: Rows, last: Rows) -> Mask:
        """Whether times lie in their episodes: between the first and last of its ticks, or of the rows."""
        assert self.clock is not None
        filled = hi > lo
        first[filled] = np.minimum(first[filled], self.clock.times(lo[filled]))
        last[filled] = np.maximum(last[filled], self.clock.times(hi[filled] - 1))
        return (wanted >= first) & (wanted <= last)

    def _weights(self, rows: Rows, wanted: Rows, hi: Rows, is_real: Mask) -> NDArray[np.float64]:
        """Weights of the rows after `rows`. What is behind the last row, or far from one, is not real."""
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


def _inside(rows: Rows, lo: Rows, hi: Rows) -> Rows:
    """Rows moved into their episodes; row 0 where these have none."""
    return np.where(hi > lo, np.clip(rows, lo, hi - 1), 0)
