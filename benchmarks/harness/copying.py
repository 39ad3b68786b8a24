"""What conversions are compared with: sources of each family, plain readers, zarr-python and dask scripts."""

from __future__ import annotations

import shutil
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

from harness.memory import disk

COLUMNS = ("x", "y", "z", "classification")


@dataclass(frozen=True, slots=True)
class Family:
    """What is converted, and how others do it.

    Attributes
    ----------
    make
        ``make(folder, quick)`` makes what is different of the source.
    copies
        How often it is copied in full size: each copy is read anew, and its values are the same.
    options
        Of our conversion.
    read
        Reads and decodes everything with plain libraries.
    naive, by_dask
        The straightforward script; dask's, where sources are arrays that dask takes as they are.
    uncompressed
        Whether the sources are.
    """

    make: Callable[[Path, bool], Any]
    copies: int
    options: dict[str, Any]
    read: Callable[[Path], None]
    naive: Callable[[Path, Path], None]
    by_dask: Callable[[Path, Path], None] | None
    uncompressed: bool


def make_source(name: str, folder: Path, *, quick: bool, megabytes: int | None = None) -> Path:
    """Folder of the sources of a family, made where it is missing.

    Parameters
    ----------
    name, folder
        Of the family, and of all that belongs to it.
    quick
        Make little, and take it once.
    megabytes
        Take what is made so often that it is about so many; None: as often as the family says.
    """
    source = folder / (f"source-{megabytes}" if megabytes else "source")
    if source.exists():
        return source
    part, family = folder / "part", FAMILIES[name]
    first = part / "copy_0"
    first.mkdir(parents=True)
    family.make(first, quick)
    copies = 1 if quick else family.copies
    if megabytes:
        copies = max(1, round(megabytes * 1e6 / disk([first])))
    for number in range(1, copies):
        for file in sorted(path for path in first.rglob("*") if path.is_file()):
            inside = file.relative_to(first).as_posix()
            link = part / f"copy_{number}" / inside
            link.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, link)  # hard links would be one source
    part.rename(source)
    return source


def make_rows(folder: Path, quick: bool) -> None:
    """Walks of 512 features, 128 tokens and a label a row; contiguous HDF5."""
    rng = np.random.default_rng(0)
    for number in range(1 if quick else 2):
        rows = 20_000 if quick else 65_000
        with h5py.File(folder / f"part_{number}.h5", "w") as file:
            steps = rng.standard_normal((rows, 512), np.float32)
            file["features"] = np.cumsum(steps, axis=0, dtype=np.float32)
            file["tokens"] = rng.integers(0, 30_000, (rows, 128), np.int32)
            file["label"] = rng.integers(0, 10, rows)


def read_rows(source: Path) -> None:
    """Every dataset."""
    for path in hdf5_files(source):
        with h5py.File(path, "r") as file:
            for name in file:
                file[name][:]


def naive_rows(source: Path, destination: Path) -> None:
    """Datasets one behind the other, 256 rows a chunk."""
    import zarr

    root = zarr.open_group(destination, mode="w")
    files = hdf5_files(source)
    arrays: dict[str, Any] = {}
    at = 0
    for path in files:
        with h5py.File(path, "r") as file:
            for name in file:
                dataset = file[name]
                if name not in arrays:
                    shape = (len(files) * len(dataset), *dataset.shape[1:])
                    chunks = (256, *dataset.shape[1:])
                    arrays[name] = root.create_array(name, shape=shape, chunks=chunks, dtype=dataset.dtype)
                arrays[name][at : at + len(dataset)] = dataset[:]
            at += len(dataset)


def dask_rows(source: Path, destination: Path) -> None:
    """Datasets of all files."""
    import dask.array

    files = [h5py.File(path, "r") for path in hdf5_files(source)]
    for name in files[0]:
        parts = [dask.array.from_array(file[name], chunks=(4096, *file[name].shape[1:])) for file in files]
        dask.array.concatenate(parts).rechunk({0: 4096}).to_zarr(str(destination), component=name)


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
    cases = sorted(case for copy in source.iterdir() for case in copy.iterdir())
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


def dataset_paths(file: h5py.File) -> list[str]:
    """Paths of all datasets."""
    found: list[str] = []
    file.visititems(lambda name, item: found.append(name) if isinstance(item, h5py.Dataset) else None)
    return found


def read_episodes(source: Path) -> None:
    """Every dataset, 64 steps at a time."""
    for path in hdf5_files(source):
        with h5py.File(path, "r") as file:
            for name in dataset_paths(file):
                for lo in range(0, len(file[name]), 64):
                    file[name][lo : lo + 64]


def naive_episodes(source: Path, destination: Path) -> None:
    """Every dataset, 64 steps at a time, a chunk an image."""
    import zarr

    root = zarr.open_group(destination, mode="w")
    for path in hdf5_files(source):
        with h5py.File(path, "r") as file:
            for name in dataset_paths(file):
                dataset = file[name]
                chunk = (1 if dataset.ndim == 4 else 1024, *dataset.shape[1:])
                array = root.create_array(
                    f"{path.parent.name}/{name}", shape=dataset.shape, chunks=chunk, dtype=dataset.dtype
                )
                for lo in range(0, len(dataset), 64):
                    array[lo : lo + 64] = dataset[lo : lo + 64]


def dask_episodes(source: Path, destination: Path) -> None:
    """Datasets as dask arrays."""
    import dask.array

    for path in hdf5_files(source):
        with h5py.File(path, "r") as file:
            for name in dataset_paths(file):
                dataset = file[name]
                chunks = (16 if dataset.ndim == 4 else 1024, *dataset.shape[1:])
                array = dask.array.from_array(dataset, chunks=chunks)
                array.to_zarr(str(destination), component=f"{path.parent.name}/{name}")


def make_clouds(folder: Path, quick: bool) -> None:
    """A square of ground in segments, gzip with shuffle."""
    point_cloud.make_file(folder / "tile.h5", 8 if quick else 26, 0)


def make_volumes(folder: Path, quick: bool) -> None:
    """Cases of int16 volumes and their bone windows."""
    for number in range(1 if quick else 2):
        ct.make_case(folder / f"case_{number}", 160 if quick else 320, number)


def make_frames(folder: Path, quick: bool) -> None:
    """A sequence of packed spikes and PNG frames."""
    spike.make_sequence(folder / "spikes", 6 if quick else 24, 0)


def make_episodes(folder: Path, quick: bool) -> None:
    """Two cameras and states in one HDF5 file."""
    trajectory.make_file(folder / "steps.hdf5", 150 if quick else 750, appended=False)


FAMILIES = {
    "rows": Family(make_rows, 3, {}, read_rows, naive_rows, dask_rows, True),
    "point_cloud": Family(make_clouds, 6, {}, read_clouds, naive_clouds, dask_clouds, False),
    "ct": Family(make_volumes, 5, {}, read_volumes, naive_volumes, dask_volumes, True),
    "spike": Family(
        make_frames,
        6,
        {"height": spike.HEIGHT, "width": spike.WIDTH},
        read_frames,
        naive_frames,
        None,
        False,
    ),
    "trajectory": Family(make_episodes, 2, {}, read_episodes, naive_episodes, dask_episodes, True),
}
