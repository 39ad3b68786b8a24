"""The slab ring: memory that is lent to batches and reused once nothing refers to a batch."""

from __future__ import annotations

import itertools
import os
from collections import deque
from functools import partial
from typing import Any

import numpy as np

from unistore.memory.segments import Segment, open_shared_memory, round_up

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

    Attributes
    ----------
    slab_size, limit
        Bytes of a slab, 0 until the size of a batch is known, and while batches need no memory; and the
        largest number of slabs.
    batches_in_flight
        Batches that may be prefetched: one until its size is known, then as many as the budget allows.
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
        self.slab_size = size
        ahead = min(self._in_flight, max(self._min_in_flight, MAX_PREFETCHED // max(1, size)))
        self.limit = max(2, min(ahead + self._held, self._budget // max(1, size)))
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
