"""Conversion: source MB/s of every family beside plain scripts, dask, and the limit.

    python benchmarks/conversion.py [--quick] [--only FAMILY …] [--megabytes N] [--json FILE]

About 1 GB of every family (0.35 GB of point clouds, which are gzipped): synthetic files in the families'
own layouts, those of the other benchmarks, and hard links to them. They are in the page cache. Every way runs
in a new process that has imported its libraries before; our workers start within the time. Other sizes
(``--megabytes 4000``) tell what starting and sealing take from what the bytes do.

In this process, unistore reads on one thread and encodes and writes on others.

- **limit**: processor seconds of reading and decoding every source byte with the plain libraries and of
  encoding what the store holds with the store's own codecs, divided by the processes that convert. Nothing
  is written: no index, no sorting, no digests, no fsync, no start of processes. The column "of the limit" is
  by processor seconds, which other load on the machine changes least; the targets are by time.
- **zarr-python**: a straightforward script that reads a source array with its own library and assigns it to
  an array of zarr-python with its default codec, file by file. zarr-python uses threads.
- **dask**: ``dask.array.to_zarr`` where sources are arrays that dask can take as they are.
- **disk**: as many bytes as the store has, written to one file on the disk and fsynced: the least that a
  conversion to that disk takes.

unistore writes a sealed, fsynced store with checksums and digests; the others write what they write. All
write to memory (``/dev/shm``, where there is one), since the limit does not write; "to disk" is the same
conversion into the folder of the data.
"""

from __future__ import annotations

import itertools
import json
import os
import platform
import shutil
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from harness.copying import FAMILIES, Family, make_source
from harness.memory import disk, warm
from harness.once import Once, run_once
from harness.script import parse

MEMORY = Path("/dev/shm")
LIMIT = "limit, one process"
ALONE = "unistore, in this process"
WORKERS = {1: "unistore, 1 worker", 2: "unistore, 2 workers"}
TO_DISK = "unistore, 2 workers, to disk"
NAIVE = "zarr-python"
ROUNDS = 3

Way = tuple[Callable[..., float | None], tuple[Any, ...], tuple[str, ...]]


def convert(family: str, source: Path, destination: Path, options: Mapping[str, Any], workers: int) -> None:
    """Convert with unistore."""
    import unistore

    unistore.convert(source, destination, family, workers=workers, **options)


def limit(read: Callable[[Path], None], source: Path, store: Path) -> float:
    """Processor seconds of reading the source and of encoding what the store holds, nothing written."""
    from unistore.store.reader import Store
    from unistore.zarr3.writer import encode_shard

    began = time.process_time()
    read(source)
    spent = time.process_time() - began
    opened = Store(store)
    for path in opened.paths():
        array = opened.array(path)
        metadata = array.metadata
        steps = [range(count) for count in metadata.shards]
        for coordinates in itertools.product(*steps):
            lo = [at * step for at, step in zip(coordinates, metadata.shard_shape, strict=True)]
            hi = [min(a + s, n) for a, s, n in zip(lo, metadata.shard_shape, metadata.shape, strict=True)]
            block = array.read_box(lo, hi)
            began = time.process_time()
            encode_shard(metadata, coordinates, block)
            spent += time.process_time() - began
    return spent


def write_bytes(store: Path, destination: Path) -> None:
    """Write as many bytes as a store has to one file, and wait for the disk."""
    block, left = os.urandom(1 << 20), disk([store])
    with destination.open("wb") as file:
        while left > 0:
            left -= file.write(block[:left])
        file.flush()
        os.fsync(file.fileno())


def ways_of(name: str, family: Family, source: Path, place: Path, on_disk: Path) -> dict[str, Way]:
    """Every way of converting a family, by name; the first one's store is needed by others."""
    store = place / "store.zarr"
    ours = ("unistore.conversion.convert", f"unistore.converters.{name}", "h5py", "cv2")

    def to(destination: Path, workers: int) -> Way:
        imports = (*ours, "distributed") if workers else ours
        return convert, (name, source, destination, family.options, workers), imports

    ways: dict[str, Way] = {
        ALONE: to(store, 0),
        WORKERS[1]: to(place / "one.zarr", 1),
        WORKERS[2]: to(place / "two.zarr", 2),
        TO_DISK: to(on_disk / "two.zarr", 2),
        "disk": (write_bytes, (store, on_disk / "bytes"), ("numpy",)),
        NAIVE: (family.naive, (source, place / "naive.zarr"), ("zarr", "h5py", "cv2")),
        LIMIT: (limit, (family.read, source, store), ("unistore.zarr3", "h5py", "cv2")),
    }
    if family.by_dask is not None:
        ways["dask.array.to_zarr"] = (
            family.by_dask,
            (source, place / "dask.zarr"),
            ("dask.array", "zarr", "h5py"),
        )
    return ways


def measure(ways: Mapping[str, Way], place: Path, on_disk: Path, rounds: int) -> dict[str, list[Once]]:
    """Run every way once a round, in another order each."""
    found: dict[str, list[Once]] = {name: [] for name in ways}
    for number in range(rounds):
        turn = number % len(ways)  # the first round begins with the store that others need
        names = [*ways][turn:] + [*ways][:turn]
        for name in names:
            for made in [*place.iterdir(), *on_disk.iterdir()]:
                if made.is_file():
                    made.unlink()
                elif made.name != "store.zarr" or name == ALONE:
                    shutil.rmtree(made)
            os.sync()
            found[name].append(run_once(*ways[name]))
            print(f"{name}: {found[name][-1]}", flush=True)
    return found


def rows_of_table(name: str, size: float, found: Mapping[str, list[Once]]) -> list[str]:
    """Rows of the table of a family; `size` in MB."""
    lines = []
    for way, runs in found.items():
        good = [run for run in runs if not run.failure]
        cells = [f"{name} ({size:,.0f} MB)", way]
        if good:
            seconds = statistics.median(run.seconds for run in good)
            cells += [f"{seconds:.2f} s", f"{size / seconds:,.0f} MB/s"]
            if way in (LIMIT, "disk"):
                cells += ["", "", ""]
            else:
                shares = [a.seconds / b.cost for a, b in zip(found[LIMIT], runs, strict=True)]
                cells.append(f"{statistics.median(run.cost for run in good):.2f} s")
                cells.append(f"{statistics.median(shares):.2f}")
                cells.append(f"{max(run.peak for run in good):,.0f} MiB")
            cells.append(f"{max(run.others for run in good):.0%}")
        else:
            cells += [f"failed: {runs[0].failure}", *[""] * 5]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def judged(name: str, family: Family, found: Mapping[str, list[Once]]) -> list[str]:
    """Rows of the table of targets: medians of the rounds' ratios."""

    def ratio(slow: str, fast: str | tuple[str, ...], processes: int = 1) -> float:
        ways = [found[way] for way in ([fast] if isinstance(fast, str) else fast)]
        ratios = (
            a.seconds / min(run.seconds for run in runs) / processes
            for a, *runs in zip(found[slow], *ways, strict=True)
        )
        return statistics.median(ratios)

    best = (ALONE, *WORKERS.values())
    targets = [
        ("of the limit, in this process", ratio(LIMIT, ALONE), 0.6),
        ("of the limit of two processes, 2 workers", ratio(LIMIT, WORKERS[2], 2), 0.6),
        ("of the limit of two processes, our best way", ratio(LIMIT, best, 2), 0.6),
    ]
    if family.uncompressed:
        targets.append(("times zarr-python, our best way", ratio(NAIVE, best), 5))
        targets += [(f"times zarr-python, {way}", ratio(NAIVE, way), 5) for way in (ALONE, WORKERS[2])]
    return [
        f"| {name}: {text} | ≥ {wanted:g} | {value:.2f} | {'met' if value >= wanted else '**missed**'} |"
        for text, value, wanted in targets
    ]


def main() -> None:
    """Run the benchmark."""
    options = parse(__doc__, "conversion", sized=True)
    rounds = min(options.rounds, ROUNDS)
    memory = MEMORY if os.access(MEMORY, os.W_OK) else options.folder
    place, on_disk = memory / f"unistore-conversion-{os.getpid()}", options.folder / "stores"
    lines, targets, records = [], [], {}
    for name, family in FAMILIES.items():
        if options.only and name not in options.only:
            continue
        source = make_source(name, options.folder / name, quick=options.quick, megabytes=options.megabytes)
        warm([source])
        for folder in (place, on_disk):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        try:
            found = measure(ways_of(name, family, source, place, on_disk), place, on_disk, rounds)
        finally:
            shutil.rmtree(place)
            shutil.rmtree(on_disk)
        lines += rows_of_table(name, disk([source]) / 1e6, found)
        targets += judged(name, family, found)
        records[name] = {
            way: [[run.seconds, run.cost, run.peak, run.others] for run in runs]
            for way, runs in found.items()
        }
    text = [
        "### Conversion",
        "",
        f"{len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}, median of {rounds}.",
        "Memory: anonymous and shared, above the imports, the most of all rounds.",
        "",
        "| family | way | time | source | CPU | of the limit | memory | other load |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
        *lines,
        "",
        "| target | to reach | reached | |",
        "|---|--:|--:|---|",
        *targets,
    ]
    print("\n".join(text))
    if options.markdown:
        with options.markdown.open("a") as file:
            file.write("\n".join(text) + "\n\n")
    if options.json:
        known = json.loads(options.json.read_text()) if options.json.exists() else {}
        options.json.write_text(json.dumps({**known, **records}, indent=1))


if __name__ == "__main__":
    main()
