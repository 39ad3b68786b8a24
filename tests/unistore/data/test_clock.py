"""Search in timestamps: as NumPy's, within ranges, by reading a few chunks."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from unistore.data.kinds.clocks import StoredClock


class InMemory:
    """A column in memory that counts the rows that are read of it."""

    path = "t"
    attributes: ClassVar[dict[str, Any]] = {}

    def __init__(self, values: np.ndarray, chunk: int) -> None:
        self.values, self.chunk_shape = values, (chunk,)
        self.shape, self.dtype, self.rows_read = values.shape, values.dtype, 0

    def __len__(self) -> int:
        return len(self.values)

    def read_rows(self, rows: Any) -> np.ndarray:
        self.rows_read += len(rows)
        return self.values[rows]

    def read_ranges(self, lo: Any, hi: Any) -> np.ndarray:
        self.rows_read += int((hi - lo).sum())
        return np.concatenate([self.values[a:b] for a, b in zip(lo, hi, strict=True)])

    def read(self, lo: int = 0, hi: int | None = None) -> np.ndarray:
        raise AssertionError("the whole column is never read")

    read_box: Any = read


@st.composite
def recordings(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int, np.ndarray, np.ndarray]:
    """Timestamps of episodes, their offsets, the length of a chunk, and times in some episodes."""
    lengths = draw(st.lists(st.integers(0, 12), min_size=1, max_size=6))
    steps = [draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)) for n in lengths]
    starts = draw(st.lists(st.integers(-9, 9), min_size=len(lengths), max_size=len(lengths)))
    times = [start + np.cumsum(step, dtype="i8") for start, step in zip(starts, steps, strict=True)]
    asked = draw(st.lists(st.tuples(st.integers(0, len(lengths) - 1), st.integers(-12, 50)), max_size=9))
    numbers = np.array(asked, "i8").reshape(-1, 2)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype("i8")
    return np.concatenate(times), offsets, draw(st.integers(1, 9)), numbers[:, 0], numbers[:, 1]


@given(recordings())
@settings(max_examples=80, deadline=None)
def test_search_in_ranges_is_that_of_numpy(recorded: Any) -> None:
    values, offsets, chunk, episodes, times = recorded
    lo, hi = offsets[episodes], offsets[episodes + 1]
    found = StoredClock(InMemory(values, chunk)).search(times, lo, hi)
    expected = [a + np.searchsorted(values[a:b], t, "right") for a, b, t in zip(lo, hi, times, strict=True)]
    assert found.tolist() == expected


def test_timestamps_in_seconds_are_searched_in_nanoseconds() -> None:
    values = np.sort(np.random.default_rng(1).uniform(0, 100, 5000))
    clock = StoredClock(InMemory(values, 64), lambda seconds: np.rint(seconds * 1e9).astype("i8"))
    times = np.arange(-1, 102, 7) * 1_000_000_000 + 1
    lo, hi = np.full(len(times), 10), np.full(len(times), 4990)
    expected = 10 + np.searchsorted(np.rint(values[10:4990] * 1e9).astype("i8"), times, "right")
    assert np.array_equal(clock.search(times, lo, hi), expected)
    assert clock.times(np.array([7, 3])).tolist() == [round(values[7] * 1e9), round(values[3] * 1e9)]


def test_a_search_in_no_times_or_for_no_times_is_empty() -> None:
    none = np.empty(0, "i8")
    assert StoredClock(InMemory(none, 4)).search(np.array([3]), np.array([0]), np.array([0])).tolist() == [0]
    assert len(StoredClock(InMemory(np.arange(3), 4)).search(none, none, none)) == 0
