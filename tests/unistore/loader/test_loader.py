"""Loader: what is delivered, in which order, whatever makes it."""

from __future__ import annotations

import itertools
import threading

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from unistore.data.packed import Packed
from unistore.errors import InputError
from unistore.loader import Loader, LoaderError
from unistore.order.sequences import InOrder

pytestmark = pytest.mark.usefixtures("nothing_left")


def indices(loader):
    return [batch["index"].tolist() for batch in loader]


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_delivers_what_the_dataset_holds(data, workers):
    with Loader(data.Batched(), 8, shuffle=False, num_workers=workers) as loader:
        batches = list(loader)
    assert len(batches) == len(loader) == 25
    assert [i for batch in batches for i in batch["index"].tolist()] == list(range(200))
    for batch in batches:
        index = batch["index"]
        assert torch.equal(batch["x"], index[:, None] * 1000 + torch.arange(64))
        assert torch.equal(batch["offsets"].diff(), index % 5)
        assert torch.equal(batch["points"][:, 0], torch.repeat_interleave(index, index % 5).float())


def test_without_workers_nothing_but_the_consumer_reads(data):
    made_by = set()

    class Recording(data.Batched):
        def read_batch(self, indices, allocate=np.empty):
            made_by.add(threading.get_ident())
            return super().read_batch(indices, allocate)

    before = threading.active_count()
    with Loader(Recording(40), 4, num_workers=0) as loader:
        for _ in loader:
            assert threading.active_count() == before
    assert made_by == {threading.get_ident()}


def test_order_does_not_depend_on_who_makes_batches(data):
    runs = []
    for workers, prefetch in ((0, 1), (0, 5), (1, 2), (2, 1), (3, 4)):
        with Loader(
            data.Batched(), 8, shuffle=True, seed=3, num_workers=workers, prefetch_factor=prefetch
        ) as loader:
            runs.append([indices(loader) for _ in range(2)])
    assert all(run == runs[0] for run in runs)
    first, second = runs[0]
    assert first != second
    assert sorted(itertools.chain(*first)) == sorted(itertools.chain(*second)) == list(range(200))


@pytest.mark.parametrize("workers", [0, 2])
def test_plain_datasets_are_collated_as_torch_does(data, workers):
    dataset = data.Plain()
    expected = list(DataLoader(dataset, 8))
    with Loader(dataset, 8, shuffle=False, num_workers=workers) as loader:
        found = list(loader)
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.keys() == theirs.keys()
        for key in ("image", "array", "label"):
            assert torch.equal(ours[key], theirs[key])
            assert ours[key].dtype == theirs[key].dtype
        assert ours["name"] == theirs["name"]
        assert all(torch.equal(a, b) for a, b in zip(ours["pair"], theirs["pair"], strict=True))


def test_permuted_images_keep_their_strides(data):
    class Images(data.Batched):
        def read_batch(self, indices, allocate=np.empty):
            out = allocate((len(indices), 4, 5, 3), np.dtype(np.uint8))
            out[:] = np.array([each[0] for each in indices])[:, None, None, None]
            return {"image": Packed(out.transpose(0, 3, 1, 2))}

    with Loader(Images(), 10, shuffle=True, num_workers=1) as loader:
        for batch in loader:
            assert batch["image"].shape == (10, 3, 4, 5)
            assert batch["image"].is_contiguous(memory_format=torch.channels_last)


def test_an_iteration_that_was_replaced_says_so(data):
    with Loader(data.Batched(), 8, shuffle=True, num_workers=1) as loader:
        old = iter(loader)
        next(old)
        new = iter(loader)
        next(new)
        with pytest.raises(LoaderError, match="another one"):
            next(old)
        next(new)
    with pytest.raises(LoaderError, match="closed"):
        next(new)


def test_batches_of_very_different_sizes(data):
    class Growing(data.Batched):
        def read_batch(self, indices, allocate=np.empty):
            index = np.array([each[0] for each in indices])
            out = allocate((int(index.max()) ** 2 * 40 + 1,), np.dtype(np.uint8))
            out[:] = index.max() % 251
            more = allocate((7,), np.dtype(np.int16))
            more[:] = 3
            return {
                "index": Packed(index),
                "out": Packed(out[:, None]),
            }

    with Loader(Growing(100), 1, shuffle=True, num_workers=2, prefetch_factor=3) as loader:
        for _ in range(2):
            for batch in loader:
                index = int(batch["index"][0])
                assert batch["out"].shape[0] == index**2 * 40 + 1
                assert int(batch["out"].min()) == int(batch["out"].max()) == index % 251
        assert loader.stats()["slab_misses"] < 60


def test_stats_and_report(data, capsys):
    with Loader(data.Batched(), 10, shuffle=True, num_workers=1, log_every=5) as loader:
        list(loader)
        stats = loader.stats()
    assert stats["batches"] == 20
    assert stats["samples"] == 200
    assert stats["bytes"] > 200 * 64 * 8
    assert stats["decode_seconds"] > 0
    assert stats["wait_seconds"] > 0
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 4
    assert "data_time" in lines[0]
    assert "epoch 0 batch 20" in lines[-1]


def test_empty_datasets_and_short_ones(data):
    for workers in (0, 1):
        with Loader(data.Batched(0), 8, shuffle=True, num_workers=workers) as loader:
            assert list(loader) == []
        with Loader(data.Batched(3), 8, shuffle=True, num_workers=workers) as loader:
            assert [len(batch["x"]) for batch in loader] == [3]
        with Loader(data.Batched(3), 8, shuffle=True, drop_last=True, num_workers=workers) as loader:
            assert list(loader) == []


def test_subsets_and_weights(data):
    chosen = np.arange(50, 150)
    with Loader(data.Batched(), 10, shuffle=True, subset=chosen, num_workers=1) as loader:
        assert sorted(itertools.chain(*indices(loader))) == chosen.tolist()
    weights = np.zeros(200)
    weights[[3, 7]] = 1, 3
    with Loader(
        data.Batched(), 100, shuffle=True, weights=weights, samples_per_epoch=2000, num_workers=1
    ) as loader:
        drawn = np.array(list(itertools.chain(*indices(loader))))
    assert set(drawn) == {3, 7}
    assert abs(np.mean(drawn == 7) - 0.75) < 0.05


def test_pinning_without_an_accelerator_is_ignored_and_said(data):
    if torch.cuda.is_available():
        pytest.skip("this machine has an accelerator")
    with pytest.warns(UserWarning, match="pin_memory"):
        loader = Loader(data.Batched(), 10, shuffle=True, num_workers=0, pin_memory=True)
    with loader:
        assert len(list(loader)) == 20


def test_pinning_copies_every_tensor_of_a_batch(data, monkeypatch):
    monkeypatch.setattr("unistore.loader.loader._can_pin", lambda: True)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor, device=None: tensor + 1)
    with Loader(data.Batched(), 10, False, num_workers=1, pin_memory=True) as loader:
        batch = next(iter(loader))
    assert batch["index"].tolist() == list(range(1, 11))
    assert batch["offsets"][0] == 1


def test_options_that_contradict_each_other(data):
    dataset = data.Batched()
    with pytest.raises(InputError, match="a sampler decides") as caught:
        Loader(dataset, 8, shuffle=True, sampler=InOrder(200), subset=[1], weights=[1], samples_per_epoch=3)
    assert [problem.location for problem in caught.value.problems] == [
        "shuffle", "subset", "weights", "samples_per_epoch",
    ]  # fmt: skip
    with pytest.raises(InputError, match="needs weights"):
        Loader(dataset, 8, shuffle=True, samples_per_epoch=10)
    with pytest.raises(InputError, match="3 weights for 200 samples"):
        Loader(dataset, 8, shuffle=True, weights=[1, 2, 3])
    with pytest.raises(InputError, match="all weights are zero"):
        Loader(dataset, 8, shuffle=True, weights=np.zeros(200))
    with pytest.raises(InputError, match="one bool a sample, got float64"):
        Loader(dataset, 8, shuffle=True, subset=[0.5])
    with pytest.raises(InputError, match="ascending order"):
        Loader(dataset, 8, "blocks", subset=[5, 3])
    with pytest.raises(InputError, match="num_workers: must be"):
        Loader(dataset, 8, shuffle=True, num_workers=-1)
