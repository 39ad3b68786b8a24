"""What must hold of the values of a trajectory store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.errors import Problem, StoreError
from unistore.schemas.rules import Rule, RuleView, UnreadableError, broken, first_row, parts_hold_all
from unistore.schemas.trajectory.clocks import clocks_of, offsets_path
from unistore.schemas.trajectory.fields import EPISODES, FINAL, NEXT, NEXT_RECORDED, PRESENT


def episodes(view: RuleView) -> Iterator[Problem]:
    """No episode is empty, and the episodes of a source hold all its steps."""
    offsets = view.whole(f"{EPISODES}/offsets")
    empty = np.diff(offsets) == 0
    if empty.any():
        yield broken(f"{EPISODES}/offsets", f"episode {first_row(empty):,} has no steps")
    yield from parts_hold_all(view, EPISODES, "steps")


def ends(view: RuleView) -> Iterator[Problem]:
    """The next observation is known inside an episode, at its end only if it is stored. Ends are marked."""
    offsets = view.whole(f"{EPISODES}/offsets")
    valid = view.whole("steps/next_valid")
    if (np.diff(offsets) == 0).any():
        return  # reported by `episodes`
    last = offsets[1:] - 1
    inside = np.ones(len(valid), bool)
    inside[last] = False
    if not valid[inside].all():
        step = int(np.flatnonzero(inside & ~valid)[0])
        message = f"is False for step {step:,}, but its episode goes on, so the next observation is known"
        yield broken("steps/next_valid", message)
    if not (view.under(f"{FINAL}/") or view.under(f"{NEXT}/")) and valid[last].any():
        step = int(last[first_row(valid[last])])
        message = f"is True for step {step:,}, which ends an episode, but no next observation is stored"
        yield broken("steps/next_valid", message)
    for path in view.under(f"{NEXT_RECORDED}/"):
        lacking = ~view.whole(path)
        present = path.replace(NEXT_RECORDED, PRESENT, 1)
        if view.store.has(present):
            lacking &= view.whole(present)
        if (lacking & valid[last]).any():
            step = int(last[first_row(lacking & valid[last])])
            message = f"is True for step {step:,}, which ends an episode for which {path} is False"
            yield broken("steps/next_valid", message)
    marked = view.whole("steps/terminated") | view.whole("steps/truncated")
    if not marked[last].all():
        step = int(last[first_row(~marked[last])])
        message = f"step {step:,} ends an episode, but is neither terminated nor truncated"
        yield broken("steps/truncated", message)


def success(view: RuleView) -> Iterator[Problem]:
    """Success is 1 (yes), 0 (no) or -1 (unknown)."""
    path = f"{EPISODES}/success"
    if view.store.has(path):
        values = view.whole(path)
        wrong = (values < -1) | (values > 1)
        if wrong.any():
            episode = first_row(wrong)
            expected = "1 (success), 0 (no success) or -1 (unknown)"
            yield broken(path, f"episode {episode:,} is {values[episode]}, expected {expected}")


def times_rise(view: RuleView) -> Iterator[Problem]:
    """No timestamp is earlier than the one before it in its episode."""
    try:
        clocks = clocks_of(view.store)
    except StoreError as error:  # the document is damaged, which is reported already
        raise UnreadableError from error
    for clock, recorded in clocks.items():
        path = recorded.timestamps
        if path is None:
            continue
        offsets = view.whole(offsets_path(clock))
        last: NDArray[Any] | None = None
        for lo, block in view.blocks(path):
            times = block if last is None else np.concatenate([last, block])
            first = lo - (len(times) - len(block))
            falls = times[1:] < times[:-1]
            begins = offsets[(offsets > first) & (offsets < first + len(times))] - first - 1
            falls[begins] = False
            if falls.any():
                row = first + 1 + first_row(falls)
                yield broken(path, f"row {row:,} is earlier than the row before it")
                break
            last = block[-1:]


RULES: tuple[Rule, ...] = (episodes, ends, success, times_rise)
