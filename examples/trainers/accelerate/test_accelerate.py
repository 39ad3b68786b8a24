"""accelerate delivers the batches of a plain loop, resumes between them, and divides them among ranks."""

from __future__ import annotations

from typing import Any

import accelerate
import pytest
import torch

import unistore

STOP = 7


@pytest.mark.timeout(600)
def test_batches_equal_those_of_a_plain_loop(trainer: Any, same: Any) -> None:
    (seen,) = trainer.run("whole", ranks=1)
    assert same(seen["train"], trainer.expected(1, epochs=2, shuffle=True)[0])
    assert same(seen["validate"], trainer.expected(1, epochs=1, split="val")[0])


@pytest.mark.timeout(600)
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_resumed_run_continues_with_the_next_batch(trainer: Any, ranks: int) -> None:
    rest = trainer.check_resuming(ranks, STOP)
    for rank in range(ranks):
        evaluated = torch.cat([batch["index"] for batch in rest[rank]["validate"]])
        (whole,) = trainer.expected(1, epochs=1, split="val")
        assert evaluated.tolist() == torch.cat([batch["index"] for batch in whole]).tolist()


def test_skip_first_batches_delivers_the_remaining_batches(trainer: Any, same: Any) -> None:
    dataset = unistore.Dataset(trainer.store, split="train")
    (expected,) = trainer.expected(1, epochs=1, shuffle=True)
    loader = unistore.Loader(dataset, 4, shuffle=True, seed=1, num_workers=0)
    skipping = accelerate.skip_first_batches(loader, 5)
    assert isinstance(skipping, torch.utils.data.DataLoader)
    assert same(list(skipping), expected[5:])
