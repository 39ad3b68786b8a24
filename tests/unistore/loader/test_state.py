"""Exact resume: the sequence goes on, whatever it goes on with."""

from __future__ import annotations

import pytest

from unistore.loader import Loader, LoaderError

pytestmark = pytest.mark.usefixtures("nothing_left")


def ranks(dataset, world, **options):
    return [Loader(dataset, rank=rank, world_size=world, **options) for rank in range(world)]


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
