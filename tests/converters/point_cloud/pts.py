"""A format of one module, made for the tests: ``.pts``, a header of 24 bytes and packed records.

Header: ``magic`` (8 bytes), ``version`` and ``count`` (u8); then ``count`` records of 27 bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.point_cloud.columns import choose
from unistore.converters.point_cloud.source import (
    Layout,
    Look,
    Match,
    Original,
    PointSource,
    column_paths,
)
from unistore.converters.protocol import Source
from unistore.errors import InputError, Problem

NAME = "pts"
SUFFIXES = (".pts",)

HEADER = np.dtype([("magic", "S8"), ("version", "<u8"), ("count", "<u8")])
RECORD = np.dtype([*((axis, "<f8") for axis in "xyz"), ("intensity", "<u2"), ("label", "u1")])


def match(look: Look) -> Match:
    with look.path.open("rb") as file:
        return Match.CERTAIN if file.read(8) == b"POINTS\r\n" else Match.NO


def describe(look: Look) -> Layout:
    size = look.path.stat().st_size
    count = int(np.fromfile(look.path, HEADER, 1)["count"][0]) if size >= HEADER.itemsize else 0
    expected = HEADER.itemsize + count * RECORD.itemsize
    if size != expected:
        message = f"is {size} bytes, but its header and {count} points take {expected}"
        raise InputError(Problem(look.name, message, "get it again", "truncated"))
    records = np.memmap(look.path, RECORD, "r", HEADER.itemsize, count) if count else np.empty(0, RECORD)
    chosen = choose({key: records[key] for key in RECORD.names or ()}, "", look.mapping, look.name)
    return Layout(
        format=NAME,
        points=chosen.rows,
        xyz=chosen.xyz,
        xyz_stored=chosen.xyz_stored,
        columns=chosen.columns,
    )


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
def open_original(source: Source) -> Iterator[Original]:
    records = np.fromfile(source.path, RECORD, offset=HEADER.itemsize)
    fields = column_paths(source.detail)
    yield Original(lambda key: records[fields[key]])
