"""Small rows: samples/s and processor time a sample, by number of rows and kind of shuffle.

    python benchmarks/small_rows.py [--rows 1e5 1e6 1e7] [--bytes 64] [--workers 2] [--seconds 3]

Beside each, in the same run: `numpy.take` of the same batches from the array in memory, the limit.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import unistore
from benchmarks.harness.memory import processor_seconds
from unistore.order.sequences import BlockShuffle, EpochSequence

BATCH = 512
LINE = "{:>11} {:>8} {:>11} {:>7} {:>8} {:>16}"


def mixing(order: BlockShuffle, window: int, epoch: int = 0, samples: int = 64) -> float:
    """Return how well an order mixes.

    Mean number of different blocks among ``window`` consecutive samples, relative to its expectation in a
    full shuffle, where the window is a uniform draw without replacement from the epoch. 1 is a full shuffle
    (sampling can exceed it slightly); ``1 / window`` (for blocks of at least a window) is sequential order.
    Use the batch size as the window for the variety inside a batch, a multiple of it for that of successive
    batches. Averaged over `samples` windows, spread evenly over the epoch.
    """
    total = len(order)
    window = min(window, total)
    starts = np.linspace(0, total - window, samples).astype(np.int64)
    counted = []
    for start in starts.tolist():
        indices = order.indices(epoch, start, start + window)
        counted.append(len(np.unique(np.searchsorted(order.offsets, indices, side="right"))))
    # P(no sample of a block of m in a window of w out of N) = prod_{i<w} (N - m - i) / (N - i)
    sizes, counts = np.unique(np.diff(order.offsets), return_counts=True)
    steps = np.arange(window, dtype=np.float64)
    missed = [np.prod(np.clip(total - size - steps, 0, None) / (total - steps)) for size in sizes.tolist()]
    expected = float(np.sum(counts * (1.0 - np.array(missed))))
    return float(np.mean(counted)) / expected


def main() -> None:
    """Print a line a size and kind of shuffle."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", nargs="+", type=float, default=[1e5, 1e6, 1e7])
    parser.add_argument("--bytes", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--shuffle", nargs="+", default=["True", "full", "blocks"])
    options = parser.parse_args()
    print(LINE.format("rows", "shuffle", "samples/s", "CPU µs", "of take", "mixing of 1,024"))
    for rows in map(int, options.rows):
        folder = Path(tempfile.mkdtemp())
        try:
            store = make(folder, rows, options.bytes)
            array = np.load(folder / "rows.npy", mmap_mode="r")
            for name in options.shuffle:
                shuffle = True if name == "True" else name
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    dataset = unistore.Dataset(store)
                    loader = unistore.Loader(dataset, BATCH, shuffle, num_workers=options.workers)
                with loader:
                    rate, spent = run(loader, options.seconds)
                    order = loader.sequence
                limit = take(array, order, options.seconds / 3)
                mixed = mixing(order, 1024) if isinstance(order, BlockShuffle) else 1.0
                share = f"{rate / limit:.3f}"
                print(
                    LINE.format(
                        f"{rows:,}", name, f"{rate:,.0f}", f"{spent * 1e6:.2f}", share, f"{mixed:.3f}"
                    )
                )
        finally:
            shutil.rmtree(folder)


def make(folder: Path, rows: int, nbytes: int) -> Path:
    """A store of random rows."""
    values = np.lib.format.open_memmap(folder / "rows.npy", "w+", "<f4", (rows, nbytes // 4))
    random = np.random.default_rng(0)
    for start in range(0, rows, 1 << 18):
        stop = min(rows, start + (1 << 18))
        values[start:stop] = random.normal(size=(stop - start, nbytes // 4)).round(3)
    values.flush()
    unistore.convert(folder / "rows.npy", folder / "rows.zarr", "rows")
    return folder / "rows.zarr"


def run(loader: unistore.Loader, seconds: float) -> tuple[float, float]:
    """Samples a second and processor seconds a sample, once warm."""
    batches = forever(loader)
    for _ in range(50):
        next(batches)
    before, started, count = processor_seconds(os.getpid()), time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        count += len(next(batches)["index"])
    return count / (time.perf_counter() - started), (processor_seconds(os.getpid()) - before) / count


def forever(loader: unistore.Loader) -> Iterator[Any]:
    while True:
        yield from loader


def take(array: np.ndarray, order: EpochSequence, seconds: float) -> float:
    """Samples a second of plain indexing in memory, by the same order."""
    started, count = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        first = count % (len(order) - BATCH)
        np.take(array, order.indices(0, first, first + BATCH), axis=0)
        count += BATCH
    return count / (time.perf_counter() - started)


if __name__ == "__main__":
    main()
