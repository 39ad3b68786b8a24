"""Stores larger than memory: bytes read from disk for each byte delivered, samples a second, memory.

    python benchmarks/cold.py [--megabytes 800] [--memory 200] [--seconds 10] [--only PATTERN …]

The page cache may hold `--memory` of a way's files, at most a quarter of them: they are evicted before the
way begins, and whenever its processes have read that much from the disk (``/proc/PID/io``). Every way is a
process of its own with two workers; one runs at a time. Nothing is measured where the kernel does not count
reads, or where the folder lies in memory. Mapped files are not evicted: the documents' rows are read by seek.
"""

from __future__ import annotations

import argparse
import fnmatch
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import point_cloud
import step
from harness.consume import consume
from harness.copying import make_source
from harness.memory import bytes_read, disk, evict, own_memory
from harness.peers import listed, stacked
from harness.plain import map_feed
from harness.ways import Feed, endless

import unistore

WORKERS = 2
SHUFFLES = (True, "full", "blocks")
OF_STEP = ("sparse CT", "patches", "clips", "transitions")
ROW = 1024
ROWS_BATCH = 512


class Seek:
    """Rows of an ``.npy`` file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._descriptor = -1
        self._count, self._first = divmod(file.stat().st_size, ROW)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, Any]:
        if self._descriptor < 0:
            self._descriptor = os.open(self._file, os.O_RDONLY)
        raw = os.pread(self._descriptor, ROW, self._first + ROW * index)
        return {"row": np.frombuffer(raw, np.uint8).copy()}


def loader_feed(store: Path, batch: int, shuffle: bool | str, **options: Any) -> Feed:
    """`unistore.Loader`."""
    loader = unistore.Loader(unistore.Dataset(store, **options), batch, shuffle, num_workers=WORKERS)
    return Feed(endless(loader), close=loader.close)


def make_rows(folder: Path, megabytes: int) -> Path:
    """Rows of 1 KiB that hardly compress."""
    source = folder / "source"
    if not source.exists():
        part = folder / "part"
        part.mkdir(parents=True, exist_ok=True)
        shape = (megabytes * 1_000_000 // ROW, ROW)
        rows = np.lib.format.open_memmap(part / "rows.npy", "w+", np.uint8, shape)
        rng = np.random.default_rng(0)
        for start in range(0, len(rows), 1 << 16):
            rows[start : start + (1 << 16)] = rng.integers(0, 256, rows[start : start + (1 << 16)].shape)
        rows.flush()
        part.rename(source)
    return source


@dataclass(frozen=True, slots=True)
class Way:
    """One way of reading: its name, samples of a batch, its files, and what makes the feed."""

    name: str
    batch: int
    files: Sequence[Path]
    make: Callable[..., Feed]
    arguments: dict[str, Any]


def ways(given: argparse.Namespace) -> Iterator[Way]:
    """All that were asked for; their data are made here."""
    for kind in ("rows of 1 KiB", "segments", *OF_STEP):
        names = [f"{kind}: documents", *(f"{kind}: Loader, shuffle={shuffle!r}" for shuffle in SHUFFLES)]
        wanted = [name for name in names if any(fnmatch.fnmatch(name, each) for each in given.only)]
        if wanted:
            documents, options = (of_step if kind in OF_STEP else of_size)(kind, names[0], given)
            ours = {"batch": documents.batch, **options}
            found = [documents]
            found += [
                Way(name, documents.batch, (options["store"],), loader_feed, {**ours, "shuffle": shuffle})
                for name, shuffle in zip(names[1:], SHUFFLES, strict=True)
            ]
            yield from (way for way in found if way.name in wanted)


def of_size(kind: str, name: str, given: argparse.Namespace) -> tuple[Way, dict[str, Any]]:
    """The documents' way of rows or segments, of as many megabytes as asked for, and options of ours."""
    folder = given.folder / f"{kind.split(maxsplit=1)[0]}-{given.megabytes}"
    if kind == "segments":
        batch, family, collate = point_cloud.BATCH, "point_cloud", listed
        source = make_source(family, folder, quick=False, megabytes=given.megabytes)
        files = sorted(source.rglob("*.h5"))
        dataset: Any = (point_cloud.Documents, (files, 0))
    else:
        batch, family, collate = ROWS_BATCH, "rows", stacked
        source = make_rows(folder, given.megabytes)
        files = [source / "rows.npy"]
        dataset = (Seek, (files[0],))
    store = folder / "store.zarr"
    if not store.exists():
        unistore.convert(source, store, family)
    plain = {"dataset": dataset, "batch": batch, "workers": WORKERS, "collate": collate}
    return Way(name, batch, files, map_feed, plain), {"store": store}


def of_step(kind: str, name: str, given: argparse.Namespace) -> tuple[Way, dict[str, Any]]:
    """The same of a kind of `step.py`, of its data in full size."""
    family, make, batch = step.KINDS[kind]
    folder = given.folder / family
    folder.mkdir(parents=True, exist_ok=True)
    store, (documents, arguments), samples, fields = make(folder, False)
    files = sorted(path for path in (folder / "source").rglob("*") if path.is_file())
    return Way(name, batch, files, documents, arguments), {
        "store": store,
        "samples": samples,
        "fields": fields,
    }


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=800, help="of the sources of rows and segments")
    parser.add_argument("--memory", type=int, default=200, help="megabytes of page cache")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each way")
    parser.add_argument("--only", nargs="+", default=["*"], metavar="PATTERN")
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()) / "unistore-benchmarks" / "cold"
    )
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    if bytes_read(os.getpid()) is None:
        sys.exit("skipped: this kernel does not count what processes read (/proc/PID/io)")
    print("| samples and way | files | page cache | read for each byte delivered | samples/s | memory |")
    print("|---|--:|--:|--:|--:|--:|")
    context = multiprocessing.get_context("spawn")
    for way in ways(given):
        files = way.files
        room = min(given.memory * 1_000_000, disk(files) // 4)
        connection, theirs = context.Pipe()
        process = context.Process(target=serve, args=(way.make, way.arguments, theirs))
        process.start()
        theirs.close()
        connection.recv()
        evict(files)
        first = seen = bytes_read(process.pid) or 0
        connection.send(given.seconds)
        memory = 0.0
        while not connection.poll(0.01):
            now = bytes_read(process.pid) or 0
            if now - seen >= room:
                evict(files)
                seen = now
                memory = max(memory, own_memory(process.pid))
        count, nbytes, took = connection.recv()
        read = (bytes_read(process.pid) or 0) - first
        memory = max(memory, own_memory(process.pid))
        connection.send(None)
        process.join()
        if not read:
            sys.exit(f"skipped: nothing was read from a disk ({given.folder} lies in memory?); see --folder")
        cells = f"{disk(files) / 1e6:,.0f} MB | {room / 1e6:,.0f} MB | {read / nbytes:.2f}"
        print(f"| {way.name} | {cells} | {count * way.batch / took:,.0f} | {memory:,.0f} MiB |", flush=True)


def serve(make: Callable[..., Feed], arguments: dict[str, Any], connection: Connection) -> None:
    """Load for a while; runs in a process of its own."""
    multiprocessing.set_start_method("fork", force=True)  # what users have; this process itself was spawned
    feed = make(**arguments)
    consume(next(feed.batches))  # workers are there
    connection.send("ready")
    seconds, count, nbytes, began = connection.recv(), 0, 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        nbytes += consume(next(feed.batches))[0]
        count += 1
    connection.send((count, nbytes, time.perf_counter() - began))
    connection.recv()
    feed.close()


if __name__ == "__main__":
    main()
