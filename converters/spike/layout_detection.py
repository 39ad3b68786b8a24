"""What the bytes of headerless recordings tell: packed bits or one byte a pixel, padded rows or none.

In real packed recordings 68-93 % of the bytes are above 1; a byte that is a pixel is 0 or 1. So one byte
above 1 decides, and it decides once for the whole conversion: a dark recording alone tells nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from unistore.converters.spike.geometry import frames_in
from unistore.converters.spike.source import StreamSource
from unistore.errors import Problem
from unistore.schemas.spike.bits import row_bytes

__all__ = ["Layout", "decide_layout", "decide_padding"]

_HEAD = 16 << 10
_BLOCK = 4 << 20
_ENOUGH = 16
"""Set bits that decide: packed spikes leave 16 of them all in the lowest bit once in 8**16 times."""


class Layout(NamedTuple):
    """``"packed"`` or ``"bytes"``, and why."""

    layout: str
    reason: str


class _Bytes(NamedTuple):
    """Counts over the bytes looked at."""

    looked: int
    above_one: int
    ones: int
    largest: int


def decide_layout(
    streams: Sequence[StreamSource], wanted: str, height: int | None, width: int | None
) -> tuple[Layout | None, list[Problem]]:
    """Decide the layout of all streams together.

    Parameters
    ----------
    streams
        At least one.
    wanted
        ``"auto"``, ``"packed"`` or ``"bytes"``.
    height, width
        As given by the user: they decide where every byte is dark.

    Returns
    -------
    Layout or None, list of Problem
        None: nothing decides. Where one byte a pixel is taken, every byte of every file was looked at.
    """
    if wanted == "packed":
        return Layout("packed", "as asked for"), []
    if wanted == "bytes":
        return Layout("bytes", "as asked for"), _not_pixels(streams)
    heads = [_count(stream, _HEAD) for stream in streams]
    bright = [(stream, seen) for stream, seen in zip(streams, heads, strict=True) if seen.above_one]
    if bright:
        stream, seen = bright[0]
        share = 100 * seen.above_one / seen.looked
        reason = (
            f"{share:.0f} % of the first bytes of {stream.location} are above 1 (up to {seen.largest}): bits"
        )
        pixels = [
            stream
            for stream, seen in zip(streams, heads, strict=True)
            if not seen.above_one and seen.ones >= _ENOUGH
        ]
        return Layout("packed", reason), [_mixed(stream, bright[0][0]) for stream in pixels]
    return _decide_by_every_byte(streams, height, width)


def _decide_by_every_byte(
    streams: Sequence[StreamSource], height: int | None, width: int | None
) -> tuple[Layout | None, list[Problem]]:
    looked = ones = 0
    for stream in streams:
        seen = _count(stream)
        if seen.above_one:
            return Layout("packed", f"{stream.location} holds bytes above 1 (up to {seen.largest}): bits"), []
        looked, ones = looked + seen.looked, ones + seen.ones
    if ones >= _ENOUGH:
        return Layout("bytes", f"all {looked:,} bytes are 0 or 1, {ones:,} of them 1: one byte a pixel"), []
    fitting = [
        layout
        for layout in ("packed", "bytes")
        if height and width
        if all(frames_in(stream.size, height, width, layout) is not None for stream in streams)
    ]
    if len(fitting) == 1:
        return Layout(fitting[0], f"too dark to tell, but {height} x {width} fits no other layout"), []
    message = f"only {ones} of {looked:,} bytes are not 0: too dark to tell packed bits from bytes"
    more = f" and {len(streams) - 1} more" if len(streams) > 1 else ""
    problem = Problem(
        f"{streams[0].location}{more}", message, "give --layout packed or --layout bytes", "dark"
    )
    return None, [problem]


def decide_padding(stream: StreamSource, width: int) -> Layout | None:
    """Tell padded rows from an unpadded bit stream by the bits that padding would fill with zeros.

    Returns
    -------
    Layout or None
        ``"packed"`` or ``"stream"``; None if the recording is too dark to tell.
    """
    stored = row_bytes(width)
    with stream.open() as read:
        head = read(_BLOCK // stored * stored)
    rows = head[: len(head) // stored * stored].reshape(-1, stored)
    filled = int(np.count_nonzero(rows[:, -1] >> (width % 8)))
    spikes = int(np.bitwise_count(rows).sum(dtype=np.int64))
    if filled:
        return Layout("stream", f"rows of {width} pixels are not padded: {filled} rows have bits there")
    if spikes < _ENOUGH * 8:
        return None
    return Layout("packed", f"rows of {width} pixels are padded to {stored} bytes: all padding bits are 0")


def _not_pixels(streams: Sequence[StreamSource]) -> list[Problem]:
    problems = []
    for stream in streams:
        seen = _count(stream)
        if seen.above_one:
            message = f"holds bytes above 1 (up to {seen.largest}): packed bits, not one byte a pixel"
            cure = "take --layout packed or auto"
            problems.append(Problem(stream.location, message, cure, "values", stream.location))
    return problems


def _mixed(stream: StreamSource, bright: StreamSource) -> Problem:
    message = f"holds one byte a pixel (0 or 1), but {bright.location} holds packed bits"
    return Problem(stream.location, message, "convert the two kinds apart", "layout", stream.location)


def _count(stream: StreamSource, most: int | None = None) -> _Bytes:
    """Count over the first `most` bytes, or over all until one is above 1."""
    looked = above = ones = largest = 0
    with stream.open() as read:
        while not above and (most is None or looked < most):
            block = read(most or _BLOCK)
            if not block.size:
                break
            looked += block.size
            largest = max(largest, int(block.max()))
            above += int(np.count_nonzero(block > 1))
            ones += int(np.count_nonzero(block == 1))
    return _Bytes(looked, above, ones, largest)
