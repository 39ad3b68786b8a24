"""The engine beside its peers and its limits: random chunk reads and whole-shard writes, one core, one run.

    python benchmarks/engine.py [--quick] [--json FILE]

Every round times every contender once, in random order, and a ratio is the median over rounds of
``time of the contender / time of the engine`` within the same round: other load on the machine cancels.
Files are in the page cache; a read is one batch of 64 random chunks, four of them in a row (the slow
contenders: one). Limits: a tight loop that knows offsets and sizes beforehand (one positional read into a
reused buffer, crc32c, decode into the output), a copy out of memory, and for writing a loop of compress and
crc32c with one file written at the end. Written files are new ones: old ones are removed outside the clock.

zarr-python, zarrs, zarrista, Lance and blosc2 take part where installed: ``requirements-3.12.txt``.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import google_crc32c
import h5py
import numcodecs.blosc
import numpy as np
import tensorstore
import zarr
from numpy.typing import NDArray

from unistore.zarr3 import LocalStorage, StoredArray, durable
from unistore.zarr3.durable import write_file
from unistore.zarr3.writer import array_metadata, encode_shard, iter_shard_buffers

durable.fsync = lambda _: None
KIB = 1 << 10
BATCH = 64
BATCHES = 4
SLOW = {"zarr-python z[i]", "zarr-python oindex", "zarr-python fused z[i]", "zarrs z[i]", "tensorstore t[i]"}
SLOW |= {"zarr-python", "zarr-python fused oindex", "zarrs oindex"}
"""Contenders that only run in every fifth round, and read one batch in it."""


@dataclass
class Result:
    """Seconds of one contender, by round."""

    name: str
    seconds: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """One workload: data of a kind in chunks of a size."""

    work: str
    kind: str
    chunk_kib: int


def make(kind: str, chunks: int, chunk_kib: int) -> NDArray[Any]:
    """Values (chunks, elements of a chunk)."""
    rng = np.random.default_rng(0)
    count = chunk_kib * KIB // 4
    if kind == "smooth":  # a random walk: lz4 with shuffle makes it 4 times smaller
        return np.cumsum(rng.integers(-3, 4, (chunks, count)), axis=1).astype(np.int32)
    if kind == "mixed":  # floats with noise of 12 bits: 1.4 times smaller
        waves = np.sin(np.linspace(0, 40, count))[None] + rng.normal(size=(chunks, 1))
        return (np.round((waves + rng.normal(size=(chunks, count)) * 0.1) * 4096) / 4096).astype(np.float32)
    return rng.integers(-(2**31), 2**31, (chunks, count)).astype(np.int32)


def run_rounds(
    contenders: dict[str, Callable[[int], object]],
    rounds: int,
    repeats: int = 1,
    before: Callable[[], None] = lambda: None,
) -> list[Result]:
    """Time every contender once a round (slow ones in every fifth), in random order.

    Random, because a contender is faster behind one that left the same decoder in the processor's caches.
    """
    results = {name: Result(name) for name in contenders}
    order, names = random.Random(0), list(contenders)
    for number in range(rounds):
        for name in order.sample(names, len(names)):
            if name in SLOW and number % 5:
                continue
            times = 1 if name in SLOW else repeats
            before()
            start = time.perf_counter()
            for repeat in range(times):
                contenders[name](number * repeats + repeat)
            results[name].seconds[number] = (time.perf_counter() - start) / times
    return list(results.values())


def report(case: Case, results: list[Result], unit_bytes: int, units: int) -> list[dict[str, Any]]:
    """One record a contender: median microseconds of a unit, GB/s, and ratio to the engine."""
    engine = next(result for result in results if result.name == "unistore")
    records = []
    for result in results:
        median = statistics.median(result.seconds.values())
        ratio = statistics.median(
            seconds / engine.seconds[number] for number, seconds in result.seconds.items()
        )
        records.append(
            {
                "work": case.work,
                "data": case.kind,
                "chunk_kib": case.chunk_kib,
                "contender": result.name,
                "us": round(median / units * 1e6, 2),
                "per_s": round(units / median),
                "gb_per_s": round(units * unit_bytes / median / 1e9, 2),
                "time_over_engine": round(ratio, 3),
            }
        )
    return records


def reads(case: Case, chunks: int, rounds: int, folder: Path) -> list[dict[str, Any]]:
    """Random reads of single chunks in batches of `BATCH`."""
    values = make(case.kind, chunks, case.chunk_kib)
    per_shard = max(1, 32 * 1024 // case.chunk_kib)
    metadata = array_metadata(
        values.shape, values.dtype, (1, values.shape[1]), (per_shard, values.shape[1]), "fast"
    )
    (folder / "a").mkdir()
    (folder / "a" / "zarr.json").write_bytes(metadata.to_bytes())
    for shard in range(metadata.shards[0]):
        block = values[shard * per_shard : (shard + 1) * per_shard]
        write_file(folder / "a", f"c/{shard}/0", encode_shard(metadata, (shard, 0), block))
    with h5py.File(folder / "x.h5", "w") as file:
        file.create_dataset("lzf", data=values, chunks=(1, values.shape[1]), compression="lzf", shuffle=True)
        file.create_dataset("contiguous", data=values)

    array = StoredArray.open(LocalStorage(folder), "a")
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(folder / "a")}}
    t = tensorstore.open(spec, open=True, read=True, recheck_cached_data="open").result()
    out = np.empty((BATCH, values.shape[1]), values.dtype)
    rng = np.random.default_rng(1)
    draws = [rng.integers(0, chunks, BATCH) for _ in range(rounds * BATCHES)]
    loop = tight_loop(folder / "a", metadata.shards[0], per_shard, case.chunk_kib)
    with h5py.File(folder / "x.h5", "r") as file:
        contenders = {
            "unistore": lambda number: array.read_rows(draws[number], out),
            "limit: tight loop": lambda number: loop(draws[number].tolist(), out),
            "limit: memcpy": lambda number: copy_rows(values, draws[number].tolist(), out),
            "tensorstore batched": lambda number: t[draws[number]].read().result(),
            "tensorstore t[i]": lambda number: [t[row].read().result() for row in draws[number].tolist()],
            "h5py lzf": lambda number: read_hdf5(file["lzf"], draws[number].tolist(), out),
            "h5py contiguous": lambda number: read_hdf5(file["contiguous"], draws[number].tolist(), out),
        }
        readers = {**zarr_readers(folder / "a"), **other_readers(folder, values, out)}
        for name, reader in readers.items():
            contenders[name] = partial(read_drawn, reader, draws)
        for name, contender in contenders.items():
            out[:] = 0
            found = contender(0)
            found = out if name.startswith(("unistore", "limit", "h5py", "blosc2")) else np.asarray(found)
            if not np.array_equal(found, values[draws[0]]):
                raise AssertionError(name)
        results = run_rounds(contenders, rounds, BATCHES)
    return report(case, results, values[0].nbytes, BATCH)


Reader = Callable[[NDArray[np.int64]], object]
PIPELINES = {
    "zarr-python": "zarr.core.codec_pipeline.BatchedCodecPipeline",
    "zarr-python fused": "zarr.core.codec_pipeline.FusedCodecPipeline",
    "zarrs": "zarrs.ZarrsCodecPipeline",
}
"""Pipelines of codecs under zarr-python, the second of zarr 3.4."""


def read_drawn(reader: Reader, draws: list[NDArray[np.int64]], number: int) -> object:
    """Read one batch."""
    return reader(draws[number])


def zarr_readers(array: Path) -> dict[str, Reader]:
    """Readers by zarr-python, with each pipeline that is installed."""
    readers: dict[str, Reader] = {}
    for name, pipeline in PIPELINES.items():
        module, _, attribute = pipeline.rpartition(".")
        if importlib.util.find_spec(module.partition(".")[0]) is None:
            continue
        if not hasattr(importlib.import_module(module), attribute):
            continue
        readers[f"{name} z[i]"] = partial(read_by_zarr, array, pipeline, oindex=False)
        readers[f"{name} oindex"] = partial(read_by_zarr, array, pipeline, oindex=True)
    return readers


@cache
def open_zarr(array: Path, pipeline: str) -> zarr.Array[Any]:
    """Open an array with a pipeline; call within its setting, as shards make pipelines of their own."""
    assert zarr.config.get("codec_pipeline.path") == pipeline
    return zarr.open_array(array, mode="r")


def read_by_zarr(array: Path, pipeline: str, rows: NDArray[np.int64], *, oindex: bool) -> object:
    """Read rows one by one, or by one orthogonal index."""
    with zarr.config.set({"codec_pipeline.path": pipeline}):
        opened = open_zarr(array, pipeline)
        return opened.oindex[rows] if oindex else [opened[row] for row in rows.tolist()]


def other_readers(folder: Path, values: NDArray[Any], out: NDArray[Any]) -> dict[str, Reader]:
    """Readers that are no requirements of this project, as far as they are installed."""
    readers: dict[str, Reader] = {}
    if importlib.util.find_spec("zarrista"):
        import zarrista

        array = zarrista.Array.open(zarrista.store.FilesystemStore(folder / "a"), "/")
        shards = array.shard_cache()
        readers["zarrista, a prototype"] = lambda rows: [
            np.asarray(array.retrieve_subchunk([row, 0], shard_cache=shards))[0] for row in rows.tolist()
        ]
    if importlib.util.find_spec("lance"):
        import lance
        import pyarrow as pa

        lists = pa.FixedSizeListArray.from_arrays(values.reshape(-1), values.shape[1])
        dataset = lance.write_dataset(pa.table({"x": lists}), folder / "x.lance")
        readers["Lance take"] = lambda rows: taken_lists(dataset, rows)
    if importlib.util.find_spec("blosc2"):
        import blosc2

        filters = {"codec": blosc2.Codec.LZ4, "clevel": 5, "nthreads": 1}
        chunk = (1, values.shape[1])
        blosc2.asarray(values, chunks=chunk, urlpath=str(folder / "x.b2nd"), cparams=filters)
        # as nnU-Net opens its cases
        opened = blosc2.open(
            str(folder / "x.b2nd"), mode="r", mmap_mode="r", dparams=blosc2.DParams(nthreads=1)
        )
        readers["blosc2"] = lambda rows: read_blosc2(opened, rows.tolist(), out)
    return readers


def taken_lists(dataset: Any, rows: NDArray[np.int64]) -> NDArray[Any]:
    """Rows of a Lance dataset of lists of one length."""
    column = dataset.take(rows.tolist(), columns=["x"]).column("x").combine_chunks()
    return np.asarray(column.flatten()).reshape(len(rows), -1)


def read_blosc2(array: Any, rows: list[int], out: NDArray[Any]) -> None:
    """Read rows one by one into the output."""
    for at, row in enumerate(rows):
        out[at] = array[row]


def tight_loop(
    folder: Path, shards: int, per_shard: int, chunk_kib: int
) -> Callable[[list[int], NDArray[Any]], None]:
    """The least that must be done for a chunk: everything known beforehand, nothing checked but the crc."""
    files, offsets, sizes = [], [], []
    for shard in range(shards):
        fd = os.open(folder / "c" / str(shard) / "0", os.O_RDONLY)
        index = os.pread(fd, 16 * per_shard, os.fstat(fd).st_size - 16 * per_shard - 4)
        entries = np.frombuffer(index, "<i8").reshape(-1, 2)
        files += [fd] * per_shard
        offsets += entries[:, 0].tolist()
        sizes += entries[:, 1].tolist()
    buffer = np.empty(chunk_kib * KIB + 1024, np.uint8)
    view = memoryview(buffer)
    preadv, crc32c, decompress = os.preadv, google_crc32c.value, numcodecs.blosc.decompress
    residue = crc32c(crc32c(b"").to_bytes(4, "little"))

    def loop(rows: list[int], out: NDArray[Any]) -> None:
        for at, row in enumerate(rows):
            size = sizes[row]
            preadv(files[row], [view[:size]], offsets[row])
            raw = buffer[:size]
            if crc32c(raw) != residue:
                raise ValueError(row)
            decompress(raw, out[at])

    return loop


def copy_rows(values: NDArray[Any], rows: list[int], out: NDArray[Any]) -> None:
    """Copy rows out of memory."""
    for at, row in enumerate(rows):
        out[at] = values[row]


def read_hdf5(dataset: h5py.Dataset, rows: list[int], out: NDArray[Any]) -> None:
    """Read rows one by one into the output (a selection of many rows is slower in h5py)."""
    for at, row in enumerate(rows):
        dataset.read_direct(out, np.s_[row], np.s_[at])


def writes(case: Case, shard_mib: int, rounds: int, folder: Path) -> list[dict[str, Any]]:
    """Whole shards: encode and write, without fsync."""
    values = make(case.kind, shard_mib * 1024 // case.chunk_kib, case.chunk_kib)
    metadata = array_metadata(values.shape, values.dtype, (1, values.shape[1]), values.shape, "fast")
    for name in ("unistore", "tensorstore", "zarr"):
        (folder / name).mkdir()
        (folder / name / "zarr.json").write_bytes(metadata.to_bytes())
    z = zarr.open_array(folder / "zarr", mode="r+")
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(folder / "tensorstore")}}
    context = tensorstore.Context({"file_io_sync": False})
    t = tensorstore.open(spec, open=True, context=context).result()
    compress, crc32c = numcodecs.blosc.compress, google_crc32c.value
    codec = asdict(metadata.compressor)
    shuffle = ("noshuffle", "shuffle", "bitshuffle").index(codec["shuffle"])
    items = values.view(f"V{codec['typesize']}")
    shards = [folder / name / "c" / "0" / "0" for name in ("unistore", "tensorstore", "zarr")]

    def bare(_: int) -> None:
        frames = []
        for row in items:
            frame = compress(row, codec["cname"].encode(), codec["clevel"], shuffle)
            frames += [frame, crc32c(frame).to_bytes(4, "little")]
        fd = os.open(folder / "bare", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for start in range(0, len(frames), 512):
            os.writev(fd, frames[start : start + 512])
        os.close(fd)

    def lzf(_: int) -> None:
        with h5py.File(folder / "x.h5", "w") as file:
            file.create_dataset(
                "x", data=values, chunks=(1, values.shape[1]), compression="lzf", shuffle=True
            )

    def by_zarr(_: int) -> None:
        z[...] = values

    def engine(_: int) -> None:
        write_file(folder / "unistore", "c/0/0", iter_shard_buffers(metadata, (0, 0), [values]))

    contenders: dict[str, Callable[[int], object]] = {
        "unistore": engine,
        "limit: encode + write": bare,
        "tensorstore": lambda _: t.write(values).result(),
        "h5py lzf": lzf,
        "zarr-python": by_zarr,
    }
    for contender in contenders.values():
        contender(0)
    for name in ("unistore", "tensorstore", "zarr"):
        if not np.array_equal(
            StoredArray.open(LocalStorage(folder), name).read_rows(np.arange(len(values))), values
        ):
            raise AssertionError(name)

    def remove() -> None:
        for file in [*shards, folder / "bare", folder / "x.h5"]:
            file.unlink(missing_ok=True)

    return report(case, run_rounds(contenders, rounds, before=remove), values.nbytes, 1)


TARGETS = [
    ("read", 64, "limit: tight loop", 0.90),
    ("read", 64, "zarr-python z[i]", 30),
    ("read", 64, "h5py lzf", 4),
    ("read", 64, "tensorstore batched", 1),
    ("write", 64, "limit: encode + write", 0.85),
    ("write", 64, "zarr-python", 6),
]
"""Work, chunk (KiB), contender, and how many times the contender's speed is to be reached."""


def markdown(records: list[dict[str, Any]]) -> str:
    """Tables of the targets and of everything measured."""
    lines = ["| target (one core) | to reach | smooth | mixed | incompressible |", "|---|---|---|---|---|"]
    for work, chunk, contender, target in TARGETS:
        cells = []
        for kind in ("smooth", "mixed", "incompressible"):
            wanted = (work, chunk, contender, kind)
            found = [r for r in records if (r["work"], r["chunk_kib"], r["contender"], r["data"]) == wanted]
            cells.append(f"{found[0]['time_over_engine']:.2f}" if found else "–")
        what = "random chunk read" if work == "read" else "whole-shard write"
        lines.append(
            f"| {what}, {chunk} KiB chunks: speed over {contender} | ≥ {target} | {' | '.join(cells)} |"
        )
    for work, unit in (("read", "µs a chunk"), ("write", "ms a shard")):
        mine = [record for record in records if record["work"] == work]
        cases = list(dict.fromkeys((record["chunk_kib"], record["data"]) for record in mine))
        lines += ["", f"{work}: {unit} (in brackets: engine's speed over it)", ""]
        lines.append("| | " + " | ".join(f"{chunk} KiB {kind}" for chunk, kind in cases) + " |")
        lines.append("|---" * (len(cases) + 1) + "|")
        for contender in dict.fromkeys(record["contender"] for record in mine):
            cells = []
            for case in cases:
                row = next(
                    r for r in mine if (r["chunk_kib"], r["data"], r["contender"]) == (*case, contender)
                )
                shown = row["us"] / (1 if work == "read" else 1000)
                ratio = row["time_over_engine"]
                cells.append(f"{shown:.1f} ({ratio:.2f})")
            lines.append(f"| {contender} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="64 KiB chunks only, fewer rounds")
    parser.add_argument("--json", type=Path, help="write the records there")
    parser.add_argument("--folder", type=Path, help="where to put the files (default: the temporary folder)")
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    numcodecs.blosc.use_threads = False
    rounds = {16: 30, 64: 15 if options.quick else 60, 1024: 15}
    work: list[tuple[Callable[..., list[dict[str, Any]]], Case, int]] = []
    for kind in ("smooth", "mixed", "incompressible"):
        for chunk in [64] if options.quick else [16, 64, 1024]:
            work.append((reads, Case("read", kind, chunk), 128 * 1024 // chunk))
            work.append((writes, Case("write", kind, chunk), 16))
    records: list[dict[str, Any]] = []
    for measure, case, size in work:
        folder = Path(tempfile.mkdtemp(prefix="engine-", dir=options.folder))
        try:
            records += measure(case, size, rounds[case.chunk_kib], folder)
        finally:
            shutil.rmtree(folder)
    print(markdown(records))
    if options.json:
        options.json.write_text(json.dumps(records, indent=1))


if __name__ == "__main__":
    main()
