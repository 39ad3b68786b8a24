"""Random transforms, collations and datasets: what they draw depends on (seed, epoch, index) alone."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset

import unistore
from unistore.errors import InputError
from unistore.loader import Loader, SampleError
from unistore.order.permutation import EpochIndex

SAMPLES = 64
SEED = 5


def by_torch(sample):
    return {**sample, "r": torch.rand((), dtype=torch.float64)}


def by_python(sample):
    return {**sample, "r": random.random()}


def by_numpy(sample):
    return {**sample, "r": np.random.random()}  # noqa: NPY002 - the global generator is what is tested


def by_rng(sample, rng):
    return {**sample, "r": rng.random()}


class ByKeyword:
    def __call__(self, sample, *, rng=None):
        return {**sample, "r": rng.random()}


TRANSFORMS = [by_torch, by_python, by_numpy, by_rng, ByKeyword()]
each_transform = pytest.mark.parametrize("transform", TRANSFORMS, ids=lambda transform: str(transform)[1:19])


@pytest.fixture
def path(make_store):
    return make_store("rows", {"rows/label": np.arange(SAMPLES) * 3}, count=SAMPLES)


def drawn(batches) -> dict[int, float]:
    """What each sample drew."""
    draws: dict[int, float] = {}
    for batch in batches:
        assert torch.equal(batch["label"], batch["index"] * 3)
        draws |= zip(batch["index"].tolist(), batch["r"].tolist(), strict=True)
    return draws


def epochs_of(dataset, batch_size=8, workers=0, **options) -> list[dict[int, float]]:
    """What each sample drew, in two epochs."""
    options = {"shuffle": True, "seed": 1, "num_workers": workers} | options
    with Loader(dataset, batch_size, **options) as loader:
        return [drawn(loader), drawn(loader)]


@pytest.mark.usefixtures("nothing_left")
@each_transform
def test_draws_agree_for_all_workers_and_batch_sizes(path, transform):
    dataset = unistore.Dataset(path, transform=transform, seed=SEED)
    serial = [{i: float(dataset[EpochIndex(i, epoch)]["r"]) for i in range(SAMPLES)} for epoch in (0, 1)]
    values = [value for draws in serial for value in draws.values()]
    assert len(set(values)) == 2 * SAMPLES
    for workers, batch_size in ((0, 16), (2, 8)):
        assert epochs_of(dataset, batch_size, workers) == serial
    assert epochs_of(dataset, 8, 0, cache="all") == serial
    other = unistore.Dataset(path, transform=transform, seed=SEED + 1)
    assert not set(epochs_of(other)[0].values()) & set(values)


@pytest.mark.parametrize("transform", [by_torch, by_rng])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_resumed_with_another_batch_size_draws_the_same(path, transform, workers):
    dataset = unistore.Dataset(path, transform=transform)
    whole = epochs_of(dataset)[0]
    with Loader(dataset, 8, shuffle=True, seed=1, num_workers=1) as loader:
        batches = iter(loader)
        begun = drawn(next(batches) for _ in range(4))
        state = loader.state_dict()
    with Loader(dataset, 16, shuffle=True, seed=1, num_workers=workers) as loader:
        loader.load_state_dict(state)
        assert begun | drawn(loader) == whole


@pytest.mark.parametrize("transform", [by_numpy, by_rng])
def test_ranks_draw_what_one_draws(path, transform):
    dataset = unistore.Dataset(path, transform=transform)
    whole = epochs_of(dataset)
    ranks = [epochs_of(dataset, 4, rank, rank=rank, world_size=2) for rank in (0, 1)]
    assert [first | second for first, second in zip(*ranks, strict=True)] == whole


@pytest.mark.parametrize("transform", [by_python, by_rng])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_torch_data_loader_with_our_sampler_draws_the_same(path, transform, workers):
    dataset = unistore.Dataset(path, transform=transform)
    order = unistore.Shuffle(dataset, seed=1)
    options = {"num_workers": workers, "persistent_workers": workers > 0}
    loader = DataLoader(dataset, 16, sampler=order, collate_fn=unistore.collate, **options)
    draws = []
    for epoch in (0, 1):
        order.set_epoch(epoch)
        draws.append(drawn(loader))
    assert draws == epochs_of(dataset)


def test_indices_without_an_epoch_are_left_to_torch_until_it_is_set(path):
    dataset = unistore.Dataset(path, transform=by_torch)
    torch.manual_seed(3)
    expected = torch.rand(2, dtype=torch.float64).tolist()
    torch.manual_seed(3)
    assert [float(dataset[0]["r"]), float(dataset[0]["r"])] == expected
    dataset.set_epoch(1)
    assert dataset[7]["r"] == dataset[EpochIndex(7, 1)]["r"] == epochs_of(dataset)[1][7]


@pytest.mark.parametrize(("transform", "workers"), [(by_torch, 0), (by_python, 1), (by_numpy, 0)])
def test_a_models_dropout_is_the_same_with_and_without_a_loader(path, transform, workers):
    def collate(samples):
        random.random()
        np.random.random()  # noqa: NPY002 - the global generator is what is tested
        torch.rand(2)
        return unistore.collate(samples)

    def dropout():
        return torch.nn.functional.dropout(torch.ones(8)), random.gauss(0, 1), np.random.normal()  # noqa: NPY002

    def seed():
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002 - the global generator is what is tested

    seed()
    alone = [dropout() for _ in range(8)]
    dataset = unistore.Dataset(path, transform=transform)
    seed()
    with Loader(dataset, 8, shuffle=True, num_workers=workers, collate_fn=collate) as loader:
        beside = [dropout() for _ in loader]
    assert str(beside) == str(alone)


def shuffled_by_python(samples):
    random.shuffle(samples)
    return {"index": [int(sample["index"]) for sample in samples], "r": torch.rand(()).item()}


def shuffled_by_rng(samples, rng):
    order = rng.permutation(len(samples))
    return {"index": [int(samples[number]["index"]) for number in order], "r": rng.random()}


@pytest.mark.parametrize("collate", [shuffled_by_python, shuffled_by_rng])
def test_collations_of_a_batch_draw_the_same(path, collate):
    def batches(workers, **options):
        dataset = unistore.Dataset(path, transform=by_torch)
        options = {"shuffle": True, "seed": 2, "num_workers": workers, "collate_fn": collate} | options
        with Loader(dataset, 8, **options) as loader:
            return [batch for _ in range(2) for batch in loader]

    expected = batches(0)
    assert batches(1) == batches(2) == expected
    assert len({batch["r"] for batch in expected}) == 16
    assert batches(0, seed=3) != expected
    ranks = [batches(0, rank=rank, world_size=2) for rank in (0, 1)]
    assert [batch for step in zip(*ranks, strict=True) for batch in step] == expected


def test_plain_datasets_draw_the_same(data):
    def rows(batch):
        return zip(*(batch[key].tolist() for key in ("index", "python", "numpy", "torch")), strict=True)

    def draws(batch_size, workers):
        dataset = data.Random(SAMPLES)
        with Loader(dataset, batch_size, shuffle=True, seed=1, num_workers=workers) as loader:
            return [sorted(row for batch in loader for row in rows(batch)) for _ in range(2)]

    expected = draws(8, 0)
    assert len({value for epoch in expected for _, *values in epoch for value in values}) == 6 * SAMPLES
    for workers in (0, 1, 2):
        assert draws(16, workers) == expected


@pytest.mark.usefixtures("nothing_left")
def test_a_sample_that_fails_at_random_is_named(path):
    def transform(sample):
        if torch.rand(()) < 0.1:
            raise ValueError(int(sample["index"]))
        return sample

    def failures(workers):
        dataset = unistore.Dataset(path, transform=transform)
        with Loader(dataset, 4, num_workers=workers) as loader:
            batches = iter(loader)
            for _ in range(len(loader)):
                try:
                    next(batches)
                except SampleError as error:
                    yield error.sample, error.__cause__.args

    failed = list(failures(0))
    assert failed
    assert all(arguments == (sample,) for sample, arguments in failed)
    assert list(failures(1)) == failed


def test_the_optional_key_epoch_has_the_epoch_of_the_sample(path, make_store):
    dataset = unistore.Dataset(path, fields=["epoch", "label"])
    assert list(dataset[0]) == ["index", "label", "epoch"]
    assert dataset[EpochIndex(3, 8)]["epoch"] == 8
    for cache in (None, "all"):
        with Loader(dataset, 8, num_workers=1, cache=cache) as loader:
            for epoch in range(3):
                assert all((batch["epoch"] == epoch).all() for batch in loader)
    own = make_store("rows", {"rows/epoch": np.arange(SAMPLES) + 100}, count=SAMPLES)
    assert unistore.Dataset(own, fields=["epoch"])[EpochIndex(3, 8)]["epoch"] == 103
    with pytest.raises(InputError, match="keys of the samples, label, or optional ones, epoch, source"):
        unistore.Dataset(path, fields=["epochs"])


@pytest.mark.parametrize("index", [slice(0, 4), [1, 2], np.array([1, 2]), 1.5, "3"])
def test_several_samples_by_one_index_are_refused(path, index: Any):
    with pytest.raises(TypeError):
        unistore.Dataset(path)[index]
    assert [int(sample["label"]) for sample in Subset(unistore.Dataset(path), range(2))] == [0, 3]
