"""Training steps that wait for their batch: share of the wall time, and samples a second.

    python benchmarks/step.py [--quick] [--only PATTERN …] [--steps 5 20 50] [--rounds 3] [--seconds 2]

Five kinds of samples; each is loaded as the documents do that users have today, by `unistore.Dataset` under
torch's DataLoader and by `unistore.Loader`, two workers each. A step follows every batch: an idle one leaves
the cores alone, as a GPU's does; a busy one multiplies matrices on all of them, as many as take so long when
nothing else runs. Every way is a process of its own; they take turns, and other load is the same for all.
"""

from __future__ import annotations

import argparse
import fnmatch
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import ct
import point_cloud
import spike
import torch
import trajectory
from harness.ours import dataloader_feed, loader_feed
from harness.peers import listed, stacked
from harness.plain import map_feed
from harness.script import machine
from harness.ways import Feed

import unistore

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
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "unistore-benchmarks")
    given = parser.parse_args()
    print(machine(), "\n")
    print("| samples | step | documents | Dataset under DataLoader | Loader | Loader over documents |")
    print("|---|---|--:|--:|--:|--:|")
    for name, (family, make, batch) in KINDS.items():
        if any(fnmatch.fnmatch(name, pattern) for pattern in given.only):
            folder = given.folder / (f"{family}-quick" if given.quick else family)
            folder.mkdir(parents=True, exist_ok=True)
            measure(name, make(folder, given.quick), batch, given)


def measure(name: str, made: tuple[Path, Way, Any, Any], batch: int, given: argparse.Namespace) -> None:
    """Print the lines of one kind of samples; a cell is the share that waits, and samples a second."""
    store, way, kind, fields = made
    ours = {"store": store, "batch": batch, "workers": WORKERS, "samples": kind, "fields": fields}
    context = multiprocessing.get_context("spawn")
    ways: list[Way] = [way, (dataloader_feed, ours), (loader_feed, ours)]
    connections = []
    for each in ways:
        ours_end, theirs = context.Pipe()
        context.Process(target=serve, args=(each, batch, theirs)).start()
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


def serve(way: Way, batch: int, connection: Connection) -> None:
    """Answer with the share that waits and samples a second; runs in a process of its own."""
    multiprocessing.set_start_method("fork", force=True)  # what users have; this process itself was spawned
    feed = way[0](**way[1])
    next(feed.batches)
    matrix = torch.rand(384, 384)
    began = time.perf_counter()
    for _ in range(200):
        matrix @ matrix
    product = (time.perf_counter() - began) / 200
    while (asked := connection.recv()) is not None:
        busy, step, seconds = asked
        for _ in range(feed.ahead):
            next(feed.batches)
        began, waited, count = time.perf_counter(), 0.0, 0
        while time.perf_counter() - began < seconds or count < 3:
            before = time.perf_counter()
            next(feed.batches)
            waited += time.perf_counter() - before
            count += 1
            if busy:
                for _ in range(max(1, round(step / product))):
                    matrix @ matrix
            else:
                time.sleep(step)
        took = time.perf_counter() - began
        connection.send((waited / took, count * batch / took))
    feed.close()


if __name__ == "__main__":
    main()
