"""Synthetic recordings: an integrate-and-fire camera before a moving scene, in the layouts that users have.

Nothing here is a real recording; names, sizes and bytes are laid out like those of Spk-GoPro.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def _scene(height: int, width: int, seed: int) -> Array:
    """A smooth picture between 0.05 and 0.6."""
    random = np.random.default_rng(seed)
    coarse = random.random((max(2, height // 12), max(2, width // 12))).astype(np.float32)
    return 0.05 + 0.55 * cv2.resize(coarse, (width, height), interpolation=cv2.INTER_LINEAR)


def record(length: int, height: int, width: int, seed: int = 0) -> Array:
    """Spikes (T, H, W) u1, row 0 = top: light adds up in every pixel, which fires and keeps the rest."""
    scene = _scene(height, width, seed)
    charge = np.random.default_rng(seed + 1).random((height, width)).astype(np.float32)
    spikes = np.empty((length, height, width), np.uint8)
    for step in range(length):
        charge += np.roll(scene, step // 8, axis=1)
        spikes[step] = charge >= 1
        charge -= spikes[step]
    return spikes


def stream(spikes: Array, layout: str = "packed", flip: bool = True) -> bytes:
    """Bytes of a .dat file, written without the code under test."""
    rows = spikes[:, ::-1] if flip else spikes
    if layout == "bytes":
        return rows.tobytes()
    padded = np.pad(rows, ((0, 0), (0, 0), (0, -rows.shape[2] % 8)))
    return np.packbits(padded.reshape(-1), bitorder="little").tobytes()


@dataclass
class Sequences:
    """What was written: spikes and images by name of the frame (``"train/a/spike/000.dat"``), in order."""

    root: Path
    spikes: dict[str, Array] = field(default_factory=dict)
    blur: dict[str, Array] = field(default_factory=dict)
    sharp: dict[str, Array] = field(default_factory=dict)


def sequences(
    root: Path,
    lengths: Mapping[str, tuple[int, ...]],
    *,
    size: tuple[int, int] = (24, 40),
    images: tuple[int, int] | None = (48, 80),
    layout: str = "packed",
    suffix: str = ".png",
) -> Sequences:
    """Sequence folders with frames of the given numbers of time steps, and images (RGB) beside them."""
    made = Sequences(root)
    seed = 0
    for name, steps in lengths.items():
        folder = root / name
        for number, length in enumerate(steps):
            seed += 1
            frame = f"{name}/spike/{number:03d}.dat"
            (folder / "spike").mkdir(parents=True, exist_ok=True)
            made.spikes[frame] = record(length, *size, seed)
            (root / frame).write_bytes(stream(made.spikes[frame], layout))
            for role, kept in (("blur", made.blur), ("sharp", made.sharp)) if images else ():
                (folder / role).mkdir(exist_ok=True)
                noise = np.random.default_rng(seed).integers(0, 9, (*images, 3))
                tint = np.array([200, 120, 40] if role == "blur" else [40, 120, 200])
                kept[frame] = (tint * _scene(*images, seed)[..., None] + noise).astype(np.uint8)
                file = folder / role / f"{number:03d}{suffix}"
                assert cv2.imwrite(str(file), kept[frame][..., ::-1])
    return made
