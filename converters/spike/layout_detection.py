"""Detecting the layout of headerless recordings from their bytes: packed or not, rows padded or not.

In real packed recordings, 68-93 % of the bytes are above 1; a byte that is a pixel is 0 or 1. So one byte
above 1 decides for all recordings of a conversion, since dark recordings alone do not show their layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from unistore.converters.spike.geometry import fitting_layouts
from unistore.converters.spike.source import StreamSource
from unistore.errors import Problem, first_few
from unistore.schemas.spike.bits import row_bytes

_HEAD_BYTES = 16 << 10
_BLOCK = 4 << 20
_MIN_SET_BITS = 16
"""In packed spikes, so many set bits are all the lowest bit of their byte with probability 8**-16."""


class DetectedLayout(NamedTuple):
    """``"packed"`` or ``"bytes"``, and why."""

    layout: str
    reason: str


class _ByteCounts(NamedTuple):
    total: int
    above_one: int
    ones: int
    largest: int


def detect_layout(
    streams: Sequence[StreamSource], wanted: str, height: int | None, width: int | None
) -> tuple[DetectedLayout | None, list[Problem]]:
    """Detect the layout of all streams (at least one) together; None if it cannot be told.

    ``"bytes"`` is returned only after all bytes were read. The resolution given by the user decides if all
    streams are too dark.
    """
    if wanted == "packed":
        return DetectedLayout("packed", "as asked for"), []
    if wanted == "bytes":
        return DetectedLayout("bytes", "as asked for"), _not_pixel_problems(streams)
    heads = [_count_bytes(stream, _HEAD_BYTES) for stream in streams]
    bright = [(stream, seen) for stream, seen in zip(streams, heads, strict=True) if seen.above_one]
    if bright:
        stream, seen = bright[0]
        share = 100 * seen.above_one / seen.total
        reason = f"{share:.0f} % of the first bytes of {stream.location} are above 1 (up to {seen.largest})"
        message = f"holds one byte a pixel (0 or 1), but {stream.location} holds packed bits"
        return DetectedLayout("packed", f"{reason}: bits"), [
            Problem(each.location, message, "convert the two kinds apart", "layout", each.location)
            for each, counts in zip(streams, heads, strict=True)
            if not counts.above_one and counts.ones >= _MIN_SET_BITS
        ]
    return _detect_from_all_bytes(streams, height, width)


def _detect_from_all_bytes(
    streams: Sequence[StreamSource], height: int | None, width: int | None
) -> tuple[DetectedLayout | None, list[Problem]]:
    total = ones = 0
    for stream in streams:
        seen = _count_bytes(stream)
        if seen.above_one:
            reason = f"{stream.location} holds bytes above 1 (up to {seen.largest}): bits"
            return DetectedLayout("packed", reason), []
        total, ones = total + seen.total, ones + seen.ones
    if ones >= _MIN_SET_BITS:
        reason = f"all {total:,} bytes are 0 or 1, {ones:,} of them 1: one byte a pixel"
        return DetectedLayout("bytes", reason), []
    sizes = [stream.size for stream in streams]
    fitting = fitting_layouts(sizes, height, width, ("packed", "bytes")) if height and width else []
    if len(fitting) == 1:
        reason = f"too dark to tell, but {height} x {width} fits no other layout"
        return DetectedLayout(fitting[0], reason), []
    location = first_few([stream.location for stream in streams], 1)
    message = f"only {ones} of {total:,} bytes are not 0: too dark to tell packed bits from bytes"
    return None, [Problem(location, message, "give --layout packed or --layout bytes", "dark")]


def detect_padding(stream: StreamSource, width: int) -> DetectedLayout | None:
    """``"packed"`` if rows are padded to whole bytes (all padding bits are 0), or ``"stream"``.

    None if the recording is too dark to tell.
    """
    stored = row_bytes(width)
    with stream.open() as read:
        head = read(_BLOCK // stored * stored)
    rows = head[: len(head) // stored * stored].reshape(-1, stored)
    filled = int(np.count_nonzero(rows[:, -1] >> (width % 8)))
    spikes = int(np.bitwise_count(rows).sum(dtype=np.int64))
    if filled:
        reason = f"rows of {width} pixels are not padded: {filled} rows have bits there"
        return DetectedLayout("stream", reason)
    if spikes < _MIN_SET_BITS * 8:
        return None
    reason = f"rows of {width} pixels are padded to {stored} bytes: all padding bits are 0"
    return DetectedLayout("packed", reason)


def _not_pixel_problems(streams: Sequence[StreamSource]) -> list[Problem]:
    problems = []
    for stream in streams:
        seen = _count_bytes(stream)
        if seen.above_one:
            message = f"holds bytes above 1 (up to {seen.largest}): packed bits, not one byte a pixel"
            cure = "take --layout packed or auto"
            problems.append(Problem(stream.location, message, cure, "values", stream.location))
    return problems


def _count_bytes(stream: StreamSource, limit: int | None = None) -> _ByteCounts:
    """Read the first `limit` bytes, or all, up to the first block with a byte above 1."""
    total = above = ones = largest = 0
    with stream.open() as read:
        while not above and (limit is None or total < limit):
            block = read(limit or _BLOCK)
            if not block.size:
                break
            total += block.size
            largest = max(largest, int(block.max()))
            above += int(np.count_nonzero(block > 1))
            ones += int(np.count_nonzero(block == 1))
    return _ByteCounts(total, above, ones, largest)
