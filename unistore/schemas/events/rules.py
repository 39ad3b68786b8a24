"""Rules for the values of stores of recordings."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from unistore.errors import Problem
from unistore.schemas.events.fields import BESIDE, MARK_ROWS, MARKS, MARKS_OF, RECORDINGS, TIMES
from unistore.schemas.rules import RuleView
from unistore.system.types import AnyArray, Int64s

_FIX = "convert the sources again"


def check_marks(view: RuleView) -> Iterator[Problem]:
    """Yield a problem for each recording whose marks are not the times of its events, in their order."""
    marks = view.whole(MARKS)
    events = view.whole(RECORDINGS).tolist()
    bounds = view.whole(MARKS_OF).tolist()
    times = view.array(TIMES)
    recordings = zip(pairwise(events), pairwise(bounds), strict=True)
    for number, ((first, stop), (lo, hi)) in enumerate(recordings):
        rows = np.array([*range(first, stop, MARK_ROWS), *range(first, stop)[-1:]], np.int64)
        if not np.array_equal(times.read_rows(rows), marks[lo:hi]):
            message = f"differs from the times of the events of recording {number:,}"
            yield Problem(MARKS, message, _FIX, "index")


def check_times(view: RuleView) -> Iterator[Problem]:
    """Yield a problem if times fall within a recording."""
    starts = view.whole(RECORDINGS)
    last = np.zeros(0, np.uint32)
    for lo, block in view.blocks(TIMES):
        falls = _falls(np.concatenate((last, block)), lo - len(last), starts)
        if len(falls):
            message = f"event {falls[0]:,} is earlier than the event before it in its recording"
            yield Problem(TIMES, message, _FIX, "order")
            return
        last = block[-1:]


def check_times_beside(view: RuleView) -> Iterator[Problem]:
    """Yield a problem if times of frames or boxes fall within a recording."""
    for table in BESIDE:
        if view.under(f"{table}/"):
            falls = _falls(view.whole(f"{table}/t"), 0, view.whole(f"sources/{table}/offsets"))
            if len(falls):
                message = f"row {falls[0]:,} is earlier than the row before it in its recording"
                yield Problem(f"{table}/t", message, _FIX, "order")


def _falls(times: AnyArray, first: int, starts: Int64s) -> Int64s:
    # Rows, counted from `first`, of times that are less than the one before in their recording
    falls = np.flatnonzero(times[1:] < times[:-1]) + first + 1
    return falls[~np.isin(falls, starts)]


RULES = (check_marks, check_times, check_times_beside)
