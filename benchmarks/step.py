"""Training steps that wait for their batch: share of the wall time, and samples a second.

    python benchmarks/step.py [--quick] [--only PATTERN …] [--steps 5 20 50] [--rounds 3] [--workers 2]
                              [--cpu | --gpu]

Five kinds of samples; each is loaded as the documents do that users have today, by `unistore.Dataset` under
torch's DataLoader and by `unistore.Loader`, two workers each (``--workers``). A step follows every batch: an
idle one leaves the cores alone, as a GPU's does; a busy one multiplies matrices on all of them, as many as
take so long when nothing else runs. Every way is a process of its own; they take turns, and other load is the
same for all.

``--cpu`` measures processor time of a sample in this process instead, beside that of reading, checking and
decoding its chunks and nothing else. The two take turns, and keep no decoded chunks.

``--gpu``: idle steps copy the batch to a GPU and multiply matrices there.
"""

from __future__ import annotations

import argparse
import fnmatch
import math
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

import ct
import numpy as np
import point_cloud
import spike
import torch
import trajectory
from harness.ours import dataloader_feed, loader_feed, open_dataset
from harness.peers import listed, stacked
from harness.plain import map_feed
from harness.script import machine
from harness.ways import Feed
from numcodecs import blosc
from numpy.typing import NDArray
from torch.utils._pytree import tree_map
from versions import median_interval

import unistore
from unistore.data.collate import as_tensors
from unistore.system.machine import keep_freed_memory
from unistore.zarr3 import LocalStorage, compiled
from unistore.zarr3.chunks import ChunkLocations, ChunkReader
from unistore.zarr3.codecs import RESIDUE, crc32c
from unistore.zarr3.metadata import EMPTY

WORKERS = 2
Way = tuple[Callable[..., Feed], dict[str, Any]]


def converted(folder: Path, family: str, **options: Any) -> Path:
    """Store of a folder's sources, made where it is missing."""
    if not (folder / "store.zarr").exists():
        unistore.convert(folder / "source", folder / "store.zarr", family, **options)
    return folder / "store.zarr"


def documents(kind: Any, *arguments: Any, batch: int, collate: Any) -> Way:
    """A dataset of the documents under DataLoader."""
    return map_feed, {"dataset": (kind, arguments), "batch": batch, "workers": WORKERS, "collate": collate}


def points(folder: Path, quick: bool) -> tuple[Path, Way, Any, Any]:
    files = point_cloud.make_source(folder / "source", quick=quick)
    way = documents(point_cloud.Documents, files, len(files), batch=point_cloud.BATCH, collate=listed)
    return converted(folder, "point_cloud"), way, unistore.Segments(), ("xyz", "classification")


def sparse_ct(folder: Path, quick: bool) -> tuple[Path, Way, Any, Any]:
    files = tuple(map(ct.window_file, ct.make_source(folder / "source", quick=quick)))
    way = documents(ct.Documents, files, "argwhere", batch=ct.BATCH, collate=stacked)
    return converted(folder, "ct"), way, unistore.SparsePoints(max_points=ct.MOST), ("coords",)


def patches(folder: Path, quick: bool) -> tuple[Path, Way, Any, Any]:
    files = tuple(map(ct.image_file, ct.make_source(folder / "source", quick=quick)))
    way = documents(ct.Patches, files, "np.load", batch=ct.BATCH, collate=stacked)
    return converted(folder, "ct"), way, unistore.Patches(ct.PATCH, per_volume=100_000), ("image",)


def clips(folder: Path, quick: bool) -> tuple[Path, Way, Any, Any]:
    sequences, frames = spike.make_source(folder / "source", quick=quick)
    way = documents(spike.Documents, sequences, frames, "on-the-fly", batch=spike.BATCH, collate=stacked)
    options = {"height": spike.HEIGHT, "width": spike.WIDTH, "voxel_bins": (spike.BINS,)}
    kind = unistore.Clips(length=spike.LENGTH, crop=spike.CROP)
    return converted(folder, "spike", **options), way, kind, spike.KEYS


def transitions(folder: Path, quick: bool) -> tuple[Path, Way, Any, Any]:
    file = trajectory.make_source(folder / "source", quick=quick)
    way = trajectory.buffer_way_feed, {"kind": "LazyBuffer", "arguments": (file,)}
    images = [f"observation.{name}_{trajectory.SIDE}" for name in trajectory.CAMERAS]
    observed = [*images, "observation.joint"]
    fields = (*observed, "action", "reward", "terminated", *(f"next.{key}" for key in observed))
    store = converted(folder, "trajectory", image_size=trajectory.SIDE)
    return store, way, unistore.Transitions(only_valid=True), fields


KINDS = {
    "segments": ("point_cloud", points, point_cloud.BATCH),
    "sparse CT": ("ct", sparse_ct, ct.BATCH),
    "patches": ("ct", patches, ct.BATCH),
    "clips": ("spike", clips, spike.BATCH),
    "transitions": ("trajectory", transitions, trajectory.BATCH),
}
CPU_BATCHES = 12
"""Different batches of `--cpu`, that each round reads."""


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="less data")
    parser.add_argument("--only", nargs="+", default=["*"], metavar="PATTERN", help=f"of {', '.join(KINDS)}")
    parser.add_argument("--steps", nargs="+", type=float, default=[5, 20, 50], help="milliseconds")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each way, in each round")
    parser.add_argument("--cpu", action="store_true", help="processor time of samples, not steps")
    parser.add_argument("--workers", type=int, default=WORKERS)
    parser.add_argument("--gpu", action="store_true", help="idle steps are those of a GPU (CUDA)")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "unistore-benchmarks")
    given = parser.parse_args()
    print(machine(), "\n")
    if given.cpu:
        keep_freed_memory()  # as workers do
        print("| samples | CPU a sample | bare decoding of its chunks | ratio, interval of its median |")
        print("|---|--:|--:|--:|")
    else:
        print("| samples | step | documents | Dataset under DataLoader | Loader | Loader over documents |")
        print("|---|---|--:|--:|--:|--:|")
    for name, (family, make, batch) in KINDS.items():
        if any(fnmatch.fnmatch(name, pattern) for pattern in given.only):
            folder = given.folder / (f"{family}-quick" if given.quick else family)
            folder.mkdir(parents=True, exist_ok=True)
            (measure_cpu if given.cpu else measure)(name, make(folder, given.quick), batch, given)


_ALIGNMENT = 64


class Scratch:
    """Memory that grows to the largest batch. Arrays are valid until the next `begin`. Not thread-safe."""

    def __init__(self) -> None:
        self._buffer = np.empty(0, np.uint8)
        self._used = self._wanted = 0

    def begin(self) -> None:
        """Start a batch: all arrays allocated so far become invalid."""
        if self._wanted > len(self._buffer):
            self._buffer = np.empty(self._wanted, np.uint8)
        self._used = self._wanted = 0

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return an uninitialised C-contiguous array."""
        size = math.prod(shape) * dtype.itemsize
        room = -(-size // _ALIGNMENT) * _ALIGNMENT
        self._wanted += room
        if self._used + room > len(self._buffer) or not size:
            return np.empty(shape, dtype)
        part = self._buffer[self._used : self._used + size]
        self._used += room
        return part.view(dtype).reshape(shape)


def measure_cpu(name: str, made: tuple[Path, Way, Any, Any], batch: int, given: argparse.Namespace) -> None:
    """Print the line of one kind of samples: medians, and the ratio with the interval of its median."""
    store, _, kind, fields = made
    dataset, memory = open_dataset(store, kind, fields), Scratch()
    draws = np.random.default_rng(0).integers(0, len(dataset), (CPU_BATCHES, batch))
    chunks = [ChunkRecord(dataset, indices) for indices in draws]
    found: list[tuple[float, float]] = []
    for number in range(-1, given.rounds * 7):
        seconds = [0.0, 0.0]
        for at, indices in enumerate(draws):
            other = chunks[at - CPU_BATCHES // 2]  # its files are no warmer than those of the batch
            began = time.process_time()
            memory.begin()
            as_tensors(dataset.read_batch(indices, memory.allocate))
            between = time.process_time()
            other.decode()
            seconds[0] += between - began
            seconds[1] += time.process_time() - between
        if number >= 0:  # the first round warms up
            found.append((seconds[0] / draws.size, seconds[1] / draws.size))
    ours, bare = (statistics.median(each) * 1e3 for each in zip(*found, strict=True))
    ratios = [mine / least for mine, least in found]
    low, high = median_interval(ratios)
    over = f"{statistics.median(ratios):.2f}, {low:.2f}–{high:.2f}"
    print(f"| {name} | {ours:.3f} ms | {bare:.3f} ms | {over} |", flush=True)


@cache
def open_file(path: str) -> int:
    """Descriptor of a file."""
    return os.open(path, os.O_RDONLY)


@cache
def decoded_memory(nbytes: int) -> NDArray[np.uint8]:
    """Memory for one decoded chunk."""
    return np.empty(nbytes, np.uint8)


class ChunkRecord:
    """The chunks that a batch reads, to be decoded by the least number of calls."""

    def __init__(self, dataset: unistore.Dataset, indices: NDArray[Any]) -> None:
        self._chunks: list[tuple[int, int, int, NDArray[np.uint8] | None]] = []
        locate = ChunkReader.locate

        def record(reader: ChunkReader, numbers: list[int]) -> ChunkLocations:
            located, storage = locate(reader, numbers), reader.storage
            assert isinstance(storage, LocalStorage)
            out = None if reader.uncompressed else decoded_memory(reader.metadata.chunk_bytes)
            for key, offset, size in zip(located.keys, located.offsets, located.sizes, strict=True):
                if offset != EMPTY:
                    self._chunks.append((open_file(storage.path(key)), size, offset, out))
            return located

        # the kernel does not locate chunks one by one
        by_python = mock.patch.object(compiled, "kernel", return_value=None)
        with by_python, mock.patch.object(ChunkReader, "locate", record):
            dataset.read_batch(indices)

    def decode(self) -> None:
        """Read, check and decode all of them, each into the same memory."""
        for file, size, offset, out in self._chunks:
            raw = os.pread(file, size, offset)
            if crc32c(raw) != RESIDUE:
                raise ValueError(offset)
            if out is not None:
                blosc.decompress(raw, out)


def measure(name: str, made: tuple[Path, Way, Any, Any], batch: int, given: argparse.Namespace) -> None:
    """Print the lines of one kind of samples; a cell is the share that waits, and samples a second."""
    store, way, kind, fields = made
    ours = {"store": store, "batch": batch, "workers": given.workers, "samples": kind, "fields": fields}
    context = multiprocessing.get_context("spawn")
    if "workers" in way[1]:
        way = way[0], way[1] | {"workers": given.workers}
    ways: list[Way] = [way, (dataloader_feed, ours), (loader_feed, ours)]
    connections = []
    for each in ways:
        ours_end, theirs = context.Pipe()
        context.Process(target=serve, args=(each, batch, given.gpu, theirs)).start()
        theirs.close()
        connections.append(ours_end)
    try:
        for busy in (False, True):
            for milliseconds in given.steps:
                found: list[list[tuple[float, float]]] = [[] for _ in ways]
                for number in range(given.rounds):
                    for at in [(number + shift) % len(ways) for shift in range(len(ways))]:
                        connections[at].send((busy, milliseconds / 1e3, given.seconds))
                        found[at].append(connections[at].recv())
                cells = [
                    f"{statistics.median(wait for wait, _ in each):.0%}, "
                    f"{statistics.median(rate for _, rate in each):,.0f}/s"
                    for each in found
                ]
                over = statistics.median(
                    ours[1] / theirs[1] for ours, theirs in zip(found[2], found[0], strict=True)
                )
                step = f"{'busy' if busy else 'idle'} {milliseconds:g} ms"
                print(f"| {name} | {step} | {' | '.join(cells)} | {over:.2f}× |", flush=True)
    finally:
        for connection in connections:
            connection.send(None)


def gpu_step() -> Callable[[Any, float], None]:
    """What copies a batch to the GPU and works on it for so many seconds."""
    matrix = torch.rand(2048, 2048, device="cuda")

    def multiply(times: int) -> float:
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(times):
            torch.mm(matrix, matrix)
        torch.cuda.synchronize()
        return time.perf_counter() - began

    multiply(20)
    product = multiply(20) / 20

    def step(batch: Any, seconds: float) -> None:
        tree_map(lambda each: each.cuda() if isinstance(each, torch.Tensor) else each, batch)
        multiply(max(1, round(seconds / product)))

    return step


def serve(way: Way, batch: int, gpu: bool, connection: Connection) -> None:
    """Answer with the share that waits and samples a second; runs in a process of its own."""
    multiprocessing.set_start_method("fork", force=True)  # what users have; this process itself was spawned
    feed = way[0](**way[1])
    next(feed.batches)
    matrix = torch.rand(384, 384)
    began = time.perf_counter()
    for _ in range(200):
        matrix @ matrix
    product = (time.perf_counter() - began) / 200
    idle: Callable[[Any, float], None] = gpu_step() if gpu else lambda _, seconds: time.sleep(seconds)
    while (asked := connection.recv()) is not None:
        busy, step, seconds = asked
        for _ in range(feed.ahead):
            next(feed.batches)
        began, waited, count = time.perf_counter(), 0.0, 0
        while time.perf_counter() - began < seconds or count < 3:
            before = time.perf_counter()
            made = next(feed.batches)
            waited += time.perf_counter() - before
            count += 1
            if busy:
                for _ in range(max(1, round(step / product))):
                    matrix @ matrix
            else:
                idle(made, step)
        took = time.perf_counter() - began
        connection.send((waited / took, count * batch / took))
    feed.close()


if __name__ == "__main__":
    main()
