"""Transitions of a robot: a buffer that reads images from HDF5 as it samples, and one that reads a store."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import cv2
import h5py
import numpy as np
import torch
from trial import compare, rates, synthetic

import unistore

BATCH, BATCHES, SIDE = 32, 4, 48
CAMERAS = ("left_image", "right_image", "global_image")
Batch = tuple[torch.Tensor, ...]


# --- before ---------------------------------------------------------------------------------------------


class MultimodalReplayBuffer:
    """Numbers in memory; images read and resized when they are sampled."""

    def __init__(self, hdf5_path: Path) -> None:
        self.file = h5py.File(hdf5_path, "r")
        self.joint = self.file["observations/joint"][:]
        self.action = self.file["actions"][:]
        self.reward = self.file["rewards"][:].reshape(-1, 1)
        self.terminal = self.file["terminals"][:].reshape(-1, 1)
        self.action_mean, self.action_std = self.action.mean(axis=0), self.action.std(axis=0)

    def image(self, camera: str, index: int) -> np.ndarray:
        """(3, SIDE, SIDE) uint8."""
        image = self.file[f"observations/{camera}"][index]
        return cv2.resize(image, (SIDE, SIDE), interpolation=cv2.INTER_LINEAR).transpose(2, 0, 1)

    def batch(self, indices: np.ndarray) -> Batch:
        """The transitions `indices`; the last of an episode has no next step but itself."""
        after = np.where(self.terminal[indices, 0] == 1, indices, indices + 1)
        now, following = (
            [torch.from_numpy(np.stack([self.image(camera, i) for i in steps])) for camera in CAMERAS]
            for steps in (indices, after)
        )
        return (
            *now,
            torch.from_numpy(self.joint[indices]),
            torch.from_numpy(self.action[indices]),
            *following,
            torch.from_numpy(self.joint[after]),
            torch.from_numpy(self.reward[indices]),
            torch.from_numpy(1 - self.terminal[indices]),
        )

    def sample(self, batch_size: int) -> Batch:
        """Random transitions, with replacement."""
        return self.batch(np.random.default_rng().integers(0, len(self.action), batch_size))


# --- after ----------------------------------------------------------------------------------------------


def after(store: Path) -> unistore.ReplayBuffer:
    """The buffer of the new script; the next batches are read while this one trains."""
    return unistore.ReplayBuffer(store, image_size=SIDE, seed=1)


def sampled(buffer: MultimodalReplayBuffer | unistore.ReplayBuffer) -> Iterator[Batch]:
    """As many batches as an epoch has here."""
    return (buffer.sample(BATCH) for _ in range(BATCHES))


def main() -> None:
    """Convert, compare, time."""
    with tempfile.TemporaryDirectory() as folder:
        path, store = Path(folder) / "offline.hdf5", Path(folder) / "offline.zarr"
        synthetic.robot_episodes(path)
        unistore.convert([path], store, "trajectory", image_size=SIDE)
        old = MultimodalReplayBuffer(path)
        with unistore.ReplayBuffer(store, output="dict", fields=["index"], seed=1) as numbers:
            drawn = [numbers.sample(BATCH)["index"].numpy() for _ in range(BATCHES)]
        with after(store) as new:  # the same seed draws the same transitions
            compare("the same draws", map(old.batch, drawn), sampled(new))
            rates(lambda: sampled(old), lambda: sampled(new), samples=BATCH * BATCHES)
            assert np.allclose(new.action_mean.numpy(), old.action_mean, atol=1e-6)
            assert np.allclose(new.action_std.numpy(), old.action_std, atol=1e-6)


if __name__ == "__main__":
    main()
