"""A small PointNet names the class of every point: ground, building, …; run ``make demo`` first.

``python examples/train_pointnet.py [demo-out/clouds.zarr]``
"""

from __future__ import annotations

import sys

import torch
from torch import nn

import unistore


class PointNet(nn.Module):
    """A feature a point, the largest of each segment, and both together classified."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.point = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, classes))

    def forward(self, points: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """Scores (sum N, classes) of points (sum N, 4) whose segments begin at offsets (B + 1,)."""
        features = self.point(points)
        segment = torch.repeat_interleave(torch.arange(len(offsets) - 1), offsets.diff())
        largest = torch.stack([part.amax(0) for part in features.split(offsets.diff().tolist())])
        return self.head(torch.cat([features, largest[segment]], dim=1))


def train(store: str, steps: int = 600, workers: int = 2) -> list[float]:
    """Loss of every step."""
    torch.manual_seed(0)
    torch.set_num_threads(1)  # small tensors; the other cores read
    dataset = unistore.Dataset(
        store, unistore.Segments(max_points=1024), fields=["xyz", "intensity", "classification"], seed=1
    )
    classes = 1 + int(dataset.store.array("points/classification").read().max())
    model = PointNet(classes)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses: list[float] = []
    with unistore.Loader(dataset, batch_size=8, shuffle=True, seed=1, num_workers=workers) as loader:
        while len(losses) < steps:
            for batch in loader:
                xyz, offsets = batch["xyz"], batch["offsets"]
                scaled = (xyz - xyz.mean(0)) / xyz.std(0)
                intensity = batch["intensity"].float()[:, None] / 255
                scores = model(torch.cat([scaled, intensity], dim=1), offsets)
                loss = nn.functional.cross_entropy(scores, batch["classification"].long())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
    return losses


if __name__ == "__main__":
    losses = train(*sys.argv[1:] or ["demo-out/clouds.zarr"])
    print(f"cross entropy {losses[0]:.3f} → {losses[-1]:.3f} in {len(losses)} steps")
