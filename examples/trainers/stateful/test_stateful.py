"""StatefulDataLoader delivers the batches of a Loader, and resumes between them."""

from __future__ import annotations

from typing import Any

import pytest

STOP = 7


@pytest.mark.timeout(600)
def test_batches_equal_those_of_a_loader(trainer: Any, same: Any) -> None:
    (seen,) = trainer.run("whole", ranks=1)
    assert same(seen["train"], trainer.expected(1, epochs=2, shuffle="full")[0])


@pytest.mark.timeout(600)
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_resumed_run_continues_with_the_next_batch(trainer: Any, ranks: int) -> None:
    trainer.check_resuming(ranks, STOP, shuffle="full")
