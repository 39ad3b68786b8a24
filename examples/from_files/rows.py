"""Classify rows: ``python rows.py FOLDER``, of HDF5 files with the datasets ``data`` and ``label``."""

import sys

import torch

import unistore

if __name__ == "__main__":
    loader = unistore.Loader(sys.argv[1], batch_size=64, shuffle=True)
    model = torch.nn.Linear(1024, 10)
    optimizer = torch.optim.Adam(model.parameters())
    for batch in loader:
        loss = torch.nn.functional.cross_entropy(model(batch["data"]), batch["label"].long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
