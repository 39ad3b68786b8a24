"""Small sources of every family in every layout, real ones where they are bundled."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np

from tests.support.event_recordings import HEIGHT, WIDTH, made_up, write_dat, write_dsec
from tests.support.streams import robot
from unistore.conversion.convert import make_converter
from unistore.conversion.run import run
from unistore.conversion.settings import Settings

DATA = Path(__file__).resolve().parents[1] / "data"


@dataclass(frozen=True)
class Case:
    """Sources, and how they are converted."""

    family: str
    sources: list[Path]
    options: dict[str, Any] = field(default_factory=dict)

    def convert(self, destination: Path, sources: list[Path] | None = None, **options: Any) -> Path:
        """Convert them, or others in their place, with the same options."""
        converter = make_converter(self.family, self.options)
        run(converter, sources or self.sources, destination, Settings(**options))
        return destination


def _rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def rows_hdf5(folder: Path) -> Case:
    """Two files, groups, dtypes that differ, NaN and -0.0, one array only in one of them."""
    for number, dtype in enumerate((">f4", "<f8")):
        rng = _rng(number)
        with h5py.File(folder / f"part_{number}.h5", "w") as file:
            values = rng.normal(size=(50 + number, 3)).astype(dtype)
            values[0] = [np.nan, -0.0, np.inf]
            file["data/value"] = values
            file["label"] = rng.integers(-5, 5, 50 + number).astype([np.int8, np.int16][number])
            if number:
                file["only"] = rng.integers(0, 2, 51).astype(bool)
    return Case("rows", [folder], {"columns": "union"})


def rows_structured(folder: Path) -> Case:
    """A dataset of a structured dtype, and a mapped name."""
    with h5py.File(folder / "table.h5", "w") as file:
        table = np.zeros(40, [("a", "<i4"), ("b", "<f8", (2,))])
        table["a"], table["b"] = np.arange(40), _rng(1).normal(size=(40, 2))
        file["events"] = table
        file["weights/w1"] = _rng(2).normal(size=40)
    return Case("rows", [folder / "table.h5"], {"map": {"events": "events", "weight": "weights/w1"}})


def rows_npz(folder: Path) -> Case:
    np.savez(folder / "a.npz", data=_rng(0).normal(size=(30, 4)), label=np.arange(30, dtype=">i2"))
    np.savez_compressed(folder / "b.npz", data=_rng(1).normal(size=(20, 4)), label=np.arange(20, dtype="<i2"))
    return Case("rows", [folder])


def rows_npy(folder: Path) -> Case:
    """Parts of one array, one in Fortran order."""
    np.save(folder / "x_0.npy", np.asfortranarray(_rng(0).normal(size=(30, 4)).astype(np.float32)))
    np.save(folder / "x_1.npy", _rng(1).normal(size=(7, 4)).astype(np.float32))
    return Case("rows", [folder])


def rows_side_by_side(folder: Path) -> Case:
    for split in ("train", "test"):
        (folder / split).mkdir()
        np.save(folder / split / "image.npy", _rng(len(split)).integers(0, 255, (25, 5, 6), dtype=np.uint8))
        np.save(folder / split / "label.npy", np.arange(25))
    return Case("rows", [folder])


def rows_real(folder: Path) -> Case:
    return Case("rows", [DATA / "rows" / "autzen_returns.h5"])


def cloud_real(folder: Path) -> Case:
    """Real lidar tiles with segments, quantised."""
    files = [DATA / "pointcloud" / name for name in ("thin_a.h5", "thin_b.h5")]
    return Case("point_cloud", files, {"voxel_size": (50.0, 200.0)})


def cloud_pdal(folder: Path) -> Case:
    """Real columns X, Y, Z without segments, cut into windows."""
    return Case(
        "point_cloud", [DATA / "pointcloud" / "pdal_autzen.h5"], {"segment": "window:400", "min_points": 20}
    )


def cloud_indices(folder: Path) -> Case:
    """Points of no segment, a point in two segments, numbers with gaps, floats that do not quantise."""
    for number in range(2):
        rng = _rng(number)
        with h5py.File(folder / f"tile_{number}.h5", "w") as file:
            header = file.create_group("header").attrs
            header.update(x_scale=0.01, y_scale=0.01, z_scale=0.01, x_offset=0.0, y_offset=0.0, z_offset=0.0)
            header.update(point_count=60, crs="EPSG:25832")
            for axis in "xyz":
                file[f"data/{axis}"] = rng.normal(1e5, 30, 60)
            file["data/classification"] = rng.integers(0, 4, 60).astype(np.int32)
            file["data/rgb"] = rng.integers(0, 65535, (60, 3)).astype(">u2")
            for segment, rows in {0: range(0, 30, 2), 7: range(20, 45), 12: range(50, 60)}.items():
                file[f"segments/segment_{segment:04d}/indices"] = np.array(rows, np.int64)
    return Case("point_cloud", [folder], {"voxel_size": (10.0,)})


def cloud_in_segments(folder: Path) -> Case:
    with h5py.File(folder / "scene.h5", "w") as file:
        file.create_group("header").attrs["available_fields"] = "x,y,z,classification"
        for segment, count in enumerate((12, 30, 5)):
            rng = _rng(segment)
            group = file.create_group(f"segments/segment_{segment:04d}")
            for axis in "xyz":
                group[axis] = np.round(rng.normal(0, 5, count), 2)
            group["classification"] = rng.integers(0, 3, count).astype(np.int32)
    return Case("point_cloud", [folder / "scene.h5"])


def cloud_batches(folder: Path) -> Case:
    """``data`` (B, P, 6) f4 with one label an object, and normals."""
    for split in ("train", "test"):
        rng = _rng(len(split))
        with h5py.File(folder / f"ply_data_{split}0.h5", "w") as file:
            file["data"] = rng.normal(size=(5, 16, 6)).astype(np.float32)
            file["label"] = rng.integers(0, 40, (5, 1)).astype(np.uint8)
            file["pid"] = rng.integers(0, 4, (5, 16)).astype(np.int32)
    return Case("point_cloud", [folder])


def cloud_mixed(folder: Path) -> Case:
    """f4 beside f8 coordinates: the store holds f8."""
    for number, dtype in enumerate((np.float32, np.float64)):
        with h5py.File(folder / f"cloud_{number}.h5", "w") as file:
            for axis in "xyz":
                file[axis] = _rng(number).normal(size=25).astype(dtype)
    return Case("point_cloud", [folder])


def ct_real(folder: Path) -> Case:
    return Case("ct", [DATA / "ct"], {"window": ("lung", "mine:300:40")})


def ct_cases(folder: Path) -> Case:
    """Case folders of unlike extents, orders and dtypes, with windows, masks, fields and info."""
    for number, extent in enumerate(((9, 11, 13), (12, 8, 10))):
        rng = _rng(number)
        case = folder / ["train", "test"][number] / f"case_{number}"
        for inner in ("windows", "masks"):
            (case / inner).mkdir(parents=True)
        image = rng.integers(-1500, 1500, extent).astype([">i2", "<i4"][number])
        np.save(case / "ct_original_512.npy", np.asfortranarray(image) if number else image)
        lung = ((image >= -1350) & (image <= 150)).astype(np.uint8)
        if not number:
            np.save(case / "windows" / "lung_w1500_l-600.npy", lung)
        np.save(case / "masks" / f"case_{number}_binary.npy", rng.integers(0, 2, extent).astype(np.uint8))
        np.save(case / "masks" / "liver_binary.npy", rng.integers(0, 2, extent).astype(bool))
        np.savez(
            case / "windows" / "bone_sdf.npz",
            sparse_index=rng.integers(0, 60, (40, 3)).astype(np.int32),
            sparse_sdf=rng.normal(size=(40, 1)).astype(np.float32),
            resolution=np.array(64),
        )
        (case / "info.json").write_text(json.dumps({"spacing": [0.7, 0.7, 1.5], "höhe": number}))
    return Case("ct", [folder], {"window": ("lung",), "sparse": "coords", "info_order": "xyz"})


def ct_sparse(folder: Path) -> Case:
    """Windows without a volume: points with values of their own."""
    for number in range(2):
        case = folder / f"case_{number}" / "windows"
        case.mkdir(parents=True)
        rng = _rng(number)
        flat = rng.choice(1000, 50, replace=False)
        indices = np.stack(np.unravel_index(flat, (10, 10, 10)), axis=1).astype(np.int16)
        values = rng.random(50).astype(np.float16)
        np.savez(case / "lung_w1500_l-600_sparse.npz", indices=indices, values=values)
    return Case("ct", [folder])


def _write_frame(path: Path, spikes: np.ndarray, layout: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = spikes[:, ::-1]
    if layout == "bytes":
        path.write_bytes(rows.tobytes())
    else:
        padded = np.pad(rows, ((0, 0), (0, 0), (0, -rows.shape[2] % 8)))
        path.write_bytes(np.packbits(padded.reshape(-1), bitorder="little").tobytes())


def _sequences(folder: Path, layout: str, width: int, *, lengths: tuple[int, ...] = (9, 6)) -> None:
    for split in ("train", "test"):
        for number, length in enumerate(lengths):
            rng = _rng(number)
            spikes = (rng.random((length, 12, width)) < 0.4).astype(np.uint8)
            sequence = folder / split / "seq_a"
            _write_frame(sequence / "spike" / f"{number:03d}.dat", spikes, layout)
            for image in ("blur", "sharp"):
                (sequence / image).mkdir(exist_ok=True)
                pixels = rng.integers(0, 255, (20, 30, 3), dtype=np.uint8)
                assert cv2.imwrite(str(sequence / image / f"{number:03d}.png"), pixels)


def spike_real(folder: Path) -> Case:
    options = {"height": 250, "width": 400, "voxel_bins": (5,)}
    return Case("spike", [DATA / "spike" / "reds_frames_140_162.dat"], options)


def spike_tiles(folder: Path) -> Case:
    """Frames of unlike lengths with images stored as tiles."""
    _sequences(folder, "packed", 24)
    return Case("spike", [folder], {"height": 12, "width": 24, "voxel_bins": (3,)})


def spike_keep(folder: Path) -> Case:
    """Images kept as their own bytes, rows of 22 pixels padded to whole bytes."""
    _sequences(folder, "packed", 22)
    return Case("spike", [folder], {"height": 12, "width": 22, "frames": "keep"})


def spike_bytes(folder: Path) -> Case:
    _sequences(folder, "bytes", 24, lengths=(9,))
    return Case("spike", [folder], {"height": 12, "width": 24, "layout": "bytes"})


def spike_arrays(folder: Path) -> Case:
    """Spikes in ``.npz`` files, with voxels that hold their bottom row first in ``.npy`` files."""
    for number in range(2):
        spikes = (_rng(number).random((8, 10, 12)) < 0.4).astype(np.uint8)
        for role in ("spike", "spike_vox"):
            (folder / "seq" / role).mkdir(parents=True, exist_ok=True)
        np.savez(folder / "seq" / "spike" / f"{number}.npz", spk=spikes)
        voxels = spikes.reshape(4, 2, 10, 12).sum(axis=1).astype(np.float32)
        np.save(folder / "seq" / "spike_vox" / f"{number}.npy", voxels[:, ::-1])
    return Case("spike", [folder])


def robot_real(folder: Path) -> Case:
    return Case("trajectory", [DATA / "trajectory" / "robosuite100_lift_panda_demo.hdf5"])


def robot_robomimic(folder: Path) -> Case:
    """Episodes numbered from 1 with next observations, masks, images, an empty dataset and attributes."""
    with h5py.File(folder / "demos.hdf5", "w") as file:
        file.create_group("data").attrs["env_args"] = json.dumps({"env": "Lift"})
        for number, length in zip((1, 2, 10), (5, 4, 7), strict=True):
            rng = _rng(number)
            demo = file.create_group(f"data/demo_{number}")
            demo.attrs["num_samples"] = length
            demo["actions"] = rng.normal(size=(length, 7))
            demo["rewards"] = rng.random(length)
            demo["dones"] = (np.arange(length) == length - 1).astype(np.int64)
            position = rng.normal(size=(length + 1, 3)).astype(np.float32)
            demo["obs/eef_pos"], demo["next_obs/eef_pos"] = position[:-1], position[1:]
            image = rng.integers(0, 255, (length + 1, 6, 8, 3), dtype=np.uint8)
            demo["obs/camera"], demo["next_obs/camera"] = image[:-1], image[1:]
            demo["obs/nothing"] = np.empty((length, 0))
            demo["next_obs/nothing"] = np.empty((length, 0))
        file["mask/train"] = np.array([b"demo_1", b"demo_10"])
        file["mask/valid"] = np.array([b"demo_2"])
    return Case("trajectory", [folder / "demos.hdf5"], {"image_size": 4})


def robot_streams(folder: Path) -> Case:
    """Cameras, force and joints of rates of their own, with timestamps or a rate."""
    return Case("trajectory", [robot(folder)[0]], {"image_size": 2})


def robot_flat(folder: Path) -> Case:
    """The documents' flat layout: cameras with channels first, rewards (N, 1), two files."""
    for number in range(2):
        rng = _rng(number)
        with h5py.File(folder / f"run_{number}.h5", "w") as file:
            file["observations/left_image"] = rng.integers(0, 255, (12, 3, 6, 8), dtype=np.uint8)
            file["observations/joint"] = rng.normal(size=(12, 16)).astype(np.float32)
            file["actions"] = rng.normal(size=(12, 7)).astype(np.float32)
            file["rewards"] = rng.random((12, 1)).astype(np.float32)
            terminals = np.zeros(12, bool)
            terminals[[4, 11]] = True
            file["terminals"] = terminals
    return Case("trajectory", [folder])


def robot_d4rl(folder: Path) -> Case:
    """Timeouts, and a last episode that only the end of the file cuts."""
    rng = _rng(0)
    with h5py.File(folder / "hopper.hdf5", "w") as file:
        file["observations"] = rng.normal(size=(20, 11)).astype(np.float32)
        file["actions"] = rng.normal(size=(20, 3)).astype(np.float32)
        file["rewards"] = rng.random(20).astype(np.float32)
        file["terminals"] = np.arange(20) == 6
        file["timeouts"] = np.arange(20) == 13
        file["infos/qpos"] = rng.normal(size=(20, 6))
    return Case("trajectory", [folder / "hopper.hdf5"])


def events_of_two_cameras(folder: Path) -> Case:
    """A recording as DSEC has it, with several marks, and one of Prophesee."""
    write_dsec(folder / "a.h5", made_up(4_200, 42_000))
    write_dat(folder / "b.dat", made_up(300, 20_000, seed=1))
    return Case("events", [folder], {"sensor": (WIDTH, HEIGHT)})


def _jpegs(rng: np.random.Generator, count: int) -> list[np.ndarray]:
    images = [cv2.resize(rng.integers(0, 255, (4, 6, 3), dtype=np.uint8), (24, 16)) for _ in range(count)]
    return [cv2.imencode(".jpg", image)[1].reshape(-1) for image in images]


def _act(folder: Path) -> None:
    for number, length in enumerate((4, 6)):
        rng = _rng(number)
        frames = _jpegs(rng, length)
        longest = max(map(len, frames)) + 10
        with h5py.File(folder / f"episode_{number}.hdf5", "w") as file:
            file.attrs["sim"], file.attrs["compress"] = True, True
            file["action"] = rng.normal(size=(length, 14)).astype(np.float32)
            file["observations/qpos"] = rng.normal(size=(length, 14)).astype(np.float32)
            padded = np.zeros((length, longest), np.uint8)
            for row, frame in enumerate(frames):
                padded[row, : len(frame)] = frame
            file["observations/images/cam_high"] = padded
            file["compress_len"] = np.array([[len(frame) for frame in frames]], np.float32)


def robot_act(folder: Path) -> Case:
    _act(folder)
    return Case("trajectory", [folder])


def robot_act_keep(folder: Path) -> Case:
    _act(folder)
    return Case("trajectory", [folder], {"images": "keep"})


def robot_variable(folder: Path) -> Case:
    """Frames of variable length, kept."""
    with h5py.File(folder / "trajectory.hdf5", "w") as file:
        rng = _rng(0)
        file["observations/qpos"] = rng.normal(size=(5, 3))
        file["action"] = rng.normal(size=(5, 3))
        frames = file.create_dataset("observations/rgb_images/front", (5,), h5py.vlen_dtype(np.uint8))
        for row, frame in enumerate(_jpegs(rng, 5)):
            frames[row] = frame
    return Case("trajectory", [folder], {"images": "keep"})


MAKERS: dict[str, Callable[[Path], Case]] = {
    maker.__name__: maker
    for maker in (
        rows_hdf5,
        rows_structured,
        rows_npz,
        rows_npy,
        rows_side_by_side,
        rows_real,
        cloud_real,
        cloud_pdal,
        cloud_indices,
        cloud_in_segments,
        cloud_batches,
        cloud_mixed,
        ct_real,
        ct_cases,
        ct_sparse,
        spike_real,
        spike_tiles,
        spike_keep,
        spike_bytes,
        spike_arrays,
        events_of_two_cameras,
        robot_real,
        robot_robomimic,
        robot_streams,
        robot_flat,
        robot_d4rl,
        robot_act,
        robot_act_keep,
        robot_variable,
    )
}
REAL = ("rows_real", "cloud_real", "ct_real", "spike_real", "robot_real")
"""One case a family."""
