"""What the arrays of a trajectory store must be (`SPECS`), and what must hold of their values (`RULES`)."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from unistore.errors import Problem
from unistore.schemas.array_spec import SAMPLES, ArraySpec
from unistore.schemas.array_specs import BYTES, ArraySpecs
from unistore.schemas.rules import Rule, View, broken, first_row
from unistore.schemas.trajectory.fields import EPISODES, FINAL, JPEG_SUFFIX, NEXT, STEPS

_VALID = "steps/next_valid"
_STEPS = (_VALID, 0)
_EPISODES = (SAMPLES, 0)


def _spec(path: str, _paths: Collection[str]) -> ArraySpec:
    group, _, name = path.rpartition("/")
    if group.endswith(JPEG_SUFFIX) and name in ("data", "offsets"):
        offsets = ArraySpec(dtypes=("int64",), row_shape=(), rows=(_VALID, 1), offsets_of=f"{group}/data")
        return offsets if name == "offsets" else BYTES
    if path.startswith(f"{STEPS}/"):
        return ArraySpec(rows=_STEPS)
    if path in _OPTIONAL:
        return _OPTIONAL[path]
    if path.startswith(f"{EPISODES}/mask/"):
        return ArraySpec(dtypes=("bool",), row_shape=(), rows=_EPISODES)
    return ArraySpec(rows=_EPISODES) if path.startswith(f"{EPISODES}/") else ArraySpec()


_FLAG = ArraySpec(dtypes=("bool",), row_shape=(), rows=_STEPS)
_OPTIONAL = {
    f"{EPISODES}/source": ArraySpec(
        dtypes=("int32",), row_shape=(), rows=_EPISODES, indexes=("sources/path/offsets", -1), ascending=True
    ),
    f"{EPISODES}/cut": ArraySpec(dtypes=("bool",), row_shape=(), rows=_EPISODES),
    f"{EPISODES}/success": ArraySpec(row_shape=(), rows=_EPISODES),
}

SPECS = ArraySpecs(
    arrays={
        _VALID: ArraySpec(dtypes=("bool",), row_shape=()),
        "steps/terminated": _FLAG,
        "steps/truncated": _FLAG,
        f"{EPISODES}/offsets": ArraySpec(
            dtypes=("int64",), row_shape=(), rows=(SAMPLES, 1), offsets_of=_VALID
        ),
    },
    others=_spec,
    main_rows=_VALID,
    text={EPISODES: (SAMPLES, 1)},
)


def episodes(view: View) -> Iterator[Problem]:
    """No episode is empty, and the episodes of a source hold all its steps."""
    offsets = view.whole(f"{EPISODES}/offsets")
    empty = np.diff(offsets) == 0
    if empty.any():
        yield broken(f"{EPISODES}/offsets", f"episode {first_row(empty)} has no step")
    source, count = view.whole(f"{EPISODES}/source"), view.shape("sources/rows")[0]
    held = np.bincount(source, np.diff(offsets), count).astype(np.int64)
    wrong = held != view.whole("sources/rows")
    if wrong.any():
        at = first_row(wrong)
        yield broken(f"{EPISODES}/offsets", f"source {at} has {held[at]} steps in its episodes, not all")


def ends(view: View) -> Iterator[Problem]:
    """The next observation is known inside an episode, at its end only if it is stored; ends are marked."""
    offsets, valid = view.whole(f"{EPISODES}/offsets"), view.whole("steps/next_valid")
    if (np.diff(offsets) == 0).any():
        return  # reported by `episodes`
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


def success(view: View) -> Iterator[Problem]:
    """Success is 1 (yes), 0 (no) or -1 (unknown)."""
    path = f"{EPISODES}/success"
    if view.store.has(path):
        values = view.whole(path)
        wrong = (values < -1) | (values > 1)
        if wrong.any():
            yield broken(
                path, f"episode {first_row(wrong)} has {values[first_row(wrong)]}, expected -1, 0 or 1"
            )


RULES: tuple[Rule, ...] = (episodes, ends, success)
