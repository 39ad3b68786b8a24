"""Point clouds: segments of about 9,000 points, 16 bytes each, from several HDF5 files.

    python benchmarks/point_cloud.py [--quick] [--dense] [--only PATTERN …] [--json FILE] [--markdown FILE]

The files are synthetic, laid out as PointSuite lays them out: columns x, y, z in metres with two decimals at
UTM-sized coordinates, classes, gzip chunks of 8,192 rows, and a segment's points as sorted row numbers. A
sample is a segment's coordinates (float32) and classes (int32); batches of 8 as in the documents that users
have today. The same segments are LAZ tiles, too, which laspy reads with lazrs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from harness.ours import our_ways
from harness.peers import listed, litdata_feed, mosaic_feed, packed, webdataset_feed, write_peers
from harness.plain import map_feed
from harness.script import Options, Target, parse, run_ways
from harness.ways import Way
from numpy.typing import NDArray

import unistore

BATCH = 8
ROWS = 8192
POINTS = 9_000
DENSE = 27_500
CODES = np.array([1, 2, 3, 4, 5, 6, 9, 17], np.int32)


def as_recorded(metres: NDArray[np.float64]) -> NDArray[np.float64]:
    """Coordinates as LAS files hold them: whole numbers times the scale, here 0.01."""
    return np.rint(metres * 100).astype(np.int32) * 0.01


def make_file(path: Path, windows: int, seed: int, points_each: int = POINTS) -> None:
    """One file: a square of ground, `windows` by `windows` of 50 m with about so many points each.

    Points are in the order of a scanner that sweeps across the whole square while it flies along it, so that
    a window's points lie in many short runs of rows.
    """
    rng = np.random.default_rng(seed)
    edge, points = 50.0 * windows, points_each * windows**2
    north = np.sort(rng.uniform(0, edge, points))
    line = (north // 0.5).astype(np.int64)  # a sweep every half metre
    east = rng.uniform(0, edge, points)
    order = np.lexsort((np.where(line % 2 == 0, east, -east), line))
    east = east[order]
    up = 20 * np.sin(east / 90) + 15 * np.cos(north / 70) + np.abs(rng.normal(0, 4, points))
    columns = {
        "x": as_recorded(512_000 + east),
        "y": as_recorded(5_404_000 + 1000 * seed + north),
        "z": as_recorded(300 + up),
        "classification": CODES[np.clip((up / 6).astype(int), 0, 7)],
    }
    window = (east // 50).astype(int) * 10_000 + (north // 50).astype(int)
    by_window = np.argsort(window, kind="stable")
    starts = np.flatnonzero(np.diff(window[by_window], prepend=-1))
    packing = {"chunks": (ROWS,), "compression": "gzip", "compression_opts": 4, "shuffle": True}
    with h5py.File(path, "w") as file:
        header = file.create_group("header").attrs
        header.update({"point_count": points, "point_format": 6, "version_major": 1, "version_minor": 4})
        for axis in "xyz":
            values = columns[axis]
            header.update({f"{axis}_scale": 0.01, f"{axis}_offset": 0.0})
            header.update({f"{axis}_min": values.min(), f"{axis}_max": values.max()})
        data = file.create_group("data")
        data.attrs["available_fields"] = "[]"
        for name, values in columns.items():
            data.create_dataset(name, data=values, **packing)
        segments = file.create_group("segments")
        for number, rows in enumerate(np.split(by_window, starts[1:])):
            group = segments.create_group(f"segment_{number:04d}")
            group.attrs["num_points"] = len(rows)
            group.create_dataset("indices", data=np.sort(rows), compression="gzip", shuffle=True)
            group.create_dataset("unique_labels", data=np.unique(columns["classification"][rows]))
        segments.attrs["num_segments"] = len(starts)


def read_file(path: Path) -> tuple[dict[str, NDArray[Any]], list[NDArray[np.int64]]]:
    """Columns of a file, and the rows of its segments."""
    with h5py.File(path, "r") as file:
        data = {name: file["data"][name][:] for name in ("x", "y", "z", "classification")}
        groups = [file["segments"][name] for name in list(file["segments"])]
        return data, [group["indices"][:] for group in groups]


def sample(data: dict[str, NDArray[Any]], rows: Any) -> dict[str, NDArray[Any]]:
    """A segment's coordinates (N, 3) and classes (N,)."""
    xyz = np.stack([data["x"][rows], data["y"][rows], data["z"][rows]], axis=1).astype(np.float32)
    return {"xyz": xyz, "classification": data["classification"][rows]}


class Documents:
    """The documents' MultiH5Dataset: a global index, and columns preloaded, cached (LRU) or read on demand.

    On demand, the span of rows that a segment's points lie in is read, and the points are taken from it.
    """

    def __init__(self, files: Sequence[Path], cached: int | None) -> None:
        self._files = files
        self._cached = cached
        self._memory: OrderedDict[int, Any] = OrderedDict()
        self._open: dict[int, h5py.File] = {}
        if cached == len(files):
            self._memory.update((number, read_file(path)) for number, path in enumerate(files))
        counts = []
        for path in files:
            with h5py.File(path, "r") as file:
                counts.append(int(file["segments"].attrs["num_segments"]))
        self._first = np.cumsum([0, *counts]).tolist()

    def __len__(self) -> int:
        return int(self._first[-1])

    def __getitem__(self, index: int) -> dict[str, NDArray[Any]]:
        number = bisect_right(self._first, index) - 1
        within = index - self._first[number]
        if self._cached:
            data, rows = self._file(number)
            return sample(data, rows[within])
        file = self._open.get(number) or self._open.setdefault(number, h5py.File(self._files[number], "r"))
        rows = file[f"segments/segment_{within:04d}/indices"][:]
        lo, hi = int(rows[0]), int(rows[-1]) + 1
        names = ("x", "y", "z", "classification")
        return sample({name: file["data"][name][lo:hi] for name in names}, rows - lo)

    def _file(self, number: int) -> Any:
        if number in self._memory:
            self._memory.move_to_end(number)
        else:
            if len(self._memory) == self._cached:
                self._memory.popitem(last=False)
            self._memory[number] = read_file(self._files[number])
        return self._memory[number]


class SortedHdf5:
    """One HDF5 file in the order of the segments; a batch is read in the order of its rows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: h5py.File | None = None
        with h5py.File(path, "r") as file:
            self._offsets = file["offsets"][:]

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitems__(self, indices: list[int]) -> list[dict[str, NDArray[Any]]]:
        if self._file is None:
            self._file = h5py.File(self._path, "r")
        found: dict[int, dict[str, NDArray[Any]]] = {}
        for index in sorted(set(indices)):
            lo, hi = self._offsets[index], self._offsets[index + 1]
            found[index] = {name: self._file[name][lo:hi] for name in ("xyz", "classification")}
        return [found[index] for index in indices]

    def __getitem__(self, index: int) -> dict[str, NDArray[Any]]:
        return self.__getitems__([index])[0]


class LazTiles:
    """A LAZ file for each segment, read whole by laspy."""

    def __init__(self, folder: Path) -> None:
        self._files = sorted(folder.glob("*.laz"))

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> dict[str, NDArray[Any]]:
        import laspy

        tile = laspy.read(self._files[index])
        return {
            "xyz": tile.xyz.astype(np.float32),
            "classification": np.asarray(tile.classification, np.int32),
        }


def write_laz(folder: Path, files: Sequence[Path]) -> None:
    """Write each segment as a LAZ tile of point format 6."""
    import laspy

    folder.mkdir(exist_ok=True)
    for path in files:
        data, segments = read_file(path)
        for number, rows in enumerate(segments):
            header = laspy.LasHeader(point_format=6, version="1.4")
            header.scales = np.full(3, 0.01)
            header.offsets = np.zeros(3)
            tile = laspy.LasData(header)
            tile.xyz = np.stack([data[axis][rows] for axis in "xyz"], axis=1)
            tile.classification = data["classification"][rows].astype(np.uint8)
            tile.write(folder / f"{path.stem}_{number:04d}.laz")


class Memmap:
    """Raw arrays and offsets."""

    def __init__(self, folder: Path) -> None:
        self._offsets = np.load(folder / "offsets.npy")
        self._arrays = {
            name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("xyz", "classification")
        }

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, index: int) -> dict[str, NDArray[Any]]:
        lo, hi = self._offsets[index], self._offsets[index + 1]
        return {name: np.array(array[lo:hi]) for name, array in self._arrays.items()}


class Tensorstore:
    """A sharded Zarr v3 array, chunks of 8,192 rows with blosc-lz4, read by tensorstore a batch at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets = np.load(folder / "offsets.npy")
        self._arrays: dict[str, Any] = {}

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitems__(self, indices: list[int]) -> list[dict[str, NDArray[Any]]]:
        if not self._arrays:
            from harness.plain import open_tensorstore

            self._arrays = {name: open_tensorstore(self._folder / name) for name in ("xyz", "classification")}
        bounds = [(int(self._offsets[i]), int(self._offsets[i + 1])) for i in indices]
        pending = [{name: a[lo:hi].read() for name, a in self._arrays.items()} for lo, hi in bounds]
        return [{name: future.result() for name, future in each.items()} for each in pending]


def make_source(folder: Path, *, quick: bool, points: int = POINTS) -> list[Path]:
    """Files of the benchmark, made where they are missing."""
    count, windows = (3, 8) if quick else (8, 13)
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"tile_{number}.h5" for number in range(count)]
    for number, path in enumerate(files):
        if not path.exists():
            make_file(path.with_suffix(".part"), windows, number, points)
            path.with_suffix(".part").rename(path)
    return files


def prepare(folder: Path, *, quick: bool, points: int) -> tuple[list[Path], dict[str, Path]]:
    """Source files, and every form of them that is raced."""
    from harness.plain import write_tensorstore

    sources = folder / "source"
    files = make_source(sources, quick=quick, points=points)
    stores = {"store": folder / "store.zarr", "plain": folder / "plain.zarr"}
    for key, codec in (("store", "fast"), ("plain", "none")):
        if not stores[key].exists():
            unistore.convert(sources, stores[key], "point_cloud", codec=codec)

    def samples() -> Iterator[dict[str, NDArray[Any]]]:
        for path in files:
            data, segments = read_file(path)
            for rows in segments:
                yield sample(data, rows)

    laz = folder / "laz"
    if not laz.exists():
        write_laz(laz, files)
    found = {**stores, "laz": laz, **write_peers(folder, samples)}
    raw = folder / "raw"
    if not raw.exists():
        raw.mkdir()
        every = list(samples())
        np.save(raw / "offsets.npy", np.cumsum([0, *(len(each["xyz"]) for each in every)]))
        for name in ("xyz", "classification"):
            joined = np.concatenate([each[name] for each in every])
            np.save(raw / f"{name}.npy", joined)
            write_tensorstore(folder / "tensorstore" / name, joined, (ROWS, *joined.shape[1:]), 64)
        (folder / "tensorstore" / "offsets.npy").write_bytes((raw / "offsets.npy").read_bytes())
        for name, packing in (("contiguous", {}), ("lzf", {"compression": "lzf", "shuffle": True})):
            with h5py.File(folder / f"sorted_{name}.h5", "w") as file:
                for key in ("xyz", "classification"):
                    values = np.load(raw / f"{key}.npy")
                    chunk = (ROWS, *values.shape[1:]) if packing else None
                    file.create_dataset(key, data=values, chunks=chunk, **packing)
                file["offsets"] = np.load(raw / "offsets.npy")
    return files, {
        **found,
        "raw": raw,
        "tensorstore": folder / "tensorstore",
        "contiguous": folder / "sorted_contiguous.h5",
        "lzf": folder / "sorted_lzf.h5",
    }


def ways(options: Options) -> list[Way]:
    """Every contender."""
    points = DENSE if options.flag else POINTS
    folder = options.folder / "dense" if options.flag else options.folder
    files, made = prepare(folder, quick=options.quick, points=points)
    found: list[Way] = []

    def add(name: str, setting: str, kind: Any, make: Any, places: Sequence[Path], **more: Any) -> None:
        slow = bool(more.pop("slow", False))
        imports = more.pop("imports", ("torch", "h5py"))
        arguments = {"batch": BATCH, **more}
        found.append(
            Way(
                name=name,
                setting=setting,
                kind=kind,
                make=make,
                arguments=arguments,
                files=tuple(places),
                imports=imports,
                slow=slow,
            )
        )

    for name, cached, slow in (
        ("preload-all", len(files), False),
        ("LRU of 2 files", 2, True),
        ("on-demand", 0, True),
    ):
        dataset = (Documents, (files, cached))
        for workers in (0, 2):
            add(
                name,
                f"{workers} workers",
                "documents",
                map_feed,
                files,
                dataset=dataset,
                workers=workers,
                collate=listed,
                slow=slow,
            )
    plain = {
        "h5py sorted, contiguous": (SortedHdf5, "contiguous"),
        "h5py sorted, lzf": (SortedHdf5, "lzf"),
        "memmap": (Memmap, "raw"),
        "laspy, a LAZ tile a sample": (LazTiles, "laz"),
    }
    for name, (dataset, key) in plain.items():
        for workers, collate in ((0, listed), (2, packed)):
            add(
                name,
                f"{workers} workers",
                "plain",
                map_feed,
                (made[key],),
                dataset=(dataset, (made[key],)),
                workers=workers,
                collate=collate,
            )
    for workers, collate in ((0, listed), (2, packed)):
        setting = f"{workers} workers"
        add(
            "tensorstore",
            setting,
            "peer",
            map_feed,
            (made["tensorstore"],),
            dataset=(Tensorstore, (made["tensorstore"],)),
            workers=workers,
            collate=collate,
            method="spawn",
            imports=("torch", "tensorstore"),
        )
        peer: dict[str, Any] = {"workers": workers, "collate": collate}
        for decode in ("auto", False):
            add(
                f"LitData, batch_decode={decode}",
                setting,
                "peer",
                litdata_feed,
                (made["litdata"],),
                folder=made["litdata"],
                batch_decode=decode,
                imports=("torch", "litdata"),
                **peer,
            )
        add(
            "MosaicML Streaming",
            setting,
            "peer",
            mosaic_feed,
            (made["streaming"],),
            folder=made["streaming"],
            **peer,
        )
        add(
            "WebDataset",
            setting,
            "peer",
            webdataset_feed,
            (made["webdataset"],),
            folder=made["webdataset"],
            imports=("torch", "webdataset"),
            **peer,
        )
    keys = ("xyz", "classification")
    found += our_ways(made["store"], BATCH, unistore.Segments(), keys)
    found += our_ways(made["plain"], BATCH, unistore.Segments(), keys, label=" (codec=none)", workers=(1, 2))
    found += our_ways(
        made["store"], BATCH, unistore.Segments(), keys, label=" (cache=all)", workers=(1, 2), cache="all"
    )
    return found


def main() -> None:
    """Run the benchmark."""
    options = parse(__doc__, "point_cloud", dense=f"segments of {DENSE:,} points")
    targets = [
        Target(
            text="Loader, 2 workers, over preload-all's best",
            ours=("Loader, 2 workers",),
            others=("preload-all*",),
            factor=3,
        ),
        Target(
            text="Loader, 2 workers, at its best setting over preload-all's best",
            ours=("Loader*, 2 workers",),
            others=("preload-all*",),
            factor=3,
        ),
        Target(
            text="Loader's best over the best streaming peer",
            ours=("Loader*",),
            others=("LitData*", "MosaicML*", "WebDataset*", "tensorstore*"),
            factor=1.3,
        ),
    ]
    run_ways(options, "Point cloud segments", ways(options), BATCH, targets, "Loader, 2 workers")


if __name__ == "__main__":
    main()
