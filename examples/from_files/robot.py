"""Imitate actions: ``python robot.py FOLDER``, of HDF5 files of joints, cameras and actions."""

import sys

import torch

import unistore

if __name__ == "__main__":
    loader = unistore.Loader(sys.argv[1], batch_size=256, shuffle=True, image_size=224)
    model = torch.nn.Linear(16, 4)
    optimizer = torch.optim.Adam(model.parameters())
    for batch in loader:
        loss = (model(batch["observation.joint"]) - batch["action"]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
