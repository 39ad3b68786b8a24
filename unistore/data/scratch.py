"""Reusable scratch buffers: used anew for every batch, so that no page is fresh."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Scratch"]

_ALIGNMENT = 64
"""Bytes that arrays start at multiples of: a cache line."""


class Scratch:
    """Memory that grows to the largest batch. Arrays are valid until the next `begin`; for one thread."""

    def __init__(self) -> None:
        self._buffer = np.empty(0, np.uint8)
        self._used = self._wanted = 0

    def begin(self) -> None:
        """Forget what was handed out."""
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
