"""Trajectories all the way into a sealed store, read back by zarr-python."""

from __future__ import annotations

from pathlib import Path

import cv2
import h5py
import numpy as np
import pytest
import zarr

import unistore
from unistore.conversion.convert import convert
from unistore.store.reader import Store

RANDOM = np.random.default_rng(17)
DATA = Path(__file__).parents[2] / "data" / "trajectory"


def values(store: Path) -> dict[str, np.ndarray]:
    group = zarr.open_group(store, mode="r")
    return {path: group[path][...] for path in Store(store).paths()}


def test_bundled_demonstrations(tmp_path: Path) -> None:
    source = DATA / "robosuite100_lift_panda_demo.hdf5"
    report = convert(source, tmp_path / "lift.zarr")
    assert (report.family, report.samples) == ("trajectory", 1)
    found = values(tmp_path / "lift.zarr")
    store = Store(tmp_path / "lift.zarr")
    with h5py.File(source) as file:
        demo = file["data/demo_1"]
        for path, name in (("action", "actions"), ("states", "states"), ("joint_torques", "joint_torques")):
            np.testing.assert_array_equal(found[f"steps/{path}"], demo[name][:])
        actions = demo["actions"][:]
        assert store.group("episodes")["attributes"]["env"] == file["data"].attrs["env"]
    statistics = store.attributes["statistics"]["steps/action"]
    np.testing.assert_allclose(statistics["mean"], actions.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(statistics["std"], actions.std(axis=0), rtol=1e-12)
    assert statistics["count"] == [412] * 7
    assert store.text("episodes/name") == ["demo_1"]


def write_demos(path: Path, *, following: bool) -> dict[str, list[np.ndarray]]:
    """Synthetic robomimic file with two cameras, its `next_obs` following or not."""
    written: dict[str, list[np.ndarray]] = {}
    with h5py.File(path, "w") as file:
        for k, steps in enumerate((7, 3, 5)):
            image = RANDOM.integers(0, 256, (steps + 1, 40, 48, 3), np.uint8)
            after = image[1:] if following else image[:-1]
            parts = {"actions": RANDOM.normal(size=(steps, 7)), "obs/cam": image[:-1], "next_obs/cam": after}
            parts["dones"] = np.arange(steps) == steps - 1
            for name, array in parts.items():
                file[f"data/demo_{k}/{name}"] = array
                written.setdefault(name, []).append(array)
        file["mask/train"] = np.array(["demo_0", "demo_2"], "S")
        file["mask/valid"] = np.array(["demo_1"], "S")
    return written


@pytest.mark.parametrize("following", [True, False])
def test_images_next_observations_and_splits(tmp_path: Path, *, following: bool) -> None:
    written = write_demos(tmp_path / "a.hdf5", following=following)
    convert(tmp_path / "a.hdf5", tmp_path / "a.zarr", image_size=32)
    found = values(tmp_path / "a.zarr")
    cam = np.concatenate(written["obs/cam"])
    after = np.concatenate(written["next_obs/cam"])
    np.testing.assert_array_equal(found["steps/observation/cam"], cam)
    small = np.stack([cv2.resize(image, (32, 32), interpolation=cv2.INTER_LINEAR) for image in cam])
    np.testing.assert_array_equal(found["steps/observation/cam_32"], small)
    if following:
        np.testing.assert_array_equal(found["episodes/final_observation/cam"], after[[6, 9, 14]])
        assert found["episodes/final_observation/cam_32"].shape == (3, 32, 32, 3)
    else:
        np.testing.assert_array_equal(found["steps/next_observation/cam"], after)
    store = Store(tmp_path / "a.zarr")
    codes, names = store.splits()
    assert [names[code] for code in codes] == ["train", "valid", "train"]


def test_kept_frames(tmp_path: Path) -> None:
    frames = [
        cv2.imencode(".jpg", RANDOM.integers(0, 256, (24, 32, 3), np.uint8))[1].reshape(-1) for _ in range(9)
    ]
    for k, part in enumerate((frames[:4], frames[4:])):
        with h5py.File(tmp_path / f"episode_{k}.hdf5", "w") as file:
            file["action"] = np.zeros((len(part), 2))
            dataset = file.create_dataset("observations/images/top", (len(part),), h5py.vlen_dtype(np.uint8))
            for row, frame in enumerate(part):
                dataset[row] = frame
    convert(tmp_path, tmp_path.with_name("kept.zarr"), images="keep")
    found = values(tmp_path.with_name("kept.zarr"))
    path = "steps/observation/images/top_jpeg"
    np.testing.assert_array_equal(found[f"{path}/data"], np.concatenate(frames))
    np.testing.assert_array_equal(np.diff(found[f"{path}/offsets"]), [frame.size for frame in frames])


def test_episodes_of_one_file_are_assigned_by_name_and_masks_win(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        for number in range(20):
            file[f"data/demo_{number}/actions"] = RANDOM.normal(size=(3, 2))
            file[f"data/demo_{number}/obs/state"] = RANDOM.normal(size=(3, 4))
    shares = {"split": "train=0.9,val=0.1", "split_by": "episode"}
    convert(tmp_path / "a.hdf5", tmp_path / "a.zarr", **shares)
    store = Store(tmp_path / "a.zarr")
    codes, names = store.splits()
    assert (names, np.bincount(codes).tolist()) == (["train", "val"], [17, 3])
    assert store.attributes["options"]["split_by"] == "episode"
    assert "--split train=0.9,val=0.1 --split-by episode" in str(unistore.inspect(store.path))
    assert unistore.verify(store.path, against=[tmp_path / "a.hdf5"]).receipt
    held_out = {name for name, code in zip(store.text("episodes/name"), codes, strict=True) if code}
    with h5py.File(tmp_path / "a.hdf5", "r+") as file:
        file["mask/train"] = np.array(sorted(held_out), "S")
    report = convert(tmp_path / "a.hdf5", tmp_path / "masks.zarr", **shares)
    codes, names = Store(tmp_path / "masks.zarr").splits()
    assert (list(names), np.bincount(codes).tolist()) == (["train", "other"], [3, 17])
    assert any("were kept; --split was ignored" in note for note in report.notes)


@pytest.mark.parametrize(("last", "cut"), [("terminals", False), ("timeouts", False), (None, True)])
def test_an_episode_that_a_flag_ends_is_not_cut(tmp_path: Path, last: str | None, *, cut: bool) -> None:
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["observations"] = np.zeros((10, 2), np.float32)
        file["actions"] = np.zeros((10, 1), np.float32)
        file["rewards"] = np.zeros(10, np.float32)
        for flag in ("terminals", "timeouts"):
            marked = np.arange(10) == 4 if flag == "timeouts" else np.zeros(10, bool)
            marked[9] = flag == last
            file[flag] = marked
    convert([tmp_path / "a.hdf5"], tmp_path / "a.zarr", "trajectory")
    store = Store(tmp_path / "a.zarr")
    found = store.array("episodes/cut").read().tolist() if store.has("episodes/cut") else [False, False]
    assert found == [False, cut]
    assert store.array("steps/terminated").read().tolist() == [False] * 9 + [last == "terminals"]
