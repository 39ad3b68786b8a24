"""Notes on spike recordings: their size, padding, images, and how often pixels fire."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from math import prod

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.exclusion import with_source
from unistore.converters.preview import evenly
from unistore.converters.spike.scan import ScannedFrame, first_frames
from unistore.converters.spike.source import LARGE, Extent, FrameSource
from unistore.errors import InputError, first_few
from unistore.system.sizes import count_of

SATURATED = 0.9
"""Spikes a pixel and step above which a recording shows nothing."""
_LOOKED_AT = 24
_BLOCKS = 8
"""Blocks of a recording that its rate is taken from: all of most frames."""
_LARGE_PADDING = 3
"""Ratio of stored to source values from which a note warns of padding."""


def firing_rate(blocks: Iterable[NDArray[np.uint8]], width: int) -> float:
    """Spikes a pixel and step of packed spikes, (t, H, bytes) each, whose padding bits are 0."""
    pixels = fired = 0
    for packed in blocks:
        pixels += packed.shape[0] * packed.shape[1] * width
        fired += int(np.bitwise_count(packed).sum(dtype=np.int64))
    return fired / max(1, pixels)


def firing_notes(frames: Sequence[ScannedFrame], spikes: Mapping[str, FrameSource]) -> list[str]:
    """Rates at the start of some sequences, and a remark on those that are dark or saturated.

    `spikes` has those of each frame by its name.
    """
    small = {name for name, source in spikes.items() if source.memory <= LARGE}
    firsts = first_frames(each for each in frames if each.frame.name in small)
    rates: dict[str, float] = {}
    for at in evenly(0, len(firsts), _LOOKED_AT).tolist():
        name, source = firsts[at].frame.name, spikes[firsts[at].frame.name]
        beginning = islice(source.blocks(), _BLOCKS)  # a recording may be larger than memory
        try:
            rates[firsts[at].info.sequence] = firing_rate(beginning, source.extent.width)
        except InputError as error:
            raise InputError(with_source(name, error.problems)) from error
    if not rates:
        return []
    span = " to ".join(dict.fromkeys(f"{end(rates.values()):.3g}" for end in (min, max)))
    notes = [f"spikes a pixel and step: {span}, at the start of {count_of(len(rates), 'sequence')}"]
    dark = [name for name, rate in rates.items() if not rate]
    full = [name for name, rate in rates.items() if rate > SATURATED]
    for names, what in ((dark, "no spike at all"), (full, "nearly every pixel firing at every step")):
        if names:
            cure = "look at the recordings, or leave them out (--exclude)"
            notes.append(f"careful: {what} at the start of {first_few(names)}: {cure}")
    return notes


def size_note(frames: Sequence[ScannedFrame], extents: Mapping[str, Extent]) -> str:
    """Frames, sequences, time steps and pixels."""
    lengths = sorted({extent.length for extent in extents.values()})
    pixels = sorted({(extent.height, extent.width) for extent in extents.values()})
    sequences = count_of(len({each.info.sequence for each in frames}), "sequence")
    note = f"spikes: {count_of(len(frames), 'frame')} of {sequences}"
    if extents:
        steps = f"{lengths[0]}" if len(lengths) == 1 else f"{lengths[0]} to {lengths[-1]}"
        listed = ", ".join(f"{height} x {width}" for height, width in pixels)
        note += f", {steps} time steps of {listed} pixels"
        if len(lengths) > 1 or len(pixels) > 1:
            note += "; shorter and smaller ones are padded with zeros"
    return note


def padding_note(extents: Mapping[str, Extent]) -> list[str]:
    """A note if padding to the largest extents makes the store several times as large as its sources."""
    sizes = {name: each.length * each.height * each.width for name, each in extents.items()}
    if not sizes:
        return []
    axes = ("length", "height", "width")
    largest = prod(max(getattr(each, axis) for each in extents.values()) for axis in axes)
    factor = len(sizes) * largest / sum(sizes.values())
    if factor < _LARGE_PADDING:
        return []
    name = max(sizes, key=lambda each: sizes[each])
    note = (
        f"careful: {name} has {extents[name].length} time steps, and all frames are padded to the largest: "
        f"{factor:.1f} times the values that the sources hold; convert it apart (--exclude {name}), "
        "or cut it into frames"
    )
    return [note]


def image_size_note(scanned: Sequence[ScannedFrame], frames: str) -> list[str]:
    """Bytes of all blur and sharp frames in both ways to store them."""
    forms = [form for each in scanned for form in each.images.values()]
    if not forms:
        return []
    tiles = sum(form.height * form.width * 3 for form in forms) / 1e6
    keep = sum(form.size for form in forms) / 1e6
    note = (
        f"blur and sharp frames: at most {tiles:,.1f} MB as tiles (before compression), "
        f"{keep:,.1f} MB with --frames keep; taken: {frames}"
    )
    return [note]
