"""A scratch buffer that is reused for every batch, so that batches cause no page faults."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

_ALIGNMENT = 64
"""Alignment of arrays in bytes: a cache line."""


class Scratch:
    """Memory that grows to the largest batch. Arrays are valid until the next `begin`. Not thread-safe."""

    def __init__(self) -> None:
        self._buffer = np.empty(0, np.uint8)
        self._used = self._wanted = 0

    def begin(self) -> None:
        """Start a batch: all arrays allocated so far become invalid."""
        if self._wanted > len(self._buffer):
            self._buffer = np.empty(self._wanted, np.uint8)
        self._used = self._wanted = 0

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """See `unistore.data.packed.Allocate`."""
        size = math.prod(shape) * dtype.itemsize
        room = -(-size // _ALIGNMENT) * _ALIGNMENT
        self._wanted += room
        if self._used + room > len(self._buffer) or not size:
            return np.empty(shape, dtype)
        part = self._buffer[self._used : self._used + size]
        self._used += room
        return part.view(dtype).reshape(shape)
