"""Fit, validate and test with Lightning. A run that was stopped goes on: ``python train.py STORE FOLDER``."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

import unistore


class Classifier(lightning.LightningModule):
    """One layer. ``on_batch(stage, batch)`` is called with every batch."""

    def __init__(self, on_batch: Callable[[str, Any], object]) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 3)
        self.on_batch = on_batch

    def step(self, stage: str, batch: Any) -> torch.Tensor:
        """Return the loss of a batch."""
        self.on_batch(stage, batch)
        return torch.nn.functional.cross_entropy(self.layer(batch["data"]), batch["label"])

    def training_step(self, batch: Any, number: int) -> torch.Tensor:  # noqa: ARG002
        return self.step("train", batch)

    def validation_step(self, batch: Any, number: int) -> torch.Tensor:  # noqa: ARG002
        return self.step("validate", batch)

    def test_step(self, batch: Any, number: int) -> torch.Tensor:  # noqa: ARG002
        return self.step("test", batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters())


def train(store: str, folder: str, on_batch: Callable[[str, Any], object] = lambda *_: None) -> None:
    """Train two epochs from the last checkpoint in `folder`, then validate and test."""
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("DEVICES", "1")))
    last = ModelCheckpoint(folder, filename="last", every_n_train_steps=1, enable_version_counter=False)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", devices=ranks, callbacks=[last], num_sanity_val_steps=0, **quiet
    )
    fitting = unistore.Loader(unistore.Dataset(store, split="train"), 4, shuffle=True, seed=1, num_workers=1)
    validation = unistore.Loader(unistore.Dataset(store, split="val"), 4, num_workers=0)
    testing = unistore.Loader(unistore.Dataset(store, split="test"), 4, num_workers=0)
    checkpoint = Path(folder) / "last.ckpt"
    model = Classifier(on_batch)
    with fitting:
        trainer.fit(model, fitting, ckpt_path=checkpoint if checkpoint.exists() else None)
    trainer.validate(model, validation, verbose=False)
    trainer.test(model, testing, verbose=False)


if __name__ == "__main__":
    train(*sys.argv[1:3])
