"""Rules for the values of stores of recordings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from unistore.schemas.events.rules import check_marks, check_times

SOUND = {
    "events/t": np.r_[np.arange(9_000), np.arange(5_000)],
    "recordings/offsets": np.array([0, 9_000, 9_000, 14_000]),
    "sources/marks/offsets": np.array([0, 4, 4, 7]),
    "marks/t": np.array([0, 4096, 8192, 8999, 0, 4096, 4999]),
}


class Arrays:
    """Arrays in memory, as rules see those of a store."""

    def __init__(self, **changed: Any) -> None:
        self.arrays = SOUND | {name.replace("__", "/"): values for name, values in changed.items()}

    def whole(self, path: str) -> np.ndarray:
        return self.arrays[path]

    def array(self, path: str) -> Any:
        return _Rows(self.arrays[path])

    def blocks(self, path: str) -> Iterator[tuple[int, np.ndarray]]:
        for lo in range(0, len(self.arrays[path]), 1_000):
            yield lo, self.arrays[path][lo : lo + 1_000]


class _Rows:
    def __init__(self, values: np.ndarray) -> None:
        self.read_rows = values.__getitem__


@pytest.mark.parametrize("rule", [check_marks, check_times])
def test_a_sound_store_has_no_problem_of_times_or_marks(rule: Any) -> None:
    """Times begin anew with each recording."""
    assert not list(rule(Arrays()))


@pytest.mark.parametrize("dtype", [np.int64, np.uint32])
def test_a_time_earlier_than_the_one_before_it_is_named(dtype: type) -> None:
    for row in (10_000, 9_000 + 1_234, 12_500):
        times = SOUND["events/t"].astype(dtype)
        times[row] = 0
        (problem,) = check_times(Arrays(events__t=times))  # type: ignore[arg-type]
        assert str(problem).startswith(f"events/t: event {row:,} is earlier than the event before it")


@pytest.mark.parametrize("place", range(7))
def test_a_mark_that_differs_from_its_time_is_a_problem(place: int) -> None:
    marks = SOUND["marks/t"].copy()
    marks[place] += 1
    (problem,) = check_marks(Arrays(marks__t=marks))  # type: ignore[arg-type]
    assert f"recording {0 if place < 4 else 2}" in str(problem)


def test_a_recording_with_too_few_marks_is_a_problem() -> None:
    bounds = np.array([0, 4, 4, 6])
    (problem,) = check_marks(Arrays(sources__marks__offsets=bounds))  # type: ignore[arg-type]
    assert "recording 2" in str(problem)
