"""What short epochs wait: 20 CT volumes, patches of 96³ in batches of 2, an idle step of 5 ms after each.

    python benchmarks/epochs.py [--seconds 6] [--rounds 3]

Epochs of 20 samples beside epochs of 1,600 of the same store, in turns, by a Loader with two workers each;
the share of the wall time that waits, and samples a second.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import ct
from harness.ours import open_dataset
from harness.script import machine

import unistore

VOLUMES, PATCH, BATCH, STEP = 20, 96, 2, 0.005


def make_store(folder: Path) -> Path:
    """Store of 20 volumes of 160³: copies of three."""
    if not (folder / "store.zarr").exists():
        cases = [ct.image_file(case).parent for case in ct.make_source(folder / "source", quick=True)]
        for number in range(len(cases), VOLUMES):
            case = cases[number % len(cases)]
            shutil.copytree(case, case.with_name(f"{case.name}_{number}"), dirs_exist_ok=True)
        unistore.convert(folder / "source", folder / "store.zarr", "ct")
    return folder / "store.zarr"


def measure(loader: unistore.Loader, seconds: float) -> tuple[float, float]:
    """Share that waits and samples a second, over whole epochs."""
    began, waited, count = time.perf_counter(), 0.0, 0
    while time.perf_counter() - began < seconds:
        before = time.perf_counter()
        for _ in loader:
            waited += time.perf_counter() - before
            count += 1
            time.sleep(STEP)
            before = time.perf_counter()
        waited += time.perf_counter() - before
    took = time.perf_counter() - began
    return waited / took, count * BATCH / took


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=6.0, help="of each, in each round; whole epochs")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()) / "unistore-benchmarks" / "epochs"
    )
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    store = make_store(given.folder)
    print(machine(), "\n")
    print("| samples of an epoch | waits | samples/s |")
    print("|--:|--:|--:|")
    loaders = {}
    for each in (1, 80):
        dataset = open_dataset(store, unistore.Patches(PATCH, per_volume=each), ("image",))
        loaders[len(dataset)] = unistore.Loader(dataset, BATCH, shuffle=True, num_workers=2)
    found: dict[int, list[tuple[float, float]]] = {length: [] for length in loaders}
    for number in range(-1, given.rounds):
        for length, loader in loaders.items():
            measured = measure(loader, given.seconds)
            if number >= 0:  # the first round warms up
                found[length].append(measured)
    for length, rounds in found.items():
        waits, rate = (statistics.median(each) for each in zip(*rounds, strict=True))
        print(f"| {length:,} | {waits:.0%} | {rate:,.0f} |", flush=True)
        loaders[length].close()


if __name__ == "__main__":
    main()
