"""Runs of frames that clips are cut from: frames of one sequence and one resolution."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from unistore.data.packed import offsets_from_lengths


def runs_of_frames(
    sequences: NDArray[np.int64], extents: NDArray[np.int64], units: NDArray[np.int64] | None
) -> NDArray[np.int64]:
    """Runs of consecutive frames of one sequence and one extent.

    Parameters
    ----------
    sequences
        Frame offsets of the sequences.
    extents
        (F, k): values that are the same in all frames of a run.
    units
        Frames to use; None: all.

    Returns
    -------
    (runs, 2) int64: first frame, and the one behind the last.
    """
    frames = len(extents)
    if not frames:
        return np.empty((0, 2), np.int64)
    used = np.ones(frames, np.bool_)
    if units is not None:
        used[:] = False
        used[units] = True
    connected = used[1:] & used[:-1] & (extents[1:] == extents[:-1]).all(axis=1)
    boundaries = sequences[(sequences > 0) & (sequences < frames)]
    connected[boundaries - 1] = False
    bounds = np.flatnonzero(np.concatenate(([True], ~connected, [True])))
    runs = np.stack((bounds[:-1], bounds[1:]), axis=1)
    found: NDArray[np.int64] = runs[used[runs[:, 0]]]
    return found


def clip_starts(runs: NDArray[np.int64], length: int, stride: int) -> NDArray[np.int64]:
    """First frames of the clips of `length` frames, every `stride`-th in each run."""
    counts = -(-np.maximum(runs[:, 1] - runs[:, 0] - length + 1, 0) // stride)
    offsets = offsets_from_lengths(counts)
    inside = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
    starts: NDArray[np.int64] = np.repeat(runs[:, 0], counts) + stride * inside
    return starts
