"""Spikes as stores hold them, packed without the code under test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def stored_spikes(frames: Sequence[NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Arrays of frames of spikes (T, H, W) of 0 and 1, each from a source of its own."""
    height = max(frame.shape[1] for frame in frames)
    width = max(frame.shape[2] for frame in frames)
    rows = []
    for frame in frames:
        missing = ((0, 0), (0, height - frame.shape[1]), (0, width - frame.shape[2]))
        rows.append(np.packbits(np.pad(frame, missing), axis=-1, bitorder="little"))
    return {
        "spikes/bits": np.concatenate(rows),
        "frames/offsets": np.cumsum([0, *map(len, rows)]),
        "frames/source": np.arange(len(rows), dtype=np.int32),
    }
