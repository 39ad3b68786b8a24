"""A hundred million samples: what order and index cost, from opening to the first batches.

    python benchmarks/hundred_million.py                       # 100 million samples, both shuffles
    python benchmarks/hundred_million.py --samples 10000000 --workers 0

The store is a point cloud of as many segments. Its offsets are synthetic, laid out as converters do it, so
that every sample is known from its number; each point is one byte. Every line is a process of its own, which
does the same with a small store first, so that everything is imported and warm. It opens the Dataset, makes a
Loader, starts two epochs, and compares their first batches with the order and with what the samples hold.

open: `Dataset` and its length. loader: `Loader`. epoch: `iter(loader)` of the second epoch, when workers are
running. batch: the first one after that. MB: what became resident since the small store was done, decoded
chunks included: in the process itself and in its largest worker.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ENDS = np.array([0, 3, 4, 8, 10, 15])
"""First points of five segments, and of the next one."""
CHUNK = 4096
BATCH = 64


def first_point(segment: Any) -> Any:
    """Number of the first point of each segment."""
    return segment // 5 * ENDS[-1] + ENDS[segment % 5]


def classification(point: Any) -> Any:
    """What the store holds of each point."""
    return point % 251


def make_store(path: Path, samples: int) -> None:
    """Write a store of so many segments."""
    import zarr

    from unistore.store.manifest import make_seal

    root = zarr.create_group(path)

    def write(name: str, length: int, chunk: int, values: Callable[[Any], Any], dtype: str) -> None:
        shard = 256 * chunk
        array = root.create_array(name, shape=(length,), dtype=dtype, chunks=(chunk,), shards=(shard,))
        for start in range(0, length, shard):
            array[start : start + shard] = values(np.arange(start, min(start + shard, length)))

    points = int(first_point(samples))
    # these give the number of rows; nothing reads their values
    root.create_array("segments/number", shape=(samples,), dtype="i8", chunks=(CHUNK,), shards=(256 * CHUNK,))
    root.create_array("points/xyz", shape=(points, 3), dtype="f4", chunks=(CHUNK, 3), shards=(256 * CHUNK, 3))
    write("segments/offsets", samples + 1, CHUNK, first_point, "i8")
    write("points/classification", points, 8 * CHUNK, classification, "u1")
    rules = {
        "points/xyz": {},
        "points/classification": {"rows": ["points/xyz", 0]},
        "segments/number": {},
        "segments/offsets": {"rows": ["segments/number", 1], "offsets_of": "points/xyz"},
    }
    root.attrs["unistore"] = {
        "format_version": 1,
        "family": "point_cloud",
        "samples": {"count": samples, "table": "segments"},
        "tables": {"points": ["classification", "xyz"], "segments": ["number"]},
        "kinds": ["unistore.Segments()"],
        "package": {"name": "unistore", "version": ""},
        "fields": {name: {"axes": [], "rule": rules[name]} for name in rules},
        "seal": make_seal([], b""),
    }


def resident(pid: int | str = "self") -> float:
    """Megabytes of a process that are in memory."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError("the kernel does not say how much is resident")


def measure(path: Path, shuffle: bool | str, workers: int) -> dict[str, Any]:
    """Seconds and megabytes of one use of a store; checks the batches."""
    import unistore

    clock = [time.perf_counter()]
    dataset = unistore.Dataset(path, fields=["classification"])
    samples = len(dataset)
    clock.append(time.perf_counter())
    loader = unistore.Loader(dataset, BATCH, shuffle, seed=1, num_workers=workers)
    clock.append(time.perf_counter())
    for epoch in range(2):
        started = time.perf_counter()
        batches = iter(loader)
        clock.append(time.perf_counter() - started)
        started = time.perf_counter()
        for step in range(16):
            batch = next(batches)
            if step == 0:
                clock.append(time.perf_counter() - started)
            index = batch["index"].numpy()
            expected = loader.sequence.indices(epoch, step * BATCH, (step + 1) * BATCH)
            if not np.array_equal(index, expected) or np.unique(index).size < BATCH or index.max() >= samples:
                sys.exit(f"FAILED: batch {step} of epoch {epoch} is not what the order says")
            points = [np.arange(first_point(i), first_point(i + 1)) for i in index]
            if not np.array_equal(batch["classification"].numpy(), classification(np.concatenate(points))):
                sys.exit(f"FAILED: batch {step} of epoch {epoch} holds other points")
        del batches
    megabytes = [resident(), *(resident(pid) for pid in loader.worker_pids)]
    loader.close()
    return {
        "open": clock[1] - clock[0],
        "loader": clock[2] - clock[1],
        "epoch": clock[5],
        "batch": clock[6],
        "process": megabytes[0],
        "worker": max(megabytes[1:], default=0.0),
    }


def run(folder: Path, shuffle: bool | str, workers: int) -> dict[str, Any]:
    """In this process: the small store, then the large one; megabytes are differences."""
    small = measure(folder / "small.zarr", shuffle, workers)
    gc.collect()
    before = resident()
    large = measure(folder / "large.zarr", shuffle, workers)
    return large | {"process": large["process"] - before, "worker": large["worker"] - small["worker"]}


def main() -> None:
    """Make the stores, run every line, print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=100_000_000)
    parser.add_argument("--workers", type=int, action="append", help="0 and 2 unless given")
    parser.add_argument("--order", choices=["full", "blocks"], action="append", help="both unless given")
    parser.add_argument("--line", nargs=2, metavar=("FOLDER", "WORKERS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    orders = options.order or ["full", "blocks"]
    if options.line:
        folder, workers = options.line
        print(json.dumps(run(Path(folder), True if orders == ["full"] else "blocks", int(workers))))
        return
    with tempfile.TemporaryDirectory(prefix="hundred-million-") as folder:
        make_store(Path(folder) / "small.zarr", 100_000)
        make_store(Path(folder) / "large.zarr", options.samples)
        print(f"{options.samples:,} samples\n")
        print("| order | workers | open | loader | epoch | batch | MB | MB of a worker |")
        print("|---|---|---|---|---|---|---|---|")
        for order in orders:
            for workers in options.workers or (0, 2):
                line = [sys.executable, __file__, "--order", order, "--line", folder, str(workers)]
                done = subprocess.run(line, capture_output=True, text=True, check=False)
                if done.returncode:
                    sys.exit(done.stderr)
                found = json.loads(done.stdout)
                seconds = " | ".join(f"{found[key]:.3f} s" for key in ("open", "loader", "epoch", "batch"))
                worker = f"{found['worker']:.0f}" if workers else ""
                memory = f"{found['process']:.0f} | {worker}"
                print(f"| {order} | {workers} | {seconds} | {memory} |", flush=True)


if __name__ == "__main__":
    main()
