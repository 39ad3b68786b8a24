"""The Trainer of transformers delivers the batches of a plain loop, resumes, and divides them among ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from safetensors.torch import load_file

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
    evaluated = torch.cat([batch["index"] for seen in rest for batch in seen["validate"]])
    (whole,) = trainer.expected(1, epochs=1, split="val")
    assert sorted(set(evaluated.tolist())) == torch.cat([batch["index"] for batch in whole]).tolist()


@pytest.mark.timeout(600)
def test_the_loss_of_an_evaluation_is_the_mean_over_all_samples(trainer: Any) -> None:
    """The last batch is smaller than the others."""
    metrics = trainer.load().train(str(trainer.store), str(trainer.folder / "metrics"))
    (validation,) = trainer.expected(1, epochs=1, split="val")
    assert len(validation[-1]["label"]) < 4
    model = trainer.load().Classifier()
    checkpoints = trainer.folder.glob("metrics/checkpoint-*")
    last = max(checkpoints, key=lambda path: int(path.name.rpartition("-")[2]))
    model.load_state_dict(load_file(last / "model.safetensors"))
    losses = []
    with torch.no_grad():
        for batch in validation:
            scores = model.layer(batch["data"])
            losses.append(torch.nn.functional.cross_entropy(scores, batch["label"], reduction="none"))
    assert metrics["eval_loss"] == pytest.approx(float(torch.cat(losses).mean()), rel=1e-5)
