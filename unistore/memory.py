"""Memory of batches: mapped segments, arenas that allocate in them, and the ring of slabs.

A segment of shared memory is a memfd (or an unlinked temporary file): it has no name and no ``/dev/shm``
limit, and is freed with the last process that maps it. Its pages are reserved when it is made, so that a lack
of memory is an error here and not a SIGBUS during a decode, and mapped at once, so that batches cause no page
faults. Private segments are mapped on use, in huge pages if the kernel has them.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import mmap
import os
import tempfile
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.errors import LoaderError

GRANULE = 64 * 1024
"""Segment sizes are multiples of this: few distinct sizes, whole pages on every platform."""
ALIGNMENT = 128
"""Bytes: every array starts on a pair of cache lines, which suits any SIMD width."""
FRACTION = 4
"""A further segment has at least 1 / FRACTION of the bytes allocated so far: few segments, little waste."""
SegmentOffset = tuple[int, int]
"""(segment, byte offset): segment 0 is the slab; 1, 2, … are further segments in the order made."""
_POPULATE = getattr(mmap, "MAP_POPULATE", 0)


def round_up(size: int) -> int:
    """Return ``size`` rounded up to a positive multiple of `GRANULE`."""
    return max(1, -(-size // GRANULE)) * GRANULE


def open_shared_memory(size: int) -> int:
    """Return the descriptor of ``size`` bytes of zeroed shared memory, all of them reserved.

    Raises `LoaderError` if the machine or container has too little memory left.
    """
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("unistore", os.MFD_CLOEXEC)
    else:
        descriptor, name = tempfile.mkstemp(prefix="unistore-")
        Path(name).unlink()
    try:
        reserve(descriptor, size, size)
    except OSError as error:
        os.close(descriptor)
        message = (
            f"no shared memory for a batch of {size:,} bytes ({error.strerror}): "
            "lower prefetch_factor, num_workers or batch_size, or release batches that are still referenced"
        )
        raise LoaderError(message) from error
    return descriptor


def reserve(descriptor: int, head: int, size: int) -> None:
    """Set the size of a new file, and allocate its first `head` bytes.

    On file systems in memory, access to unallocated bytes through a mapping may end in SIGBUS.
    """
    os.ftruncate(descriptor, size)
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, head)


class Segment:
    """Mapped memory for batches: the mapping, its bytes (a multiple of `GRANULE`), the address of the first.

    The mapping is never closed explicitly: it ends with the last object that refers to it.
    """

    __slots__ = ("__weakref__", "address", "map", "size")

    def __init__(self, mapping: mmap.mmap, size: int) -> None:
        self.map = mapping
        self.size = size
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(mapping))

    @classmethod
    def private(cls, size: int) -> Segment:
        """Return the anonymous memory of this process."""
        mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANON)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel without huge pages
                mapping.madvise(mmap.MADV_HUGEPAGE)
        return cls(mapping, size)

    @classmethod
    def shared(cls, descriptor: int, size: int) -> Segment:
        """Map the shared memory of a descriptor, which the caller keeps."""
        return cls(mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED | _POPULATE), size)

    def lease(self, release: Callable[[], object] | None = None) -> ctypes.Array[Any]:
        """Return a buffer over the whole segment; ``release`` is called once nothing refers to it.

        All arrays of a batch are views of this buffer. The finalizer must be on the buffer, not on an array:
        numpy collapses chains of ``.base``, so an array between views and buffer dies before the views.
        """
        buffer = (ctypes.c_char * self.size).from_buffer(self.map)
        if release is not None:
            weakref.finalize(buffer, release).atexit = False
        return buffer


class Arena:
    """Allocates memory for one batch, and finds arrays that already lie in it."""

    def __init__(
        self,
        slab: Segment | None,  # memory of the slab lent to this batch; None: no slab
        # makes a further segment of at least that many bytes. None: arrays that do not fit into the slab get
        # ordinary memory
        grow: Callable[[int], Segment] | None = None,
        # buffer that arrays in the slab are views of, such as a lease. None: the slab's mapping
        over: Any = None,
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
        rounded = -(-size // ALIGNMENT) * ALIGNMENT
        self.needed += rounded
        if self._end + size > self._segments[-1][2]:
            if self._grow is None:
                return np.empty(shape, dtype)
            segment = self._grow(round_up(max(rounded, self.needed // FRACTION)))
            self._segments.append((segment.map, segment.address, segment.size))
            self._end = 0
        offset = self._end
        self._end += rounded
        return np.ndarray(shape, dtype, buffer=self._segments[-1][0], offset=offset)

    def find(self, address: int, size: int) -> SegmentOffset | None:
        """Return the segment and offset of ``size`` bytes at a memory address; None if they lie elsewhere."""
        for number, (_, first, extent) in enumerate(self._segments):
            if first <= address and address + size <= first + extent:
                return number, address - first
        return None


class SharedGrowth:
    """Lets an `Arena` grow by shared segments; keeps their descriptors until they are sent to the parent."""

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
        """Forget the segments; the parent has copies of the descriptors that were sent."""
        self.sizes.clear()
        while self.descriptors:
            os.close(self.descriptors.pop())


# The slab ring: memory that is lent to batches and reused once nothing refers to a batch.

HEADROOM = 8
MAX_HEADROOM = 16 << 20
"""Slabs are larger than most batches need by 1 / HEADROOM, and by at most MAX_HEADROOM bytes."""
MAX_PREFETCHED = 256 << 20
"""Bytes of prefetched batches, see `SlabRing.batches_in_flight`."""
HISTORY = 64
"""Number of recent batches whose sizes decide the size of a slab."""
QUANTILE = 0.95
"""Share of the recent batches that must fit into a slab; larger ones get further segments."""

_numbers = itertools.count(1)


class Slab:
    """One piece of the ring, of `size` bytes.

    Its number, unique in this process, identifies it to workers, to which the descriptor of shared memory is
    sent. Private memory has none.
    """

    __slots__ = ("__weakref__", "_segment", "descriptor", "number", "size")

    def __init__(self, size: int, *, shared: bool) -> None:
        self.number = next(_numbers)
        self.size = size
        self.descriptor = open_shared_memory(size) if shared else None
        self._segment: Segment | None = None

    @property
    def segment(self) -> Segment:
        """The memory, mapped on first use."""
        if self._segment is not None:
            return self._segment
        if self.descriptor is None:
            self._segment = Segment.private(self.size)
        else:
            self._segment = Segment.shared(self.descriptor, self.size)
        return self._segment

    def retire(self) -> None:
        """Close the descriptor. The memory stays until no batch refers to it."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


class SlabRing:
    """Lends slabs to batches, and adapts the slab size to the batches.

    Slabs are never resized: when batches grow, slabs of the old size are replaced by larger ones as they are
    returned.
    """

    def __init__(
        self,
        *,
        # slabs for batches that are being decoded or wait to be delivered, and for those that the consumer
        # keeps. Batches beyond that are copied
        in_flight: int,
        held: int,
        budget: int,  # bytes of all slabs together; at least two slabs are allowed whatever their size
        least: int = 2,  # batches that are prefetched however large they are, as far as the budget allows
        # whether slabs are shared memory, for workers, or private memory of this process
        shared: bool = False,
    ) -> None:
        self._min_in_flight = least
        self._in_flight = in_flight
        self._held = held
        self._budget = budget
        self._shared = shared
        self._free: list[Slab] = []
        self._slabs: dict[int, Slab] = {}
        self._returned: deque[Slab | None] = deque()
        self._lent = 0
        self._needs: deque[int] = deque(maxlen=HISTORY)
        self._resize(0)

    def _resize(self, size: int) -> None:
        """Set the size of new slabs, and with it their number."""
        self.slab_size = size  # 0 until the size of a batch is known, and while batches need no memory
        ahead = min(self._in_flight, max(self._min_in_flight, MAX_PREFETCHED // max(1, size)))
        self.limit = max(2, min(ahead + self._held, self._budget // max(1, size)))
        # one until their size is known, then as many as the budget allows
        self.batches_in_flight = max(1, min(ahead, self.limit - 1)) if self._needs else 1

    def take(self) -> Slab | None:
        """Return a slab for one batch; None if there is none to lend."""
        self._collect()
        if not self.slab_size:
            return None
        if self._free:
            return self._free.pop()
        if len(self._slabs) >= self.limit:
            return None
        slab = Slab(self.slab_size, shared=self._shared)
        self._slabs[slab.number] = slab
        return slab

    def put(self, slab: Slab) -> None:
        """Return a slab to the ring."""
        if slab.size == self.slab_size:
            self._free.append(slab)
        elif slab.number in self._slabs:
            slab.retire()
            del self._slabs[slab.number]

    def can_lend(self) -> bool:
        """Return whether one more batch may be delivered without a copy."""
        self._collect()
        return self._lent < min(self._held, self.limit - 1)

    def lend(self, slab: Slab | None, extra: list[Segment]) -> list[Any]:
        """Lend a batch's memory to the consumer: its slab, if it has one, and further segments.

        Returns one buffer per segment, the slab's first (``b""`` without a slab). The slab returns to the
        ring once nothing refers to its buffer.
        """
        leases: list[Any] = [b""]
        if slab is not None:
            leases[0] = slab.segment.lease(partial(self._returned.append, slab))
        leases += [segment.lease(partial(self._returned.append, None)) for segment in extra]
        self._lent += len(extra) + (slab is not None)
        return leases

    def observe(self, needed: int) -> None:
        """Adapt the slab size to the bytes that a batch needed."""
        first = not self._needs
        self._needs.append(needed)
        if first and not needed:  # batches without arrays: their number is no longer limited to one
            self._resize(0)
        if needed > self.slab_size:
            usual = float(np.quantile(np.array(self._needs), QUANTILE, method="inverted_cdf"))
            if usual > self.slab_size:
                self._resize(round_up(int(usual + min(usual / HEADROOM, MAX_HEADROOM))))
                free = self._free
                self._free = []
                for slab in free:
                    self.put(slab)

    def close(self) -> None:
        """Retire all slabs; memory that batches still refer to is freed with them."""
        for slab in self._slabs.values():
            slab.retire()
        self._slabs.clear()
        self._free.clear()
        self._resize(0)

    def _collect(self) -> None:
        while self._returned:
            slab = self._returned.popleft()
            self._lent -= 1
            if slab is not None:
                self.put(slab)
