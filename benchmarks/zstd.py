"""Plain zstd beside blosc's: bytes of each family's store, and processor time of decoding it.

    python benchmarks/zstd.py [--rounds 7] [--folder FOLDER]

Sources are those of ``step.py --quick``. Arrays of 256 KiB and more are read whole in one process, codecs in
turns; speeds count decoded bytes.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

import step
from versions import median_interval

import unistore
from unistore.store.reader import Store
from unistore.zarr3.array import StoredArray

CODECS = ("auto", "balanced", "small", "zstd")
FAMILIES = ("segments", "patches", "clips", "transitions")
LEAST = 1 << 18


def main() -> None:
    """Print a line for each family and codec."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "unistore-benchmarks")
    options = parser.parse_args()
    print(step.machine(), "\n")
    print("| family | codec | raw / stored | decoded GB/s | speed over balanced, interval |")
    print("|---|---|--:|--:|--:|")
    for name in FAMILIES:
        measure(name, options.folder, options.rounds)


def measure(name: str, folder: Path, rounds: int) -> None:
    """Print the lines of one family."""
    family, make, _ = step.KINDS[name]
    home = folder / f"{family}-quick"
    home.mkdir(parents=True, exist_ok=True)
    arrays = {}
    for codec in CODECS:

        def converted(_: Path, family: str, *, codec: str = codec, **more: Any) -> Path:
            store = home / f"{codec}.zarr"
            if not store.exists():
                unistore.convert(home / "source", store, family, codec=codec, **more)
            return store

        with mock.patch.object(step, "converted", converted):
            arrays[codec] = large_arrays(make(home, True)[0])
    seconds: dict[str, list[float]] = {codec: [] for codec in CODECS}
    for _ in range(rounds):
        for codec in CODECS:
            began = time.process_time()
            for array in arrays[codec]:
                array.read()
            seconds[codec].append(time.process_time() - began)
    raw = sum(array.metadata.chunk_bytes * present_chunks(array)[0] for array in arrays["zstd"])
    for codec in CODECS:
        stored = sum(present_chunks(array)[1] for array in arrays[codec])
        ratios = [least / own for own, least in zip(seconds[codec], seconds["balanced"], strict=True)]
        low, high = median_interval(ratios)
        speed = raw / statistics.median(seconds[codec]) / 1e9
        over = f"{statistics.median(ratios):.2f} ({low:.2f}–{high:.2f})"
        print(f"| {family} | {codec} | {raw / stored:.2f} | {speed:.2f} | {over} |", flush=True)


def large_arrays(path: Path) -> list[StoredArray]:
    """Return the arrays that training reads most of."""
    store = Store(path)
    arrays = [store.array(name) for name in store.paths()]
    return [array for array in arrays if array.metadata.chunk_bytes * present_chunks(array)[0] >= LEAST]


def present_chunks(array: StoredArray) -> tuple[int, int]:
    """Return how many chunks are stored, and their bytes."""
    located = array.reader.locate(list(range(array.chunk_count)))
    sizes = [
        size for offset, size in zip(located.offsets, located.sizes, strict=True) if offset != step.EMPTY
    ]
    return len(sizes), sum(sizes)


if __name__ == "__main__":
    main()
