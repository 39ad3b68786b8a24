"""What a store behind a slow server costs: seconds, requests and bytes, beside downloading it.

    python benchmarks/remote.py [--segments 2000] [--delays 0 20 50 200] [--faults] [--only verify against …]

A point cloud store of many small segments is served over HTTP with ranges by a process that counts requests
and bytes, and waits before each answer. With ``--faults`` 3 of 100 answers are 500 or end in the middle.
Downloading reads whole objects, 16 at a time, and keeps nothing. zarr-python reads with obstore, 100 samples
one by one, as most loops do, and its costs are scaled to an epoch. All code has been imported before.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import re
import shutil
import tempfile
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import obstore
import zarr
from harness.script import machine
from obstore.store import HTTPStore
from zarr.storage import ObjectStore

import unistore
from unistore.remote.client import ObjectClient

POINTS = 1500
ZARR_SAMPLES = 100


def serve(folder: Path, delay: float, connection: Connection, faults: float = 0.0) -> None:
    """Serve a folder with ranges, waiting `delay` seconds before each answer, a share of which is spoilt."""
    chance = random.Random(0)
    counts = {"requests": 0, "bytes": 0}

    class Ranges(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1

        def do_GET(self) -> None:
            if self.path == "/counts":
                self.answer(200, json.dumps(counts).encode())
                counts.update(requests=0, bytes=0)
                return
            time.sleep(delay)
            counts["requests"] += 1
            file = folder / self.path.lstrip("/")
            if not file.is_file():
                self.answer(404, b"")
                return
            size = file.stat().st_size
            start, stop = 0, size
            if asked := re.match(r"bytes=(\d*)-(\d*)", self.headers.get("Range", "")):
                start = int(asked[1]) if asked[1] else size - int(asked[2])
                stop = min(size, int(asked[2]) + 1) if asked[1] and asked[2] else size
            with file.open("rb") as opened:
                opened.seek(start)
                content = opened.read(stop - start)
            span = f"bytes {start}-{stop - 1}/{size}" if asked else ""
            if chance.random() < faults:
                self.spoil(content, span)
                return
            head = self.command == "HEAD"
            counts["bytes"] += 0 if head else len(content)
            self.answer(206 if asked else 200, content, span)

        do_HEAD = do_GET  # noqa: N815

        def spoil(self, content: bytes, span: str) -> None:
            if chance.random() < 0.5 or self.command == "HEAD":
                self.answer(500, b"")
                return
            self.send_response_only(206 if span else 200)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
            if span:
                self.send_header("Content-Range", span)
            self.end_headers()
            self.wfile.write(content[: len(content) // 2])
            self.close_connection = True

        def answer(self, status: int, content: bytes, span: str = "") -> None:
            self.send_response_only(status)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
            if span:
                self.send_header("Content-Range", span)
            self.end_headers()
            self.wfile.write(b"" if self.command == "HEAD" else content)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Ranges)
    server.daemon_threads = True
    connection.send(server.server_port)
    server.serve_forever()


def make_store(folder: Path, segments: int) -> None:
    """Convert clouds of `POINTS` points, a segment each."""
    rng = np.random.default_rng(0)
    for number in range(segments):
        path = folder / "clouds" / f"lot_{number // 500}" / f"{number}.h5"
        path.parent.mkdir(parents=True, exist_ok=True)
        with h5py.File(path, "w") as file:
            for axis in "xyz":
                file[axis] = rng.normal(0, 5, POINTS)
            file["classification"] = rng.integers(0, 5, POINTS).astype("i4")
    unistore.convert(folder / "clouds", folder / "store.zarr", "point_cloud", progress=False)


def download(url: str, keys: list[str]) -> None:
    """Read all objects whole."""
    store = HTTPStore.from_url(url, client_options={"allow_http": True})
    with ThreadPoolExecutor(16) as pool:
        for _ in pool.map(lambda key: len(obstore.get(store, key).bytes()), keys):
            pass


def epoch(url: str, shuffle: str, **options: Any) -> None:
    """Read an epoch of batches of 16 in this process."""
    dataset = unistore.Dataset(url, **options)
    for _ in unistore.Loader(dataset, 16, shuffle=shuffle, seed=0, num_workers=0):
        pass


def first_batch(url: str) -> None:
    """Open a dataset and read a batch."""
    unistore.Dataset(url).read_batch(range(16))


def with_zarr(url: str) -> None:
    """Read `ZARR_SAMPLES` random samples as zarr-python does."""
    store = HTTPStore.from_url(url, client_options={"allow_http": True})
    group: Any = zarr.open_group(ObjectStore(store, read_only=True), mode="r")
    offsets = group["segments/offsets"][:]
    points = [group[f"points/{name}"] for name in ("xyz", "classification")]
    for number in np.random.default_rng(0).permutation(len(offsets) - 1)[:ZARR_SAMPLES]:
        for array in points:
            array[offsets[number] : offsets[number + 1]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--segments", type=int, default=2000)
    parser.add_argument("--delays", type=int, nargs="+", default=[0, 20, 50, 200])
    parser.add_argument("--faults", action="store_true")
    parser.add_argument(
        "--folder", type=Path, help="where clouds and store are, made there if there are none"
    )
    parser.add_argument("--only", nargs="+", default=[])
    arguments = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory() as work:
        folder = arguments.folder or Path(work)
        if not (folder / "store.zarr").exists():
            make_store(folder, arguments.segments)
        store = folder / "store.zarr"
        keys = [path.relative_to(store).as_posix() for path in store.rglob("*") if path.is_file()]
        total = sum((store / key).stat().st_size for key in keys)
        print(f"{len(keys)} objects, {total / 1e6:.1f} MB")
        assert unistore.verify(store).ok
        segments = len(unistore.Dataset(store))
        epoch(str(store), "full")
        ways: dict[str, Callable[[str], Any]] = {
            "download": partial(download, keys=keys),
            "inspect": unistore.inspect,
            "open": unistore.Dataset,
            "batch": first_batch,
            "verify": unistore.verify,
            "against": partial(unistore.verify, against=folder / "clouds"),
            "export": lambda url: unistore.export(url, Path(work, "exported")),
            "blocks": partial(epoch, shuffle="blocks"),
            "full": partial(epoch, shuffle="full"),
            "cached": partial(epoch, shuffle="full", cache_dir=Path(work, "cache")),
            "zarr": with_zarr,
        }
        if arguments.faults:  # neither goes on after a body that was cut
            del ways["download"], ways["zarr"]
        for delay in arguments.delays:
            ours, theirs = multiprocessing.get_context("spawn").Pipe()
            server = multiprocessing.get_context("spawn").Process(
                target=serve,
                args=(store, delay / 1000, theirs, 0.03 if arguments.faults else 0.0),
                daemon=True,
            )
            server.start()
            url = f"http://127.0.0.1:{ours.recv()}"
            ObjectClient(url).get("zarr.json")
            for name in arguments.only or ways:
                urllib.request.urlopen(f"{url}/counts").close()
                began = time.perf_counter()
                ways[name](url)
                seconds = time.perf_counter() - began
                with urllib.request.urlopen(f"{url}/counts") as answer:
                    counts = json.load(answer)
                scale = segments / min(segments, ZARR_SAMPLES) if name == "zarr" else 1
                seconds *= scale
                requests = round(scale * counts["requests"])
                share = scale * counts["bytes"] / total
                print(f"{delay:3} ms {name:9} {seconds:7.2f} s {requests:6} requests {share:6.3f} ×")
                for copies in ("exported", "cache"):
                    shutil.rmtree(Path(work, copies), ignore_errors=True)
            server.kill()


if __name__ == "__main__":
    main()
