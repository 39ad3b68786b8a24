"""One run of one workload, by whichever unistore is importable.

Prints processor seconds, wall seconds and the most resident MiB of this process or a child, as JSON.
"""

from __future__ import annotations

import inspect
import json
import os
import resource
import shutil
import sys
import time
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import ct
import events
import h5py
import many_files
import numpy as np
import psutil
import spike
import zarr
from numpy.typing import NDArray

import unistore
from unistore import zarr3
from unistore.zarr3.writer import encode_shard

StoredArray = zarr3.StoredArray if hasattr(zarr3, "StoredArray") else zarr3.Array
OLD_NAMES = {"window": "windows", "voxel_bins": "voxels"}
FILES = 2000
"""Tiny HDF5 files of the workload ``"convert files"``."""
BATCH = 32


class Reading(NamedTuple):
    """Random batches of one kind of samples."""

    family: str  # of the store
    samples: Any
    batch: int
    batches: int  # of a Dataset, in this process
    epochs: int  # of a Loader
    fields: tuple[str, ...] | None = None
    options: Mapping[str, Any] = {}  # of the conversion, beside the family's


READINGS = {
    "rows": Reading("rows", unistore.Rows(), BATCH, 1500, 4),
    "segments": Reading("point_cloud", unistore.Segments(), BATCH, 400, 4),
    "patches": Reading("ct", unistore.Patches(64), 4, 60, 80),
    "sparse": Reading("ct", unistore.SparsePoints(max_points=ct.MOST), 4, 20, 15),
    "clips": Reading("spike", unistore.Clips(length=spike.LENGTH, crop=spike.CROP), 8, 100, 10),
    "documents": Reading(
        "spike",
        unistore.Clips(length=spike.LENGTH, crop=spike.CROP),
        8,
        150,
        60,
        spike.KEYS,
        {"voxel_bins": (spike.BINS,)},
    ),
    "events": Reading("events", unistore.Events("10ms", random=True), BATCH, 100, 4),
    "transitions": Reading("trajectory", unistore.Transitions(only_valid=True), BATCH, 100, 4),
}


def make_tiny(file: h5py.File) -> None:
    """A cloud of 4000 segments of 60 points: as many tiny datasets, half of them compressed."""
    rng = np.random.default_rng(0)
    for name in ("x", "y", "z"):
        file[f"data/{name}"] = rng.random(240_000, np.float32)
    for number, rows in enumerate(rng.permutation(240_000).reshape(4000, 60)):
        how = {"compression": "gzip"} if number % 2 else {}
        file.create_dataset(f"segments/segment_{number:04d}/indices", data=np.sort(rows), **how)


def make_rows(file: h5py.File, **how: Any) -> None:
    """Walks of 20 values, 1,000,000 rows."""
    walks = np.cumsum(np.random.default_rng(0).standard_normal((1_000_000, 20), np.float32), axis=0)
    file.create_dataset("walks", data=walks, **how)


def make_events(file: h5py.File) -> None:
    """Ten million events of moving edges, at ten million a second, as DSEC has them, without filters."""
    blocks = list(events.moving_edges(10_000_000, 10_000_000))
    for name in events.COLUMNS:
        file[f"events/{name}"] = np.concatenate([block[name] for block in blocks])
    times = file["events/t"][:]
    file["ms_to_idx"] = np.searchsorted(times, np.arange(0, times[-1] // 1000 + 2) * 1000).astype("u8")
    file["t_offset"] = np.int64(0)


HDF5: dict[str, tuple[str, Callable[[h5py.File], None]]] = {
    "tiny": ("point_cloud", make_tiny),
    "gzip": ("rows", partial(make_rows, chunks=(8192, 20), compression="gzip", shuffle=True)),
    "chunked": ("rows", partial(make_rows, chunks=(8192, 20))),
    "contiguous": ("rows", make_rows),
    "events": ("events", make_events),
}
"""Further conversions, of one HDF5 file: the family, and what makes the file."""


def make_hdf5(name: str, folder: Path) -> tuple[str, Path]:
    """Family and source of one of `HDF5`, made where it is missing."""
    family, make = HDF5[name]
    path = folder / f"{name}.h5"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with h5py.File(path.with_suffix(".part"), "w") as file:
            make(file)
        path.with_suffix(".part").rename(path)
    return family, path


def processor_seconds() -> float:
    """Of this process and its children, those that still live among them."""
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    living = (child.cpu_times() for child in psutil.Process().children(recursive=True))
    return sum(each.ru_utime + each.ru_stime for each in used) + sum(
        each.user + each.system for each in living
    )


def convert(family: str, source: Path, destination: Path, workers: int = 0, **more: Any) -> None:
    """Convert in this process, or on workers."""
    from harness.copying import FAMILIES

    sensor = {"sensor": (events.WIDTH, events.HEIGHT)}
    options = {**(sensor if family == "events" else FAMILIES[family].options), **more}
    if not hasattr(unistore, "open_zarr"):  # a version from before the options had one name everywhere
        options = {OLD_NAMES.get(name, name): value for name, value in options.items()}
    unistore.convert(source, destination, family, workers=workers, **options)


def read(kind: str, store: Path) -> None:
    """Random batches of a Dataset, in this process."""
    reading = READINGS[kind]
    dataset = unistore.Dataset(store, reading.samples, fields=reading.fields)
    rng = np.random.default_rng(0)
    for _ in range(reading.batches):
        dataset.__getitems__(rng.integers(0, len(dataset), reading.batch).tolist())


def load(kind: str, store: Path) -> None:
    """Epochs of a Loader with two workers."""
    reading = READINGS[kind]
    dataset = unistore.Dataset(store, reading.samples, fields=reading.fields)
    word = "num_workers" if "num_workers" in inspect.signature(unistore.Loader).parameters else "workers"
    with unistore.Loader(dataset, reading.batch, shuffle=True, seed=0, **{word: 2}) as loader:
        for _ in range(reading.epochs):
            for _ in loader:
                pass


def engine_values() -> NDArray[np.float32]:
    """1,024 chunks of 64 KiB: waves with noise of 12 bits, which compress 1.4 times."""
    rng = np.random.default_rng(0)
    waves = np.sin(np.linspace(0, 40, 1 << 14))[None] + rng.normal(size=(1024, 1))
    return (np.round((waves + rng.normal(size=(1024, 1 << 14)) * 0.1) * 4096) / 4096).astype(np.float32)


def make_array(folder: Path) -> None:
    """`engine_values` as zarr-python writes them, in shards of 512 chunks."""
    values = engine_values()
    blosc = zarr.codecs.BloscCodec(cname="lz4", clevel=5, shuffle="shuffle", typesize=4)
    zarr.create_array(
        folder / "engine" / "a",
        data=values,
        chunks=(1, values.shape[1]),
        shards=(512, values.shape[1]),
        compressors=[blosc, zarr.codecs.Crc32cCodec()],
        overwrite=True,
    )


def engine(what: str, folder: Path) -> tuple[float, float]:
    """Seconds of random reads of single chunks in batches of 64, or of whole shards encoded."""
    values = engine_values()
    if what == "write":
        try:
            from unistore.zarr3.writer import array_metadata
        except ImportError:  # a version that has it elsewhere
            from unistore.zarr3.presets import array_metadata
        metadata = array_metadata(values.shape, values.dtype, (1, values.shape[1]), values.shape, "fast")

        def work() -> None:
            for _ in range(20):
                encode_shard(metadata, (0, 0), values)
    else:
        array = StoredArray.open(zarr3.LocalStorage(folder / "engine"), "a")
        draws, out = np.random.default_rng(0).integers(0, len(values), (1000, 64)), np.empty_like(values[:64])

        def work() -> None:
            for draw in draws:
                array.read_rows(draw, out)

    return timed(work)


def peak() -> float:
    """Most resident MiB of this process, or of a child if that held more."""
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return max(each.ru_maxrss for each in used) / 1024


def timed(function: Callable[[], None]) -> tuple[float, float]:
    """Processor and wall seconds of a call."""
    cpu, began = processor_seconds(), time.perf_counter()
    function()
    return processor_seconds() - cpu, time.perf_counter() - began


def source_of(action: str, what: str, folder: Path, megabytes: int) -> tuple[str, Path]:
    """Family and source of a workload, made where it is missing."""
    from harness.copying import make_source

    if what in HDF5:
        return make_hdf5(what, folder)
    if what == "files":
        folder.mkdir(parents=True, exist_ok=True)
        return "trajectory", many_files.make("trajectory", FILES, folder)
    family = what if action == "convert" else READINGS[what].family
    return family, make_source(family, folder / family, quick=False, megabytes=megabytes)


def main(work: str, folder: Path, megabytes: int) -> tuple[float, float]:
    """Run a workload: ``"convert ct"``, ``"convert ct 2 workers"`` or ``"read rows"``.

    ``"make …"`` makes what it needs.
    """
    words = work.split()
    making = words[0] == "make"
    action, what, *on = words[1:] if making else words
    workers = int(on[0]) if on else 0
    if action == "engine":
        if not making:
            return engine(what, folder)
        make_array(folder)
        return 0.0, 0.0
    family, source = source_of(action, what, folder, megabytes)
    version = zlib.crc32(os.fsencode(Path(unistore.__file__).resolve()))
    more = {} if action == "convert" else READINGS[what].options
    store = folder / f"{what if more else family}-{megabytes}-{version:08x}.zarr"
    if making:
        if action != "convert" and not store.exists():
            convert(family, source, store, **more)
        return 0.0, 0.0
    if action != "convert":
        import torch  # noqa: F401  later versions import it with the first sample

        return timed(lambda: (read if action == "read" else load)(what, store))
    memory = Path("/dev/shm")
    target = (memory if memory.is_dir() else folder) / f"unistore-versions-{os.getpid()}.zarr"
    convert(family, source, target, workers)  # imports, the page cache, the memory that is reused
    shutil.rmtree(target)
    try:
        return timed(lambda: convert(family, source, target, workers))
    finally:
        shutil.rmtree(target, ignore_errors=True)


if __name__ == "__main__":
    print(json.dumps([*main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])), peak()]))
