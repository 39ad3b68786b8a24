"""Train with torchdata's StatefulDataLoader: ``torchrun train.py STORE FOLDER``. A stopped run goes on."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torchdata.stateful_dataloader import StatefulDataLoader

import unistore
from unistore.order.sampler import SequenceSampler
from unistore.order.sequences import Shuffled


def train(store: str, folder: str, on_batch: Callable[[str, Any], object] = lambda *_: None) -> None:
    """Train two epochs from the last state of this rank in `folder`.

    ``on_batch(stage, batch)`` is called with every batch.
    """
    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    dataset = unistore.Dataset(store, split="train")
    order = SequenceSampler(
        Shuffled(len(dataset), seed=1), batch_size=4, rank=rank, world_size=ranks, drop_last=ranks > 1
    )
    loader = StatefulDataLoader(dataset, 4, sampler=order, collate_fn=unistore.collate, num_workers=1)
    model = torch.nn.Linear(8, 3)
    optimizer = torch.optim.Adam(model.parameters())
    state = Path(folder) / f"rank{rank}.pt"
    saved = torch.load(state) if state.exists() else {"epoch": 0}
    if "loader" in saved:
        order.set_epoch(saved["epoch"])
        loader.load_state_dict(saved["loader"])
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    state.parent.mkdir(parents=True, exist_ok=True)
    for epoch in range(saved["epoch"], 2):
        order.set_epoch(epoch)
        for batch in loader:
            on_batch("train", batch)
            loss = torch.nn.functional.cross_entropy(model(batch["data"]), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({"epoch": epoch, "loader": loader.state_dict(), **parts}, state)


if __name__ == "__main__":
    train(*sys.argv[1:3])
