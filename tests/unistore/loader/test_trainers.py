"""What Trainers ask a Loader for: the attributes of a `DataLoader`, and the batches that are made of them.

Stand-ins do what Lightning 2.6, accelerate 1.15 and transformers 5.24 do. `make trainers` tries the releases.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

import unistore
from unistore.loader import Loader, LoaderError
from unistore.order.sequences import Shuffled

pytestmark = pytest.mark.usefixtures("nothing_left")

ARGUMENTS = {*inspect.signature(DataLoader).parameters} - {"shuffle"}
"""Each is an attribute of a DataLoader, too."""
PASSED_ON = ARGUMENTS - {"dataset", "batch_size", "sampler", "batch_sampler", "drop_last"}
"""What accelerate hands to the DataLoader that it makes of another one."""


class SkipBatchSampler(BatchSampler):
    """As in accelerate."""

    def __init__(self, batch_sampler: Any, skipped: int) -> None:
        self.batch_sampler = batch_sampler
        self.skipped = skipped

    def __iter__(self) -> Iterator[Any]:
        for number, indices in enumerate(self.batch_sampler):
            if number >= self.skipped:
                yield indices

    def __len__(self) -> int:
        return len(self.batch_sampler) - self.skipped


def skip_first_batches(loader: Any, skipped: int) -> DataLoader[Any]:
    """As in accelerate."""
    is_batch_sampler = isinstance(loader.sampler, BatchSampler)
    skipping = SkipBatchSampler(loader.sampler if is_batch_sampler else loader.batch_sampler, skipped)
    kwargs = {name: getattr(loader, name) for name in PASSED_ON}
    return DataLoader(loader.dataset, batch_sampler=skipping, **kwargs)


def shift(sample: Any, rng: np.random.Generator) -> Any:
    """Draws from (seed, epoch, index)."""
    return sample | {"label": sample["label"] + int(rng.integers(1, 1000))}


@pytest.fixture
def store(make_store: Any) -> Path:
    columns = {"rows/x": np.arange(120.0).reshape(60, 2), "rows/label": np.arange(60)}
    path: Path = make_store("rows", columns, count=60)
    return path


OPTIONS: dict[str, dict[str, Any]] = {
    "in order": {},
    "full": {"shuffle": "full"},
    "blocks, a worker": {"shuffle": "blocks", "num_workers": 1},
    "weights": {"shuffle": True, "weights": np.arange(60), "samples_per_epoch": 30},
    "a subset": {"shuffle": True, "subset": range(5, 40)},
    "rank 1 of 2": {"shuffle": True, "rank": 1, "world_size": 2},
    "indices": {"sampler": [3, 1, 2, 50, 7]},
    "lists": {"shuffle": True, "collate_fn": unistore.Collate("list")},
}


def equal(batch: Any, other: Any) -> bool:
    assert batch.keys() == other.keys()
    return all(torch.equal(torch.as_tensor(batch[key]), torch.as_tensor(other[key])) for key in batch)


@pytest.mark.parametrize("name", OPTIONS)
def test_a_data_loader_of_its_attributes_makes_the_same_batches(store: Path, name: str) -> None:
    options = {"batch_size": 4, "num_workers": 0, "seed": 3, **OPTIONS[name]}
    transform = None if name == "lists" else shift
    with Loader(unistore.Dataset(store, transform=transform, seed=5), **options) as loader:
        assert len(loader.batch_sampler) == len(loader)
        loader.set_epoch(2)
        expected = list(loader)
        following = next(iter(loader))
        loader.set_epoch(2)
        made = list(skip_first_batches(loader, 1))
        assert len(made) == len(expected) - 1 > 0
        assert all(map(equal, made, expected[1:]))
        assert equal(next(iter(loader)), following)  # the epoch is over


def test_a_loader_has_the_attributes_that_trainers_read(store: Path) -> None:
    dataset = unistore.Dataset(store)
    for workers in (0, 1):
        with Loader(dataset, 4, num_workers=workers) as loader:
            theirs = DataLoader(dataset, 4, num_workers=workers)
            assert all(hasattr(loader, name) for name in ARGUMENTS)
            for name in ("timeout", "generator", "pin_memory", "pin_memory_device", "in_order", "drop_last"):
                assert getattr(loader, name) == getattr(theirs, name), name
            assert (loader.num_workers, loader.batch_size) == (workers, 4)
            # Lightning: of an order that is not shuffled nothing is said, and overfit_batches takes it
            assert isinstance(loader.sampler, SequentialSampler)
            assert not isinstance(getattr(loader.batch_sampler, "sampler", None), RandomSampler)
            assert loader.batch_sampler.batch_size == 4  # Lightning with DeepSpeed
    own = Shuffled(60, 1)
    assert Loader(dataset, 4, sampler=own, num_workers=0).sampler is own
    assert Loader(dataset, 4, shuffle=True, num_workers=0).sampler is None


def test_a_trainer_that_resumes_sets_the_epoch_of_the_batch_sampler(store: Path) -> None:
    """As that of transformers does, which knows nothing of the Loader's state."""
    with Loader(unistore.Dataset(store), 8, shuffle=True, seed=1, num_workers=0) as loader:
        whole = [[batch["index"].tolist() for batch in loader] for _ in range(4)]
    again = Loader(unistore.Dataset(store), 8, shuffle=True, seed=1, num_workers=0)
    seen = []
    for epoch in range(2, 4):
        batches: Any = skip_first_batches(again, 3) if epoch == 2 else again
        if hasattr(batches, "set_epoch"):
            batches.set_epoch(epoch)
        inner = getattr(batches.batch_sampler, "batch_sampler", None)
        if hasattr(inner, "set_epoch"):
            inner.set_epoch(epoch)
        seen.append([batch["index"].tolist() for batch in batches])
    assert seen == [whole[2][3:], whole[3]]


def test_batches_are_skipped_from_the_beginning_of_the_epoch_wherever_the_loader_stands(store: Path) -> None:
    with Loader(unistore.Dataset(store), 8, shuffle=True, seed=1, num_workers=0) as loader:
        whole = [batch["index"].tolist() for batch in loader]
        loader.set_epoch(0)
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        loader.load_state_dict(state)
        assert [batch["index"].tolist() for batch in skip_first_batches(loader, 3)] == whole[3:]


def draws(samples: Any, rng: Any) -> Any:
    return samples, rng


def labels(samples: Any) -> list[int]:
    return [int(sample["label"]) for sample in samples]


def test_skip_first_batches_of_a_loader_that_torch_cannot_imitate_is_an_error(store: Path, data: Any) -> None:
    dataset = unistore.Dataset(store)
    for wrong, options, what in [
        (data.Plain(20), {}, "read_batch"),
        (dataset, {"batch_transform": len}, "batch_transform"),
        (dataset, {"collate_fn": draws}, "rng"),
    ]:
        loader = Loader(wrong, 4, num_workers=0, **options)
        with pytest.raises(LoaderError, match=f"{what}.*load_state_dict"):
            next(iter(skip_first_batches(loader, 1)))
        assert len(loader) == len(loader.batch_sampler)
    loader = Loader(dataset, 4, shuffle=True, num_workers=0, collate_fn=labels)
    expected = list(loader)
    loader.set_epoch(0)
    assert list(skip_first_batches(loader, 2)) == expected[2:]
