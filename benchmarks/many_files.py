"""Many tiny files: processor time and memory a file, beside a walk that reads the same files.

    python benchmarks/many_files.py [--files N …] [--only FAMILY …] [--cluster] [--folder DIR] [--json FILE]

Folders of 1,000 to 20,000 files (``--files``) of 1 to 10 kB: ACT episodes, point clouds as HDF5
columns, rows as ``.npy``. Each is converted in this process, on two workers and, with ``--cluster``, on a
dask cluster of two; beside it, h5py or numpy walks the folder and reads every array of every file. Every way
runs in a new process that has imported its libraries before. The files are in the page cache; other load
changes the wall time, and processor seconds least.

What a further file costs is the slope between the fewest and the most files: "parent" is the memory of the
converting process alone.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from harness.memory import warm
from harness.once import Once, run_once
from harness.script import machine

WALK, ALONE, WORKERS, CLUSTER = "plain walk", "this process", "2 workers", "cluster of 2"


def episode(path: Path, rng: np.random.Generator) -> None:
    """One ACT episode of ten steps."""
    with h5py.File(path.with_suffix(".hdf5"), "w") as file:
        file.attrs["sim"] = True
        file["action"] = rng.normal(size=(10, 4)).astype("f4")
        file["observations/qpos"] = rng.normal(size=(10, 4)).astype("f4")
        file["observations/qvel"] = rng.normal(size=(10, 4)).astype("f4")


def cloud(path: Path, rng: np.random.Generator) -> None:
    """Columns of twenty points."""
    with h5py.File(path.with_suffix(".h5"), "w") as file:
        for axis in "xyz":
            file[axis] = np.round(rng.normal(0, 5, 20), 2)
        file["classification"] = rng.integers(0, 5, 20).astype("i4")


def rows(path: Path, rng: np.random.Generator) -> None:
    """Twenty rows of an array that goes on in the next file."""
    np.save(path.with_suffix(".npy"), rng.normal(size=(20, 4)).astype("f4"))


FAMILIES: dict[str, Callable[[Path, np.random.Generator], None]] = {
    "trajectory": episode,
    "point_cloud": cloud,
    "rows": rows,
}


def make(family: str, count: int, folder: Path) -> Path:
    """Files of a family, a thousand a folder; kept between runs."""
    place = folder / f"{family}-{count}"
    if not place.exists():
        rng, begun = np.random.default_rng(0), folder / f"{family}-{count}.part"
        shutil.rmtree(begun, ignore_errors=True)
        for number in range(count):
            path = begun / f"lot_{number // 1000:03d}" / f"episode_{number}"
            path.parent.mkdir(parents=True, exist_ok=True)
            FAMILIES[family](path, rng)
        begun.rename(place)
    return place


def walk(folder: Path) -> None:
    """Read every array of every file with h5py or numpy."""
    for place, _, names in os.walk(folder):
        for name in names:
            path = f"{place}/{name}"
            if name.endswith(".npy"):
                np.load(path)
                continue
            with h5py.File(path, "r") as file:
                file.visititems(lambda _, item: item[()] if isinstance(item, h5py.Dataset) else None)


def convert(family: str, source: Path, store: Path, way: str) -> None:
    """Convert with unistore."""
    import unistore

    with ExitStack() as stack:
        if way == CLUSTER:
            from distributed import LocalCluster

            cluster = LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None)
            how: dict[str, Any] = {"scheduler": stack.enter_context(cluster).scheduler_address}
        else:
            how = {"workers": 2 if way == WORKERS else 0}
        unistore.convert(source, store, family, **how)


def measure(family: str, count: int, way: str, folder: Path) -> Once:
    """One way with one number of files."""
    source, store = make(family, count, folder), folder / "store.zarr"
    shutil.rmtree(store, ignore_errors=True)
    warm([source])
    if way == WALK:
        return run_once(walk, (source,), ("h5py",))
    asked = (f"unistore.converters.{each}" for each in ("ct", "spike", *FAMILIES))
    imports = ("unistore.conversion.convert", *asked, "h5py")
    done = run_once(convert, (family, source, store, way), imports)
    shutil.rmtree(store, ignore_errors=True)
    return done


def line(count: int, way: str, each: Once, walked: Once) -> str:
    """One line of Markdown."""
    return (
        f"| {count:,} | {way} | {each.cost / count * 1e3:.2f} ms | {each.seconds / count * 1e3:.2f} ms | "
        f"{each.own:,.0f} MiB | {each.cost / walked.cost:.2f}× |{each.failure}"
    )


def slopes(results: dict[tuple[int, str], Once]) -> str:
    """Markdown of what a further file costs, between the fewest and the most."""
    sizes = sorted({count for count, _ in results})
    few, most = sizes[0], sizes[-1]
    lines = ["", "| a further file | CPU | wall | parent |", "|---|--:|--:|--:|"]
    for way in dict.fromkeys(way for _, way in results):
        low, high, more = results[few, way], results[most, way], most - few
        lines.append(
            f"| {way} | {(high.cost - low.cost) / more * 1e3:.2f} ms | "
            f"{(high.seconds - low.seconds) / more * 1e3:.2f} ms | "
            f"{(high.own - low.own) / more * 2**20:,.0f} B |"
        )
    return "\n".join([*lines, ""])


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, nargs="+", default=[1_000, 5_000, 20_000], help="in a folder")
    parser.add_argument("--only", nargs="+", default=list(FAMILIES), choices=FAMILIES, help="families")
    parser.add_argument("--cluster", action="store_true", help="also on a dask cluster of two processes")
    parser.add_argument("--folder", type=Path, help="of the data (default: in the temporary folder, kept)")
    parser.add_argument("--json", type=Path, help="write what was measured there")
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.gettempdir()) / "unistore-benchmarks" / "many_files"
    folder.mkdir(parents=True, exist_ok=True)
    ways = [WALK, ALONE, WORKERS, *([CLUSTER] if given.cluster else [])]
    print(machine(), "\n")
    written = {}
    for family in given.only:
        print(f"### {family.replace('_', ' ')}\n")
        print("| files | way | CPU a file | wall a file | parent | CPU is of the walk |")
        print("|--:|---|--:|--:|--:|--:|", flush=True)
        results: dict[tuple[int, str], Once] = {}
        for count in given.files:
            for way in ways:
                each = results[count, way] = measure(family, count, way, folder)
                print(line(count, way, each, results[count, WALK]), flush=True)
        if len(given.files) > 1:
            print(slopes(results), flush=True)
        written[family] = [
            {"files": n, "way": way, "cpu": each.cost, "wall": each.seconds, "parent": each.own}
            for (n, way), each in results.items()
        ]
    if given.json:
        given.json.write_text(json.dumps(written, indent=1))


if __name__ == "__main__":
    main()
