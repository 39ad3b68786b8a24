"""Rules for the values of stores of recordings."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from unistore.errors import Problem
from unistore.schemas.events.fields import BESIDE, MARK_ROWS, MARKS, MARKS_OF, RECORDINGS, TIMES
from unistore.schemas.rules import RuleView
from unistore.system.hints import Int64s


def check_marks(view: RuleView) -> Iterator[Problem]:
    """Yield a problem for each recording whose marks are not the times of its events, in their order."""
    marks = view.whole(MARKS)
    events = view.whole(RECORDINGS).tolist()
    bounds = view.whole(MARKS_OF).tolist()
    times = view.array(TIMES)
    for number, ((first, stop), (lo, hi)) in enumerate(zip(pairwise(events), pairwise(bounds), strict=True)):
        rows = mark_rows(first, stop)
        if hi - lo != len(rows) or not np.array_equal(times.read_rows(rows), marks[lo:hi]):
            yield Problem(MARKS, f"contradicts the times of recording {number}", "convert again", "index")


def check_times(view: RuleView) -> Iterator[Problem]:
    """Yield a problem if times fall within a recording."""
    starts = view.whole(RECORDINGS)
    last = np.zeros(0, np.uint32)
    for lo, block in view.blocks(TIMES):
        times = np.concatenate((last, block))
        falls = np.flatnonzero(times[1:] < times[:-1]) + lo + 1 - len(last)
        inside = falls[~np.isin(falls, starts)]
        if len(inside):
            yield Problem(TIMES, f"falls at event {inside[0]}", "convert again", "order")
            return
        last = block[-1:]


def mark_rows(first: int, stop: int) -> Int64s:
    """Return the rows that the marks of a recording are the times of: every 4,096th, and the last one."""
    if first == stop:
        return np.zeros(0, np.int64)
    return np.append(np.arange(first, stop, MARK_ROWS), stop - 1)


def check_times_beside(view: RuleView) -> Iterator[Problem]:
    """Yield a problem if times of frames or boxes fall within a recording."""
    for table in BESIDE:
        if view.under(f"{table}/"):
            times = view.whole(f"{table}/t")
            falls = np.flatnonzero(times[1:] < times[:-1]) + 1
            inside = falls[~np.isin(falls, view.whole(f"sources/{table}/offsets"))]
            if len(inside):
                yield Problem(f"{table}/t", f"falls at row {inside[0]}", "convert again", "order")


RULES = (check_marks, check_times, check_times_beside)
