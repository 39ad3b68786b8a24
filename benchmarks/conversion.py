"""Conversion: source MB/s of every family beside plain scripts, dask, and the limit.

    python benchmarks/conversion.py [--quick] [--only FAMILY …] [--grow] [--json FILE] [--markdown FILE]

The sources are those of the other benchmarks (synthetic, in the families' own layouts), in the page cache.

- **zarr-python**: a straightforward script: reads a source array with its own library and assigns it to an
  array of zarr-python with its default codec, file by file.
- **dask**: ``dask.array.to_zarr`` where sources are arrays that dask can take as they are.
- **limit**: reading and decoding every source byte with the plain libraries, then encoding what the store
  holds with the store's own codecs, without writing: no index, no sorting, no digests, no fsync.

unistore writes a sealed, fsynced store with checksums and digests; the others write what they write.
``--grow`` shows the memory of conversions of sources of one, two and four times the size.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ct
import h5py
import numpy as np
import point_cloud
import spike
import trajectory
from harness.memory import disk, warm
from harness.once import Once, run_once
from harness.script import machine, parse

COLUMNS = ("x", "y", "z", "classification")


@dataclass(frozen=True, slots=True)
class Family:
    """What is converted, and how.

    Attributes
    ----------
    modality
        Its name.
    source
        Folder.
    options
        Of the conversion.
    read
        Reads and decodes everything with plain libraries.
    naive, by_dask
        The straightforward script; dask's.
    uncompressed
        Whether the sources are.
    """

    modality: str
    source: Path
    options: dict[str, Any]
    read: Callable[[Path], None]
    naive: Callable[[Path, Path], None]
    by_dask: Callable[[Path, Path], None] | None
    uncompressed: bool


def convert(modality: str, source: Path, destination: Path, options: dict[str, Any], workers: int) -> None:
    """Convert with unistore."""
    import unistore

    unistore.convert(source, destination, modality, workers=workers, **options)


def limit(read: Callable[[Path], None], source: Path, store: Path) -> float:
    """Seconds of reading the source and of encoding what the store holds, nothing written."""
    from unistore.store.reader import Store
    from unistore.zarr3.writer import encode_shard

    began = time.perf_counter()
    read(source)
    reading = time.perf_counter() - began
    opened = Store(store)
    encoding = 0.0
    for path in opened.paths():
        array = opened.array(path)
        metadata = array.metadata
        steps = [range(count) for count in metadata.objects]
        for coordinates in itertools.product(*steps) if metadata.shard_shape is not None else ():
            lo = [at * step for at, step in zip(coordinates, metadata.object_shape, strict=True)]
            hi = [min(a + s, n) for a, s, n in zip(lo, metadata.object_shape, metadata.shape, strict=True)]
            block = array.read_box(lo, hi)
            began = time.perf_counter()
            encode_shard(metadata, coordinates, block)
            encoding += time.perf_counter() - began
    return reading + encoding


def hdf5_files(source: Path) -> list[Path]:
    """HDF5 files of a folder."""
    return sorted([*source.rglob("*.h5"), *source.rglob("*.hdf5")])


def read_clouds(source: Path) -> None:
    """Columns and segments of every file."""
    for path in hdf5_files(source):
        point_cloud.read_file(path)


def naive_clouds(source: Path, destination: Path) -> None:
    """Columns one behind the other, and the row numbers of the segments."""
    import zarr

    root = zarr.open_group(destination, mode="w")
    files = hdf5_files(source)
    counts = []
    for path in files:
        with h5py.File(path, "r") as file:
            counts.append(len(file["data/x"]))
    arrays = {}
    for name in COLUMNS:
        with h5py.File(files[0], "r") as file:
            dtype = file["data"][name].dtype
        arrays[name] = root.create_array(name, shape=(sum(counts),), chunks=(8192,), dtype=dtype)
    at = 0
    for number, (path, count) in enumerate(zip(files, counts, strict=True)):
        with h5py.File(path, "r") as file:
            for name in COLUMNS:
                arrays[name][at : at + count] = file["data"][name][:]
            groups = [file["segments"][name] for name in list(file["segments"])]
            rows = [group["indices"][:] for group in groups]
        joined = np.concatenate(rows)
        indices = root.create_array(
            f"indices_{number}", shape=joined.shape, chunks=(8192,), dtype=joined.dtype
        )
        indices[:] = joined
        offsets = np.cumsum([0, *map(len, rows)])
        root.create_array(f"offsets_{number}", data=offsets)
        at += count


def dask_clouds(source: Path, destination: Path) -> None:
    """Columns of all files."""
    import dask.array

    files = [h5py.File(path, "r") for path in hdf5_files(source)]
    for name in COLUMNS:
        parts = [dask.array.from_array(file["data"][name], chunks=8192 * 16) for file in files]
        dask.array.concatenate(parts).rechunk(8192 * 16).to_zarr(str(destination), component=name)


def volumes(source: Path) -> dict[str, list[Path]]:
    """Files by what they are."""
    cases = sorted(source.iterdir())
    return {
        "image": [ct.image_file(case) for case in cases],
        "bone": [ct.window_file(case) for case in cases],
    }


def read_volumes(source: Path) -> None:
    """Every volume and window."""
    for files in volumes(source).values():
        for path in files:
            np.load(path)


def naive_volumes(source: Path, destination: Path) -> None:
    """Volumes one by one into (V, D, H, W)."""
    import zarr

    root = zarr.open_group(destination, mode="w")
    for name, files in volumes(source).items():
        first = np.load(files[0], mmap_mode="r")
        array = root.create_array(
            name, shape=(len(files), *first.shape), chunks=(1, 64, 64, 64), dtype=first.dtype
        )
        for number, path in enumerate(files):
            array[number] = np.load(path)


def dask_volumes(source: Path, destination: Path) -> None:
    """Memory maps, stacked."""
    import dask.array

    for name, files in volumes(source).items():
        maps = [dask.array.from_array(np.load(path, mmap_mode="r"), chunks=(64, 64, 64)) for path in files]
        dask.array.stack(maps).to_zarr(str(destination), component=name)


def frames_of(source: Path) -> list[tuple[Path, str]]:
    """Sequence and number of every frame."""
    return [(file.parents[1], file.stem) for file in sorted(source.rglob("*.dat"))]


def spikes_of(folder: Path, name: str) -> Any:
    """Packed spikes of a frame, top row first."""
    raw = np.fromfile(folder / "spike" / f"{name}.dat", np.uint8)
    return raw.reshape(spike.TIMES, spike.HEIGHT, spike.WIDTH // 8)[:, ::-1]


def read_frames(source: Path) -> None:
    """Every stream and image."""
    for folder, name in frames_of(source):
        spikes_of(folder, name)
        for image in ("blur", "sharp"):
            spike.image_of(folder / image / f"{name}.png")


def naive_frames(source: Path, destination: Path) -> None:
    """Frame by frame."""
    import zarr

    root = zarr.open_group(destination, mode="w")
    frames = frames_of(source)
    shapes = {"spike": (spike.TIMES, spike.HEIGHT, spike.WIDTH // 8)}
    shapes |= dict.fromkeys(("blur", "sharp"), spike.image_of(frames[0][0] / "blur" / "000.png").shape)
    arrays = {
        name: root.create_array(name, shape=(len(frames), *shape), chunks=(1, *shape), dtype="uint8")
        for name, shape in shapes.items()
    }
    for number, (folder, name) in enumerate(frames):
        arrays["spike"][number] = spikes_of(folder, name)
        for image in ("blur", "sharp"):
            arrays[image][number] = spike.image_of(folder / image / f"{name}.png")


def datasets_of(file: h5py.File) -> list[str]:
    """Paths of all datasets."""
    found: list[str] = []
    file.visititems(lambda name, item: found.append(name) if isinstance(item, h5py.Dataset) else None)
    return found


def read_episodes(source: Path) -> None:
    """Every dataset, 64 steps at a time."""
    for path in hdf5_files(source):
        with h5py.File(path, "r") as file:
            for name in datasets_of(file):
                for lo in range(0, len(file[name]), 64):
                    file[name][lo : lo + 64]


def naive_episodes(source: Path, destination: Path) -> None:
    """Every dataset, 64 steps at a time, a chunk an image."""
    import zarr

    root = zarr.open_group(destination, mode="w")
    for path in hdf5_files(source):
        with h5py.File(path, "r") as file:
            for name in datasets_of(file):
                dataset = file[name]
                chunk = (1 if dataset.ndim == 4 else 1024, *dataset.shape[1:])
                array = root.create_array(
                    f"{path.stem}/{name}", shape=dataset.shape, chunks=chunk, dtype=dataset.dtype
                )
                for lo in range(0, len(dataset), 64):
                    array[lo : lo + 64] = dataset[lo : lo + 64]


def dask_episodes(source: Path, destination: Path) -> None:
    """Datasets as dask arrays."""
    import dask.array

    for path in hdf5_files(source):
        with h5py.File(path, "r") as file:
            for name in datasets_of(file):
                dataset = file[name]
                chunks = (16 if dataset.ndim == 4 else 1024, *dataset.shape[1:])
                array = dask.array.from_array(dataset, chunks=chunks)
                array.to_zarr(str(destination), component=f"{path.stem}/{name}")


def families(root: Path, *, quick: bool) -> list[Family]:
    """Sources of the other benchmarks, made where they are missing."""
    places = {}
    for name, module in (
        ("point_cloud", point_cloud),
        ("ct", ct),
        ("spike", spike),
        ("trajectory", trajectory),
    ):
        folder = root / (f"{name}-quick" if quick else name)
        module.make_source(folder / "source", quick=quick)
        places[name] = folder / "source"
    size = {"height": spike.HEIGHT, "width": spike.WIDTH}
    return [
        Family("point_cloud", places["point_cloud"], {}, read_clouds, naive_clouds, dask_clouds, False),
        Family("ct", places["ct"], {}, read_volumes, naive_volumes, dask_volumes, True),
        Family("spike", places["spike"], size, read_frames, naive_frames, None, False),
        Family("trajectory", places["trajectory"], {}, read_episodes, naive_episodes, dask_episodes, True),
    ]


def measure(family: Family, folder: Path, rounds: int) -> dict[str, list[Once]]:
    """Every way of converting a family, in turn, round by round."""
    warm([family.source])
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    store = folder / "store.zarr"
    ours = (family.modality, family.source)
    ways: dict[str, tuple[Callable[..., Any], tuple[Any, ...], tuple[str, ...]]] = {
        "unistore": (convert, (*ours, store, family.options, 0), ("unistore.execute.runner", "h5py", "cv2")),
        "unistore, 2 workers": (
            convert,
            (*ours, folder / "parallel.zarr", family.options, 2),
            ("unistore.execute.runner", "distributed", "h5py", "cv2"),
        ),
        "zarr-python": (family.naive, (family.source, folder / "naive.zarr"), ("zarr", "h5py", "cv2")),
        "limit": (limit, (family.read, family.source, store), ("unistore.zarr3", "h5py", "cv2")),
    }
    if family.by_dask is not None:
        ways["dask.array.to_zarr"] = (
            family.by_dask,
            (family.source, folder / "dask.zarr"),
            ("dask.array", "zarr", "h5py"),
        )
    found: dict[str, list[Once]] = {name: [] for name in ways}
    for number in range(rounds):
        names = list(ways)
        turn = number % len(names) if number else 0  # the limit needs a store
        for name in names[turn:] + names[:turn]:
            for made in folder.iterdir():
                if not (made == store and name != "unistore"):
                    shutil.rmtree(made)
            os.sync()
            found[name].append(run_once(*ways[name]))
            print(f"{family.modality}, {name}: {found[name][-1]}", flush=True)
    shutil.rmtree(folder)
    return found


def table(family: Family, found: dict[str, list[Once]]) -> list[str]:
    """Rows of the table of a family, and of its targets."""
    size = disk([family.source]) / 1e6
    lines = []
    for name, runs in found.items():
        good = [run for run in runs if not run.failure]
        if not good:
            lines.append(f"| {family.modality} | {name} | failed: {runs[0].failure} | | | | |")
            continue
        seconds = statistics.median(run.seconds for run in good)
        peak = "" if name == "limit" else f"{max(run.peak for run in good):,.0f} MiB"
        cost = "" if name == "limit" else f"{statistics.median(run.cost for run in good):.2f} s"
        over = statistics.median(
            run.seconds / ours.seconds for run, ours in zip(runs, found["unistore"], strict=True)
        )
        others = max(run.others for run in good)
        lines.append(
            f"| {family.modality} ({size:,.0f} MB) | {name} | {size / seconds:,.0f} MB/s | {cost} | {peak} "
            f"| {over:.2f}× | {others:.0%} |"
        )
    return lines


def judged(family: Family, found: dict[str, list[Once]]) -> list[str]:
    """Rows of the table of targets."""

    def ratio(slow: str, fast: str) -> float:
        return statistics.median(a.seconds / b.seconds for a, b in zip(found[slow], found[fast], strict=True))

    targets = [
        ("of the limit, one process", ratio("limit", "unistore"), 0.6),
        ("of the limit, 2 workers", ratio("limit", "unistore, 2 workers"), 0.6),
    ]
    if family.uncompressed:
        targets.append(("times zarr-python, one process", ratio("zarr-python", "unistore"), 5))
        targets.append(("times zarr-python, 2 workers", ratio("zarr-python", "unistore, 2 workers"), 5))
    return [
        f"| {family.modality}: {text} | ≥ {wanted:g} | {value:.2f} | "
        f"{'met' if value >= wanted else '**missed**'} |"
        for text, value, wanted in targets
    ]


def grow(family: Family, folder: Path) -> list[str]:
    """Memory of converting one, two and four copies of the source, made of hard links."""
    lines = []
    for times in (1, 2, 4):
        shutil.rmtree(folder, ignore_errors=True)
        copies = folder / "source"
        for number in range(times):
            for file in sorted(path for path in family.source.rglob("*") if path.is_file()):
                inside = file.relative_to(family.source)
                top = inside.parts[0] if family.modality == "spike" else ""
                rest = inside.relative_to(top) if top else inside
                target = copies / top / f"copy_{number}{rest}" if top else copies / f"copy_{number}" / inside
                target.parent.mkdir(parents=True, exist_ok=True)
                os.link(file, target)
        arguments = (family.modality, copies, folder / "store.zarr", family.options, 0)
        run = run_once(convert, arguments, ("unistore.execute.runner", "h5py", "cv2"))
        size = disk([copies]) / 1e6
        lines.append(
            f"| {family.modality} | {size:,.0f} MB | {run.peak:,.0f} MiB | {size / run.seconds:,.0f} MB/s | "
            f"{run.failure} |"
        )
    shutil.rmtree(folder)
    return lines


def main() -> None:
    """Run the benchmark."""
    options = parse(__doc__, "conversion", grow="memory by size of the source")
    rounds = options.rounds if options.quick else min(options.rounds, 5)
    lines, targets, growth, records = [], [], [], {}
    for family in families(options.folder.parent, quick=options.quick):
        if options.only and family.modality not in options.only:
            continue
        if options.flag:
            growth += grow(family, options.folder / family.modality)
            continue
        found = measure(family, options.folder / family.modality, rounds)
        lines += table(family, found)
        targets += judged(family, found)
        records[family.modality] = {
            name: [[run.seconds, run.cost, run.peak, run.others] for run in runs]
            for name, runs in found.items()
        }
    text = ["### Conversion", "", machine(), ""]
    if lines:
        text += [
            "| family | way | source | CPU | memory | unistore is | other load |",
            "|---|---|--:|--:|--:|--:|--:|",
            *lines,
            "",
            "| target | to reach | reached | |",
            "|---|--:|--:|---|",
            *targets,
        ]
    if growth:
        text += ["| family | source | memory | speed | |", "|---|--:|--:|--:|---|", *growth]
    print("\n".join(text))
    if options.markdown:
        with options.markdown.open("a") as file:
            file.write("\n".join(text) + "\n\n")
    if options.json:
        known = json.loads(options.json.read_text()) if options.json.exists() else {}
        options.json.write_text(json.dumps({**known, **records}, indent=1))


if __name__ == "__main__":
    main()
