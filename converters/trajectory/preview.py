"""Pictures of episodes: a strip of frames of each camera, and the curves of action, reward and end."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.formats.images import decode
from unistore.converters.preview import Measure, Preview, bare, evenly
from unistore.errors import InputError, StoreError
from unistore.schemas.indices import Column, StoreView, whole
from unistore.schemas.trajectory.fields import (
    CHANNEL,
    EPISODES,
    JPEG_SUFFIX,
    OBSERVATION,
    STEPS,
    column_group,
)

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
    lo, hi = (int(bound[0]) for bound in Column(store, f"{EPISODES}/offsets").ranges(np.array([sample])))
    cameras = _cameras(store)[:_CAMERAS] if hi > lo else []
    figure.set_size_inches(10, 1.6 * len(cameras) + 2.6)
    figure.suptitle(f"episode {sample}: {hi - lo:,} steps")
    grid = figure.add_gridspec(len(cameras) + 1, 2, height_ratios=[*(1.6 for _ in cameras), 2.4])
    frames = evenly(lo, hi, _FRAMES)
    for number, path in enumerate(cameras):
        axes = figure.add_subplot(grid[number, :])
        name = path.removeprefix(f"{OBSERVATION}/").removesuffix(JPEG_SUFFIX)
        bare(axes, f"{name}, steps {', '.join(map(str, (frames - lo).tolist()))}")
        axes.imshow(_strip(store, path, frames))
    rows = evenly(lo, hi, _STEPS)
    for number, column in enumerate(_columns(store)):
        axes = figure.add_subplot(grid[-1, number])
        _draw_curves(axes, column, rows - lo, store.array(f"{STEPS}/{column}").read_rows(rows))
        _draw_ends(axes, store, lo, min(hi, lo + _FLAGS))


def measures(store: StoreView) -> Iterator[Measure]:
    """Steps of every episode, and the sum of its rewards."""
    offsets = whole(store, f"{EPISODES}/offsets")
    lengths = np.diff(offsets)
    yield Measure(name="steps", values=lengths, few=2, cure="leave them out: convert --exclude NAME")
    path = f"{STEPS}/reward"
    if store.has(path) and store.array(path).shape[0] * store.array(path).dtype.itemsize <= _REWARDS:
        rewards = store.array(path).read().astype(np.float64).reshape(offsets[-1], -1).sum(axis=1)
        sums = np.concatenate([[0.0], np.cumsum(rewards)])
        yield Measure(name="sum of rewards", values=sums[offsets[1:]] - sums[offsets[:-1]])


PREVIEW = Preview(draw=draw, measures=measures)


def _cameras(store: StoreView) -> list[str]:
    """Paths of RGB images, and groups of kept frames."""
    fields = store.attributes["fields"]
    kept = f"{JPEG_SUFFIX}/data"
    return [
        path.removesuffix("/data") if path.endswith(kept) else path
        for path in store.paths()
        if path.startswith(f"{OBSERVATION}/")
        and (path.endswith(kept) or list(fields[path].get("axes", ()))[-1:] == [CHANNEL])
    ]


def _strip(store: StoreView, path: str, rows: NDArray[np.int64]) -> NDArray[Any]:
    """Frames side by side, made smaller, (H, W, 3)."""
    kept = path.endswith(JPEG_SUFFIX)
    frames = _kept(store, path, rows) if kept else list(store.array(path).read_rows(rows))
    step = max(1, frames[0].shape[1] // _FRAME_WIDTH)
    gap = np.full((frames[0].shape[0], 2 * step, 3), 255, np.uint8)
    parts = [part for frame in frames for part in (frame, gap)]
    return np.concatenate(parts[:-1], axis=1)[::step, ::step]


def _kept(store: StoreView, group: str, rows: NDArray[np.int64]) -> list[NDArray[Any]]:
    data = store.array(f"{group}/data")
    swapped = data.attributes.get("colour") == "swapped"
    frames = []
    for lo, hi in zip(*Column(store, f"{group}/offsets").ranges(rows), strict=True):
        try:
            image = decode(data.read(int(lo), int(hi)), group, exact=True, swapped=swapped)
        except InputError as error:
            reason = error.problems[0].message
            msg = f"{store.path}: {group}: a frame {reason}; run 'unistore verify {store.path}'"
            raise StoreError(msg) from error
        colour = np.repeat(image[..., None], 3, axis=2) if image.ndim == 2 else image[..., :3]
        frames.append((colour >> 8).astype(np.uint8) if colour.dtype == np.uint16 else colour)
    return frames


def _columns(store: StoreView) -> list[str]:
    """Two columns that curves are drawn of: action and reward, or other numbers where they are missing."""
    paths = [path for path in store.paths() if path.startswith(f"{STEPS}/")]
    arrays = [store.array(path) for path in paths if column_group(path) == path]
    names = [
        array.path.removeprefix(f"{STEPS}/")
        for array in arrays
        if array.dtype.kind in "iuf" and math.prod(array.shape[1:]) <= _NUMBERS
    ]
    return sorted(names, key=lambda name: (name != "action", name != "reward"))[:2]


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
