"""Pictures of episodes: a strip of frames of each camera, and the curves of action, reward and end."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.preview import Measure, Preview, bare, evenly
from unistore.converters.trajectory.stored_steps import StoredStepColumn, step_columns
from unistore.errors import InputError, StoreError
from unistore.schemas.indices import IndexColumn, StoreView, whole
from unistore.schemas.trajectory.fields import EPISODES, STEPS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_CAMERAS = 4
_FRAMES = 8
_FRAME_WIDTH = 160
# Steps that a curve is drawn through
_STEPS = 2000
_LINES = 16
# Numbers of a step, at most, in columns that curves are drawn of
_NUMBERS = 4096
# Steps in which ends are looked for
_FLAGS = 1 << 22
_REWARDS = 16 << 20
_ENDS = {"terminated": "C3", "truncated": "C1"}


def draw(store: StoreView, sample: int, figure: Figure) -> None:
    """Draw one episode."""
    lo, hi = (int(bound[0]) for bound in IndexColumn(store, f"{EPISODES}/offsets").ranges(np.array([sample])))
    columns = step_columns(store)
    observed = [one for one in columns if one.is_image and one.name.startswith("observation/")]
    cameras = observed[:_CAMERAS] if hi > lo else []
    figure.set_size_inches(10, 1.6 * len(cameras) + 2.6)
    figure.suptitle(f"episode {sample}: {hi - lo:,} steps")
    grid = figure.add_gridspec(len(cameras) + 1, 2, height_ratios=[*(1.6 for _ in cameras), 2.4])
    frames = evenly(lo, hi, _FRAMES)
    for number, camera in enumerate(cameras):
        axes = figure.add_subplot(grid[number, :])
        name = camera.name.removeprefix("observation/")
        bare(axes, f"{name}, steps {', '.join(map(str, (frames - lo).tolist()))}")
        axes.imshow(_strip(store, camera, frames))
    # Action and reward, or other numbers where they are missing.
    # Kept frames and ragged rows have no array of this name.
    plain = [column for column in columns if not column.is_image and store.has(f"{STEPS}/{column.name}")]
    drawn = [one for one in plain if one.dtype.kind in "iuf" and prod(one.row_shape) <= _NUMBERS]
    drawn.sort(key=lambda one: (one.name != "action", one.name != "reward", one.name))
    rows = evenly(lo, hi, _STEPS)
    for number, column in enumerate(drawn[:2]):
        axes = figure.add_subplot(grid[-1, number])
        _draw_curves(axes, column.name, rows - lo, store.array(f"{STEPS}/{column.name}").read_rows(rows))
        _draw_ends(axes, store, lo, min(hi, lo + _FLAGS))


def measures(store: StoreView) -> Iterator[Measure]:
    """Yield steps of every episode, and the sum of its rewards."""
    offsets = whole(store, f"{EPISODES}/offsets")
    yield Measure(name="steps", values=np.diff(offsets), few=2, cure="leave them out: convert --exclude NAME")
    path = f"{STEPS}/reward"
    if store.has(path) and store.array(path).shape[0] * store.array(path).dtype.itemsize <= _REWARDS:
        rewards = store.array(path).read().astype(np.float64)
        sums = [float(rewards[start:stop].sum()) for start, stop in pairwise(offsets.tolist())]
        yield Measure(name="sum of rewards", values=np.array(sums))


PREVIEW = Preview(draw=draw, measures=measures)


def _strip(store: StoreView, camera: StoredStepColumn, steps: NDArray[np.int64]) -> NDArray[Any]:
    """Frames side by side, made smaller, (H, W, 3)."""
    try:
        frames = [camera.read(step, step + 1)[0] for step in steps.tolist()]
    except InputError as error:
        problem = error.problems[0]
        msg = f"{problem.location}: a frame {problem.message}; run 'unistore verify {store.path}'"
        raise StoreError(msg) from error
    shrink = max(1, frames[0].shape[1] // _FRAME_WIDTH)
    gap = np.full((frames[0].shape[0], 2 * shrink, 3), 255, np.uint8)
    parts = [part for frame in frames for part in (frame, gap)]
    return np.concatenate(parts[:-1], axis=1)[::shrink, ::shrink]


def _draw_curves(axes: Axes, column: str, steps: NDArray[np.int64], values: NDArray[Any]) -> None:
    axes.set_xlabel("step")
    lines = values.reshape(len(steps), -1) if len(steps) else np.empty((0, 0))
    shown = min(lines.shape[1], _LINES)
    axes.plot(steps, lines[:, :shown], linewidth=1)
    axes.set_title(column if shown < 2 else f"{column}, {shown} of {lines.shape[1]} numbers")


def _draw_ends(axes: Axes, store: StoreView, lo: int, hi: int) -> None:
    """Lines where the episode terminated or was cut."""
    for name, colour in _ENDS.items():
        steps = np.flatnonzero(store.array(f"{STEPS}/{name}").read(lo, hi))[:_LINES].tolist()
        for number, step in enumerate(steps):
            axes.axvline(step, color=colour, linestyle=":", label=None if number else name)
        if steps:
            axes.legend(loc="best")
