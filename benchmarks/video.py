"""Frames a second of episodes with video: unistore beside LeRobot's own loader, and the disk that each takes.

A dataset of two cameras is made once, as LeRobot v3.0 with H.264, and converted. Then both read random
windows of two steps, two workers each, in turns. LeRobot runs in its own environment, which ``make oracles``
makes.

    python benchmarks/video.py FOLDER --lerobot build/lerobot/bin/python
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

FPS, STEPS, EPISODES, SIZE = 30, 150, 8, (240, 320)
CAMERAS = ("front", "wrist")
BATCH, WORKERS, HISTORY = 16, 2, 2
WARM_BATCHES = 3


def make(folder: Path) -> None:
    """Write demonstrations, export them as a LeRobot dataset with video, and convert that."""
    import h5py

    import unistore

    random = np.random.default_rng(0)
    rows, columns = np.arange(SIZE[0])[:, None], np.arange(SIZE[1])
    textures = [random.integers(0, 40, (*SIZE, 3)).astype(np.uint8) for _ in CAMERAS]
    with h5py.File(folder / "demo.hdf5", "w") as file:
        for episode in range(EPISODES):
            demo = file.create_group(f"data/demo_{episode}")
            demo["actions"] = random.normal(size=(STEPS, 7)).astype("f4")
            for camera, texture in zip(CAMERAS, textures, strict=True):
                slopes = [(rows + columns // 2 + step + 20 * episode) % 200 for step in range(STEPS)]
                demo[f"obs/{camera}"] = np.stack(slopes)[..., None].astype(np.uint8) + texture
    unistore.convert(folder / "demo.hdf5", folder / "demo.zarr", family="trajectory")
    unistore.export(folder / "demo.zarr", folder / "lerobot", to="lerobot", fps=FPS, video=True)
    unistore.convert(folder / "lerobot", folder / "video.zarr", family="trajectory")


def frames_a_second(batches: Iterable[Any], seconds: float) -> float:
    """Read batches for some seconds, after a few that are not counted."""
    iterator = iter(batches)
    for _ in range(WARM_BATCHES):
        next(iterator)
    started = time.perf_counter()
    count = 0
    while time.perf_counter() - started < seconds:
        next(iterator)
        count += 1
    return count * BATCH * HISTORY * len(CAMERAS) / (time.perf_counter() - started)


def ours(folder: Path, seconds: float) -> float:
    """Read windows by Loader."""
    import unistore

    windows = unistore.Windows(history=HISTORY, horizon=1, pad="edge")
    dataset = unistore.Dataset(folder / "video.zarr", windows)
    with unistore.Loader(dataset, batch_size=BATCH, shuffle=True, seed=0, num_workers=WORKERS) as loader:
        return frames_a_second(_endless(loader), seconds)


def lerobot(folder: Path, seconds: float) -> float:
    """Read windows by LeRobotDataset under DataLoader."""
    import torch

    library = torch.library.Library("torchvision", "DEF")  # as in tools/oracles/lerobot_samples.py
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    keys = [f"observation.images.{camera}" for camera in CAMERAS]
    times = {key: [step / FPS for step in range(1 - HISTORY, 1)] for key in keys}
    dataset = LeRobotDataset(
        "a/b", root=folder / "lerobot", delta_timestamps=times, video_backend="torchcodec"
    )
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=BATCH, shuffle=True, num_workers=WORKERS, persistent_workers=True
    )
    return frames_a_second(_endless(loader), seconds)


def _endless(loader: Iterable[Any]) -> Iterable[Any]:
    while True:
        yield from loader


def megabytes(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--lerobot", help="Python of LeRobot's environment")
    parser.add_argument("--only", choices=("ours", "lerobot"), help="read by one, in this process")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if options.only:
        reader = {"ours": ours, "lerobot": lerobot}[options.only]
        print(reader(options.folder, options.seconds))
        return
    if not (options.folder / "video.zarr").exists():
        options.folder.mkdir(parents=True, exist_ok=True)
        make(options.folder)
    pythons = {"ours": sys.executable, "lerobot": options.lerobot}
    rates: dict[str, list[float]] = {name: [] for name in pythons}
    for _ in range(options.rounds):
        for name, python in pythons.items():
            command = [
                python,
                __file__,
                str(options.folder),
                "--only",
                name,
                "--seconds",
                str(options.seconds),
            ]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            rates[name].append(float(done.stdout.split()[-1]))
    for name, values in rates.items():
        print(
            f"{name:8} {np.median(values):8.0f} frames/s  ({', '.join(f'{value:.0f}' for value in values)})"
        )
    print(f"ratio    {np.median(rates['ours']) / np.median(rates['lerobot']):8.2f}")
    for name in ("demo.zarr", "lerobot", "video.zarr"):
        print(f"{name:12} {megabytes(options.folder / name):8.1f} MB")


if __name__ == "__main__":
    main()
