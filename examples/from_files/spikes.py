"""Sharpen frames by their spikes: ``python spikes.py FOLDER``, of <split>/<sequence>/{blur,sharp,spike}."""

import sys

import torch

import unistore

if __name__ == "__main__":
    loader = unistore.Loader(sys.argv[1], batch_size=1, shuffle=True, voxel_bins=5)
    model = torch.nn.ConvTranspose2d(5, 3, 2, stride=2)
    optimizer = torch.optim.Adam(model.parameters())
    for batch in loader:
        loss = (model(batch["voxel"][0].float()) - batch["sharp"][0] / 255).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
