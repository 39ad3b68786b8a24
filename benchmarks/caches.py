"""Epochs from the caches of a Loader beside arrays in memory, in turns: rates, and processor time a sample.

    python benchmarks/caches.py [--rounds 9] [--seconds 0.5] [--only PATTERN …]

Segments of `point_cloud.py --quick`: `cache="all"` from its second epoch on beside a memory map of the same
values with offsets, packed batches; `cache="disk"`: the first epoch of a new Loader, with all that it does at
its start, beside its next one. Sparse CT of `ct.py --quick`: random subsets of 100,000 points, `cache="all"`
beside coordinates in memory. Each by the better of no and two workers; ratios with the interval of their
median.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import ct
import numpy as np
import point_cloud
import step
from harness.memory import processor_seconds
from harness.peers import packed, stacked
from harness.script import machine
from torch.utils.data import DataLoader
from versions import median_interval

import unistore

WORKERS = (0, 2)
Rate = tuple[float, float]
"""Samples a second, processor seconds a sample."""


def epochs(batches: Iterable[Any], samples: int, seconds: float) -> Rate:
    """Iterate whole epochs for some time."""
    cpu, began, count = processor_seconds(os.getpid()), time.perf_counter(), 0
    while not count or time.perf_counter() - began < seconds:
        for _ in batches:
            pass
        count += samples
    took = time.perf_counter() - began
    return count / took, (processor_seconds(os.getpid()) - cpu) / count


def compare(name: str, ours: list[Any], peers: list[Any], samples: int, options: argparse.Namespace) -> None:
    """Print the better of our ways beside that of the peers, in turns."""
    rounds: list[tuple[Rate, Rate]] = []
    for number in range(-1, options.rounds):
        best = [max(epochs(way, samples, options.seconds) for way in ways) for ways in (ours, peers)]
        if number >= 0:  # the first round fills the caches
            rounds.append((best[0], best[1]))
    ratios = [ours[0] / peers[0] for ours, peers in rounds]
    low, high = median_interval(ratios)
    cells = []
    for way in zip(*rounds, strict=True):
        rate, cpu = (statistics.median(numbers) for numbers in zip(*way, strict=True))
        cells.append(f"{rate:,.0f}/s, {cpu * 1e6:,.0f} µs")
    print(
        f"| {name} | {' | '.join(cells)} | {statistics.median(ratios):.2f} ({low:.2f}–{high:.2f}) |",
        flush=True,
    )


def segments(options: argparse.Namespace) -> None:
    """Compare with a memory map."""
    store, *_ = step.points(options.folder / "point_cloud-quick", True)
    dataset = unistore.Dataset(store, unistore.Segments(), ["xyz", "classification"])
    raw = options.folder / "point_cloud-quick" / "segments"
    if not raw.exists():
        raw.mkdir()
        batch = dataset.read_batch(np.arange(len(dataset)))
        for key in ("xyz", "classification"):
            np.save(raw / f"{key}.npy", batch[key].values)
        np.save(raw / "offsets.npy", batch["xyz"].offsets)
    ours = [loader(dataset, point_cloud.BATCH, count, "all") for count in WORKERS]
    peers = [peer(point_cloud.Memmap(raw), point_cloud.BATCH, count, packed) for count in WORKERS]
    compare("segments", ours, peers, len(dataset), options)


def sparse_ct(options: argparse.Namespace) -> None:
    """Compare with coordinates in memory."""
    store, way, kind, fields = step.sparse_ct(options.folder / "ct-quick", True)
    files = way[1]["dataset"][1][0]
    dataset = unistore.Dataset(store, kind, fields)
    ours = [loader(dataset, 1, count, "all") for count in WORKERS]
    peers = [peer(ct.Documents(files, "RAM"), 1, count, stacked) for count in WORKERS]
    compare("sparse CT", ours, peers, len(dataset), options)


def disk(options: argparse.Namespace) -> None:
    """Compare the first epoch of a Loader that finds its samples on disk with the next one."""
    store, *_ = step.points(options.folder / "point_cloud-quick", True)
    with tempfile.TemporaryDirectory() as folder:
        dataset = unistore.Dataset(store, unistore.Segments(), ["xyz", "classification"], cache_dir=folder)
        repeated = np.tile(np.arange(len(dataset)), 40)  # an epoch that takes longer than the start
        for count in WORKERS:
            ratios = []
            for number in range(-1, options.rounds):
                with unistore.Loader(
                    dataset, point_cloud.BATCH, sampler=repeated, num_workers=count, cache="disk"
                ) as started:
                    first, warm = (epochs(started, len(repeated), 0.0)[0] for _ in range(2))
                if number >= 0:  # the first round decodes all samples
                    ratios.append(first / warm)
            low, high = median_interval(ratios)
            cells = f"{first:,.0f}/s | {warm:,.0f}/s | {statistics.median(ratios):.2f} ({low:.2f}–{high:.2f})"
            print(f"| disk, {count} workers, first epoch beside the next | {cells} |", flush=True)


def loader(dataset: unistore.Dataset, batch: int, workers: int, cache: str) -> unistore.Loader:
    return unistore.Loader(dataset, batch, shuffle=True, num_workers=workers, cache=cache)


def peer(dataset: Any, batch: int, workers: int, collate: Callable[[Any], Any]) -> DataLoader:
    options = {"persistent_workers": True} if workers else {}
    return DataLoader(dataset, batch, shuffle=True, num_workers=workers, collate_fn=collate, **options)


WAYS = {"segments": segments, "sparse CT": sparse_ct, "disk": disk}


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--only", nargs="+", default=["*"], metavar="PATTERN", help=f"of {', '.join(WAYS)}")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "unistore-benchmarks")
    options = parser.parse_args()
    print(machine(), "\n")
    print("| | ours | beside | ratio |\n|---|--:|--:|--:|")
    for name, way in WAYS.items():
        if any(fnmatch.fnmatch(name, pattern) for pattern in options.only):
            way(options)


if __name__ == "__main__":
    main()
