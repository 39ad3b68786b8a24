"""Which slab a batch is made in: the one that came back last, so that few are in use at a time."""

import multiprocessing

import numpy as np
import pytest

import unistore
from unistore.data.packed import Packed

PREFETCH = 8


class Gated:
    """Makes a batch whenever it is let to."""

    def __init__(self):
        self.gate = multiprocessing.get_context("fork").Semaphore(0)

    def __len__(self):
        return 1 << 10

    def __getitem__(self, index):
        return index

    def read_batch(self, indices, allocate=np.empty):
        self.gate.acquire()
        out = allocate((len(indices), 100), np.dtype(np.int64))
        out[:] = np.array([index for index, _ in indices])[:, None]
        return {"x": Packed(out)}


@pytest.mark.parametrize("workers", [0, 1])
def test_a_consumer_that_waits_meets_the_same_few_slabs(workers):
    dataset = Gated()
    loader = unistore.Loader(
        dataset,
        4,
        shuffle=False,
        num_workers=workers,
        multiprocessing_context="fork",
        prefetch_factor=PREFETCH,
    )
    addresses = []
    batches = iter(loader)
    try:
        for number in range(80):
            dataset.gate.release()
            batch = next(batches)
            assert batch["x"][:, 0].tolist() == list(range(4 * number, 4 * number + 4))
            addresses.append(batch["x"].data_ptr())
    finally:
        for _ in range(2 * PREFETCH):
            dataset.gate.release()
        loader.close()
    met = [len(set(addresses[at : at + 10])) for at in range(20, 80, 10)]  # some come back late
    assert min(met) < PREFETCH
