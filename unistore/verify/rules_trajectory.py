"""Value rules of trajectories: episodes, their ends, next observations, kept frames."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from unistore.errors import Problem
from unistore.schemas.trajectory import EPISODES, FINAL, JPEG_SUFFIX, NEXT, OBSERVATION
from unistore.verify.rules import broken, offsets_problems
from unistore.verify.view import Rule, View, first_row

__all__ = ["RULES"]


def episodes(view: View) -> Iterator[Problem]:
    """Episodes cut the steps, none is empty, and they stand source by source."""
    offsets, steps = view.whole(f"{EPISODES}/offsets"), view.shape("steps/next_valid")[0]
    yield from offsets_problems(f"{EPISODES}/offsets", offsets, steps, "steps")
    empty = np.diff(offsets) == 0
    if empty.any():
        yield broken(f"{EPISODES}/offsets", f"episode {first_row(empty)} has no step")
    source, count = view.whole(f"{EPISODES}/source"), view.shape("sources/rows")[0]
    if (np.diff(source) < 0).any() or source.min(initial=0) < 0 or source.max(initial=0) >= count:
        yield broken(f"{EPISODES}/source", f"does not rise from source to source of {count}")
    elif len(offsets) == len(source) + 1:
        held = np.bincount(source, np.diff(offsets), count).astype(np.int64)
        wrong = held != view.whole("sources/rows")
        if wrong.any():
            at = first_row(wrong)
            yield broken(f"{EPISODES}/offsets", f"source {at} has {held[at]} steps in its episodes, not all")


def ends(view: View) -> Iterator[Problem]:
    """The next observation is known inside an episode, at its end only if stored; ends are marked."""
    offsets, valid = view.whole(f"{EPISODES}/offsets"), view.whole("steps/next_valid")
    if offsets_wrong(offsets, len(valid)):
        return
    last = offsets[1:] - 1
    inside = np.ones(len(valid), bool)
    inside[last] = False
    if not valid[inside].all():
        at = int(np.flatnonzero(inside & ~valid)[0])
        yield broken("steps/next_valid", f"step {at} is inside an episode, so the next observation is known")
    if not (view.under(f"{FINAL}/") or view.under(f"{NEXT}/")) and valid[last].any():
        at = int(last[first_row(valid[last])])
        yield broken("steps/next_valid", f"step {at} ends an episode, and no next observation is stored")
    marked = view.whole("steps/terminated") | view.whole("steps/truncated")
    if not marked[last].all():
        at = int(last[first_row(~marked[last])])
        yield broken("steps/truncated", f"step {at} ends an episode, but is neither terminated nor truncated")


def offsets_wrong(offsets: np.ndarray, total: int) -> bool:
    """Whether offsets cannot be used as they are; reported by `episodes`."""
    return not len(offsets) or offsets[0] != 0 or offsets[-1] != total or bool((np.diff(offsets) < 1).any())


def kept_frames(view: View) -> Iterator[Problem]:
    """Kept frames cut their bytes."""
    for path in view.under(f"{OBSERVATION}/"):
        group = path.removesuffix("/data")
        if group != path and group.endswith(JPEG_SUFFIX):
            offsets, total = view.whole(f"{group}/offsets"), view.shape(path)[0]
            yield from offsets_problems(f"{group}/offsets", offsets, total, "bytes")


def success(view: View) -> Iterator[Problem]:
    """Success is yes, no, or not said."""
    path = f"{EPISODES}/success"
    if view.has(path):
        values = view.whole(path)
        wrong = (values < -1) | (values > 1)
        if wrong.any():
            yield broken(
                path, f"episode {first_row(wrong)} has {values[first_row(wrong)]}, expected -1, 0 or 1"
            )


RULES: tuple[Rule, ...] = (episodes, ends, kept_frames, success)
