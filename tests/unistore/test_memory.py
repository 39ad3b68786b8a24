"""Slabs are lent, come back with the last view of a batch, and keep to their budget."""

from __future__ import annotations

import gc

import numpy as np
import torch

from unistore.memory import SlabRing, open_shared_memory, roomy


def test_a_slab_comes_back_with_its_last_view_and_not_before():
    ring = SlabRing(in_flight=2, held=2, budget=1 << 30)
    ring.observe(1000)
    slab = ring.take()
    lease = ring.lend(slab)
    array = np.ndarray(100, np.int64, buffer=lease)
    del lease
    view = torch.from_numpy(array[10:20].reshape(5, 2))[1:]
    del array
    gc.collect()
    others = [ring.take() for _ in range(3)]
    assert slab not in others
    assert ring.take() is None
    del view
    gc.collect()
    assert ring.take() is slab
    for each in others:
        ring.put(each)


def test_a_slab_that_a_worker_made_is_lent_again_and_counts_for_the_limit():
    ring = SlabRing(in_flight=1, held=1, budget=1 << 30, least=1, shared=True)
    adopted = ring.adopt(open_shared_memory(roomy(100_000)))
    ring.observe(100_000)
    assert adopted.size == ring.slab_size
    ring.put(adopted)
    slabs = [ring.take() for _ in range(ring.limit)]
    assert slabs[0] is adopted
    assert ring.take() is None
    surplus = ring.adopt(open_shared_memory(roomy(100_000)))
    ring.put(surplus)
    assert surplus.descriptor is None
    assert ring.take() is None
    ring.close()
