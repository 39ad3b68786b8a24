"""A format made for the tests: ``.pts``, a header of 24 bytes and packed records.

Header: ``magic`` (8 bytes), ``version`` and ``count`` (u8); then ``count`` records of 27 bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import numpy as np

from unistore.converters.plugin import Array, Claim, Format, Opened, SourceFile, no, sure

HEADER = np.dtype([("magic", "S8"), ("version", "<u8"), ("count", "<u8")])
RECORD = np.dtype([*((axis, "<f8") for axis in "xyz"), ("intensity", "<u2"), ("label", "u1")])


class Pts(Format):
    name: ClassVar[str] = "pts"
    suffixes: ClassVar[tuple[str, ...]] = (".pts",)

    def recognise(self, file: SourceFile) -> Claim:
        is_pts = file.head(8) == b"POINTS\r\n"
        return sure("begins with POINTS") if is_pts else no("does not begin with POINTS")

    @contextmanager
    def open(self, file: SourceFile) -> Iterator[Opened]:
        size = file.size
        count = int(np.fromfile(file.path, HEADER, 1)["count"][0]) if size >= HEADER.itemsize else 0
        expected = HEADER.itemsize + count * RECORD.itemsize
        if size != expected:
            message = f"is {size} bytes, but its header and {count} points take {expected}"
            raise file.problem(message, "get it again", "truncated")
        records = np.memmap(file.path, RECORD, "r", HEADER.itemsize, count) if count else np.empty(0, RECORD)
        yield Opened({key: Array(records[key]) for key in RECORD.names or ()})
