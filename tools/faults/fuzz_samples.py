"""Small sources of every family and layout, made from a seed: what the source fuzzer damages.

``SAMPLES[family][layout](folder, name, rng)`` writes one source called `name` into a folder and returns its
files, the main one first. Two sources of one layout fit together, so that a damaged one can be converted
beside a sound one.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import h5py
import numpy as np
from numpy.random import Generator
from trials import DATA

Sample = Callable[[Path, str, Generator], list[Path]]


def _rows_h5(folder: Path, name: str, rng: Generator) -> list[Path]:
    path = folder / f"{name}.h5"
    with h5py.File(path, "w") as file:
        rows = int(rng.integers(20, 60))
        file.create_dataset("data", data=rng.random((rows, 3), "f4"), chunks=(8, 3), compression="gzip")
        file["label"] = rng.integers(0, 9, rows)
        file.create_dataset("group/mask", data=rng.integers(0, 2, rows, "u1"), chunks=(16,), shuffle=True)
    return [path]


def _rows_npy(folder: Path, name: str, rng: Generator) -> list[Path]:
    path = folder / f"{name}.npy"
    np.save(path, rng.random((int(rng.integers(20, 60)), 4)))
    return [path]


def _rows_npz(folder: Path, name: str, rng: Generator) -> list[Path]:
    path, rows = folder / f"{name}.npz", int(rng.integers(20, 60))
    save = np.savez if rows % 2 else np.savez_compressed
    save(path, x=rng.random((rows, 2), "f4"), y=rng.integers(-5, 5, rows, "i2"))
    return [path]


def _rows_records(folder: Path, name: str, rng: Generator) -> list[Path]:
    path, rows = folder / f"{name}.npy", int(rng.integers(20, 60))
    records = np.zeros(rows, [("time", "<f8"), ("place", ">i4", (2,))])
    records["time"], records["place"] = rng.random(rows), rng.integers(0, 99, (rows, 2))
    np.save(path, records)
    return [path]


def _cloud(file: h5py.Group, points: int, rng: Generator) -> None:
    for axis in "xyz":
        file.create_dataset(axis, data=np.round(rng.random(points) * 50, 3), chunks=(16,), compression="gzip")
    file["classification"] = rng.integers(0, 9, points, "u1")
    file["intensity"] = rng.integers(0, 999, points, "u2")


def _indices(folder: Path, name: str, rng: Generator) -> list[Path]:
    path = folder / f"{name}.h5"
    with h5py.File(path, "w") as file:
        _cloud(file.create_group("data"), 120, rng)
        file.create_group("header").attrs.update(x_scale=0.001, y_scale=0.001, z_scale=0.001, point_count=120)
        for number, rows in enumerate(np.split(np.sort(rng.permutation(120)[:90]), [20, 50])):
            file[f"segments/segment_{number:04d}/indices"] = rows
            file[f"segments/segment_{number:04d}/unique_labels"] = np.arange(2)
    return [path]


def _in_segments(folder: Path, name: str, rng: Generator) -> list[Path]:
    path = folder / f"{name}.h5"
    with h5py.File(path, "w") as file:
        for number in range(3):
            _cloud(file.create_group(f"segments/segment_{number:04d}"), 30 + number, rng)
    return [path]


def _batches(folder: Path, name: str, rng: Generator) -> list[Path]:
    path = folder / f"{name}.h5"
    with h5py.File(path, "w") as file:
        file["data"] = rng.random((4, 32, 6), "f4")
        file["label"] = rng.integers(0, 5, (4, 32), "u1")
    return [path]


def _columns(folder: Path, name: str, rng: Generator) -> list[Path]:
    path = folder / f"{name}.h5"
    with h5py.File(path, "w") as file:
        _cloud(file, 100, rng)
    return [path]


def _volume(folder: Path, name: str, rng: Generator) -> list[Path]:
    path = folder / f"{name}_hu.npy"
    np.save(path, rng.integers(-1000, 1000, (6, 8, 9), "i2"))
    return [path]


def _case(folder: Path, name: str, rng: Generator) -> list[Path]:
    case = folder / name
    (case / "masks").mkdir(parents=True)
    (case / "windows").mkdir()
    paths = [
        case / "ct_original.npy",
        case / f"masks/{name}_binary.npy",
        case / "windows/lung_sparse.npz",
        case / "info.json",
    ]
    voxels = rng.integers(-1000, 1000, (6, 8, 9), "i2")
    np.save(paths[0], voxels)
    np.save(paths[1], rng.integers(0, 2, voxels.shape, "u1"))
    low = (voxels >= -1350) & (voxels <= 150)
    np.savez_compressed(paths[2], indices=np.argwhere(low), values=voxels[low])
    paths[3].write_text(json.dumps({"spacing": [1.5, 0.7, 0.7], "origin": [0, 0, 0], "note": name}))
    return paths


def _dat(folder: Path, name: str, rng: Generator) -> list[Path]:
    path = folder / f"{name}.dat"
    path.write_bytes(rng.integers(0, 256, 12_500 * 3, "u1").tobytes())
    return [path]


def _spikes_npy(folder: Path, name: str, rng: Generator) -> list[Path]:
    path = folder / f"{name}.npz"
    save = np.savez if rng.random() < 0.5 else np.savez_compressed
    save(path, spk=rng.integers(0, 2, (5, 12, 20), "u1"))
    return [path]


def _sequence(folder: Path, name: str, rng: Generator) -> list[Path]:
    import cv2

    paths = []
    for number in range(2):
        for role in ("spike", "sharp", "blur"):
            (folder / name / role).mkdir(parents=True, exist_ok=True)
        stem = f"{number:03d}"
        np.save(folder / f"{name}/spike/{stem}.npy", rng.integers(0, 2, (4, 16, 24), "u1"))
        for role in ("sharp", "blur"):
            cv2.imwrite(str(folder / f"{name}/{role}/{stem}.png"), rng.integers(0, 256, (16, 24, 3), "u1"))
        paths += [folder / f"{name}/{role}/{stem}.{end}" for role, end in _ROLES]
    return paths


_ROLES = (("spike", "npy"), ("sharp", "png"), ("blur", "png"))


def _robomimic(folder: Path, name: str, rng: Generator) -> list[Path]:
    path = folder / f"{name}.hdf5"
    with h5py.File(path, "w") as file:
        for demo in range(3):
            steps, group = 10 + demo, file.create_group(f"data/demo_{demo}")
            group.attrs["num_samples"] = steps
            group["actions"] = rng.random((steps, 2))
            values = rng.random((steps, 4), "f4")
            group.create_dataset("obs/eef", data=values, chunks=(4, 4), compression="gzip")
            group["next_obs/eef"] = np.roll(values, -1, 0)
            group["dones"] = np.arange(steps) == steps - 1
        file["mask/train"] = np.array([b"demo_0", b"demo_2"])
    return [path]


def _act(folder: Path, name: str, rng: Generator) -> list[Path]:
    path = folder / f"{name}.hdf5"
    with h5py.File(path, "w") as file:
        file["action"] = rng.random((12, 3), "f4")
        file["observations/qpos"] = rng.random((12, 3), "f4")
        images = rng.integers(0, 256, (12, 6, 8, 3), "u1")
        file.create_dataset("observations/images/top", data=images, chunks=(1, 6, 8, 3), compression="lzf")
        file.attrs["sim"] = True
    return [path]


def _d4rl(folder: Path, name: str, rng: Generator) -> list[Path]:
    path = folder / f"{name}.hdf5"
    with h5py.File(path, "w") as file:
        file["observations"], file["actions"] = rng.random((40, 3), "f4"), rng.random((40, 2), "f4")
        file["rewards"], file["timeouts"] = rng.random(40, "f4"), np.zeros(40, bool)
        file["terminals"] = np.arange(40) % 13 == 12
    return [path]


def _copied(relative: str) -> Sample:
    """Copy a real file."""

    def copy(folder: Path, name: str, rng: Generator) -> list[Path]:
        source = DATA / relative
        return [Path(shutil.copy(source, folder / f"{name}{source.suffix}"))]

    return copy


SAMPLES: Mapping[str, Mapping[str, Sample]] = {
    "rows": {
        "h5": _rows_h5,
        "npy": _rows_npy,
        "npz": _rows_npz,
        "records": _rows_records,
        "real": _copied("rows/autzen_returns.h5"),
    },
    "point_cloud": {
        "indices": _indices,
        "in_segments": _in_segments,
        "batches": _batches,
        "columns": _columns,
        "real": _copied("pointcloud/thin_b.h5"),
    },
    "ct": {"volume": _volume, "case": _case, "case_again": _case},
    "spike": {"dat": _dat, "npz": _spikes_npy, "sequence": _sequence},
    "trajectory": {"robomimic": _robomimic, "act": _act, "d4rl": _d4rl},
}
