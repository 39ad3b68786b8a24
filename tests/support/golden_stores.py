"""Small stores of format version 1, which every later unistore reads.

``python -m tests.support.golden_stores`` makes them. Once 0.1.0 is released they are made anew only with a
new format version. What changes without one adds a store.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np

import unistore
from tests.support.cases import (
    DATA,
    Case,
    cloud_in_segments,
    ct_cases,
    events_of_two_cameras,
    robot_robomimic,
    rows_npz,
    rows_real,
)
from tests.support.streams import episode, lidar, write

STORES = DATA / "golden"


def point_cloud_scaled(folder: Path) -> Case:
    """Real lidar in segments, with its own scale and offset: every third point."""
    with h5py.File(DATA / "pointcloud" / "thin_a.h5") as source, h5py.File(folder / "thin.h5", "w") as file:
        kept = source["data/x"].shape[0] // 3
        for name, values in source["header"].attrs.items():
            file.require_group("header").attrs[name] = kept if name == "point_count" else values
        for name in ("x", "y", "z", "intensity", "classification", "gps_time"):
            file[f"data/{name}"] = source[f"data/{name}"][: 3 * kept : 3]
        for number in range(3):
            rows = np.arange(number * kept // 4, (number + 1) * kept // 4)
            file[f"segments/segment_{number:04d}/indices"] = rows
    return Case("point_cloud", [folder / "thin.h5"], {"voxel_size": (200.0,)})


def ct(folder: Path) -> Case:
    """Crops of a real CT of unlike extents, with a window."""
    np.save(folder / "a.npy", np.load(DATA / "ct" / "totalseg_a_hu.npy")[:16, :40, :32])
    np.save(folder / "b.npy", np.load(DATA / "ct" / "totalseg_b_hu.npy")[:12, :24, :40])
    return Case("ct", [folder], {"window": ("lung",)})


def ct_windows(folder: Path) -> Case:
    """Windows of a real CT without its voxels: scaled, as points and as a mask; geometry, names of files."""
    image = np.load(DATA / "ct" / "totalseg_a_hu.npy")[:12, 8:32, 4:24]
    info = {"spacing": [0.75, 0.75, 1.5], "origin": [-10, 20, 30.5], "direction": [1, 0, 0, 0, 1, 0, 0, 0, 1]}
    for name in ("first", "second"):
        windows = folder / "scans" / name / "windows"
        windows.mkdir(parents=True)
        np.save(windows / "lung_w1500_l-600.npy", np.clip((image + 1350) / 1500, 0, 1).astype("f4"))
        index = np.argwhere(image > 60)
        points = {"indices": index.astype("i2"), "values": image[image > 60].astype("f2")}
        np.savez(windows / "bone_w1500_l300_sparse.npz", **points)
        np.save(windows / "brain_w80_l35.npy", ((image >= -5) & (image <= 75)).astype("u1"))
        image = image[:10, ::2]
    (folder / "scans" / "first" / "info.json").write_text(json.dumps(info))
    return Case("ct", [folder], {"info_order": "xyz"})


def ct_locations(folder: Path) -> Case:
    """A crop of a real CT with labels of two classes, and stored voxels of them."""
    image = np.load(DATA / "ct" / "totalseg_a_hu.npy")[:8, 8:24, 4:20]
    np.save(folder / "a.npy", image)
    np.save(folder / "a_seg.npy", np.where(image > 200, 3, np.where(image > 40, 1, 0)).astype("u1"))
    return Case("ct", [folder], {"foreground_locations": 30})


def spike_steps(folder: Path) -> Case:
    """Corners of a real recording, two of unlike lengths and sizes, as steps."""
    whole = np.fromfile(DATA / "spike" / "reds_frames_140_162.dat", np.uint8).reshape(23, 250, 50)
    pixels = np.unpackbits(whole[:, ::-1], axis=-1, bitorder="little")
    np.save(folder / "a.npy", pixels[:, :60, :93])
    np.save(folder / "b.npy", pixels[4:15, 40:90, 200:280])
    return Case("spike", [folder], {"voxel_bins": (3,)})


def trajectory_real(folder: Path) -> Case:
    """The first steps of a real demonstration."""
    path = DATA / "trajectory" / "robosuite100_door_panda_demo.hdf5"
    with h5py.File(path) as source, h5py.File(folder / "door.hdf5", "w") as file:
        file.create_group("data").attrs.update(source["data"].attrs)
        for name, demo in source["data"].items():
            for key, values in demo.items():
                file[f"data/{name}/{key}"] = values[:60]
    return Case("trajectory", [folder / "door.hdf5"])


def rows_values(folder: Path) -> Case:
    """Plain rows beside single values: texts, numbers, a flag."""
    with h5py.File(folder / "runs.h5", "w") as file:
        file["data"] = np.arange(12, dtype="<f4").reshape(6, 2)
        file["language_instruction"] = "pick the cüp"
        file.create_dataset("camera/name", data=b"front", dtype="S8")
        file["camera/scale"] = np.float32(0.25)
        file["camera/scale"].attrs["unit"] = "mm"
        file["is_real"] = True
    return Case("rows", [folder / "runs.h5"])


def trajectory_streams(folder: Path) -> Case:
    """Two short episodes with a camera, force and joints of rates of their own."""
    kept = ("action", "obs/force", "obs/images/wrist", "obs/qpos")
    episodes = [episode(seed, 0.2) for seed in range(2)]
    few = [{name: own[name] for name in own if name.startswith(kept)} for own in episodes]
    return Case("trajectory", [write(folder / "robot.h5", few)])


def trajectory_ragged(folder: Path) -> Case:
    """Two short episodes with a lidar and a camera, whose rows have any length."""
    return Case("trajectory", [lidar(folder / "robot.h5", "offsets")], {"images": "keep"})


SOURCES: dict[str, Callable[[Path], Case]] = {
    "rows": rows_real,
    "rows_split": rows_npz,
    "rows_values": rows_values,
    "point_cloud_scaled": point_cloud_scaled,
    "point_cloud_decimal": cloud_in_segments,
    "ct": ct,
    "ct_windows": ct_windows,
    "ct_locations": ct_locations,
    "ct_related": ct_cases,
    "spike_steps": spike_steps,
    "events": events_of_two_cameras,
    "trajectory": robot_robomimic,
    "trajectory_real": trajectory_real,
    "trajectory_streams": trajectory_streams,
    "trajectory_ragged": trajectory_ragged,
}
"""What makes the sources of each store, and says how it was converted."""
GROWN = "grown"
"""A store of three versions: of a and b, with c (named ``paper``), and without b."""


def write_grown_sources(folder: Path) -> dict[str, np.ndarray]:
    """Write the sources of the versions, and return their values by name."""
    values = {name: np.arange(12, dtype="f4").reshape(4, 3) + 100 * n for n, name in enumerate("abc")}
    for name, rows in values.items():
        np.savez(folder / f"{name}.npz", x=rows, label=np.arange(len(rows)) % 3)
    return values


def grow(folder: Path, store: Path) -> None:
    """Write sources and make the versions of them."""
    write_grown_sources(folder)
    sources = [folder / "a.npz", folder / "b.npz"]
    unistore.convert(sources, store, split="train=0.6,val=0.4", split_seed=2)
    unistore.append(folder / "c.npz", store)
    unistore.versions(store, tag="paper")
    unistore.remove(store, "b.npz")


if __name__ == "__main__":
    import tempfile

    shutil.rmtree(STORES / f"{GROWN}.zarr", ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        grow(Path(folder), STORES / f"{GROWN}.zarr")
    for store, sources in SOURCES.items():
        with tempfile.TemporaryDirectory() as folder:
            shutil.rmtree(STORES / f"{store}.zarr", ignore_errors=True)
            sources(Path(folder)).convert(STORES / f"{store}.zarr")
    for times in STORES.rglob("unistore-sources.json"):  # no part of a store
        times.unlink()
