"""Decoded samples kept in one memory-mapped file that all workers of a loader share.

The file has no name, so nothing is left behind. It is sparse: an index of one number a sample comes first, a
region a worker follows. Every worker appends to its own region and then writes the sample's number into the
index, so no lock is needed; a sample that two workers add at once is stored twice and found once. Samples are
admitted until a region is full, and none is ever dropped.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.sizes import parse_bytes

__all__ = ["CacheLayout", "CacheRegion", "parse_size"]

ALIGNMENT = 64
EVERYTHING = 1 << 42
"""Bytes of the sparse file under ``cache="all"``: more than any disk that samples would be cached on."""


def parse_size(size: str | int) -> int:
    """Bytes from ``"4GB"``, ``"512 MiB"``, ``"all"`` or a number of bytes.

    Raises
    ------
    InputError
        It is none of these.
    """
    return EVERYTHING if size == "all" else parse_bytes(size, "cache")


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheLayout:
    """How the file is divided.

    Attributes
    ----------
    samples
        Samples of the dataset: length of the index.
    capacity
        Bytes of decoded samples, all workers together.
    regions
        Workers that add samples.
    """

    samples: int
    capacity: int
    regions: int

    @property
    def start(self) -> int:
        """Bytes before the first region: the index, on whole pages."""
        return -(-8 * max(1, self.samples) // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY

    def create(self) -> int:
        """Make the file; return its descriptor, which is the caller's to close."""
        with tempfile.TemporaryFile(prefix="unistore-cache-") as file:
            descriptor = os.dup(file.fileno())
        os.ftruncate(descriptor, self.start + self.capacity)
        return descriptor

    def region(self, number: int, descriptor: int) -> CacheRegion:
        """The file as worker `number` sees it; the descriptor stays the caller's."""
        size = self.capacity // self.regions
        return CacheRegion(os.dup(descriptor), self.samples, self.start + number * size, size)


class CacheRegion:
    """All cached samples, and room to add more.

    Parameters
    ----------
    descriptor
        Of the file; closed with this object.
    samples
        Length of the index.
    first, size
        The region that this process appends to.
    """

    def __init__(self, descriptor: int, samples: int, first: int, size: int) -> None:
        self._descriptor = descriptor
        self._map = mmap.mmap(descriptor, 0, flags=mmap.MAP_SHARED)
        self._index: NDArray[np.int64] = np.frombuffer(self._map, np.int64, max(1, samples))
        self._next = first
        self._end = first + size
        self.full = False

    def __del__(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            os.close(self._descriptor)

    def find(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where samples lie in the file, (n,) int64; 0: not there."""
        return self._index[samples]

    def add(self, sample: int, parts: Sequence[Any]) -> None:
        """Keep a sample: buffers one behind the other, each aligned; nothing happens when it does not fit."""
        views = [memoryview(part).cast("B") for part in parts]
        sizes = [_aligned(view.nbytes) for view in views]
        if self.full or self._next + sum(sizes) > self._end:
            self.full = True
            return
        place = self._next
        padded: list[Any] = []
        for view, size in zip(views, sizes, strict=True):
            padded += [view, bytes(size - view.nbytes)]
        try:
            written = os.pwrite(self._descriptor, b"".join(padded), place)
        except OSError:  # the disk is full: what is cached stays, no more is added
            written = -1
        if written != sum(sizes):
            self.full = True
            return
        self._next += written
        self._index[sample] = place

    def array(self, place: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Array at a place, not to be written to."""
        found: NDArray[Any] = np.ndarray(shape, dtype, buffer=self._map, offset=place)
        found.flags.writeable = False
        return found

    def view(self, place: int, size: int) -> memoryview:
        """``size`` bytes at a place."""
        return memoryview(self._map)[place : place + size].toreadonly()


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
