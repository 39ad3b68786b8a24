"""Times of the rows of a table, and search in them: within the rows of an episode or recording."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from unistore.schemas.indices import ArrayView

Rows: TypeAlias = NDArray[np.int64]
Side: TypeAlias = Literal["left", "right"]


class Clock(Protocol):
    """When the rows of a table were recorded; times rise, or stay, within a range of rows."""

    def times(self, rows: Rows) -> NDArray[Any]:
        """Return the times of rows (n,), in any order."""
        ...

    def search(self, times: NDArray[Any], lo: Rows, hi: Rows, side: Side = "right") -> Rows:
        """Find where each time would stand among those of its range of rows, as ``np.searchsorted`` does.

        Parameters
        ----------
        times, lo, hi
            (n,) each: a time, and the range of rows ``lo:hi`` that it is searched in.
        side
            ``"left"``: the first row that is not earlier. ``"right"``: the first row that is later.

        Returns
        -------
        NDArray
            (n,) int64, ``lo <= row <= hi``; `hi` where the range has no such row.
        """
        ...


class StoredClock:
    """A column of timestamps, of which a search reads a few chunks and keeps the first time of each.

    Parameters
    ----------
    column
        (rows,) timestamps.
    convert
        Makes times of timestamps, and keeps their order; by default they are the times.
    """

    def __init__(
        self, column: ArrayView, convert: Callable[[NDArray[Any]], NDArray[Any]] = np.asarray
    ) -> None:
        self._column = column
        self._convert = convert
        self._step = column.chunk_shape[0]
        chunks = -(-len(column) // self._step)
        self._firsts = np.zeros(chunks, convert(np.empty(0, column.dtype)).dtype)
        self._is_known = np.zeros(chunks, bool)

    def times(self, rows: Rows) -> NDArray[Any]:
        """See `Clock.times`."""
        return self._convert(self._column.read_rows(rows))

    def search(self, times: NDArray[Any], lo: Rows, hi: Rows, side: Side = "right") -> Rows:
        """See `Clock.search`."""
        if not len(times) or not len(self._column):
            return lo.copy()

        def follows(found: NDArray[Any], which: NDArray[np.bool_]) -> NDArray[np.bool_]:
            """Whether the searched times stand behind those found."""
            return found <= times[which] if side == "right" else found < times[which]

        first = lo // self._step
        last = np.maximum(hi - 1, lo) // self._step
        chunk = bisect(lambda chunks, which: follows(self._first(chunks), which), first + 1, last + 1) - 1
        needed, which_chunk = np.unique(chunk, return_inverse=True)
        starts = np.minimum(needed * self._step, len(self._column))
        ends = np.minimum(starts + self._step, len(self._column))
        values = self._column.read_ranges(starts, ends)
        inside = chunk * self._step
        place = which_chunk * self._step - inside  # all chunks but the last have as many rows
        return bisect(
            lambda rows, which: follows(self._convert(values[rows + place[which]]), which),
            np.maximum(lo, inside),
            np.maximum(lo, np.minimum(hi, inside + self._step)),
        )

    def _first(self, chunks: Rows) -> NDArray[Any]:
        """First time of chunks (n,); each is read once."""
        new = np.unique(chunks[~self._is_known[chunks]])
        if len(new):
            self._firsts[new] = self.times(new * self._step)
            self._is_known[new] = True
        return self._firsts[chunks]


class CountedClock:
    """Times that follow from a rate: in each range of rows, they begin with a time of its own.

    Parameters
    ----------
    rate
        Rows a second.
    offsets
        (ranges + 1,) rows of the ranges, from 0 on.
    begin
        Gives the times of the first rows of ranges (n,), in nanoseconds.
    """

    def __init__(self, rate: float, offsets: Rows, begin: Callable[[Rows], Rows]) -> None:
        self._rate = rate
        self._offsets = offsets
        self._begin = begin

    def times(self, rows: Rows) -> NDArray[Any]:
        """See `Clock.times`; in nanoseconds."""
        ranges = np.searchsorted(self._offsets, rows, side="right") - 1
        passed = np.rint((rows - self._offsets[ranges]) * (1e9 / self._rate))
        times: NDArray[np.int64] = self._begin(ranges) + passed.astype(np.int64)
        return times

    def search(self, times: NDArray[Any], lo: Rows, hi: Rows, side: Side = "right") -> Rows:
        """See `Clock.search`."""

        def follows(rows: Rows, which: NDArray[np.bool_]) -> NDArray[np.bool_]:
            """Whether the searched times stand behind those of rows."""
            row_times: NDArray[Any] = self.times(rows)
            return row_times <= times[which] if side == "right" else row_times < times[which]

        return bisect(follows, lo, hi)


def bisect(follows: Callable[[Rows, NDArray[np.bool_]], NDArray[np.bool_]], lo: Rows, hi: Rows) -> Rows:
    """Find the first number of each range ``lo:hi`` that a searched value does not follow; else `hi`.

    ``follows(numbers, which)`` says of one number of each range of the mask `which` whether the value does.
    """
    lo = lo.copy()
    hi = hi.copy()
    while (which := lo < hi).any():
        middle = (lo[which] + hi[which]) // 2
        later = follows(middle, which)
        lo[which] = np.where(later, middle + 1, lo[which])
        hi[which] = np.where(later, hi[which], middle)
    return lo


def previous(clock: Clock, times: NDArray[Any], lo: Rows, hi: Rows) -> Rows:
    """Find the last row of each range ``lo:hi`` that is not later than its time; ``lo - 1`` if all are.

    Of equal timestamps, that is the last.
    """
    return clock.search(times, lo, hi) - 1


def nearest(clock: Clock, times: NDArray[Any], lo: Rows, hi: Rows) -> Rows:
    """Find the row of each range ``lo:hi``, none of them empty, that is nearest to its time.

    Of two that are as near, that is the earlier one; of equal timestamps, the last.
    """
    behind = clock.search(times, lo, hi)
    before = np.maximum(behind - 1, lo)
    after = np.minimum(behind, hi - 1)
    time_before = clock.times(before)
    time_after = clock.times(after)
    is_after = (behind == lo) | (time_after - times < times - time_before)
    before[is_after] = clock.search(time_after[is_after], after[is_after], hi[is_after]) - 1
    return before
