"""Train from an IterableDataset: ``torchrun train.py STORE FOLDER``. A stopped run goes on."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info
from torchdata.stateful_dataloader import StatefulDataLoader

import unistore


class Samples(IterableDataset[dict[str, torch.Tensor]]):
    """The samples of this rank, one by one, from a ``Loader(batch_size=None)``, which has the workers.

    Give it to a DataLoader with ``num_workers=0``: each of its workers would deliver every sample.
    """

    def __init__(self, loader: unistore.Loader[Any, Any]) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        if get_worker_info() is not None:
            raise RuntimeError(
                "Samples: each worker would deliver every sample.\nfix: DataLoader(num_workers=0)"
            )
        return iter(self.loader)

    def __len__(self) -> int:
        return len(self.loader)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the Loader. StatefulDataLoader saves it."""
        return self.loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved position."""
        self.loader.load_state_dict(state)


def train(store: str, folder: str, on_batch: Callable[[str, Any], object] = lambda *_: None) -> None:
    """Train two epochs from the last state of this rank in `folder`.

    ``on_batch(stage, batch)`` is called with every batch.
    """
    dataset = unistore.Dataset(store, split="train")
    with unistore.Loader(dataset, batch_size=None, shuffle=True, seed=1, num_workers=1) as loader:
        batches = StatefulDataLoader(Samples(loader), batch_size=4, collate_fn=unistore.collate)
        model = torch.nn.Linear(8, 3)
        optimizer = torch.optim.Adam(model.parameters())
        state = Path(folder) / f"rank{os.environ.get('RANK', '0')}.pt"
        if state.exists():
            saved = torch.load(state)
            batches.load_state_dict(saved["batches"])
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
        state.parent.mkdir(parents=True, exist_ok=True)
        while loader.epoch < 2:
            for batch in batches:
                on_batch("train", batch)
                loss = torch.nn.functional.cross_entropy(model(batch["data"]), batch["label"])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save({"batches": batches.state_dict(), **parts}, state)


if __name__ == "__main__":
    train(*sys.argv[1:3])
