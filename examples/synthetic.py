"""Synthetic sources of the examples, where no real file may be bundled: layouts as in the field."""

from __future__ import annotations

from pathlib import Path

import cv2
import h5py
import numpy as np

SEQUENCES, FRAMES, HEIGHT, WIDTH = 2, 8, 96, 160
STEPS = 16
"""Spike time steps of a frame."""
LENGTHS, SIDE = (30, 24, 36), 64
"""Steps of each robot episode, and pixels of its cameras' images a side."""
CLOUDS, SEGMENTS, POINTS = 4, 16, 2000
"""Files of point clouds, segments of each, and points of a segment on average."""


def point_clouds(root: Path) -> list[Path]:
    """Clouds in files of one layout: columns ``data/*``, and ``segments/segment_NNNN/indices`` into them."""
    rng = np.random.default_rng(2)
    root.mkdir(parents=True)
    paths = [root / f"cloud_{number}.h5" for number in range(CLOUDS)]
    for path in paths:
        with h5py.File(path, "w") as file:
            for name, scale in (("x", 500.0), ("y", 500.0), ("z", 30.0)):
                file[f"data/{name}"] = np.round(rng.random(SEGMENTS * POINTS) * scale, 3)
            file["data/classification"] = rng.integers(0, 6, SEGMENTS * POINTS).astype(np.int32)
            cuts = np.sort(rng.choice(np.arange(1, SEGMENTS * POINTS), SEGMENTS - 1, replace=False))
            for number, rows in enumerate(np.split(rng.permutation(SEGMENTS * POINTS), cuts)):
                file[f"segments/segment_{number:04d}/indices"] = np.sort(rows)
    return paths


def spike_sequences(root: Path) -> Path:
    """A moving square seen by a spike camera: ``train/<sequence>/{blur,sharp,spike}/NNN.*``.

    Spikes fire with a probability equal to the scene's brightness; ``.dat`` files are packed, least
    significant bit first, bottom row first, as the cameras write them.
    """
    rng = np.random.default_rng(0)
    for sequence in range(SEQUENCES):
        folder = root / "train" / f"GOPR{sequence:04d}"
        for name in ("blur", "sharp", "spike"):
            (folder / name).mkdir(parents=True)
        for frame in range(FRAMES):
            scene = np.full((HEIGHT, WIDTH), 40, np.uint8)
            left = 8 * frame + 10 * sequence
            scene[30:60, left : left + 30] = 220
            colour = np.repeat(scene[..., None], 3, axis=2)
            cv2.imwrite(str(folder / "sharp" / f"{frame:03d}.png"), colour)
            cv2.imwrite(str(folder / "blur" / f"{frame:03d}.png"), cv2.blur(colour, (9, 1)))
            spikes = rng.random((STEPS, HEIGHT, WIDTH)) < scene / 255
            np.packbits(spikes[:, ::-1], axis=-1, bitorder="little").tofile(
                folder / "spike" / f"{frame:03d}.dat"
            )
    return root


def event_recordings(root: Path) -> None:
    """Two recordings of an edge that moves to the right, 64 × 48 pixels, in the layout of DSEC."""
    rng = np.random.default_rng(4)
    root.mkdir(parents=True)
    for name in ("a", "b"):
        times = np.sort(rng.integers(0, 100_000, 20_000)).astype(np.uint32)
        is_bright = rng.integers(0, 2, 20_000).astype(np.uint8)
        with h5py.File(root / f"{name}.h5", "w") as file:
            file["events/t"] = times
            file["events/x"] = ((times // 2_000 + 3 * is_bright) % 64).astype(np.uint16)
            file["events/y"] = rng.integers(0, 48, 20_000).astype(np.uint16)
            file["events/p"] = is_bright
            file["t_offset"] = 1_700_000_000_000_000


def robot_episodes(path: Path) -> Path:
    """Episodes with three cameras in the flat layout: ``observations/*``, ``actions``, ``rewards``, …."""
    rng = np.random.default_rng(1)
    steps = sum(LENGTHS)
    ends = np.cumsum(LENGTHS) - 1
    with h5py.File(path, "w") as file:
        for camera in ("left_image", "right_image", "global_image"):
            ramp = np.arange(steps)[:, None, None, None] + np.arange(SIDE)[None, :, None, None]
            images = np.broadcast_to(ramp, (steps, SIDE, SIDE, 3)).astype(np.uint8)
            file.create_dataset(f"observations/{camera}", data=images, chunks=(1, SIDE, SIDE, 3))
        file["observations/joint"] = rng.standard_normal((steps, 16)).astype(np.float32)
        file["actions"] = rng.standard_normal((steps, 4)).astype(np.float32)
        file["rewards"] = rng.random(steps).astype(np.float32)
        terminals = np.zeros(steps, np.float32)
        terminals[ends] = 1
        file["terminals"] = terminals
    return path


def plain_arrays(root: Path) -> None:
    """Two files of ``data`` (120, 8) and ``label`` (120,): which of the first three columns is largest."""
    rng = np.random.default_rng(3)
    root.mkdir(parents=True)
    for name in ("a", "b"):
        data = rng.random((120, 8), np.float32)
        np.savez(root / f"{name}.npz", data=data, label=data[:, :3].argmax(axis=1))
