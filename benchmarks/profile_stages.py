"""Where the time of a sample goes: nanoseconds a sample by stage, for each kind of samples.

    python benchmarks/profile_stages.py [--only PATTERN …] [--rounds 5]

One process reads random batches of the small stores of `step.py --quick` and of a million rows of 64 bytes,
and hands each over as a worker of a Loader does, through a socket to itself. No decoded chunk is kept, except
of rows. Times are of the processor. A stage that begins inside another one interrupts it. Each call of a
stage that is counted costs about 1 µs, of which the outer stage gets half. The kernel reads, checks, decodes
and copies in one call; with UNISTORE_KERNEL=0 in the environment, these are stages of Python. The last
columns are without counting: processor time a sample, and that over reading, checking and decoding the
same chunks.
"""

from __future__ import annotations

import argparse
import fnmatch
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numcodecs
import numpy as np
import step
from harness.ours import keep_no_chunks
from harness.script import machine

import unistore
from unistore.data.collate import as_tensors
from unistore.data.kinds import rows as row_kinds
from unistore.loader.iteration import WINDOW, Arrival
from unistore.loader.worker_pool import Task, decode, encode, open_channel
from unistore.memory import Arena, Slab, round_up
from unistore.order.sequences import Shuffled
from unistore.system.machine import keep_freed_memory
from unistore.zarr3 import LocalStorage, array, chunks, codecs, compiled, gather

STAGES = (
    "order",
    "planning",
    "kernel",
    "reading",
    "checking",
    "decoding",
    "assembling",
    "collating",
    "hand-over",
)
BATCHES = 12
ROWS, ROW_BYTES, ROW_BATCH = 1_000_000, 64, 512


class Stopwatch:
    """Processor seconds of each stage, without those of the stages inside it."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self._open: list[str] = []
        self._since = time.thread_time()

    def _turn(self) -> None:
        now = time.thread_time()
        if self._open:
            self.seconds[self._open[-1]] += now - self._since
        self._since = now

    def timed(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that counts for a stage."""

        def call(*arguments: Any, **named: Any) -> Any:
            self._turn()
            self._open.append(stage)
            try:
                return function(*arguments, **named)
            finally:
                self._turn()
                self._open.pop()

        return call

    def timed_items(self, stage: str, function: Callable[..., Iterator[Any]]) -> Callable[..., Any]:
        """Return a generator function of which each item counts for a stage."""
        end = object()

        def items(*arguments: Any) -> Iterator[Any]:
            following = self.timed(stage, partial(next, function(*arguments), end))
            while (item := following()) is not end:
                yield item

        return items


PLANNING: dict[Any, tuple[str, ...]] = {
    array: ("group_ranges", "group_rows", "axis_pieces"),
    gather: ("_selections",),
    chunks.ChunkReader: ("locate", "numbers"),
}


def watched(watch: Stopwatch) -> ExitStack:
    """Count the stages of the engine, of stores that are opened from now on."""
    stack = ExitStack()

    def replace(owner: Any, name: str, function: Callable[..., Any]) -> None:
        stack.enter_context(mock.patch.object(owner, name, function))

    for owner, names in PLANNING.items():
        for name in names:
            replace(owner, name, watch.timed("planning", getattr(owner, name)))
    draw = watch.timed("planning", row_kinds.Spans.draw)
    replace(row_kinds.Spans, "draw", staticmethod(draw))
    for name in ("read_many", "read_many_into"):
        replace(LocalStorage, name, watch.timed_items("reading", getattr(LocalStorage, name)))
    replace(compiled, "_call", watch.timed("kernel", compiled._call))
    replace(codecs, "crc32c", watch.timed("checking", codecs.crc32c))
    replace(numcodecs.blosc, "decompress", watch.timed("decoding", numcodecs.blosc.decompress))
    return stack


class HandOver:
    """Sends a batch as a worker does, and takes it as a Loader does."""

    def __init__(self, dataset: unistore.Dataset, indices: Any) -> None:
        arena = Arena(None)
        dataset.read_batch(indices, arena.allocate)
        self._slab = Slab(round_up(2 * arena.needed))
        self._ours, theirs = open_channel()
        self._theirs = type(self._ours)(theirs)

    def arena(self) -> Arena:
        """Return the memory of the next batch."""
        return Arena(self._slab)

    def batch(self, read: Any, arena: Arena, indices: Any) -> Any:
        """Return a batch that went through the socket."""
        self._ours.send((0, [Task(0, 0, indices.tobytes(), None)]))
        self._theirs.receive()
        self._theirs.send((0, Arrival(encode(read, arena), arena.needed, 0.0)))
        (((_, arrival), _),) = self._ours.receive()
        return decode(arrival.batch, self._slab.map)


def profile(open_dataset: Callable[[], unistore.Dataset], batch: int, rounds: int) -> list[float]:
    """Return nanoseconds a sample: of each stage, of the processor, and of bare decoding."""
    watch = Stopwatch()
    with watched(watch):
        dataset = open_dataset()
        draws = np.random.default_rng(0).integers(0, len(dataset), (BATCHES, batch))
        hand_over = HandOver(dataset, draws[0])
        read = watch.timed("assembling", dataset.read_batch)
        collate = watch.timed("collating", as_tensors)
        send = watch.timed("hand-over", hand_over.batch)
        for number in range(-1, rounds):
            if number == 0:
                watch.seconds.clear()
            for indices in draws:
                arena = hand_over.arena()
                values = read(indices, arena.allocate)
                collate(send(values, arena, indices))
    stages = {stage: seconds / rounds / draws.size for stage, seconds in watch.seconds.items()}
    order = Shuffled(1_000_000)
    began = time.thread_time()
    for start in range(0, 8 * WINDOW, WINDOW):
        order.indices(0, start, start + WINDOW)
    stages["order"] = (time.thread_time() - began) / (8 * WINDOW)
    ours, bare = plain(open_dataset(), draws, rounds)
    return [*(stages.get(stage, 0.0) * 1e9 for stage in STAGES), ours * 1e9, bare * 1e9]


def plain(dataset: unistore.Dataset, draws: Any, rounds: int) -> tuple[float, float]:
    """Return processor seconds a sample, and those of bare decoding."""
    memory = step.Scratch()
    records = [step.ChunkRecord(dataset, indices) for indices in draws]
    measured: list[tuple[float, float]] = []
    for _ in range(rounds):
        ours = bare = 0.0
        for at, indices in enumerate(draws):
            began = time.process_time()
            memory.begin()
            as_tensors(dataset.read_batch(indices, memory.allocate))
            between = time.process_time()
            records[at - BATCHES // 2].decode()
            ours += between - began
            bare += time.process_time() - between
        measured.append((ours / draws.size, bare / draws.size))
    return statistics.median(m[0] for m in measured), statistics.median(m[1] for m in measured)


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=["*"], metavar="PATTERN")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "unistore-benchmarks")
    options = parser.parse_args()
    keep_freed_memory()
    print(machine(), "\n")
    print(f"| samples | {' | '.join(STAGES)} | processor | over bare decoding |")
    print(f"|---|{'--:|' * (len(STAGES) + 2)}")
    for name in ["rows", *step.KINDS]:  # the others switch off what rows need
        if any(fnmatch.fnmatch(name, pattern) for pattern in options.only):
            row = profile(*opener(name, options.folder), options.rounds)
            *stages, ours, bare = row
            cells = " | ".join(f"{value:,.0f}" for value in [*stages, ours])
            print(f"| {name} | {cells} | {ours / bare:.2f} |", flush=True)


def opener(name: str, folder: Path) -> tuple[Callable[[], unistore.Dataset], int]:
    """Return what opens a kind's store anew, and its batch size."""
    if name == "rows":
        import small_rows

        place = folder / "rows-quick"
        place.mkdir(parents=True, exist_ok=True)
        store = place / "rows.zarr"
        if not store.exists():
            small_rows.make(place, ROWS, ROW_BYTES)
        return lambda: unistore.Dataset(store), ROW_BATCH
    family, make, batch = step.KINDS[name]
    store, _, kind, fields = make(folder / f"{family}-quick", True)
    keep_no_chunks()
    return lambda: unistore.Dataset(store, kind, fields), batch


if __name__ == "__main__":
    main()
