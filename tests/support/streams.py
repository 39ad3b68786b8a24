"""Synthetic robots with sensors of several rates: jitter, dropped frames, clocks that begin late."""

from __future__ import annotations

from pathlib import Path

import cv2
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


# A robot with a lidar and a camera, whose rows have any length.

STEPS, SCANS = 6, 4
COUNTS = [[3, 0, 5, 2], [1, 4, 0, 0]]
"""Points of the scans of two episodes."""


def points(episode: int) -> list[np.ndarray]:
    rng = np.random.default_rng(episode)
    return [rng.normal(size=(count, 3)).astype("f4") for count in COUNTS[episode]]


def scans_of_one_axis(episode: int) -> list[np.ndarray]:
    return [scan[:, 0].astype("f8") for scan in points(episode)]


def frames(episode: int) -> list[np.ndarray]:
    return [np.full((8, 12, 3), 40 * episode + frame, "u1") for frame in range(SCANS)]


def lidar(path: Path, form: str, *, rate: bool = False) -> Path:
    """Write two episodes of a robot with a lidar and a camera, both slower than its steps."""
    with h5py.File(path, "w") as file:
        for episode in range(2):
            demo = file.create_group(f"data/demo_{episode}")
            demo["actions"] = np.arange(2 * STEPS, dtype="f4").reshape(STEPS, 2) + 100 * episode
            demo["actions_timestamps"] = np.arange(STEPS) * 0.1
            scans = points(episode)
            if form == "offsets":
                demo["obs/lidar/points"] = np.concatenate(scans)
                demo["obs/lidar/ring"] = np.concatenate([np.arange(len(scan)) for scan in scans]).astype("u1")
                demo["obs/lidar/offsets"] = np.cumsum([0, *map(len, scans)]).astype("u4")
            else:
                own = demo.create_dataset("obs/lidar/ranges", (SCANS,), h5py.vlen_dtype("f8"))
                for row, scan in enumerate(scans_of_one_axis(episode)):
                    own[row] = scan
            camera = demo.create_dataset("obs/camera/rgb", (SCANS,), h5py.vlen_dtype("u1"))
            for row, frame in enumerate(frames(episode)):
                camera[row] = cv2.imencode(".png", frame)[1].ravel()
            for stream in ("lidar", "camera"):
                if rate:
                    demo[f"obs/{stream}"].attrs["rate"] = 7.0
                else:
                    demo[f"obs/{stream}/timestamps"] = np.arange(SCANS) * 0.15
    return path
