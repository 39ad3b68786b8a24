"""Records that can only be read from the first to the last."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray


class ForwardRecords:
    """Records of a file that is decoded packet by packet."""

    def __init__(
        self, dtype: np.dtype[Any], packets: Callable[[], Iterator[NDArray[Any]]], count: Callable[[], int]
    ) -> None:
        self.dtype = dtype
        self._packets = packets  # begins to decode the file: arrays of records, one after the other
        self._count = count  # counts the records of the file
        self._coming: Iterator[NDArray[Any]] = iter(())
        self._packet = np.empty(0, dtype)
        self._start = 0  # number of the first record of the packet
        self._is_begun = False

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """(records,), which are counted when this is asked for."""
        return (self._count(),)

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        lo, hi, step = rows.indices(self.shape[0])
        out = np.empty(max(0, hi - lo), self.dtype)
        if lo < self._start or not self._is_begun:
            self._begin()
        place = lo
        while place < hi:
            end = self._start + len(self._packet)
            if place >= end:
                self._next(place)
                continue
            stop = min(hi, end)
            out[place - lo : stop - lo] = self._packet[place - self._start : stop - self._start]
            place = stop
        return out[::step]

    def _begin(self) -> None:
        self._coming = self._packets()
        self._packet = self._packet[:0]
        self._start = 0
        self._is_begun = True

    def _next(self, place: int) -> None:
        self._start += len(self._packet)
        packet = next(self._coming, None)
        if packet is None:
            msg = f"ends before record {place} of {self.shape[0]}"
            raise ValueError(msg)
        self._packet = packet
