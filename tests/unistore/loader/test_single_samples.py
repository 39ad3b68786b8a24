"""``Loader(batch_size=None)`` delivers the samples of a Dataset one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import unistore
from unistore.errors import InputError, SampleError
from unistore.loader import Loader

pytestmark = pytest.mark.usefixtures("nothing_left")

COUNT = 30


@pytest.fixture
def store(make_store: Any) -> Path:
    lengths = np.arange(COUNT) % 5 + 1
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    xyz = np.random.default_rng(0).normal(size=(int(offsets[-1]), 3)).astype(np.float32)
    arrays = {
        "points/xyz": xyz,
        "segments/offsets": offsets,
        "segments/origin": np.zeros((COUNT, 3)),
        "segments/source": np.zeros(COUNT, np.int32),
        "segments/number": np.arange(COUNT),
        "sources/path": ["a.h5"],
    }
    path: Path = make_store("point_cloud", arrays, count=COUNT, table="segments")
    return path


def jitter(sample: Any, rng: np.random.Generator) -> Any:
    return sample | {"noise": torch.tensor(rng.random())}


def same(sample: Any, expected: Any) -> bool:
    assert sample.keys() == expected.keys()
    return all(torch.equal(torch.as_tensor(sample[key]), torch.as_tensor(expected[key])) for key in sample)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("transform", [None, jitter])
def test_a_sample_equals_the_sample_of_the_dataset(store: Path, workers: int, transform: Any) -> None:
    dataset = unistore.Dataset(store, fields=["xyz"], transform=transform, seed=7)
    order = unistore.Shuffle(dataset, seed=3, batch_size=1)
    with Loader(dataset, None, shuffle=True, seed=3, num_workers=workers) as loader:
        for epoch in range(2):
            order.set_epoch(epoch)
            expected = [dataset[index] for index in order]
            delivered = list(loader)
            assert len(delivered) == len(loader) == COUNT
            assert all(map(same, delivered, expected))


def test_ranks_take_samples_in_turn(store: Path) -> None:
    dataset = unistore.Dataset(store, fields=["xyz"])

    def indices(**options: Any) -> list[int]:
        with Loader(dataset, None, shuffle="full", seed=3, num_workers=0, **options) as loader:
            return [int(sample["index"]) for sample in loader]

    whole = indices()
    for world_size in (2, 4):
        steps = COUNT // world_size
        ranks = [indices(rank=rank, world_size=world_size) for rank in range(world_size)]
        assert ranks == [whole[rank : steps * world_size : world_size] for rank in range(world_size)]


def test_a_run_resumes_between_samples_and_batches(store: Path) -> None:
    dataset = unistore.Dataset(store, fields=["xyz"], transform=jitter)
    options = {"shuffle": "blocks", "seed": 3}
    with Loader(dataset, None, num_workers=2, **options) as loader:
        whole = list(loader)
        loader.set_epoch(0)
        samples = iter(loader)
        begun = [next(samples) for _ in range(7)]
        state = loader.state_dict()
    assert state["delivered"] == 7
    assert all(map(same, begun, whole))
    with Loader(dataset, None, num_workers=0, **options) as loader:
        loader.load_state_dict(state)
        rest = list(loader)
    assert len(rest) == COUNT - 7
    assert all(map(same, rest, whole[7:]))
    with Loader(dataset, 4, num_workers=0, **options) as loader:
        loader.load_state_dict(state)
        batched = torch.cat([batch["noise"] for batch in loader])
    assert torch.equal(batched, torch.stack([sample["noise"] for sample in rest]))


def fails_at_three(sample: Any) -> Any:
    if int(sample["index"]) == 3:
        raise ValueError("boom")
    return sample


@pytest.mark.parametrize("workers", [0, 1])
def test_a_failing_sample_is_named_and_the_next_ones_come(store: Path, workers: int) -> None:
    dataset = unistore.Dataset(store, fields=["xyz"], transform=fails_at_three)
    with Loader(dataset, None, num_workers=workers) as loader:
        samples = iter(loader)
        assert [int(next(samples)["index"]) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(SampleError, match=r"sample 3 \(a.h5\), epoch 0: ValueError: boom"):
            next(samples)
        assert [int(sample["index"]) for sample in samples] == [*range(4, COUNT)]


@pytest.mark.parametrize("collate", [unistore.collate, unistore.Collate("padded")])
def test_a_collation_of_batches_is_an_error(store: Path, collate: Any) -> None:
    with pytest.raises(InputError, match="packs samples into a batch") as caught:
        Loader(unistore.Dataset(store), None, collate_fn=collate)
    (problem,) = caught.value.problems
    assert (problem.location, problem.advice) == ("collate_fn", "remove it")


def numbered(sample: Any, rng: np.random.Generator) -> Any:
    return int(sample["index"]), float(rng.random())


def test_a_collate_fn_gets_each_sample_and_draws_the_same_numbers(store: Path) -> None:
    dataset = unistore.Dataset(store, fields=["xyz"])
    drawn = []
    for workers in (0, 2):
        with Loader(dataset, None, seed=5, collate_fn=numbered, num_workers=workers) as loader:
            drawn.append(list(loader))
    assert drawn[0] == drawn[1]
    assert [index for index, _ in drawn[0]] == [*range(COUNT)]
    assert len({number for _, number in drawn[0]}) == COUNT
