"""Lightning delivers the batches of a plain loop, resumes between them, and divides them among ranks."""

from __future__ import annotations

from typing import Any

import pytest

STOP = 7
"""In the second of two epochs if two ranks train, in the first if one does."""


@pytest.mark.timeout(600)
def test_batches_of_all_stages_equal_those_of_a_plain_loop(trainer: Any, same: Any) -> None:
    (seen,) = trainer.run("whole", ranks=1)
    assert same(seen["train"], trainer.expected(1, epochs=2, shuffle=True)[0])
    assert same(seen["validate"], trainer.expected(1, epochs=1, split="val")[0])
    assert same(seen["test"], trainer.expected(1, epochs=1, split="test")[0])


@pytest.mark.timeout(600)
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_resumed_run_continues_with_the_next_batch(trainer: Any, same: Any, ranks: int) -> None:
    rest = trainer.check_resuming(ranks, STOP)
    for rank in range(ranks):
        for stage, split in (("validate", "val"), ("test", "test")):
            assert same(rest[rank][stage], trainer.expected(ranks, epochs=1, split=split)[rank])


@pytest.mark.timeout(600)
def test_ranks_started_by_lightning_divide_the_batches(trainer: Any, same: Any) -> None:
    """It starts the second process in ``fit``, after the loaders were made."""
    seen = trainer.run("started", ranks=2, torchrun=False, DEVICES="2")
    expected = trainer.expected(2, epochs=2, shuffle=True)
    assert all(same(seen[rank]["train"], expected[rank]) for rank in range(2))
