"""Synthetic sources for the demo, where no real file of that kind may be bundled: layouts as in the field."""

from __future__ import annotations

from pathlib import Path

import cv2
import h5py
import numpy as np

__all__ = ["robot_episodes", "spike_sequences"]

STEPS = 16
"""Spike time steps of a frame."""


def spike_sequences(
    root: Path, *, sequences: int = 2, frames: int = 8, height: int = 96, width: int = 160
) -> Path:
    """A moving square seen by a spike camera: ``train/<sequence>/{blur,sharp,spike}/NNN.*``.

    Spikes fire with a probability equal to the scene's brightness; ``.dat`` files are packed, least
    significant bit first, bottom row first, as the cameras write them.
    """
    rng = np.random.default_rng(0)
    for sequence in range(sequences):
        folder = root / "train" / f"GOPR{sequence:04d}"
        for name in ("blur", "sharp", "spike"):
            (folder / name).mkdir(parents=True)
        for frame in range(frames):
            scene = np.full((height, width), 40, np.uint8)
            left = 8 * frame + 10 * sequence
            scene[30:60, left : left + 30] = 220
            colour = np.repeat(scene[..., None], 3, axis=2)
            cv2.imwrite(str(folder / "sharp" / f"{frame:03d}.png"), colour)
            cv2.imwrite(str(folder / "blur" / f"{frame:03d}.png"), cv2.blur(colour, (9, 1)))
            spikes = rng.random((STEPS, height, width)) < scene / 255
            np.packbits(spikes[:, ::-1], axis=-1, bitorder="little").tofile(
                folder / "spike" / f"{frame:03d}.dat"
            )
    return root


def robot_episodes(path: Path, *, lengths: tuple[int, ...] = (30, 24, 36), side: int = 64) -> Path:
    """Episodes with three cameras in the flat layout: ``observations/*``, ``actions``, ``rewards``, …."""
    rng = np.random.default_rng(1)
    steps = sum(lengths)
    ends = np.cumsum(lengths) - 1
    with h5py.File(path, "w") as file:
        for camera in ("left_image", "right_image", "global_image"):
            ramp = np.arange(steps)[:, None, None, None] + np.arange(side)[None, :, None, None]
            images = np.broadcast_to(ramp, (steps, side, side, 3)).astype(np.uint8)
            file.create_dataset(f"observations/{camera}", data=images, chunks=(1, side, side, 3))
        file["observations/joint"] = rng.standard_normal((steps, 16)).astype(np.float32)
        file["actions"] = rng.standard_normal((steps, 4)).astype(np.float32)
        file["rewards"] = rng.random(steps).astype(np.float32)
        terminals = np.zeros(steps, np.float32)
        terminals[ends] = 1
        file["terminals"] = terminals
    return path
