"""An autoencoder of the voxels inside a CT window, never of the whole volume; run ``make demo`` first.

``python examples/train_ct_autoencoder.py [demo-out/volumes.zarr]``
"""

from __future__ import annotations

import sys

import torch
from torch import nn

import unistore

CELL = 4
"""Edge of a cell in voxels: all points of a cell share one code."""


class Autoencoder(nn.Module):
    """Points to a code for each cell that holds any, and back to their values."""

    def __init__(self, code: int = 16) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, code))
        self.decode = nn.Sequential(nn.Linear(code + 3, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, cells: torch.Tensor, inside: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Values (N, 1) again, of points in cells (N, 4) at places inside of them (N, 3)."""
        _, cell, count = torch.unique(cells, dim=0, return_inverse=True, return_counts=True)
        codes = self.encode(torch.cat([inside, values], dim=1))
        summed = codes.new_zeros(len(count), codes.shape[1]).index_add(0, cell, codes)
        return self.decode(torch.cat([(summed / count[:, None])[cell], inside], dim=1))


def train(store: str, steps: int = 200, workers: int = 2) -> list[float]:
    """Loss of every step."""
    torch.manual_seed(0)
    torch.set_num_threads(1)  # small tensors; the other cores read
    dataset = unistore.Dataset(store, unistore.SparsePoints(window="bone", max_points=4000), seed=1)
    model = Autoencoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses: list[float] = []
    with unistore.Loader(dataset, batch_size=2, shuffle=True, seed=1, num_workers=workers) as loader:
        while len(losses) < steps:
            for batch in loader:  # another subset of points each epoch
                coords, values = batch["coords"], batch["values"].float()
                sample = torch.repeat_interleave(torch.arange(len(batch["index"])), batch["offsets"].diff())
                cells = torch.cat([sample[:, None], coords // CELL], dim=1)
                inside = coords % CELL / CELL - 0.5
                target = (values - 500) / 250
                loss = nn.functional.mse_loss(model(cells, inside, target), target)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
    return losses


if __name__ == "__main__":
    losses = train(*sys.argv[1:] or ["demo-out/volumes.zarr"])
    print(f"mean square {losses[0]:.3f} → {losses[-1]:.3f} in {len(losses)} steps")
