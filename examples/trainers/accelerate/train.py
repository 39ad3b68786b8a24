"""Train with accelerate. A run that was stopped goes on: ``accelerate launch train.py STORE FOLDER``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import accelerate
import torch
from torch.utils.data import DataLoader

import unistore


def train(store: str, folder: str, on_batch: Callable[[str, Any], object] = lambda *_: None) -> None:
    """Train two epochs from the last state in `folder`, then validate.

    ``on_batch(stage, batch)`` is called with every batch.
    """
    accelerator = accelerate.Accelerator(cpu=True)
    fitting = unistore.Loader(unistore.Dataset(store, split="train"), 4, shuffle=True, seed=1, num_workers=1)
    held_out = unistore.Dataset(store, split="val")
    validation = DataLoader(held_out, batch_size=4, collate_fn=unistore.collate)
    model = torch.nn.Linear(8, 3)
    model, optimizer, fitting, validation = accelerator.prepare(
        model, torch.optim.Adam(model.parameters()), fitting, validation
    )
    accelerator.register_for_checkpointing(fitting)
    state = Path(folder) / "state"
    if state.exists():
        accelerator.load_state(state)
    with fitting:
        while fitting.epoch < 2:
            for batch in fitting:
                on_batch("train", batch)
                predicted = model(batch["data"].to(accelerator.device))
                accelerator.backward(torch.nn.functional.cross_entropy(predicted, batch["label"]))
                optimizer.step()
                optimizer.zero_grad()
                accelerator.save_state(state)
    for batch in validation:
        on_batch("validate", accelerator.gather_for_metrics(batch))
    accelerator.end_training()


if __name__ == "__main__":
    train(*sys.argv[1:3])
