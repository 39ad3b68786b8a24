"""A format of one module, made for the tests: ``.pts``, a header of 24 bytes and packed records.

Header: ``magic`` (8 bytes), ``version`` and ``count`` (u8); then ``count`` records of 27 bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.files.libraries import UNISTORE, Opened
from unistore.converters.point_cloud.columns import choose
from unistore.converters.point_cloud.source import (
    Layout,
    Match,
    PointSource,
    column_paths,
)
from unistore.converters.scan import Candidate, Source
from unistore.errors import InputError, Problem

NAME = "pts"
SUFFIXES = (".pts",)

HEADER = np.dtype([("magic", "S8"), ("version", "<u8"), ("count", "<u8")])
RECORD = np.dtype([*((axis, "<f8") for axis in "xyz"), ("intensity", "<u2"), ("label", "u1")])


def match(file: Candidate, mapping: Mapping[str, str]) -> Match:
    with file.path.open("rb") as stream:
        return Match.CERTAIN if stream.read(8) == b"POINTS\r\n" else Match.NO


def describe(file: Candidate, mapping: Mapping[str, str]) -> Layout:
    size = file.path.stat().st_size
    count = int(np.fromfile(file.path, HEADER, 1)["count"][0]) if size >= HEADER.itemsize else 0
    expected = HEADER.itemsize + count * RECORD.itemsize
    if size != expected:
        message = f"is {size} bytes, but its header and {count} points take {expected}"
        raise InputError(Problem(file.name, message, "get it again", "truncated"))
    records = np.memmap(file.path, RECORD, "r", HEADER.itemsize, count) if count else np.empty(0, RECORD)
    return choose(NAME, {key: records[key] for key in RECORD.names or ()}, "", mapping, file.name)


class Records(PointSource):
    def __init__(self, source: Source) -> None:
        self._path, self._fields = source.path, column_paths(source.detail)
        self.rows = (source.path.stat().st_size - HEADER.itemsize) // RECORD.itemsize

    def block(self, columns: Sequence[str], lo: int, hi: int) -> list[NDArray[Any]]:
        offset = HEADER.itemsize + lo * RECORD.itemsize
        records = np.fromfile(self._path, RECORD, hi - lo, offset=offset)
        return [records[self._fields[column]] for column in columns]


@contextmanager
def open_points(source: Source) -> Iterator[PointSource]:
    yield Records(source)


@contextmanager
def open_library(path: Path) -> Iterator[Opened]:
    records = np.fromfile(path, RECORD, offset=HEADER.itemsize)
    yield Opened(UNISTORE, RECORD.names or (), records.__getitem__)
