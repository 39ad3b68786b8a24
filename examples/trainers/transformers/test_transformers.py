"""The Trainer of transformers delivers the batches of a plain loop, resumes, and divides them among ranks."""

from __future__ import annotations

from typing import Any

import pytest

STOP = 7


@pytest.mark.timeout(600)
def test_batches_are_those_of_a_plain_loop(trainer: Any, same: Any) -> None:
    (seen,) = trainer.run("whole", ranks=1)
    assert same(seen["train"], trainer.expected(1, epochs=2, shuffle=True)[0])
    assert same(seen["validate"], trainer.expected(1, epochs=1, split="val")[0])


@pytest.mark.timeout(600)
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_stopped_run_goes_on_with_the_next_batch(trainer: Any, same: Any, ranks: int) -> None:
    begun = trainer.run("stopped", ranks, STOP)
    rest = trainer.run("stopped", ranks)
    expected = trainer.expected(ranks, epochs=2, shuffle=True)
    for rank in range(ranks):
        assert same(begun[rank]["train"], expected[rank][:STOP])
        assert same(rest[rank]["train"], expected[rank][STOP:])
        assert same(rest[rank]["validate"], trainer.expected(ranks, epochs=1, split="val")[rank])
