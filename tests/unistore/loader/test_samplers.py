"""``sampler=``: torch's keep their meaning, ours their order, with torch's DataLoader too; others refused."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

import unistore
from unistore.errors import InputError
from unistore.loader import Loader
from unistore.order.sampler import SequenceSampler
from unistore.order.sequences import BlockShuffle, InOrder, Repeated, Shuffled

pytestmark = pytest.mark.usefixtures("nothing_left")


def drawn(loader: Any) -> list[list[int]]:
    return [batch["index" if "index" in batch else "label"].tolist() for batch in loader]


def flat(batches: list[list[int]]) -> list[int]:
    return [index for batch in batches for index in batch]


def loaded(dataset: Any, sampler: Any, batch_size: int = 10, **options: Any) -> list[list[int]]:
    with Loader(dataset, batch_size, sampler=sampler, num_workers=0, **options) as loader:
        return drawn(loader)


@pytest.mark.parametrize("count", [None, 20, 43, 100, 129])
def test_a_random_sampler_draws_each_sample_as_often_as_in_torch(data: Any, count: int | None) -> None:
    """Every sample as often as in torch: whole passes, and of the last one any samples once."""
    dataset = data.Batched(43)
    sampler = RandomSampler(dataset, num_samples=count)
    ours, theirs = flat(loaded(dataset, sampler)), list(sampler)
    assert len(ours) == len(theirs)
    assert Counter(Counter(ours).values()) == Counter(Counter(theirs).values())
    assert ours != sorted(ours)
    for start in range(0, len(ours), 43):
        assert len(set(ours[start : start + 43])) == len(ours[start : start + 43])


def test_a_subset_sampler_delivers_the_chosen_indices(data: Any) -> None:
    chosen = [5, 3, 40, 3, 17]
    for indices in (chosen, torch.tensor(chosen), np.array(chosen)):
        ours = flat(loaded(data.Batched(43), SubsetRandomSampler(indices), 2))
        assert sorted(ours) == sorted(chosen)


def test_a_weighted_sampler_draws_by_weights_in_double_precision(data: Any) -> None:
    weights = [0.0, 3e-60, 1e-60]  # in double precision alone
    ours = Counter(flat(loaded(data.Batched(43), WeightedRandomSampler(weights, 4000), 100)))
    assert set(ours) == {1, 2}
    assert abs(ours[1] / 4000 - 0.75) < 0.04


@pytest.mark.parametrize("drop_tail", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(("samples", "world"), [(43, 2), (43, 3), (40, 4), (3, 5)])
def test_ranks_of_a_distributed_sampler_get_the_batches_of_torch(
    data: Any, samples: int, world: int, shuffle: bool, drop_tail: bool
) -> None:
    """Ranks get as many batches, as long, as in torch; together the same samples as often."""
    dataset = data.Plain(samples)
    ours: list[list[list[int]]] = []
    theirs: list[list[list[int]]] = []
    for rank in range(world):
        sampler: Any = DistributedSampler(dataset, world, rank, shuffle=shuffle, drop_last=drop_tail)
        ours.append(loaded(dataset, sampler, 4))
        theirs.append(drawn(DataLoader(dataset, 4, sampler=sampler)))
    assert [[len(batch) for batch in each] for each in ours] == [list(map(len, each)) for each in theirs]
    mine, expected = (Counter(flat([batch for each in found for batch in each])) for found in (ours, theirs))
    assert sorted(mine.values()) == sorted(expected.values())
    if not shuffle:
        assert mine == expected


def test_set_epoch_of_a_sampler_is_heeded(data: Any) -> None:
    dataset = data.Batched(43)
    with Loader(dataset, 10, shuffle=True, seed=2, num_workers=0) as loader:
        epochs = [drawn(loader) for _ in range(8)]
    for sampler in (unistore.Shuffle(dataset, seed=2), DistributedSampler(dataset, 1, 0, seed=2)):
        with Loader(dataset, 10, sampler=sampler, num_workers=0) as loader:
            for epoch in (0, 1, 5, 6):
                sampler.set_epoch(epoch)
                assert drawn(loader) == epochs[epoch]
            assert drawn(loader) == epochs[7], "and is not needed"


def test_set_epoch_after_a_state_goes_on_within_the_epoch(data: Any) -> None:
    dataset = data.Batched(43)
    sampler: Any = DistributedSampler(dataset, 1, 0)
    with Loader(dataset, 10, sampler=sampler, num_workers=0) as loader:
        loader.set_epoch(3)
        whole = drawn(loader)
        loader.set_epoch(3)
        next(iter(loader))
        state = loader.state_dict()
    with Loader(dataset, 10, sampler=sampler, num_workers=0) as loader:
        loader.load_state_dict(state)
        sampler.set_epoch(3)
        assert drawn(loader) == whole[1:]


@pytest.mark.parametrize("workers", [0, 2])
def test_our_own_sequences_are_delivered_in_their_order(data: Any, workers: int) -> None:
    dataset = data.Batched(43)
    for order in (InOrder(43), Shuffled(43, 5), Shuffled(20), Repeated(Shuffled(43), 100)):
        with Loader(dataset, 10, sampler=order, num_workers=workers) as loader:
            for epoch in range(2):
                assert flat(drawn(loader)) == order.indices(epoch, 0, len(order)).tolist()


def test_lists_of_indices_are_delivered_in_their_order(data: Any) -> None:
    for order in ([5, 3, 40], range(7, 2, -1), np.array([1, 1, 2]), torch.tensor([4, 0])):
        with Loader(data.Batched(43), 2, sampler=order, num_workers=0) as loader:
            for _ in range(2):
                assert flat(drawn(loader)) == [int(index) for index in order]


class Own(Sampler[int]):
    """A sampler of the user's."""

    def __iter__(self) -> Any:
        return iter([1, 2])


@pytest.mark.parametrize(
    ("make", "said", "fix"),
    [
        (lambda d: BatchSampler(SequentialSampler(d), 4, drop_last=False), "BatchSampler", "batch_size"),
        (lambda d: RandomSampler(d, generator=torch.Generator()), "generator", "seed=…"),
        (lambda d: SubsetRandomSampler([1], generator=torch.Generator()), "generator", "seed=…"),
        (lambda d: WeightedRandomSampler([1, 1], 2, replacement=False), "without replacement", "subset=…"),
        (lambda d: WeightedRandomSampler([0, 0], 2), "are all zero", ""),
        (lambda d: SequenceSampler(InOrder(43)), "SequenceSampler", "give the sequence"),
        (lambda d: Own(), "of type Own", "EpochSequence"),
        (lambda d: iter([1, 2]), "list_iterator", "EpochSequence"),
        (lambda d: SequentialSampler(range(44)), "44 samples, but the dataset has 43", "dataset that"),
        (lambda d: WeightedRandomSampler([1.0] * 44, 2), "44 samples", "dataset that"),
        (lambda d: SubsetRandomSampler([43]), "44 samples", "dataset that"),
        (lambda d: unistore.Shuffle(44), "44 samples", "dataset that"),
        (lambda d: [43], "43 to 43, but the dataset has 43", ""),
        (lambda d: "rows", "indices of samples", ""),
    ],
)
def test_a_sampler_that_a_loader_cannot_follow_is_an_error(data: Any, make: Any, said: str, fix: str) -> None:
    dataset = data.Batched(43)
    with pytest.raises(InputError) as caught:
        Loader(dataset, 4, sampler=make(dataset), num_workers=0)
    (problem,) = caught.value.problems
    assert problem.location == "sampler"
    assert said in problem.message
    assert fix in problem.advice


@pytest.fixture
def dataset(make_store):
    return unistore.Dataset(make_store("rows", {"rows/data": np.arange(203)}, count=203))


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("world", [1, 3])
def test_a_sequence_sampler_gives_torch_the_batches_of_the_loader(dataset, world, drop_last):
    for sequence in (Shuffled(203, 4), BlockShuffle(dataset.block_offsets(), 4), InOrder(203)):
        for rank in range(world):
            options = {"rank": rank, "world_size": world, "drop_last": drop_last}
            sampler = SequenceSampler(sequence, 10, **options)
            theirs = DataLoader(dataset, 10, sampler=sampler, collate_fn=unistore.collate)
            with Loader(dataset, 10, sampler=sequence, num_workers=0, **options) as ours:
                for epoch in range(2):
                    sampler.set_epoch(epoch)
                    expected = [batch["data"].tolist() for batch in theirs]
                    assert [batch["data"].tolist() for batch in ours] == expected
                    assert len(sampler) == sum(map(len, expected))


def test_a_sequence_sampler_can_be_set_anew():
    sampler = SequenceSampler(InOrder(43), 10)
    options = {"rank": 1, "world_size": 2, "start": 3, "drop_last": True}
    for name, value in options.items():
        setattr(sampler, name, value)
    assert list(sampler) == list(SequenceSampler(InOrder(43), 10, **options))
    assert len(sampler) == 20
