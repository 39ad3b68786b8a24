"""Synthetic robots with sensors of several rates: jitter, dropped frames, clocks that begin late."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np

START = 1_700_000_000_000_000_000
RATES = {"left": 30, "right": 30, "wrist": 15, "force": 500}


def ticks(rng: np.random.Generator, seconds: float, rate: float, late: float = 0) -> np.ndarray:
    """Times of a sensor in ns: jittered, one in twenty dropped."""
    count = int(seconds * rate)
    times = late + (np.arange(count) + rng.uniform(-0.2, 0.2, count)) / rate
    kept = np.flatnonzero(rng.random(count) > 0.05)
    return START + np.rint(times[kept] * 1e9).astype("i8")


def episode(seed: int, seconds: float = 1.0, late: float = 0) -> dict[str, np.ndarray]:
    """Arrays of an episode by path, timestamps beside them; ``qpos`` has a rate of 1 kHz instead."""
    rng = np.random.default_rng(seed)
    action = ticks(rng, seconds, 30)
    found = {"action": rng.normal(size=(len(action), 3)).astype("f4"), "action_timestamps": action}
    for name, rate in RATES.items():
        times = ticks(rng, seconds, rate, late if name == "force" else 0)
        is_force = name == "force"
        path = "obs/force" if is_force else f"obs/images/{name}"
        values = rng.normal(size=(len(times), 2)) if is_force else rng.integers(0, 255, (len(times), 4, 4, 3))
        found[path] = values if is_force else values.astype("u1")
        found[f"{path}_timestamps"] = times
    count = int(seconds * 1000)
    return found | {"obs/qpos": rng.normal(size=(count, 2)).astype("f4")}


def write(path: Path, episodes: list[dict[str, np.ndarray]]) -> Path:
    """Write episodes as robomimic does."""
    with h5py.File(path, "w") as file:
        for number, arrays in enumerate(episodes):
            for name, values in arrays.items():
                file[f"data/demo_{number}/{name}"] = values
            if "obs/qpos" in arrays:
                file[f"data/demo_{number}/obs/qpos"].attrs["rate"] = 1000.0
    return path


def robot(folder: Path, episodes: int = 3) -> tuple[Path, list[dict[str, np.ndarray]]]:
    """Write a file of episodes of several lengths; the force of the last one begins late."""
    found = [episode(seed, 0.6 + 0.3 * seed, 0.2 * (seed == episodes - 1)) for seed in range(episodes)]
    return write(folder / "robot.h5", found), found
