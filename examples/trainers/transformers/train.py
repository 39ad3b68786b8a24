"""Train with transformers: ``torchrun train.py STORE FOLDER``. A stopped run goes on."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

import unistore


class Classifier(torch.nn.Module):
    """One layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 3)

    def forward(self, data: torch.Tensor, label: torch.Tensor, index: torch.Tensor) -> Any:  # noqa: ARG002
        """Return a dict with the loss and the scores."""
        scores = self.layer(data)
        return {"loss": torch.nn.functional.cross_entropy(scores, label), "scores": scores}


class Trainer(transformers.Trainer):
    """Trains with a Loader. ``on_batch(stage, batch)`` is called with every batch."""

    def __init__(self, store: str, on_batch: Callable[[str, Any], object], **options: Any) -> None:
        super().__init__(**options)
        self.store = store
        self.on_batch = on_batch

    def get_train_dataloader(self) -> Any:
        """Return the batches to train on, which the Trainer uses as they are."""
        dataset = unistore.Dataset(self.store, split="train")
        return unistore.Loader(dataset, 4, shuffle=True, seed=1, num_workers=1)

    def compute_loss(self, model: Any, inputs: Any, *arguments: Any, **options: Any) -> Any:
        """Return the loss of a batch."""
        self.on_batch("train" if model.training else "validate", inputs)
        return super().compute_loss(model, inputs, *arguments, **options)


def train(
    store: str, folder: str, on_batch: Callable[[str, Any], object] = lambda *_: None
) -> dict[str, float]:
    """Train two epochs from the last checkpoint in `folder`. Return the metrics of the evaluation."""
    arguments = transformers.TrainingArguments(
        folder,
        num_train_epochs=2,
        per_device_train_batch_size=4,
        per_device_eval_batch_size=4,
        save_steps=1,
        save_total_limit=2,
        remove_unused_columns=False,
        label_names=["label"],
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(
        store,
        on_batch,
        model=Classifier(),
        args=arguments,
        eval_dataset=unistore.Dataset(store, split="val"),
        data_collator=unistore.collate,
    )
    trainer.train(resume_from_checkpoint=any(Path(folder).glob("checkpoint-*")))
    metrics: dict[str, float] = trainer.evaluate()
    return metrics


if __name__ == "__main__":
    print(train(*sys.argv[1:3]))
