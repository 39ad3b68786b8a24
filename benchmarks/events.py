"""Windows of 50 ms of one recording of an event camera, 640 x 480 pixels: here, and by two workers.

    python benchmarks/events.py [--events 20000000] [--rate 1000000] [--turns 7] [--folder FOLDER]
    python benchmarks/events.py --over-time 3         # is the memory flat?

A window begins at a random microsecond; it has t (int64), x, y (uint16) and p (uint8) of every event of the
next 50 ms, and all ways deliver the same values. ``h5py`` reads a file as DSEC has it (Blosc with zstd by
hdf5plugin, chunks as h5py chooses them), and finds a window by ``ms_to_idx``; ``contiguous`` is the same file
without a filter; ``memory map`` slices arrays of int64, uint16 and uint8. Their batches are made by torch's
DataLoader, those of unistore by `unistore.Loader`, without a cache of decoded chunks. The ways take turns;
ratios are of windows a second to those of ``h5py``, turn by turn: the median, and the least and the most.
Processor time is that of the process and its workers, in a turn.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import hdf5plugin
import numpy as np
from harness.consume import consume
from harness.memory import disk, own_memory, processor_seconds
from harness.ours import loader_feed
from harness.peers import packed
from harness.plain import map_feed
from harness.ways import Feed

import unistore

WIDTH, HEIGHT = 640, 480
WINDOW = 50_000
BLOCK = 1 << 20
EDGES = 40
COLUMNS = {"t": "u4", "x": "u2", "y": "u2", "p": "u1"}
Events = dict[str, np.ndarray]


class Sliced:
    """Windows of an HDF5 file: what `ms_to_idx` brackets, cut by its times."""

    def __init__(self, path: Path, duration: int) -> None:
        self._path = path
        self._duration = duration
        self._file: h5py.File | None = None

    def __len__(self) -> int:
        return self._duration - WINDOW

    def __getitem__(self, start: int) -> Events:
        if self._file is None:
            self._file = h5py.File(self._path)
            self._index = self._file["ms_to_idx"][:].astype("i8")
            self._columns = {name: self._file[f"events/{name}"] for name in COLUMNS}
        last = len(self._index) - 1
        first = self._index[start // 1000]
        stop = self._index[min(last, -(-(start + WINDOW) // 1000))]
        times = self._columns["t"][first:stop]
        begin, end = np.searchsorted(times, (start, start + WINDOW))
        window = {"t": times[begin:end].astype("i8")}
        for name in "xyp":
            window[name] = self._columns[name][first + begin : first + end]
        return window


class Mapped:
    """Windows of arrays without compression, mapped."""

    def __init__(self, folder: Path, duration: int) -> None:
        self._folder = folder
        self._duration = duration
        self._columns: Events = {}

    def __len__(self) -> int:
        return self._duration - WINDOW

    def __getitem__(self, start: int) -> Events:
        if not self._columns:
            self._columns = {name: np.load(self._folder / f"{name}.npy", mmap_mode="r") for name in COLUMNS}
        first, stop = np.searchsorted(self._columns["t"], (start, start + WINDOW))
        return {name: column[first:stop] for name, column in self._columns.items()}


def moving_edges(events: int, rate: int) -> Iterator[Events]:
    """Events of edges that move at random speeds, a few pixels of a row at a time, and a tenth of noise."""
    rng = np.random.default_rng(0)
    place = rng.uniform(0, WIDTH, EDGES)
    speed = rng.normal(0, 300e-6, EDGES)  # pixels a microsecond
    top = rng.integers(0, HEIGHT // 2, EDGES)
    extent = rng.integers(20, HEIGHT // 2, EDGES)
    time_of_block = 0
    for lo in range(0, events, BLOCK):
        count = min(BLOCK, events - lo)
        begins_burst = rng.random(count) < 0.5
        begins_burst[0] = True
        burst = np.cumsum(begins_burst) - 1
        bursts = burst[-1] + 1
        begin = np.sort(rng.integers(0, count * 1_000_000 // rate, bursts))
        edge = rng.integers(0, EDGES, bursts)
        is_noise = rng.random(bursts) < 0.1
        at = place[edge] + speed[edge] * (time_of_block + begin) + rng.normal(0, 3, bursts)
        x = np.where(is_noise, rng.integers(0, WIDTH, bursts), at.astype("i8"))
        y = np.where(is_noise, rng.integers(0, HEIGHT, bursts), top[edge] + rng.random(bursts) * extent[edge])
        moved = np.cumsum(rng.integers(1, 4, count))
        beside = moved - moved[begins_burst][burst]
        is_brighter = (speed[edge] > 0)[burst] ^ (rng.random(count) < 0.1)
        yield {
            "t": (time_of_block + begin[burst]).astype("u4"),
            "x": ((x[burst] + beside) % WIDTH).astype("u2"),
            "y": y[burst].astype("u2"),
            "p": is_brighter.astype("u1"),
        }
        time_of_block += count * 1_000_000 // rate


def write_hdf5(path: Path, blocks: Iterator[Events], compression: dict[str, Any]) -> None:
    """Write a recording as DSEC has it."""
    with h5py.File(path.with_suffix(".part"), "w") as file:
        for number, block in enumerate(blocks):
            for name, values in block.items():
                if not number:
                    options = {"maxshape": (None,), "chunks": True, **compression}
                    file.create_dataset(f"events/{name}", data=values, **options)
                    continue
                column = file[f"events/{name}"]
                column.resize(len(column) + len(values), 0)
                column[-len(values) :] = values
        times = file["events/t"][:]
        file["ms_to_idx"] = np.searchsorted(times, np.arange(0, times[-1] // 1000 + 2) * 1000).astype("u8")
        file["t_offset"] = np.int64(0)
    path.with_suffix(".part").rename(path)


def write_plain(source: Path, contiguous: Path, folder: Path) -> None:
    """Write the same recording without filters: as HDF5, and as arrays."""
    folder.mkdir(exist_ok=True)
    with h5py.File(source) as file, h5py.File(contiguous.with_suffix(".part"), "w") as plain:
        for name in COLUMNS:
            values = file[f"events/{name}"][:]
            plain[f"events/{name}"] = values
            np.save(folder / f"{name}.npy", values.astype("i8") if name == "t" else values)
        plain["ms_to_idx"] = file["ms_to_idx"][:]
        plain["t_offset"] = file["t_offset"][()]
    contiguous.with_suffix(".part").rename(contiguous)


def make(folder: Path, events: int, rate: int, codecs: list[str]) -> tuple[dict[str, Path], int]:
    """Write what the ways read, unless it is there; return it by name, and the recording's duration."""
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "events.h5"
    ways = {"h5py": source, "contiguous": folder / "contiguous.h5", "memory map": folder / "arrays"}
    if not source.exists():
        filters = hdf5plugin.Blosc(cname="zstd", clevel=5, shuffle=hdf5plugin.Blosc.SHUFFLE)
        write_hdf5(source, moving_edges(events, rate), dict(filters))
    if not ways["contiguous"].exists():
        write_plain(source, ways["contiguous"], ways["memory map"])
    for codec in codecs:
        store = folder / f"{codec}.zarr"
        if not store.exists():
            began = time.perf_counter()
            unistore.convert(source, store, "events", sensor=(WIDTH, HEIGHT), codec=codec, progress=False)
            passed = time.perf_counter() - began
            print(f"converted, codec {codec}: {events / passed / 1e6:.1f} million events/s")
        ways[f"unistore, codec {codec}"] = store
    with h5py.File(source) as file:
        return ways, int(file["events/t"][-1])


def feeds(ways: dict[str, Path], duration: int, batch: int, workers: int) -> Iterator[tuple[str, Feed]]:
    """Open every way."""
    for name, path in ways.items():
        if name.startswith("unistore"):
            kind = unistore.Events(f"{WINDOW}us", random=True)
            yield name, loader_feed(path, batch, workers, kind, None)
        elif name == "memory map":
            yield name, map_feed((Mapped, (path, duration)), batch, workers, packed)
        else:
            yield name, map_feed((Sliced, (path, duration)), batch, workers, packed)


class Turn(NamedTuple):
    """One turn of a way."""

    windows: float  # a second
    window_bytes: float
    processor: float  # microseconds a window, of this process and its workers


def turn_of(feed: Feed, batch: int, seconds: float) -> Turn:
    """Read for some seconds, after the batches that were made ahead."""
    for _ in range(feed.ahead + 1):
        next(feed.batches)
    windows = nbytes = 0
    used = processor_seconds(os.getpid())
    began = time.perf_counter()
    while (elapsed := time.perf_counter() - began) < seconds:
        nbytes += consume(next(feed.batches))[0]
        windows += batch
    used = processor_seconds(os.getpid()) - used
    return Turn(windows / elapsed, nbytes / windows, used / windows * 1e6)


def check(ways: dict[str, Path], duration: int) -> None:
    """Compare one window of all ways."""
    expected = Sliced(ways["h5py"], duration)[WINDOW + 123]
    others: list[Any] = [Sliced(ways["contiguous"], duration)[WINDOW + 123]]
    others.append(Mapped(ways["memory map"], duration)[WINDOW + 123])
    for name, path in ways.items():
        if name.startswith("unistore"):
            windows = unistore.Dataset(path, unistore.Events(f"{WINDOW}us", stride="1us"))
            first = int(expected_start(ways["h5py"]))
            others.append(windows[WINDOW + 123 - first])
    for other in others:
        for name, values in expected.items():
            assert np.array_equal(other[name], values), name


def expected_start(path: Path) -> int:
    """Return the time of the first event."""
    with h5py.File(path) as file:
        return int(file["events/t"][0])


def compare(ways: dict[str, Path], duration: int, workers: int, given: argparse.Namespace) -> None:
    """Print a table of windows a second."""
    opened = list(feeds(ways, duration, given.batch, workers))
    turns: dict[str, list[Turn]] = {name: [] for name, _ in opened}
    for number in range(-1, given.turns):
        for name, feed in opened if number % 2 else opened[::-1]:
            turn = turn_of(feed, given.batch, given.seconds)
            if number >= 0:  # the first turn warms up
                turns[name].append(turn)
    for name, own in turns.items():
        ratios = [turn.windows / base.windows for turn, base in zip(own, turns["h5py"], strict=True)]
        windows = statistics.median(turn.windows for turn in own)
        print(
            f"| {workers} | {name} | {windows:,.0f} | {windows * own[0].window_bytes / 1e6:,.0f} | "
            f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) | "
            f"{statistics.median(turn.processor for turn in own):,.0f} | "
            f"{disk([ways[name]]) / given.events:.2f} |",
            flush=True,
        )
    print(f"{own_memory(os.getpid()):,.0f} MiB in all processes of all ways", flush=True)
    for _, feed in opened:
        feed.close()


def over_time(path: Path, workers: int, given: argparse.Namespace) -> None:
    """Print the memory of all processes while windows are read from the first to the last, epoch by epoch."""
    dataset = unistore.Dataset(path, unistore.Events(f"{WINDOW}us"))
    with unistore.Loader(dataset, batch_size=given.batch, num_workers=workers) as loader:
        step = max(1, len(loader) // 4)
        for epoch in range(given.over_time):
            for number, batch in enumerate(loader):
                consume(batch)
                if number % step == step - 1:
                    memory = own_memory(os.getpid())
                    print(
                        f"| {workers} | {epoch} | {(number + 1) * given.batch:,} | {memory:,.0f} |",
                        flush=True,
                    )


def main() -> None:
    """Make the recording and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, default=20_000_000)
    parser.add_argument("--rate", type=int, default=1_000_000, help="events a second")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2])
    parser.add_argument("--over-time", type=int, metavar="EPOCHS", help="print memory over so many epochs")
    parser.add_argument("--codec", nargs="+", default=["auto", "none"])
    scratch = Path(tempfile.gettempdir()) / "unistore-benchmarks" / "events"
    parser.add_argument("--folder", type=Path, default=scratch)
    given = parser.parse_args()
    folder = given.folder / f"{given.events}-{given.rate}"
    ways, duration = make(folder, given.events, given.rate, given.codec)
    check(ways, duration)
    if given.over_time:
        print("| workers | epoch | windows | MiB of all processes |")
        print("|--:|--:|--:|--:|")
        for workers in given.workers:
            over_time(ways[f"unistore, codec {given.codec[0]}"], workers, given)
        return
    print(
        "| workers | way | windows/s | MB/s | of h5py's | processor, us a window | bytes an event on disk |"
    )
    print("|--:|---|--:|--:|--:|--:|--:|")
    for workers in given.workers:
        compare(ways, duration, workers, given)


if __name__ == "__main__":
    main()
