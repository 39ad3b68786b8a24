"""Find the middle of a window's voxels: ``python ct.py FOLDER``, of cases with windows/<name>.npy."""

import sys

import torch

import unistore

if __name__ == "__main__":
    dataset = unistore.Dataset(sys.argv[1], unistore.SparsePoints("bone", max_points=100_000))
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.Adam(model.parameters())
    for batch in unistore.Loader(dataset, batch_size=2, shuffle=True):
        loss = model(batch["coords"].float() / 256).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
