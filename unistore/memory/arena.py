"""Memory that a batch is decoded into: a slab, and further segments if the slab is too small."""

from __future__ import annotations

import os
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.memory.segments import Segment, open_shared_memory, round_up

ALIGNMENT = 128
"""Bytes: every array starts on a pair of cache lines, which suits any SIMD width."""

FRACTION = 4
"""A further segment has at least 1 / FRACTION of the bytes allocated so far: few segments, little waste."""

SegmentOffset = tuple[int, int]
"""(segment, byte offset): segment 0 is the slab; 1, 2, … are further segments in the order made."""


class Arena:
    """Allocates memory for one batch, and finds arrays that already lie in it.

    Parameters
    ----------
    slab
        Memory of the slab lent to this batch; None: no slab.
    grow
        Makes a further segment of at least that many bytes. None: arrays that do not fit into the slab get
        ordinary memory.
    over
        Buffer that arrays in the slab are views of, such as a lease. None: the slab's mapping.
    """

    def __init__(
        self, slab: Segment | None, grow: Callable[[int], Segment] | None = None, over: Any = None
    ) -> None:
        self._grow = grow
        self._segments: list[tuple[Any, int, int]] = [(None, 0, 0)]
        if slab is not None:
            self._segments = [(slab.map if over is None else over, slab.address, slab.size)]
        self._end = 0
        self.needed = 0
        """Bytes allocated so far, in whatever memory."""

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return uninitialised C-contiguous memory that reaches the consumer without a copy."""
        dtype = np.dtype(dtype)
        if dtype.hasobject:
            return np.empty(shape, dtype)
        size = dtype.itemsize * prod(map(int, shape))
        taken = -(-size // ALIGNMENT) * ALIGNMENT
        self.needed += taken
        if self._end + size > self._segments[-1][2]:
            if self._grow is None:
                return np.empty(shape, dtype)
            segment = self._grow(round_up(max(taken, self.needed // FRACTION)))
            self._segments.append((segment.map, segment.address, segment.size))
            self._end = 0
        offset = self._end
        self._end += taken
        return np.ndarray(shape, dtype, buffer=self._segments[-1][0], offset=offset)

    def find(self, address: int, size: int) -> SegmentOffset | None:
        """Segment and offset of ``size`` bytes at a memory address; None if they lie elsewhere."""
        for number, (_, first, extent) in enumerate(self._segments):
            if first <= address and address + size <= first + extent:
                return number, address - first
        return None


class SharedGrowth:
    """Makes shared segments, and keeps their descriptors until they are sent to the parent."""

    def __init__(self) -> None:
        self.descriptors: list[int] = []
        self.sizes: list[int] = []

    def __call__(self, size: int) -> Segment:
        """Return ``size`` bytes of new shared memory."""
        descriptor = open_shared_memory(size)
        try:
            segment = Segment.shared(descriptor, size)
        except BaseException:
            os.close(descriptor)
            raise
        self.descriptors.append(descriptor)
        self.sizes.append(size)
        return segment

    def close(self) -> None:
        """Close the descriptors; the parent has copies of those that were sent."""
        while self.descriptors:
            os.close(self.descriptors.pop())
