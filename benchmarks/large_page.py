"""The page of ``unistore inspect --html`` about a store of 100 GB that takes 230 MB of disk.

    python benchmarks/large_page.py [--times 2 50 450] [--folder FOLDER]

A store of real shards, photos that do not compress, is repeated: every shard is hard-linked under further
numbers, the arrays are as many times as long, manifest, seal and root are written anew, so that the result is
a sealed store like any other. Each page is made by a fresh process, after the shards left the page cache.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
import zarr
from harness.memory import evict

import unistore
from unistore.conversion.sealing import root_document
from unistore.store.manifest import Entry, make_seal, manifest_bytes, parse_manifest

ROWS = 8192
SHAPE = (96, 96, 3)
LINE = "{:>6} {:>10} {:>9} {:>8} {:>12} {:>12} {:>12} {:>10}"


def make_first(folder: Path) -> Path:
    """Convert photos of noise on a ramp, with a label each."""
    rng = np.random.default_rng(0)
    ramp = np.arange(SHAPE[0], dtype=np.uint8)[:, None, None]
    image = rng.integers(0, 128, (ROWS, *SHAPE), np.uint8) + ramp
    np.savez(folder / "a.npz", image=image, label=np.arange(ROWS) % 10)
    unistore.convert(folder / "a.npz", folder / "first.zarr", "rows")
    return folder / "first.zarr"


def repeat(first: Path, store: Path, times: int) -> Path:
    """Make a sealed store of the rows of another one, `times` over."""
    entries = {
        entry.key: entry for entry in parse_manifest((first / "unistore-manifest.jsonl").read_bytes(), "")
    }
    root = json.loads((first / "zarr.json").read_bytes())
    metadata = root["consolidated_metadata"]["metadata"]
    documents = {}
    written: list[Entry] = []
    for path, document in metadata.items():
        own = [entry for key, entry in entries.items() if key.startswith(f"{path}/c/")]
        is_long = document["node_type"] == "array" and document["shape"][0] == ROWS
        shard = document["chunk_grid"]["configuration"]["chunk_shape"][0] if is_long else 0
        if is_long:
            document["shape"][0] *= times
        (store / path).mkdir(parents=True, exist_ok=True)
        text = json.dumps(document).encode()
        (store / path / "zarr.json").write_bytes(text)
        documents[f"{path}/zarr.json"] = text
        written.append(entry_of(store, f"{path}/zarr.json"))
        if is_long and ROWS % shard == 0:
            written += link(first, store, own, shard, times)
        elif is_long or path == "sources/rows/offsets":
            written += tile(first, store, path, times)
        else:
            for entry in own:
                (store / entry.key).parent.mkdir(parents=True, exist_ok=True)
                os.link(first / entry.key, store / entry.key)
            written += own
    attributes = {key: value for key, value in root["attributes"]["unistore"].items() if key != "seal"}
    attributes["samples"]["count"] = ROWS * times
    manifest = manifest_bytes(written)
    (store / "unistore-manifest.jsonl").write_bytes(manifest)
    (store / "zarr.json").write_bytes(root_document(attributes, make_seal(written, manifest), documents))
    return store


def link(first: Path, store: Path, shards: Sequence[Entry], rows: int, times: int) -> list[Entry]:
    """Link the shards of an array under their own numbers and further ones."""
    entries = []
    count = ROWS // rows
    for entry in shards:
        before, _, places = entry.key.partition("/c/")
        number, separator, others = places.partition("/")
        for turn in range(times):
            place = int(number) + turn * count
            key = f"{before}/c/{place}{separator}{others}"
            (store / key).parent.mkdir(parents=True, exist_ok=True)
            os.link(first / entry.key, store / key)
            entries.append(replace(entry, key=key, rows=(place * rows, (place + 1) * rows)))
    return entries


def tile(first: Path, store: Path, path: str, times: int) -> list[Entry]:
    """Write an array whose shards are not full by zarr-python: its rows repeated, or a number of rows."""
    values = np.asarray(zarr.open_array(first / path, mode="r"))
    values = values * times if path == "sources/rows/offsets" else np.concatenate([values] * times)
    with zarr.config.set({"array.write_empty_chunks": True}):
        array: Any = zarr.open_array(store / path, mode="r+")
        array[:] = values
    entries = []
    for file in sorted((store / path / "c").rglob("*")):
        if file.is_file():
            key = file.relative_to(store).as_posix()
            lo = int(file.relative_to(store / path / "c").parts[0]) * array.shards[0]
            rows = values[lo : lo + array.shards[0]]
            content = xxhash.xxh3_128_hexdigest(np.ascontiguousarray(rows).tobytes())
            entry = entry_of(store, key)
            entries.append(replace(entry, rows=(lo, lo + len(rows)), content=content))
    return entries


def entry_of(store: Path, key: str) -> Entry:
    """Return the line of the manifest of a file."""
    data = (store / key).read_bytes()
    return Entry(key=key, bytes=len(data), checksum=xxhash.xxh3_128_hexdigest(data))


def measure(store: str) -> None:
    """Make the page in this process, and print seconds, bytes read, memory and the size of the page."""
    start = time.perf_counter()
    page = unistore.inspect(store).to_html()
    seconds = time.perf_counter() - start
    counted = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    # Unlike ru_maxrss, this begins anew with the program
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    peak = int(status["VmHWM"].split()[0]) * 1024
    print(json.dumps([seconds, int(counted["rchar"]), int(counted["read_bytes"]), peak, len(page)]))


def main() -> None:
    """Make the stores, and measure their pages."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", type=int, nargs="+", default=[2, 50, 450])
    parser.add_argument("--folder", type=Path, help="where the stores are made; a temporary folder")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        measure(arguments.measure)
        return
    print(LINE.format("times", "stored", "shards", "seconds", "read", "from disk", "peak", "page"))
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        first = make_first(Path(folder))
        for times in arguments.times:
            store = repeat(first, Path(folder) / f"{times}.zarr", times)
            if times == min(arguments.times):
                verified = unistore.verify(store)
                if not verified.ok:
                    sys.exit("\n".join(map(str, verified.problems)))
            evict([first])
            command = [sys.executable, __file__, "--measure", str(store)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            seconds, *counts = json.loads(done.stdout)
            root = json.loads((store / "zarr.json").read_bytes())["attributes"]["unistore"]["seal"]
            read, disk, peak, page = (f"{count / 1e6:,.1f} MB" for count in counts)
            stored = f"{root['bytes'] / 1e9:,.2f} GB"
            print(
                LINE.format(times, stored, root["files"], f"{seconds:.2f}", read, disk, peak, page),
                flush=True,
            )
            shutil.rmtree(store)


if __name__ == "__main__":
    main()
