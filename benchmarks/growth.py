"""Stores that grow: appending beside converting, opening many parts, reading beside the compacted store.

``python benchmarks/growth.py [--sources 101] [--rows 2000] [--parts 1000]``: short runs, temporary files.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import unistore
from unistore.growing.folder import growing
from unistore.store.versions import describe_part

READS = 300
BATCH = 64


def seconds(function: Callable[[], object]) -> float:
    """Return how long a call takes."""
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def write_sources(folder: Path, first: int, count: int, rows: int) -> None:
    """Write plain arrays, one file each."""
    folder.mkdir(exist_ok=True, parents=True)
    for number in range(first, first + count):
        rng = np.random.default_rng(number)
        values = rng.random((rows, 64), np.float32)
        np.savez(folder / f"{number:05d}.npz", x=values, label=rng.integers(0, 9, rows))


def appending(folder: Path, sources: int, rows: int) -> Mapping[str, float]:
    """Append one of many sources, given alone and with all, and convert it alone."""
    write_sources(folder / "all", 0, sources - 1, rows)
    write_sources(folder / "new", sources - 1, 1, rows)
    whole = seconds(lambda: unistore.convert(folder / "all", folder / "s.zarr"))
    shutil.copytree(folder / "s.zarr", folder / "t.zarr")
    alone = min(
        seconds(lambda: unistore.convert(folder / "new", folder / "alone.zarr", overwrite=True))
        for _ in range(3)
    )
    append = seconds(lambda: unistore.append(folder / "new", folder / "s.zarr"))
    shutil.copy(next((folder / "new").iterdir()), folder / "all")
    with_all = seconds(lambda: unistore.append(folder / "all", folder / "t.zarr"))
    return {"all": whole, "one alone": alone, "append": append, "append, all given": with_all}


def grown(folder: Path, parts: int, rows: int) -> Path:
    """Return a store of so many parts, written as versions of one source each would leave it."""
    write_sources(folder / "first", 0, 1, rows)
    store = folder / "grown.zarr"
    unistore.convert(folder / "first", store)
    write_sources(folder / "second", 1, 1, rows)
    unistore.append(folder / "second", store)
    with growing(store) as growth:
        schemas = list(growth.version.schemas)
        listed = list(growth.version.parts)
        for number in range(2, parts):
            write_sources(folder / f"{number}", number, 1, rows)
            unistore.convert(folder / f"{number}", growth.new_store)
            part = describe_part(unistore.Store(growth.new_store), schemas)
            growth.new_store.rename(store / part.key)
            listed.append(part)
        growth.commit(listed, schemas)
    return store


def reading(dataset: unistore.Dataset) -> float:
    """Return samples a second of random batches, after a warm-up."""
    batches = np.random.default_rng(0).integers(0, len(dataset), (READS, BATCH))
    for indices in batches[: READS // 10]:
        dataset.read_batch(indices)
    return READS * BATCH / seconds(lambda: [dataset.read_batch(indices) for indices in batches])


def many_parts(folder: Path, parts: int, rows: int) -> Mapping[str, Any]:
    """Open a store of many parts, and read it beside the compacted one."""
    store = grown(folder, parts, rows)
    opened = min(seconds(lambda: unistore.Dataset(store)) for _ in range(3))
    dataset = unistore.Dataset(store)
    first = seconds(lambda: dataset[0])
    rate = reading(dataset)
    files = len([*Path("/proc/self/fd").iterdir()])
    unistore.compact(store, folder / "one.zarr", overwrite=True)
    one = reading(unistore.Dataset(folder / "one.zarr"))
    values: dict[str, Any] = {"opening": opened, "first sample": first, "samples/s": rate}
    return {**values, "samples/s compacted": one, "ratio": rate / one, "open files": files}


def main() -> None:
    """Print all figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("sources", 101), ("rows", 2000), ("parts", 1000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        for name, figures in (
            ("append", appending(Path(temporary, "a"), arguments.sources, arguments.rows)),
            ("20 parts", many_parts(Path(temporary, "b"), 20, arguments.rows)),
            (f"{arguments.parts} parts", many_parts(Path(temporary, "c"), arguments.parts, 50)),
        ):
            print(name, {key: round(value, 4) for key, value in figures.items()}, flush=True)
    print("peak memory", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10, "MiB")


if __name__ == "__main__":
    main()
