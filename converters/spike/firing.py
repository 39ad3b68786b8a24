"""How often pixels fire: recordings without a spike, and those in which nearly every pixel always fires."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from unistore.converters.preview import evenly
from unistore.converters.spike.scan import ScannedFrame, first_frames
from unistore.converters.spike.source import FrameSource
from unistore.errors import first_few
from unistore.system.sizes import count_of

SATURATED = 0.9
"""Spikes a pixel and step above which a recording shows nothing."""
_LOOKED_AT = 24


def firing_rate(packed: NDArray[np.uint8], width: int) -> float:
    """Spikes a pixel and step of packed spikes, (T, H, bytes) whose padding bits are 0."""
    pixels = packed.shape[0] * packed.shape[1] * width
    return float(np.bitwise_count(packed).sum(dtype=np.int64) / max(1, pixels))


def firing_notes(frames: Sequence[ScannedFrame], spikes: Mapping[str, FrameSource]) -> list[str]:
    """Rates in the first frame of some sequences, and a remark on those that are dark or saturated.

    `spikes` has those of each frame by its name.
    """
    firsts = first_frames(each for each in frames if each.frame.name in spikes)
    rates: dict[str, float] = {}
    for at in evenly(0, len(firsts), _LOOKED_AT).tolist():
        source = spikes[firsts[at].frame.name]
        rates[firsts[at].info.sequence] = firing_rate(source.packed(), source.extent.width)
    if not rates:
        return []
    span = " to ".join(dict.fromkeys(f"{end(rates.values()):.3g}" for end in (min, max)))
    notes = [f"spikes a pixel and step: {span}, in the first frames of {count_of(len(rates), 'sequence')}"]
    dark = [name for name, rate in rates.items() if not rate]
    full = [name for name, rate in rates.items() if rate > SATURATED]
    for names, what in ((dark, "no spike at all"), (full, "nearly every pixel firing at every step")):
        if names:
            cure = "look at the recordings, or leave them out (--exclude)"
            notes.append(f"careful: {what} in {first_few(names)}: {cure}")
    return notes
