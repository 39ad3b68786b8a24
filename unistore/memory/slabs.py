"""The ring: slabs of memory that are lent to batches and come back when nothing views them."""

from __future__ import annotations

import itertools
import os
from collections import deque
from typing import Any

import numpy as np

from unistore.memory.segments import Segment, round_up

__all__ = ["Slab", "SlabRing"]

HEADROOM, MOST_HEADROOM = 8, 16 << 20
"""Slabs are larger than what most batches need by one part in so many, and by not more than so many bytes."""
PREFETCHED = 256 << 20
"""Bytes of batches that are made ahead, see `SlabRing.batches_in_flight`."""
REMEMBERED = 64
"""Batches whose sizes decide the size of a slab."""
MOST = 0.95
"""Part of the remembered batches that must fit into a slab; larger ones get memory of their own."""

_numbers = itertools.count(1)


class Slab:
    """One piece of the ring.

    Attributes
    ----------
    number
        Unique in this process; under it workers know the slab.
    size
        Bytes.
    descriptor
        Of the shared memory, for sending; None for memory of this process alone.
    """

    __slots__ = ("__weakref__", "_segment", "descriptor", "number", "size")

    def __init__(self, size: int) -> None:
        self.number = next(_numbers)
        self.size = size
        self.descriptor: int | None = None
        self._segment: Segment | None = None

    @property
    def segment(self) -> Segment:
        """The memory, which exists once it is needed: of this process alone, unless a worker has made it."""
        if self._segment is None:
            self._segment = Segment.private(self.size)
        return self._segment

    def made(self, descriptor: int) -> None:
        """Map the memory that a worker has made for it; the descriptor is the slab's from now on."""
        self.descriptor = descriptor
        self._segment = Segment.shared(descriptor, self.size)

    def retire(self) -> None:
        """Close the descriptor. The memory lives on until no batch views it."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


class SlabRing:
    """Lends slabs, counts what is on loan, and finds the size that fits.

    Nothing is resized: when batches turn out larger, slabs of the old size are replaced as they come back.

    Parameters
    ----------
    in_flight
        Slabs that batches being decoded, or waiting to be delivered, may take.
    held
        Further slabs, for batches that the consumer holds. Batches held beyond that are copied.
    budget
        Bytes that all slabs together may take; at least two slabs are allowed whatever their size.
    least
        Batches that are decoded ahead however large they are, as far as the budget allows it.

    Attributes
    ----------
    slab_size
        Bytes; 0 until the size of a batch is known, and while batches need no memory.
    limit
        Slabs that may exist.
    batches_in_flight
        Batches that may be decoded ahead: one until its size is known, then what fits into the budget.
    """

    def __init__(self, *, in_flight: int, held: int, budget: int, least: int = 2) -> None:
        self._least = least
        self._in_flight = in_flight
        self._held = held
        self._budget = budget
        self._free: list[Slab] = []
        self._slabs: dict[int, Slab] = {}
        self._retired: list[int] = []
        self._returned: deque[Slab | None] = deque()
        self._on_loan = 0
        self._needs: deque[int] = deque(maxlen=REMEMBERED)
        self._resize(0)

    def _resize(self, size: int) -> None:
        """Settle the size of slabs, and with it how many there are."""
        self.slab_size = size
        # as many ahead as asked for, but of large ones `PREFETCHED` bytes at most
        ahead = min(self._in_flight, max(self._least, PREFETCHED // max(1, size)))
        self.limit = max(2, min(ahead + self._held, self._budget // max(1, size)))
        self.batches_in_flight = max(1, min(ahead, self.limit - 1)) if self._needs else 1

    def take(self) -> Slab | None:
        """Return a slab for one batch, perhaps without memory yet; None: the batch then brings its own."""
        self._collect()
        if not self.slab_size:
            return None
        if self._free:
            return self._free.pop()
        if len(self._slabs) >= self.limit:
            return None
        slab = Slab(self.slab_size)
        self._slabs[slab.number] = slab
        return slab

    def put(self, slab: Slab) -> None:
        """Take back a slab that no batch was delivered from."""
        if slab.size == self.slab_size:
            self._free.append(slab)
        elif slab.number in self._slabs:
            slab.retire()
            del self._slabs[slab.number]
            self._retired.append(slab.number)

    def may_lend(self) -> bool:
        """Whether one more batch may be delivered where it lies; otherwise copy it."""
        self._collect()
        return self._on_loan < min(self._held, self.limit - 1)

    def lend(self, slab: Slab | None, extra: list[Segment]) -> list[Any]:
        """Lend a batch's memory to the consumer.

        Parameters
        ----------
        slab
            The batch's slab; None if it has none.
        extra
            Memory of the batch's own.

        Returns
        -------
        One buffer a segment, slab first (a placeholder without one). The slab is back when all are gone.
        """
        returned = self._returned
        leases: list[Any] = [b""]
        if slab is not None:
            lent = slab
            leases[0] = lent.segment.lease(lambda: returned.append(lent))
            self._on_loan += 1
        for segment in extra:
            leases.append(segment.lease(lambda: returned.append(None)))
            self._on_loan += 1
        return leases

    def observe(self, needed: int) -> None:
        """Learn from the bytes a batch needed."""
        first = not self._needs
        self._needs.append(needed)
        if first and not needed:  # all of it travels in messages
            self._resize(0)
        if needed > self.slab_size:
            usual = float(np.quantile(np.array(self._needs), MOST, method="inverted_cdf"))
            if usual > self.slab_size:
                self._resize(round_up(int(usual + min(usual / HEADROOM, MOST_HEADROOM))))
                free, self._free = self._free, []
                for slab in free:
                    self.put(slab)

    def retired(self) -> list[int]:
        """Slabs that workers may forget, told once."""
        gone, self._retired = self._retired, []
        return gone

    def close(self) -> None:
        """Give everything up; memory that batches still view goes with the last of them."""
        for slab in self._slabs.values():
            slab.retire()
        self._slabs.clear()
        self._free.clear()
        self._resize(0)

    def _collect(self) -> None:
        while self._returned:
            slab = self._returned.popleft()
            self._on_loan -= 1
            if slab is not None:
                self.put(slab)
