"""The compiled kernel beside Python and bare decoding, in one process.

    python benchmarks/kernel.py [--only PATTERN …] [--rounds 20]

Each round reads the same random batches of the small stores of `step.py --quick` by the kernel and by Python,
and decodes their chunks alone, in an order that changes from round to round. No decoded chunk is kept. Times
are processor time a sample, ratios medians of the rounds with their interval at 95 %. Both ways must return
the same bytes.
"""

from __future__ import annotations

import argparse
import fnmatch
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from harness.ours import open_dataset
from harness.script import machine
from step import KINDS, ChunkRecord, Scratch
from versions import median_interval

from unistore.data.collate import as_tensors
from unistore.data.kinds import segments, sparse_points
from unistore.system.kernel import kernel
from unistore.system.machine import keep_freed_memory
from unistore.zarr3 import compiled

BATCHES = 8


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=["*"], help="patterns of samples")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "unistore-kernel")
    options = parser.parse_args()
    if kernel() is None or compiled.compiled_functions() is None:
        sys.exit("no kernel here: `unistore doctor` says why")
    keep_freed_memory()
    print(machine())
    print("| samples | Python | kernel | of Python's time, interval | over bare decoding, Python → kernel |")
    print("|---|--:|--:|--:|--:|")
    for name in KINDS:
        if any(fnmatch.fnmatch(name, pattern) for pattern in options.only):
            measure(name, options.folder, options.rounds)


def by_python() -> ExitStack:
    """Return a context without the kernel."""
    stack = ExitStack()
    for module in (compiled, segments, sparse_points):
        stack.enter_context(mock.patch.object(module, "kernel", return_value=None))
    return stack


def measure(name: str, folder: Path, rounds: int) -> None:
    """Print the line of one kind of samples."""
    family, make, batch = KINDS[name]
    store, _, kind, fields = make(folder / family, True)
    dataset, memory = open_dataset(store, kind, fields), Scratch()
    draws = np.random.default_rng(0).integers(0, len(dataset), (BATCHES, batch))
    bare = [ChunkRecord(dataset, indices) for indices in draws]
    for indices in draws:
        check_equal(dataset, indices, fields)

    def read() -> None:
        for indices in draws:
            memory.begin()
            as_tensors(dataset.read_batch(indices, memory.allocate))

    def decode() -> None:
        for record in bare:
            record.decode()

    times: dict[str, list[float]] = {"Python": [], "kernel": [], "bare": []}
    for number in range(rounds + 1):
        ways = list(times)
        np.random.default_rng(number).shuffle(ways)
        for way in ways:
            with by_python() if way == "Python" else ExitStack():
                began = time.process_time()
                decode() if way == "bare" else read()
                seconds = time.process_time() - began
            if number:  # the first round warms up
                times[way].append(seconds / draws.size * 1e3)
    ratios = ratios_of(times["kernel"], times["Python"])
    low, high = median_interval(ratios)
    over = [statistics.median(ratios_of(times[way], times["bare"])) for way in ("Python", "kernel")]
    python, compiled_time = statistics.median(times["Python"]), statistics.median(times["kernel"])
    print(
        f"| {name} | {python:.3f} ms | {compiled_time:.3f} ms "
        f"| {statistics.median(ratios):.2f} ({low:.2f}–{high:.2f}) | {over[0]:.2f} → {over[1]:.2f} |",
        flush=True,
    )


def ratios_of(times: list[float], others: list[float]) -> list[float]:
    """Return the ratio of each round."""
    return [one / other for one, other in zip(times, others, strict=True)]


def check_equal(dataset: Any, indices: Any, fields: Any) -> None:
    """Refuse batches whose bytes differ between the two ways."""
    compiled_batch = dataset.read_batch(indices)
    with by_python():
        batch = dataset.read_batch(indices)
    for key in fields:
        ours, theirs = (np.asarray(one[key].values).tobytes() for one in (compiled_batch, batch))
        if ours != theirs:
            sys.exit(f"{key}: the kernel reads other values than Python")


if __name__ == "__main__":
    main()
