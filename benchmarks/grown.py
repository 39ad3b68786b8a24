"""Reading stores of many parts beside the compacted store: opening, the first sample, each kind of sample.

``python benchmarks/grown.py [--parts 20] [--only rows] [--folder DIR] [--pairs 9]``: each part is one small
source, converted by itself, and listed in one version as that many appends would have listed it. Stores in
``--folder`` are used again. Grown and compacted store take turns, in one process, of which processor time is
taken: the median of the ratios, and the interval that holds it with 95 %.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import h5py
import numpy as np
from versions import median_interval

import unistore
from unistore.growing.growth import growing
from unistore.store.versions import describe_part

BATCH = 32


def write_rows(folder: Path, name: str, rng: np.random.Generator) -> None:
    """Write 500 rows of 64 numbers."""
    np.savez(folder / f"{name}.npz", x=rng.random((500, 64), np.float32), label=rng.integers(0, 9, 500))


def write_cloud(folder: Path, name: str, rng: np.random.Generator) -> None:
    """Write three segments of 2,000 points."""
    with h5py.File(folder / f"{name}.h5", "w") as file:
        file.create_group("header").attrs["available_fields"] = "x,y,z,classification"
        for segment in range(3):
            group = file.create_group(f"segments/segment_{segment:04d}")
            for axis in "xyz":
                group[axis] = np.round(rng.normal(0, 5, 2000), 2)
            group["classification"] = rng.integers(0, 3, 2000).astype(np.int32)


def write_volume(folder: Path, name: str, rng: np.random.Generator) -> None:
    """Write a volume of 64 to 80 slices of 64 by 64 voxels."""
    depth = int(rng.integers(64, 81))
    (folder / name).mkdir()
    volume = rng.integers(-1000, 1000, (depth, 8, 8)).astype(np.int16).repeat(8, axis=1).repeat(8, axis=2)
    np.save(folder / name / "ct_original_64.npy", volume)


def write_spikes(folder: Path, name: str, rng: np.random.Generator) -> None:
    """Write six spike frames of 256 by 400 pixels, 20 steps each, with a picture."""
    for number in range(6):
        for inner in ("spike", "sharp"):
            (folder / name / inner).mkdir(parents=True, exist_ok=True)
        spikes = rng.random((20, 256, 400)) < 0.2
        packed = np.packbits(spikes.reshape(-1), bitorder="little")
        (folder / name / "spike" / f"{number:03d}.dat").write_bytes(packed.tobytes())
        picture = rng.integers(0, 255, (32, 50, 3), dtype=np.uint8).repeat(8, axis=0).repeat(8, axis=1)
        cv2.imwrite(str(folder / name / "sharp" / f"{number:03d}.png"), picture)


def write_episode(folder: Path, name: str, rng: np.random.Generator) -> None:
    """Write an episode of 40 steps with a camera of 48 by 64 pixels."""
    with h5py.File(folder / f"{name}.h5", "w") as file:
        small = rng.integers(0, 255, (40, 3, 6, 8), dtype=np.uint8)
        file["observations/image"] = small.repeat(8, axis=2).repeat(8, axis=3)
        file["observations/joint"] = rng.normal(size=(40, 16)).astype(np.float32)
        file["actions"] = rng.normal(size=(40, 7)).astype(np.float32)
        file["rewards"] = rng.random(40).astype(np.float32)
        file["terminals"] = np.arange(40) == 39


class Reading(NamedTuple):
    """A kind of samples, and the sources that it is read from."""

    family: str
    write: Callable[[Path, str, np.random.Generator], None]
    options: Mapping[str, Any]
    samples: Any
    shuffles: tuple[Any, ...]
    batches: int  # of one turn


READINGS = {
    "rows": Reading("rows", write_rows, {}, None, ("blocks", "full", "sources", False), 300),
    "segments": Reading("point_cloud", write_cloud, {}, unistore.Segments(max_points=2000), ("full",), 12),
    "patches": Reading("ct", write_volume, {}, unistore.Patches(48), ("full",), 6),
    "clips": Reading("spike", write_spikes, {"height": 256, "width": 400}, unistore.Clips(1), ("full",), 4),
    "transitions": Reading("trajectory", write_episode, {}, unistore.Transitions(), ("full",), 25),
}


def grow(folder: Path, reading: Reading, parts: int) -> Path:
    """Return a store of so many parts, made where it is missing."""
    store = folder / "grown.zarr"
    if (folder / "one.zarr").exists():
        return store
    sources = folder / "sources"
    for number in range(parts):
        source = sources / f"{number:05d}"
        source.mkdir(parents=True)
        reading.write(source, source.name, np.random.default_rng(number))
    options = {**reading.options, "family": reading.family, "progress": False}
    unistore.convert(sources / "00000", store, **options)
    unistore.append(sources / "00001", store, progress=False)
    for number in range(2, parts):
        with growing(store) as growth:
            unistore.convert(sources / f"{number:05d}", growth.new_store, **options)
            new = unistore.Store(growth.new_store)
            schemas = list(growth.version.schemas)
            growth.commit([*growth.version.parts, describe_part(new, schemas)], schemas, new)
    unistore.compact(store, folder / "one.zarr", progress=False)
    return store


def seconds(function: Callable[[], object]) -> float:
    """Return the processor time of a call."""
    began = time.process_time()
    function()
    return time.process_time() - began


def open_files() -> int:
    """Return how many files this process has open."""
    return len([*Path("/proc/self/fd").iterdir()])


class Turns:
    """Batches of a store, epoch after epoch, some of them at each turn."""

    def __init__(self, store: Path, reading: Reading, shuffle: Any) -> None:
        self._dataset = unistore.Dataset(store, reading.samples)
        self._loader = unistore.Loader(self._dataset, BATCH, shuffle=shuffle, num_workers=0)
        self._batches = iter(())
        self._count = reading.batches

    def read(self) -> None:
        """Read the batches of one turn."""
        for _ in range(self._count):
            if next(self._batches, None) is None:
                self._batches = iter(self._loader)
                next(self._batches)


def race(folder: Path, reading: Reading, shuffle: Any, pairs: int) -> Mapping[str, Any]:
    """Return samples a second of both stores, taking turns, and their ratios."""
    turns = [Turns(store, reading, shuffle) for store in (folder / "grown.zarr", folder / "one.zarr")]
    first = [seconds(turn.read) for turn in turns]
    for turn in turns:
        turn.read()
    times = [[seconds(turn.read) for turn in turns] for _ in range(pairs)]
    ratios = [one / grown for grown, one in times]
    low, high = median_interval(ratios)
    rate = reading.batches * BATCH / statistics.median(grown for grown, _ in times)
    shown = f"{statistics.median(ratios):.2f} ({low:.2f}-{high:.2f})"
    return {"samples/s": round(rate), "ratio": shown, "first turns, s": [round(one, 3) for one in first]}


def main() -> None:
    """Print all figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", type=int, default=20)
    parser.add_argument("--only", nargs="*", default=[*READINGS], choices=[*READINGS])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--pairs", type=int, default=9)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        for name in arguments.only:
            reading = READINGS[name]
            folder = (arguments.folder or Path(temporary)) / f"{name}-{arguments.parts}"
            store = grow(folder, reading, arguments.parts)
            opening = [seconds(lambda: unistore.Dataset(store, reading.samples)) for _ in range(9)]  # noqa: B023
            dataset = unistore.Dataset(store, reading.samples)
            first = seconds(lambda: dataset[0])  # noqa: B023
            opened = f"{1000 * statistics.median(opening):.1f} ms, first sample {1000 * first:.0f} ms"
            print(f"{name}, {arguments.parts} parts: opening {opened}", flush=True)
            for shuffle in reading.shuffles:
                print(f"  shuffle={shuffle!r}", race(folder, reading, shuffle, arguments.pairs), flush=True)
            print(f"  open files: {open_files()}", flush=True)


if __name__ == "__main__":
    main()
