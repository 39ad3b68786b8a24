"""Real files of every family, converted and read through Dataset, against an independent reading of them."""

from __future__ import annotations

from pathlib import Path

import cv2
import h5py
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import unistore
from tests.cases import DATA


def test_pointsuite_segments(tmp_path: Path) -> None:
    sources = [DATA / f"samples/pointcloud/derived_pointsuite_thin-{part}.h5" for part in (1, 2)]
    unistore.convert(sources, tmp_path / "cloud.zarr")
    dataset = unistore.Dataset(
        tmp_path / "cloud.zarr",
        unistore.Segments(coordinates="absolute"),
        ["xyz", "classification", "intensity", "number", "source"],
    )
    seen = 0
    files = {path.name: h5py.File(path) for path in sources}
    for sample in dataset:
        file = files[Path(sample["source"]).name]
        rows = file[f"segments/segment_{int(sample['number']):04d}/indices"][()]
        xyz = np.stack([file[f"data/{axis}"][()][rows] for axis in "xyz"], axis=1)
        assert sample["xyz"].numpy().tobytes() == xyz.tobytes()
        for column in ("classification", "intensity"):
            assert np.array_equal(sample[column].numpy(), file[f"data/{column}"][()][rows])
        seen += len(rows)
    assert len(dataset) == sum(len(file["segments"]) for file in files.values())
    assert seen > 1000
    for file in files.values():
        file.close()
    loader = DataLoader(dataset, 16, collate_fn=unistore.collate, num_workers=2)
    assert sum(len(batch["xyz"]) for batch in loader) == seen


@pytest.mark.parametrize("sparse", ["coords", "mask"])
def test_ct_windows(tmp_path: Path, sparse: str) -> None:
    windows = {"lung": (1500, -600), "bone": (1500, 300), "soft_tissue": (400, 50), "brain": (80, 35)}
    unistore.convert(DATA / "ct", tmp_path / "ct.zarr", "ct", window=list(windows), sparse=sparse)
    for name, (width, level) in windows.items():
        points = unistore.Dataset(
            tmp_path / "ct.zarr", unistore.SparsePoints(name), ["coords", "values", "source"]
        )
        assert len(points) == 2
        for sample in points:
            volume = np.load(DATA / "ct" / sample["source"])
            inside = (volume >= level - width / 2) & (volume <= level + width / 2)
            assert np.array_equal(sample["coords"].numpy(), np.argwhere(inside))
            assert np.array_equal(sample["values"][:, 0].numpy(), volume[inside])
    for sample in unistore.Dataset(tmp_path / "ct.zarr", fields=["image", "brain", "source"]):
        volume = np.load(DATA / "ct" / sample["source"])
        assert np.array_equal(sample["image"].numpy(), volume)
        assert np.array_equal(sample["brain"].numpy(), (volume >= -5) & (volume <= 75))


def test_vidar_recording(tmp_path: Path) -> None:
    source = DATA / "samples/spike/spikezoo_data.dat"
    unistore.convert(source, tmp_path / "spike.zarr", "spike", height=250, width=400, voxel_bins=(5,))
    raw = np.fromfile(source, np.uint8)
    spikes = np.unpackbits(raw, bitorder="little").reshape(-1, 250, 400)[:, ::-1]
    steps = len(spikes)
    kind = unistore.Clips(length=1, crop=(101, 203))
    clip = unistore.Dataset(tmp_path / "spike.zarr", kind, ["spike", "voxel", "corner", "spike_length"])[0]
    top, left = clip["corner"].tolist()
    crop = spikes[:, top : top + 101, left : left + 203]
    assert clip["spike_length"].tolist() == [steps]
    assert np.array_equal(clip["spike"][0].numpy(), crop)
    for bins in (5, 10, 32):
        expected = np.zeros((bins, 101, 203), np.int64)
        np.add.at(expected, np.arange(steps) * bins // steps, crop)
        made = unistore.Dataset(
            tmp_path / "spike.zarr", unistore.Clips(1, crop=(101, 203), voxel_bins=bins), ["voxel"]
        )
        assert np.array_equal(made[0]["voxel"][0].numpy(), expected)


def test_robosuite_demonstrations(tmp_path: Path) -> None:
    source = DATA / "trajectory/robosuite100_lift_panda_demo.hdf5"
    unistore.convert(source, tmp_path / "robot.zarr")
    with h5py.File(source) as file:
        actions, states = (file[f"data/demo_1/{name}"][()] for name in ("actions", "states"))
    dataset = unistore.Dataset(tmp_path / "robot.zarr")
    batch = unistore.collate(dataset.__getitems__(range(len(dataset))))
    assert np.array_equal(batch["action"].numpy(), actions)
    assert np.array_equal(batch["states"].numpy(), states)
    windows = unistore.Dataset(
        tmp_path / "robot.zarr",
        unistore.Windows(history=1, horizon=16, pad="edge"),
        ["action", "horizon_valid"],
    )
    assert np.array_equal(windows[100]["action"].numpy(), actions[100:116])
    assert windows[-1]["horizon_valid"].tolist() == [True] + [False] * 15
    with unistore.ReplayBuffer(tmp_path / "robot.zarr", output="dict") as replay:
        assert torch.allclose(replay.action_mean, torch.from_numpy(actions.mean(axis=0)).float())
        assert replay.sample(32)["action"].shape == (32, actions.shape[1])


def write_robomimic(path: Path) -> dict[str, np.ndarray]:
    """Two demonstrations with images and recorded next observations; returns their columns, end to end."""
    rng = np.random.default_rng(0)
    columns: dict[str, list[np.ndarray]] = {
        "actions": [],
        "obs": [],
        "next": [],
        "image": [],
        "next_image": [],
    }
    with h5py.File(path, "w") as file:
        for number, length in ((2, 6), (10, 4)):
            demo = file.create_group(f"data/demo_{number}")
            demo.attrs["num_samples"] = length
            seen = rng.random((length + 1, 5)).astype(np.float32)
            frames = rng.integers(0, 255, (length + 1, 32, 40, 3)).astype(np.uint8)
            values = {
                "actions": rng.random((length, 3)),
                "rewards": rng.random(length),
                "dones": np.arange(length) == length - 1,
                "obs/joint": seen[:-1],
                "next_obs/joint": seen[1:],
                "obs/cam": frames[:-1],
                "next_obs/cam": frames[1:],
            }
            for name, value in values.items():
                demo[name] = value
            for key, name in zip(
                columns, ("actions", "obs/joint", "next_obs/joint", "obs/cam", "next_obs/cam"), strict=True
            ):
                columns[key].append(values[name])
    return {key: np.concatenate(parts) for key, parts in columns.items()}


def test_robomimic_transitions(tmp_path: Path) -> None:
    written = write_robomimic(tmp_path / "demos.hdf5")
    unistore.convert(tmp_path / "demos.hdf5", tmp_path / "demos.zarr", image_size=16)
    dataset = unistore.Dataset(tmp_path / "demos.zarr")
    batch = unistore.collate(dataset.__getitems__([9, 5, 0, 4, 3, 5]))
    rows = batch["index"].numpy()
    assert np.array_equal(batch["action"].numpy(), written["actions"][rows])
    assert np.array_equal(batch["observation.joint"].numpy(), written["obs"][rows])
    assert np.array_equal(batch["next.observation.joint"].numpy(), written["next"][rows])
    assert batch["next_valid"].all()
    for prefix, key in (("", "image"), ("next.", "next_image")):
        frames = written[key][rows]
        found = batch[f"{prefix}observation.cam"].permute(0, 2, 3, 1).numpy()
        small = batch[f"{prefix}observation.cam_16"].permute(0, 2, 3, 1).numpy()
        assert np.array_equal(found, frames)
        assert np.array_equal(small, [cv2.resize(frame, (16, 16)) for frame in frames])


@pytest.mark.parametrize("images", ["raw", "keep"])
def test_compressed_aloha_episodes(tmp_path: Path, images: str) -> None:
    rng = np.random.default_rng(1)
    frames = cv2.resize(rng.integers(0, 255, (6, 8)).astype(np.uint8), (64, 48))
    encoded = [
        cv2.imencode(".jpg", np.dstack([frames, frames // 2, frames + at]))[1].reshape(-1) for at in range(7)
    ]
    longest = max(map(len, encoded))
    with h5py.File(tmp_path / "episode_0.hdf5", "w") as file:
        file.attrs["sim"] = False
        file.attrs["compress"] = True
        file["action"] = rng.random((7, 14))
        file["observations/qpos"] = rng.random((7, 14))
        file["observations/images/cam_high"] = np.stack(
            [np.pad(data, (0, longest - len(data))) for data in encoded]
        )
        file["compress_len"] = np.array([[len(data) for data in encoded]], np.float32)
    unistore.convert(tmp_path / "episode_0.hdf5", tmp_path / "aloha.zarr", "trajectory", images=images)
    dataset = unistore.Dataset(tmp_path / "aloha.zarr")
    (camera,) = (key for key in dataset.fields if "cam_high" in key and not key.startswith("next."))
    for at, sample in enumerate(dataset):
        pixels = cv2.imdecode(encoded[at], cv2.IMREAD_COLOR)[:, :, ::-1]
        assert np.array_equal(sample[camera].permute(1, 2, 0).numpy(), pixels)
        after = cv2.imdecode(encoded[min(at + 1, 6)], cv2.IMREAD_COLOR)[:, :, ::-1]
        assert np.array_equal(sample[f"next.{camera}"].permute(1, 2, 0).numpy(), after)
        assert bool(sample["next_valid"]) == (at < 6)


@pytest.mark.parametrize("frames", ["tiles", "keep"])
def test_spike_sequences_with_images(tmp_path: Path, frames: str) -> None:
    rng = np.random.default_rng(2)
    written = {}
    for split, name in (("train", "a"), ("test", "b")):
        folder = tmp_path / "source" / split / name
        for kind in ("spike", "blur", "sharp"):
            (folder / kind).mkdir(parents=True)
        for at in range(3):
            spikes = rng.integers(0, 2, (16, 40, 64)).astype(np.uint8)
            np.packbits(spikes[:, ::-1], bitorder="little").tofile(folder / "spike" / f"{at:03d}.dat")
            image = rng.integers(0, 255, (80, 128, 3)).astype(np.uint8)
            for kind in ("blur", "sharp"):
                cv2.imwrite(str(folder / kind / f"{at:03d}.png"), image[:, :, ::-1])
            written[split, at] = (spikes, image)
    unistore.convert(
        tmp_path / "source",
        tmp_path / "s.zarr",
        "spike",
        height=40,
        width=64,
        layout="packed",
        voxel_bins=(4,),
        frames=frames,
    )
    fields = ["voxel", "spike", "blur", "sharp", "corner", "sequence"]
    for split in ("train", "test"):
        dataset = unistore.Dataset(tmp_path / "s.zarr", unistore.Clips(3, crop=32), fields, split)
        assert len(dataset) == 1
        top, left = dataset[0]["corner"].tolist()
        for at in range(3):
            spikes, image = written[split, at]
            crop = spikes[:, top // 2 : top // 2 + 16, left // 2 : left // 2 + 16]
            assert np.array_equal(dataset[0]["spike"][at].numpy(), crop)
            assert np.array_equal(dataset[0]["voxel"][at].numpy(), crop.reshape(4, 4, 16, 16).sum(axis=1))
            pixels = image[top : top + 32, left : left + 32]
            assert np.array_equal(dataset[0]["sharp"][at].permute(1, 2, 0).numpy(), pixels)
