"""Batches that are held stay what they were, while the memory around them is used again and again."""

from __future__ import annotations

import copy
import gc
import itertools
import pickle
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from unistore.loader import Loader, SampleError
from unistore.loader.producers import HELD_BATCHES

pytestmark = pytest.mark.usefixtures("nothing_left")


def views(x):
    """Things that a training loop does with a tensor."""
    return [
        x,
        x[1:3],
        x[:, ::2],
        x.reshape(-1),
        x.T,
        x.view(torch.int32),
        x.numpy()[2:].reshape(-1)[3:],
        torch.from_numpy(x.numpy()[::-1].copy())[1:],
        torch.utils.dlpack.from_dlpack(x[1:]),
        memoryview(x.numpy())[1:],
        np.lib.stride_tricks.sliding_window_view(x.numpy()[0], 5),
        x.unbind(0)[0],
        x.untyped_storage(),
    ]


def remembered(view):
    """What a view holds, in memory of its own."""
    return copy.deepcopy(np.asarray(view.tolist()))


@pytest.mark.parametrize("workers", [0, 2])
def test_views_of_a_batch_stay_intact_while_hundreds_of_batches_flow(data, workers):
    """Views of the first three batches are held all the time; others come and go meanwhile."""
    rng = random.Random(0)
    first, passing = [], []
    flowed = 0
    with Loader(
        data.Batched(1_512, 8), 4, shuffle=True, seed=1, num_workers=workers, prefetch_factor=3
    ) as loader:
        for batch in itertools.chain(loader, loader):
            flowed += 1
            if flowed <= 3:
                first += [(view, remembered(view)) for view in views(batch["x"])]
            elif flowed % 16 == 0:
                made = views(batch["x"])
                view = made[rng.randrange(len(made))]
                passing.append((view, remembered(view)))
                del made, view
            if len(passing) > rng.randrange(1, 12):
                view, expected = passing.pop(rng.randrange(len(passing)))
                assert np.array_equal(remembered(view), expected)
                del view
        stats = loader.stats()
    del batch
    assert flowed - 3 >= 750
    assert stats["slab_misses"] < flowed / 10
    assert 0 < stats["copies"] < flowed  # some lie where they were decoded, some were copied
    for view, expected in first + passing:
        assert np.array_equal(remembered(view), expected)
    del view
    first.clear()
    passing.clear()
    gc.collect()


@pytest.mark.parametrize("workers", [0, 2])
def test_all_batches_of_an_epoch_may_be_held_even_past_the_loader(data, workers):
    with Loader(data.Batched(800, 100), 8, shuffle=False, num_workers=workers) as loader:
        first = list(loader)
        second = list(loader)
    del loader
    for batches in (first, second):
        assert torch.equal(torch.cat([batch["index"] for batch in batches]), torch.arange(800))
        assert all(torch.equal(batch["x"][:, 99], batch["index"] * 1000 + 99) for batch in batches)


def test_slabs_that_were_made_for_batches_that_failed_are_used_again(data, census):
    class Half(data.Batched):
        def read_batch(self, indices, allocate=np.empty):
            batch = super().read_batch(indices, allocate)
            if indices[0][0] // 4 % 2:
                raise OSError(5, "the disk says no")
            return batch

    held, number = [], 0
    with Loader(Half(800), 4, shuffle=False, num_workers=2, prefetch_factor=3) as loader:
        batches = iter(loader)
        while True:
            try:
                batch = next(batches)
            except StopIteration:
                break
            except SampleError:
                assert number % 2
            else:
                held = [*held, (number, batch["x"])][-3:]
            for place, x in held:
                assert torch.equal(x[:, 5], 1000 * torch.arange(4 * place, 4 * place + 4) + 5)
            number += 1
        del batch, x
        assert number == 200
        slabs = [entry for entry in census.descriptors() if entry.startswith("/memfd:unistore")]
        assert len(slabs) <= 2 * 3 + HELD_BATCHES + 1  # and a page that workers look at
    held.clear()


def test_the_first_batch_of_a_worker_comes_in_shared_memory(data):
    with Loader(data.Batched(40, 20_000), 4, shuffle=False, num_workers=1) as loader:
        batch = next(iter(loader))
        assert torch.equal(batch["x"][:, 7], 1000 * torch.arange(4) + 7)
        address = batch["x"].data_ptr()
    ranges = {}
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, _, end = line.split()[0].partition("-")
        ranges[range(int(start, 16), int(end, 16))] = line
    (mapping,) = (line for addresses, line in ranges.items() if address in addresses)
    assert "/memfd:unistore" in mapping


def test_batches_may_be_written_to_and_pickled(data):
    with Loader(data.Batched(), 10, shuffle=False, num_workers=1) as loader:
        for _ in range(4):
            for batch in loader:
                again = pickle.loads(pickle.dumps(batch))
                batch["x"].zero_()
                assert torch.equal(again["x"][:, 0], again["index"] * 1000)
