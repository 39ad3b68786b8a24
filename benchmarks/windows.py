"""Windows of streams of several rates: samples/s in random order, in one process.

    python benchmarks/windows.py [--episodes 40] [--seconds 30] [--batches 100]

A robot with a camera (30 Hz, 64 × 64), force (500 Hz), joints (1 kHz) and actions (30 Hz), jittered. A sample
is 3 frames, 51 forces, 101 joints and 16 actions around a frame. Beside the Dataset, with the same samples:
`numpy.searchsorted` over arrays in memory, and an HDF5 file whose streams were resampled to steady rates
beforehand, so that rows need no search.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np

import unistore

RATES = {"camera": 30, "force": 500, "joints": 1000, "action": 30}
SHAPES = {"camera": (64, 64, 3), "force": (6,), "joints": (14,), "action": (7,)}
AROUND = {"camera": (-4, -2, 0), "force": range(-50, 1), "joints": range(-100, 1), "action": range(16)}
BATCH = 64
Arrays = dict[str, np.ndarray]


def main() -> None:
    """Print samples a second of each way."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=40)
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--batches", type=int, default=100)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    try:
        episodes = [record(seed, options.seconds) for seed in range(options.episodes)]
        write(folder / "robot.h5", episodes)
        unistore.convert(folder / "robot.h5", folder / "robot.zarr", "trajectory")
        resample(folder / "steady.h5", episodes)
        windows = unistore.Windows(AROUND, clock="camera", pad="edge")
        dataset = unistore.Dataset(folder / "robot.zarr", windows)
        counts = [len(arrays["camera"]) for arrays in episodes]
        places = [(number, tick) for number, count in enumerate(counts) for tick in range(count)]
        order = np.random.default_rng(1).permutation(len(places))[: options.batches * BATCH]
        batches = order.reshape(-1, BATCH)
        expected = searched(episodes, places, batches[0])
        check(dataset, batches[0], expected)
        size = sum(values.nbytes for values in expected.values()) // BATCH
        print(f"{len(places):,} samples, {size:,} bytes each")
        sequence = {"unistore": lambda some: dataset.__getitems__(some.tolist())}
        sequence["numpy in memory"] = lambda some: searched(episodes, places, some)
        with h5py.File(folder / "steady.h5") as file:
            sequence["HDF5, resampled"] = lambda some: sliced(file, places, some)
            for name, read in sequence.items():
                print(f"{name:>16} {rate(read, batches):>10,.0f} samples/s")
    finally:
        shutil.rmtree(folder)


def record(seed: int, seconds: int) -> Arrays:
    """An episode: values and timestamps of each stream."""
    rng = np.random.default_rng(seed)
    found: Arrays = {}
    for name, rate_of in RATES.items():
        count = seconds * rate_of
        times = np.sort((np.arange(count) + rng.uniform(0, 0.2, count)) / rate_of)
        found[f"{name}_timestamps"] = (times * 1e9).astype("i8")
        values = rng.integers(0, 255, (count, *SHAPES[name]))
        found[name] = values.astype("u1" if name == "camera" else "f4")
    return found


def write(path: Path, episodes: list[Arrays]) -> None:
    """Write episodes as they were recorded."""
    with h5py.File(path, "w") as file:
        for number, arrays in enumerate(episodes):
            for name, values in arrays.items():
                group = "" if name.startswith("action") else "obs/"
                file[f"data/demo_{number}/{group}{name}"] = values


def resample(path: Path, episodes: list[Arrays]) -> None:
    """Write episodes as if every stream had come at its rate exactly."""
    with h5py.File(path, "w") as file:
        for number, arrays in enumerate(episodes):
            for name in RATES:
                file.create_dataset(f"{number}/{name}", data=arrays[name], chunks=(64, *SHAPES[name]))


def searched(episodes: list[Arrays], places: list[tuple[int, int]], some: np.ndarray) -> Arrays:
    """A batch from arrays in memory."""
    found: dict[str, list[np.ndarray]] = {name: [] for name in RATES}
    for number, tick in (places[sample] for sample in some.tolist()):
        arrays = episodes[number]
        now = arrays["camera_timestamps"][tick]
        for name, steps in AROUND.items():
            row = (
                tick if name == "camera" else np.searchsorted(arrays[f"{name}_timestamps"], now, "right") - 1
            )
            rows = np.clip(row + np.asarray(steps), 0, len(arrays[name]) - 1)
            found[name].append(arrays[name][rows])
    return {name: np.stack(values) for name, values in found.items()}


def sliced(file: h5py.File, places: list[tuple[int, int]], some: np.ndarray) -> Arrays:
    """A batch from the file of steady rates."""
    found: dict[str, list[np.ndarray]] = {name: [] for name in RATES}
    for number, tick in (places[sample] for sample in some.tolist()):
        for name, steps in AROUND.items():
            stream = file[f"{number}/{name}"]
            row = tick * RATES[name] // RATES["camera"]
            rows = np.clip(row + np.asarray(steps), 0, len(stream) - 1)
            block = stream[rows[0] : rows[-1] + 1]
            found[name].append(block[rows - rows[0]])
    return {name: np.stack(values) for name, values in found.items()}


def check(dataset: unistore.Dataset, some: np.ndarray, expected: Arrays) -> None:
    """Compare samples of the Dataset with the expected ones."""
    for name, values in expected.items():
        key = name if name == "action" else f"observation.{name}"
        found = np.stack([np.asarray(sample[key]) for sample in dataset.__getitems__(some.tolist())])
        assert np.array_equal(np.moveaxis(found, 2, -1) if name == "camera" else found, values), name


def rate(read: Callable[[np.ndarray], object], batches: np.ndarray) -> float:
    """Samples a second, once warm."""
    for some in batches[:5]:
        read(some)
    start = time.perf_counter()
    for some in batches[5:]:
        read(some)
    return batches[5:].size / (time.perf_counter() - start)


if __name__ == "__main__":
    main()
