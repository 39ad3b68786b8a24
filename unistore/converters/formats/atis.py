"""Events of N-MNIST and N-Caltech101: five bytes an event, without a header.

https://www.garrickorchard.com/datasets/n-mnist: x, y, and 24 bits, the highest first: the polarity, and 23
bits of microseconds.
"""

# A row 240 is no event: it says that the clock jumps by 2**13 microseconds from there on.

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np

from unistore.converters.array import Array
from unistore.converters.claims import Claim, no, sure
from unistore.converters.common.faults import COPY_AGAIN
from unistore.converters.formats.lazy import LazyRows
from unistore.converters.opened import HEAD_BYTES, Format, Metadata, OpenFile, SourceFile
from unistore.system.types import AnyArray, UInt8s

EVENTS = "events"  # name of the array of a recording
_BYTES = 5  # of an event
_JUMP_ROW = 240
_JUMP = 1 << 13  # microseconds
_MOST_TIME = (1 << 23) - 1
_LEAST = 16  # events that tell a file of them, whose times do not fall
_MEMORY = 64  # bytes that decoding an event takes


class AtisBin(Format):
    """One array of records, ``events``: t, x, y and p."""

    name = "atis_bin"
    suffixes = (".bin",)
    offered = False

    def recognise(self, file: SourceFile) -> Claim:
        """Take a file whose first events are in the order of their times, as those of other files are not."""
        head = np.frombuffer(file.head(HEAD_BYTES), np.uint8)
        events = _decoded(head[: len(head) // _BYTES * _BYTES])
        times = events["t"].astype(np.int64)
        is_in_order = len(events) >= _LEAST and bool((np.diff(times) >= 0).all()) and times[-1] > times[0]
        # Counters and sorted numbers of other files have no such places
        has_places = (
            is_in_order and len(np.unique(events[["x", "y"]])) > 1 and len(np.unique(events["p"])) == 2
        )
        if has_places:
            return sure("contains events of five bytes, as N-MNIST and N-Caltech101 do")
        return no("does not contain events of five bytes in the order of their times")

    @contextmanager
    def open(self, file: SourceFile) -> Iterator[OpenFile]:
        beyond = file.size % _BYTES
        if beyond:
            raise file.problem(f"is truncated: it ends {beyond} bytes into an event", COPY_AGAIN, "truncated")
        content = np.memmap(file.path, np.uint8, "r")
        jumps = int(np.count_nonzero(content[1::_BYTES] == _JUMP_ROW))
        count = len(content) // _BYTES - jumps
        dtype = _dtype(jumps)

        @cache
        def decoded() -> AnyArray:
            return _decoded(content)

        rows = LazyRows((count,), dtype, lambda lo, hi: decoded()[lo:hi])
        yield OpenFile({EVENTS: Array(rows)}, memory=_MEMORY * (count + jumps))

    def write(self, path: Path, arrays: Mapping[str, Array], metadata: Metadata) -> None:
        """Write events, with a jump of the clock before those whose times 23 bits do not hold."""
        jumps = 0
        with path.open("wb") as file:
            for _, events in arrays[EVENTS].blocks():
                times = events["t"].astype(np.int64)
                needed = np.maximum(-(-(times - _MOST_TIME) // _JUMP), jumps)
                words = (times - needed * _JUMP) | events["p"].astype(np.int64) << 23
                rows = np.stack(
                    [events["x"], events["y"], words >> 16, words >> 8 & 0xFF, words & 0xFF], axis=1
                ).astype(np.uint8)
                jump = np.array([0, _JUMP_ROW, 0, 0, 0], np.uint8)
                before = np.repeat(np.arange(len(rows)), np.diff(needed, prepend=jumps))
                file.write(np.insert(rows, before, jump, axis=0).tobytes())
                jumps = int(needed[-1])


def _dtype(jumps: int) -> np.dtype[np.void]:
    is_narrow = (jumps + 1) * _JUMP + _MOST_TIME < 1 << 32
    return np.dtype([("t", "<u4" if is_narrow else "<i8"), ("x", "<u2"), ("y", "<u2"), ("p", "u1")])


def _decoded(content: UInt8s) -> AnyArray:
    """Return the events of whole records, with the jumps of the clock added to their times."""
    records = content.reshape(-1, _BYTES)
    is_jump = records[:, 1] == _JUMP_ROW
    loops = np.cumsum(is_jump)
    high, middle, low = (records[:, column].astype(np.int64) for column in (2, 3, 4))
    times = ((high & 0x7F) << 16 | middle << 8 | low) + loops * _JUMP
    events = np.empty(len(records), _dtype(int(loops[-1]) if len(loops) else 0))
    events["t"] = times
    events["x"] = records[:, 0]
    events["y"] = records[:, 1]
    events["p"] = high >> 7
    without_jumps: AnyArray = events[~is_jump]
    return without_jumps
