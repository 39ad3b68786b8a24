"""Classify points: ``python clouds.py FOLDER``, a folder of HDF5 files of columns and segments."""

import sys

import torch

import unistore

if __name__ == "__main__":
    loader = unistore.Loader(sys.argv[1], batch_size=8, shuffle=True)
    model = torch.nn.Linear(3, 32)
    optimizer = torch.optim.Adam(model.parameters())
    for batch in loader:
        loss = torch.nn.functional.cross_entropy(model(batch["xyz"]), batch["classification"].long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
