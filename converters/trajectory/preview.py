"""Pictures of episodes: a strip of frames of each camera, and the curves of action, reward and end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.preview import Measure, Preview, bare, evenly
from unistore.converters.trajectory.images import decode_frame
from unistore.errors import StoreError
from unistore.schemas.indices import Column, whole
from unistore.schemas.store_view import StoreView
from unistore.schemas.trajectory.fields import EPISODES, IMAGE_AXES, JPEG_SUFFIX, OBSERVATION, STEPS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["PREVIEW"]

_CAMERAS = 4
_FRAMES = 8
_FRAME_WIDTH = 160
_STEPS = 2000
"""Steps that a curve is drawn through."""
_LINES = 16
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
    for column, place in (("action", grid[-1, 0]), ("reward", grid[-1, 1])):
        _curves(store, column, rows, rows - lo, figure.add_subplot(place))


def measures(store: StoreView) -> Iterator[Measure]:
    """Steps of every episode, and the sum of its rewards."""
    offsets = whole(store, f"{EPISODES}/offsets")
    lengths = np.diff(offsets)
    yield Measure(name="steps", values=lengths, few=2, cure="leave them out: convert --exclude NAME")
    path = f"{STEPS}/reward"
    if store.has(path) and store.array(path).shape[0] * store.array(path).dtype.itemsize <= _REWARDS:
        sums = np.concatenate(
            [
                [0.0],
                np.cumsum(store.array(path).read().astype(np.float64).reshape(offsets[-1], -1).sum(axis=1)),
            ]
        )
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
        and (path.endswith(kept) or tuple(fields[path].get("axes", ())) == IMAGE_AXES)
    ]


def _strip(store: StoreView, path: str, rows: NDArray[np.int64]) -> NDArray[Any]:
    """Frames side by side, made smaller, (H, W, 3)."""
    frames = (
        _kept(store, path, rows) if path.endswith(JPEG_SUFFIX) else list(store.array(path).read_rows(rows))
    )
    step = max(1, frames[0].shape[1] // _FRAME_WIDTH)
    gap = np.full((frames[0].shape[0], 2 * step, 3), 255, np.uint8)
    parts = [part for frame in frames for part in (frame, gap)]
    return np.concatenate(parts[:-1], axis=1)[::step, ::step]


def _kept(store: StoreView, group: str, rows: NDArray[np.int64]) -> list[NDArray[Any]]:
    data = store.array(f"{group}/data")
    swapped = data.attributes.get("colour") == "swapped"
    frames = []
    for lo, hi in zip(*Column(store, f"{group}/offsets").ranges(rows), strict=True):
        image = decode_frame(data.read(int(lo), int(hi)), "swapped" if swapped else "standard")
        if image is None:
            msg = f"{store.path}: {group}: a frame cannot be decoded; run 'unistore verify {store.path}'"
            raise StoreError(msg)
        colour = np.repeat(image[..., None], 3, axis=2) if image.ndim == 2 else image[..., :3]
        frames.append((colour >> 8).astype(np.uint8) if colour.dtype == np.uint16 else colour)
    return frames


def _curves(
    store: StoreView, column: str, rows: NDArray[np.int64], steps: NDArray[np.int64], axes: Axes
) -> None:
    path = f"{STEPS}/{column}"
    axes.set_xlabel("step")
    if not store.has(path):
        axes.set_title(f"no {column}")
    elif len(rows):
        values = store.array(path).read_rows(rows).reshape(len(rows), -1)
        shown = min(values.shape[1], _LINES)
        axes.plot(steps, values[:, :shown], linewidth=1)
        axes.set_title(column if shown < 2 else f"{column}, {shown} of {values.shape[1]} numbers")
    for name, colour in _ENDS.items():
        flags = store.array(f"{STEPS}/{name}").read_rows(rows) if len(rows) else np.zeros(0, bool)
        for number, step in enumerate(steps[flags][:_LINES].tolist()):
            axes.axvline(step, color=colour, linestyle=":", label=None if number else name)
        if flags.any():
            axes.legend(loc="best")
