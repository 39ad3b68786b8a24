"""Slabs are lent, come back with the last view of a batch, and keep to their budget."""

from __future__ import annotations

import gc

import numpy as np
import torch

from unistore.memory import SlabRing


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
