"""An IterableDataset delivers the samples of a plain loop, in batches of torch, and resumes between them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import unistore

STOP = 7


def plain_loop(store: Any, rank: int, ranks: int) -> list[Any]:
    """Return the batches of 4 samples of two epochs that a rank makes of its samples."""
    dataset = unistore.Dataset(store, split="train")
    options = {"num_workers": 0, "seed": 1, "rank": rank, "world_size": ranks}
    loader = unistore.Loader(dataset, None, shuffle=True, **options)
    batches = []
    for _ in range(2):
        samples = list(loader)
        batches += [unistore.collate(samples[start : start + 4]) for start in range(0, len(samples), 4)]
    return batches


@pytest.mark.timeout(600)
def test_batches_equal_those_of_a_plain_loop(trainer: Any, same: Any) -> None:
    (seen,) = trainer.run("whole", ranks=1)
    assert same(seen["train"], plain_loop(trainer.store, 0, 1))
    assert same(
        seen["train"], trainer.expected(1, epochs=2, shuffle=True)[0]
    )  # of batches instead of samples


@pytest.mark.timeout(600)
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_resumed_run_continues_with_the_next_batch(trainer: Any, same: Any, ranks: int) -> None:
    begun = trainer.run("stopped", ranks, STOP)
    rest = trainer.run("stopped", ranks)
    for rank in range(ranks):
        expected = plain_loop(trainer.store, rank, ranks)
        assert same(begun[rank]["train"], expected[:STOP])
        assert same(rest[rank]["train"], expected[STOP:])
    indices = [
        int(number) for seen in (*begun, *rest) for batch in seen["train"] for number in batch["index"]
    ]
    assert max(torch.bincount(torch.tensor(indices))) == 2  # once in each of two epochs


def test_workers_of_torch_are_an_error(trainer: Any) -> None:
    samples = trainer.load().Samples(unistore.Loader(unistore.Dataset(trainer.store), None, num_workers=0))
    with pytest.raises(RuntimeError, match="each worker would deliver every sample"):
        next(iter(DataLoader(samples, batch_size=4, num_workers=2)))
