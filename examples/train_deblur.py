"""A few convolutions sharpen frames with the help of spikes; run ``make demo`` first.

``python examples/train_deblur.py [demo-out/recordings.zarr]``
"""

from __future__ import annotations

import sys

import torch
from torch import nn

import unistore


class Deblur(nn.Module):
    """What has to be added to a blurred frame, from the frame and its spikes."""

    def __init__(self, bins: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3 + bins, 24, 5, padding=2),
            nn.ReLU(),
            nn.Conv2d(24, 24, 5, padding=2),
            nn.ReLU(),
            nn.Conv2d(24, 3, 5, padding=2),
        )

    def forward(self, blur: torch.Tensor, voxel: torch.Tensor) -> torch.Tensor:
        """Sharp frames (B, 3, h, w) of blurred ones and their voxels (B, bins, h, w)."""
        return blur + self.layers(torch.cat([blur, voxel], dim=1))


def train(store: str, steps: int = 200, workers: int = 2) -> list[float]:
    """Loss of every step."""
    torch.manual_seed(0)
    torch.set_num_threads(1)  # small tensors; the other cores read
    dataset = unistore.Dataset(
        store, unistore.Clips(length=2, crop=48), fields=["voxel", "blur", "sharp"], split="train", seed=1
    )
    model = Deblur(dataset[0]["voxel"].shape[1])
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    losses: list[float] = []
    with unistore.Loader(dataset, batch_size=4, shuffle=True, seed=1, num_workers=workers) as loader:
        while len(losses) < steps:
            for batch in loader:  # (B, 2, …): the frames of a clip are learnt one by one
                blur, sharp = (batch[name].flatten(0, 1).float() / 255 for name in ("blur", "sharp"))
                made = model(blur, batch["voxel"].flatten(0, 1).float() / 4)
                loss = nn.functional.l1_loss(made, sharp)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
    return losses


if __name__ == "__main__":
    losses = train(*sys.argv[1:] or ["demo-out/recordings.zarr"])
    print(f"mean difference {255 * losses[0]:.1f} → {255 * losses[-1]:.1f} of 255 in {len(losses)} steps")
