"""Slabs are lent, come back with the last view of a batch, and keep to their budget."""

from __future__ import annotations

import gc
from types import SimpleNamespace

import numpy as np
import torch

from unistore.memory import Slab, SlabRing


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


def test_finalizer_of_a_lease_runs_once_and_after_the_last_user():
    calls = []
    slab = Slab(1 << 16)
    lease = slab.lease(lambda: calls.append(1))
    keeper = SimpleNamespace(array=np.ndarray(8, np.uint8, buffer=lease, offset=3))
    del lease
    gc.collect()
    assert not calls
    keeper.array = torch.from_numpy(keeper.array)[2:4].view(1, 2)
    gc.collect()
    assert not calls
    del keeper
    gc.collect()
    assert calls == [1]
