"""Memory that batches are read into: slabs, the arena of one batch, and the ring that reuses slabs."""

# Shared memory is a memfd (or an unlinked temporary file): it has no name and no ``/dev/shm`` limit, and is
# freed with the last process that maps it. Its pages are reserved when it is made, so that a lack of memory
# is an error here and not a SIGBUS during a decode, and mapped at once, so that batches cause no page
# faults. Private memory is mapped on use, in huge pages if the kernel has them

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
from functools import cached_property, partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from unistore.errors import LoaderError
from unistore.system.types import AnyArray, Shape

# Sizes of slabs are multiples of this: few distinct sizes, whole pages on every platform.
GRANULE = 64 * 1024
# Slabs are larger than most batches need by 1 / HEADROOM, and by at most MAX_HEADROOM bytes.
HEADROOM = 8
MAX_HEADROOM = 16 << 20
# Bytes: every array starts on a pair of cache lines, which suits any SIMD width.
ALIGNMENT = 128
_POPULATE = getattr(mmap, "MAP_POPULATE", 0)

_numbers = itertools.count(1)


def round_up(size: int) -> int:
    """Return ``size`` rounded up to a positive multiple of `GRANULE`."""
    return max(1, -(-size // GRANULE)) * GRANULE


def roomy(size: int) -> int:
    """Return the size of a slab for batches that need `size` bytes, or a little more."""
    return round_up(size + min(size // HEADROOM, MAX_HEADROOM))


def open_shared_memory(size: int) -> int:
    """Return the descriptor of ``size`` bytes of zeroed shared memory, all of them reserved."""
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
            f"there is no shared memory for a batch of {size:,} bytes: {error.strerror}. Fix: lower "
            "prefetch_factor, num_workers or batch_size, or release batches that are still referenced"
        )
        raise LoaderError(message) from error
    return descriptor


def reserve(descriptor: int, head: int, size: int) -> None:
    """Set the size of a new file, and allocate its first `head` bytes."""
    # On file systems in memory, access to unallocated bytes through a mapping may end in SIGBUS
    os.ftruncate(descriptor, size)
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, head)


class Slab:
    """A piece of memory for one batch, mapped on first use.

    The mapping is never closed explicitly: it ends with the last object that refers to it.
    """

    def __init__(self, size: int, descriptor: int | None = None) -> None:
        self.number = next(_numbers)  # unique in this process
        self.size = size  # a multiple of `GRANULE`
        self.descriptor = descriptor

    @cached_property
    def map(self) -> mmap.mmap:
        if self.descriptor is not None:
            return mmap.mmap(self.descriptor, self.size, flags=mmap.MAP_SHARED | _POPULATE)
        mapping = mmap.mmap(-1, self.size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANON)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel without huge pages
                mapping.madvise(mmap.MADV_HUGEPAGE)
        return mapping

    @cached_property
    def address(self) -> int:
        return ctypes.addressof(ctypes.c_char.from_buffer(self.map))

    def lease(self, release: Callable[[], object]) -> ctypes.Array[Any]:
        """Return a buffer over the whole slab, and call ``release`` once nothing refers to it."""
        # The finalizer must be on the buffer, not on an array: numpy collapses chains of ``.base``, so an
        # array between views and buffer dies before the views
        buffer = (ctypes.c_char * self.size).from_buffer(self.map)
        weakref.finalize(buffer, release).atexit = False
        return buffer

    def retire(self) -> None:
        """Close the descriptor. The memory stays until no batch refers to it."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


class Arena:
    """Allocates the arrays of one batch in a slab, and in ordinary memory those that do not fit."""

    def __init__(self, slab: Slab | None, buffer: Any = None) -> None:
        self._slab = slab
        # what arrays are views of: a lease, or the mapping
        self._buffer = slab.map if slab is not None and buffer is None else buffer
        self._end = 0
        self.needed = 0  # bytes of all arrays of the batch
        self.overflow = 0  # of those that did not fit

    def allocate(self, shape: Shape, dtype: np.dtype[Any]) -> AnyArray:
        """Return uninitialised C-contiguous memory that reaches the consumer without a copy."""
        dtype = np.dtype(dtype)
        size = dtype.itemsize * prod(map(int, shape))
        rounded = -(-size // ALIGNMENT) * ALIGNMENT
        if dtype.hasobject:
            return np.empty(shape, dtype)
        self.needed += rounded
        if not self.has_room(size):
            self.overflow += rounded
            return np.empty(shape, dtype)
        offset = self._end
        self._end += rounded
        return np.ndarray(shape, dtype, self._buffer, offset)

    def has_room(self, size: int) -> bool:
        return self._slab is not None and self._end + size <= self._slab.size

    def find(self, address: int, size: int) -> int | None:
        """Return the offset in the slab of ``size`` bytes at a memory address, None if they lie elsewhere."""
        if self._slab is None:
            return None
        offset = address - self._slab.address
        return offset if 0 <= offset <= self._slab.size - size else None


# Bytes of prefetched batches, see `SlabRing.batches_in_flight`.
MAX_PREFETCHED = 256 << 20
# Number of recent batches whose sizes decide the size of a slab.
HISTORY = 64
# Share of the recent batches that must fit into a slab; of larger ones a part is copied.
QUANTILE = 0.95


class SlabRing:
    """Lends shared-memory buffers to batches, and adapts their size to the batches.

    Slabs are never resized: when batches grow, slabs of the old size are replaced as they are returned.

    Parameters
    ----------
    in_flight : int
        Number of buffers for batches that are being decoded or wait to be delivered.
    held : int
        Number of buffers for batches that the consumer holds. Further batches are copied.
    budget : int
        Limit for all buffers together, in bytes. Two buffers are always allowed.
    least : int, default 2
        Number of batches that are prefetched whatever their size, as far as the budget allows.
    shared : bool, default False
        Whether buffers are shared memory, for workers.
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
        shared: bool = False,  # whether slabs are shared memory, for workers
    ) -> None:
        self._min_in_flight = least
        self._in_flight = in_flight
        self._held = held
        self._budget = budget
        self._shared = shared
        self._free: list[Slab] = []
        self._slabs: dict[int, Slab] = {}
        self._returned: deque[Slab] = deque()
        self._lent = 0
        self._needs: deque[int] = deque(maxlen=HISTORY)
        self._resize(0)

    def _resize(self, size: int) -> None:
        self.slab_size = size  # 0 until the size of a batch is known, and while batches need no memory
        ahead = min(self._in_flight, max(self._min_in_flight, MAX_PREFETCHED // max(1, size)))
        self.limit = max(2, min(ahead + self._held, self._budget // max(1, size)))
        # one until their size is known, then as many as the budget allows
        self.batches_in_flight = max(1, min(ahead, self.limit - 1)) if self._needs else 1

    def take(self) -> Slab | None:
        """Return a slab for one batch, None if there is none to lend."""
        self._collect()
        if not self.slab_size:
            return None
        if self._free:
            return self._free.pop()
        if len(self._slabs) >= self.limit:
            return None
        slab = Slab(self.slab_size, open_shared_memory(self.slab_size) if self._shared else None)
        self._slabs[slab.number] = slab
        return slab

    def adopt(self, descriptor: int) -> Slab:
        """Return a slab of memory that a worker made, and sent with a batch for which it had none."""
        slab = Slab(os.fstat(descriptor).st_size, descriptor)
        self._slabs[slab.number] = slab
        return slab

    def put(self, slab: Slab) -> None:
        if slab.size == self.slab_size and len(self._slabs) <= self.limit:
            self._free.append(slab)
        elif slab.number in self._slabs:
            slab.retire()
            del self._slabs[slab.number]

    def can_lend(self) -> bool:
        self._collect()
        return self._lent < min(self._held, self.limit - 1)

    def lend(self, slab: Slab) -> Any:
        """Return a buffer over a slab for the consumer. The slab returns once nothing refers to it."""
        self._lent += 1
        return slab.lease(partial(self._returned.append, slab))

    def observe(self, needed: int) -> None:
        first = not self._needs
        self._needs.append(needed)
        if first and not needed:  # batches without arrays: their number is no longer limited to one
            self._resize(0)
        if needed > self.slab_size:
            usual = float(np.quantile(np.array(self._needs), QUANTILE, method="inverted_cdf"))
            if usual > self.slab_size:
                self._resize(roomy(int(usual)))
                free = self._free
                self._free = []
                for slab in free:
                    self.put(slab)

    def close(self) -> None:
        """Retire all slabs. Memory that batches still refer to is freed with them."""
        for slab in self._slabs.values():
            slab.retire()
        self._slabs.clear()
        self._free.clear()
        self._resize(0)

    def _collect(self) -> None:
        while self._returned:
            self._lent -= 1
            self.put(self._returned.popleft())
