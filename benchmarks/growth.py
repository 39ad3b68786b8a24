"""Stores that grow: appending beside converting. Reading is in ``grown.py``.

``python benchmarks/growth.py [--sources 101] [--rows 2000]``: short runs, temporary files.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

import unistore


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


def main() -> None:
    """Print all figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("sources", 101), ("rows", 2000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        figures = appending(Path(temporary), arguments.sources, arguments.rows)
        print("append", {key: round(value, 4) for key, value in figures.items()}, flush=True)
    print("peak memory", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10, "MiB")


if __name__ == "__main__":
    main()
