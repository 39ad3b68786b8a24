"""Exact resume: the sequence goes on, whatever it goes on with."""

from __future__ import annotations

import pytest
import torch

from unistore.loader import Loader, LoaderError
from unistore.loader.iteration import EpochProgress
from unistore.order.sequences import InOrder

pytestmark = pytest.mark.usefixtures("nothing_left")


def ranks(dataset, world, **options):
    return [Loader(dataset, rank=rank, world_size=world, **options) for rank in range(world)]


def test_a_state_counts_what_was_delivered_and_not_what_was_prefetched(data):
    with Loader(data.Batched(), 8, shuffle=True, num_workers=2, prefetch_factor=4) as loader:
        batches = iter(loader)
        assert loader.state_dict()["delivered"] == 0
        for number in range(1, 26):
            next(batches)
            assert loader.state_dict()["delivered"] == 8 * number
        assert next(batches, None) is None
        assert (loader.state_dict()["epoch"], loader.state_dict()["delivered"]) == (1, 0)


def test_a_state_saved_after_the_last_batch_resumes_into_an_empty_epoch(data):
    with Loader(data.Batched(), 8, shuffle=True, num_workers=0, seed=2) as loader:
        for batch in loader:
            del batch
            state = loader.state_dict()
        following = [batch["index"].tolist() for batch in loader]
    assert state["delivered"] == 200
    with Loader(data.Batched(), 8, shuffle=True, num_workers=0, seed=2) as loader:
        loader.load_state_dict(state)
        assert list(loader) == []
        assert [batch["index"].tolist() for batch in loader] == following


def test_states_of_other_runs_are_refused_with_the_difference(data):
    dataset = data.Batched()
    state = Loader(dataset, 8, shuffle=True, seed=1, num_workers=0).state_dict()
    with pytest.raises(LoaderError, match="seed was 1 and is 2"):
        Loader(dataset, 8, shuffle=True, seed=2, num_workers=0).load_state_dict(state)
    with pytest.raises(LoaderError, match="kind was 'shuffled' and is 'in order'"):
        Loader(dataset, 8, False, seed=1, num_workers=0).load_state_dict(state)
    with pytest.raises(LoaderError, match="subset was None and is"):
        Loader(dataset, 8, shuffle=True, seed=1, num_workers=0, subset=range(200)).load_state_dict(state)
    with pytest.raises(LoaderError, match=r"length was 200 and is 199.*other samples"):
        Loader(data.Batched(199), 8, shuffle=True, seed=1, num_workers=0).load_state_dict(state)
    with pytest.raises(LoaderError, match="lacks delivered"):
        Loader(dataset, 8, shuffle=True, num_workers=0).load_state_dict(
            {k: v for k, v in state.items() if k != "delivered"}
        )
    for wrong in (None, "state", {**state, "delivered": "40"}, {**state, "order": 3}):
        with pytest.raises(LoaderError, match="not a loader state of version 1: it lacks"):
            Loader(dataset, 8, shuffle=True, seed=1, num_workers=0).load_state_dict(wrong)
    with pytest.raises(LoaderError, match="201 samples delivered of 200"):
        Loader(dataset, 8, shuffle=True, seed=1, num_workers=0).load_state_dict({**state, "delivered": 201})


def test_set_epoch_keeps_a_resumed_position(data):
    progress = EpochProgress("d")
    sequence = InOrder(100)
    progress.load(
        {"version": 1, "epoch": 3, "delivered": 40, "digest": "d", "order": sequence.describe()}, sequence
    )
    progress.set_epoch(3)
    assert progress.begin() == (3, 40)
    progress.deliver(3, 50)
    assert progress.begin() == (4, 0)
    progress.set_epoch(9)
    assert progress.begin() == (9, 0)


def test_an_epoch_that_is_set_while_another_is_iterated_is_the_next_one(data):
    with Loader(data.Batched(), 8, shuffle=True, num_workers=0) as loader:
        batches = iter(loader)
        next(batches)
        loader.set_epoch(5)
        draws = next(batches)
        assert torch.equal(draws["draw"], draws["index"] * 31)
        state = loader.state_dict()
        assert (state["epoch"], state["delivered"]) == (0, 16)
        assert len(list(batches)) == 23
        assert loader.epoch == 5
        batch = next(iter(loader))
        assert torch.equal(batch["draw"], batch["index"] * 31 + 5)


def test_evaluation_is_uneven_and_training_even_by_default(data):
    dataset = data.Batched(101)
    train = ranks(dataset, 2, batch_size=10, num_workers=0, shuffle=True)
    assert [len(loader) for loader in train] == [5, 5]
    assert [len(list(loader)) for loader in train] == [5, 5]
    evaluation = ranks(dataset, 2, batch_size=10, num_workers=0)
    found = [[batch["index"].tolist() for batch in loader] for loader in evaluation]
    assert [len(batches) for batches in found] == [6, 5]
    assert sorted(i for batches in found for batch in batches for i in batch) == list(range(101))
    for loader in train + evaluation:
        loader.close()


def test_ranks_come_from_the_environment(data, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    where = Loader(data.Batched(), 8, shuffle=True, num_workers=0)
    assert (where.rank, where.world_size) == (1, 4)
    assert Loader(data.Batched(), 8, shuffle=True, num_workers=0, rank=0, world_size=1).world_size == 1
