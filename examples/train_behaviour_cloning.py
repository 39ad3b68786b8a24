"""A policy learns the next actions of a demonstration from its states; run ``make demo`` first.

``python examples/train_behaviour_cloning.py [demo-out/demos.zarr]``
"""

from __future__ import annotations

import sys

import torch
from torch import nn

import unistore

HORIZON = 8


def train(store: str, steps: int = 600, workers: int = 2) -> list[float]:
    """Loss of every step."""
    torch.manual_seed(0)
    torch.set_num_threads(1)  # small tensors; the other cores read
    dataset = unistore.Dataset(
        store,
        unistore.Windows(history=1, horizon=HORIZON, pad="edge"),
        fields=["states", "action", "horizon_valid"],
    )
    counted = dataset.store.attributes["statistics"]["steps/action"]  # by the conversion, in float64
    mean, std = torch.tensor(counted["mean"]), torch.tensor(counted["std"]).clamp(min=1e-3)
    actions, states = len(mean), dataset[0]["states"].shape[-1]
    model = nn.Sequential(
        nn.BatchNorm1d(states, affine=False),
        nn.Linear(states, 128),
        nn.ReLU(),
        nn.Linear(128, HORIZON * actions),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    losses: list[float] = []
    with unistore.Loader(dataset, batch_size=64, shuffle=True, seed=1, num_workers=workers) as loader:
        while len(losses) < steps:
            for batch in loader:
                action = ((batch["action"] - mean) / std).float()
                predicted = model(batch["states"][:, 0].float()).view(-1, HORIZON, actions)
                error = (predicted - action).square().mean(dim=2)
                valid = batch["horizon_valid"]  # False behind the end of the episode
                loss = (error * valid).sum() / valid.sum()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
    return losses


if __name__ == "__main__":
    losses = train(*sys.argv[1:] or ["demo-out/demos.zarr"])
    print(f"mean square {losses[0]:.3f} → {losses[-1]:.3f} in {len(losses)} steps")
