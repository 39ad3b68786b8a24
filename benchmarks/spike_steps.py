"""Windows of 200 time steps of one spike recording, 250 x 400 pixels: packed and as pixels, warm and cold.

    python benchmarks/spike_steps.py [--steps 20000] [--turns 9] [--batches 12] [--folder FOLDER]

A memory map of the packed ``.dat`` under torch's DataLoader, against `unistore.Loader` over the converted
recording and over one with ``codec="none"``; two workers each, random windows, the same values. The ways take
turns. Cold: the files of a way are evicted from the page cache before each of its turns. Ratios are of
samples a second to those of the memory map, turn by turn; the median, and the least and the most.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from harness.consume import consume
from harness.memory import evict
from harness.ours import loader_feed
from harness.peers import stacked
from harness.plain import map_feed
from harness.ways import Feed

import unistore

HEIGHT, WIDTH = 250, 400
STEP_BYTES = HEIGHT * WIDTH // 8
LENGTH = 200
BATCH = 4
WORKERS = 2


class Mapped:
    """Windows of a memory map, the bottom row last."""

    def __init__(self, path: Path, key: str) -> None:
        self._path, self._key = path, key
        self._steps = path.stat().st_size // STEP_BYTES

    def __len__(self) -> int:
        return self._steps - LENGTH + 1

    def __getitem__(self, first: int) -> dict[str, Any]:
        stream = np.memmap(self._path, np.uint8, "r").reshape(-1, HEIGHT, WIDTH // 8)
        window = np.ascontiguousarray(stream[first : first + LENGTH, ::-1])
        if self._key == "spike":
            window = np.unpackbits(window, axis=-1, bitorder="little")
        return {self._key: window}


def make_recording(path: Path, steps: int) -> None:
    """Light adds up in each pixel of a scene that moves; a pixel fires when it is full."""
    rng = np.random.default_rng(0)
    scene = 0.05 + 0.5 * rng.random((HEIGHT, WIDTH), np.float32)
    charge = rng.random((HEIGHT, WIDTH), np.float32)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".part").open("wb") as file:
        for step in range(steps):
            charge += np.roll(scene, step // 20, axis=1) * (1 + 0.1 * rng.random((HEIGHT, WIDTH), np.float32))
            spikes = charge >= 1
            charge -= spikes
            file.write(np.packbits(spikes[::-1], axis=-1, bitorder="little").tobytes())
    path.with_suffix(".part").rename(path)


def feeds(key: str, recording: Path, stores: dict[str, Path]) -> Iterator[tuple[str, Path, Feed]]:
    """Open the ways: name, what it reads, batches."""
    mapped = map_feed((Mapped, (recording, key)), BATCH, WORKERS, stacked)
    yield "memory map", recording, mapped
    for name, store in stores.items():
        yield name, store, loader_feed(store, BATCH, WORKERS, unistore.Steps(LENGTH), [key])


def rate(feed: Feed, batches: int) -> float:
    """Samples a second of some batches, after those that were made ahead."""
    for _ in range(feed.ahead):
        next(feed.batches)
    began = time.perf_counter()
    for _ in range(batches):
        consume(next(feed.batches))
    return batches * BATCH / (time.perf_counter() - began)


def files_of(path: Path) -> list[Path]:
    """The files that a way reads."""
    return [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]


def compare(key: str, recording: Path, stores: dict[str, Path], given: argparse.Namespace) -> None:
    """Print the rates and ratios of one key, warm and cold."""
    ways = list(feeds(key, recording, stores))
    for state in ("warm", "cold"):
        rates: dict[str, list[float]] = {name: [] for name, _, _ in ways}
        for turn in range(-1, given.turns):
            for name, path, feed in ways if turn % 2 else ways[::-1]:
                if state == "cold":
                    evict(files_of(path))
                found = rate(feed, given.batches)
                if turn >= 0:  # the first turn warms up
                    rates[name].append(found)
        for name, values in rates.items():
            ratios = [ours / mapped for ours, mapped in zip(values, rates["memory map"], strict=True)]
            middle = statistics.median(ratios)
            print(
                f"| {key} | {state} | {name} | {statistics.median(values):,.0f} | {middle:.2f} "
                f"({min(ratios):.2f} to {max(ratios):.2f}) |",
                flush=True,
            )
    for _, _, feed in ways:
        feed.close()


def main() -> None:
    """Make the recording and its stores, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--batches", type=int, default=12)
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()) / "unistore-benchmarks" / "spike_steps"
    )
    given = parser.parse_args()
    recording = given.folder / f"source-{given.steps}" / "recording.dat"
    if not recording.exists():
        make_recording(recording, given.steps)
    stores = {}
    for codec in ("auto", "none"):
        store = given.folder / f"{codec}-{given.steps}.zarr"
        if not store.exists():
            unistore.convert(recording.parent, store, "spike", height=HEIGHT, width=WIDTH, codec=codec)
        stores[f"Loader, codec={codec}"] = store
    print("| key | page cache | way | samples/s | of the memory map |")
    print("|---|---|---|--:|--:|")
    for key in ("spike_packed", "spike"):
        compare(key, recording, stores, given)


if __name__ == "__main__":
    main()
