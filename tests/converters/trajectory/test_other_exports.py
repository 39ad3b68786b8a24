"""Stores as LeRobot and robomimic datasets, which `tools/oracles/read_exports.py` reads by their classes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np
import pyarrow.parquet as pq
import pytest

import unistore
from unistore.errors import InputError

LENGTHS = (5, 8, 1)
SAMPLE = Path(__file__).parents[2] / "data/lerobot/v3"
QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}


def write_demos(path: Path, *, environment: str = "") -> Path:
    random = np.random.default_rng(5)
    with h5py.File(path, "w") as file:
        file["mask/train"] = np.array([b"demo_0", b"demo_1"])
        file["mask/valid"] = np.array([b"demo_2"])
        data = file.create_group("data")
        if environment:
            data.attrs["env_args"] = environment
        for number, length in enumerate(LENGTHS):
            demo = data.create_group(f"demo_{number}")
            demo.attrs["task"] = f"lift cube {number % 2}"
            demo["actions"] = random.normal(size=(length, 3))
            demo["rewards"] = random.normal(size=length).astype("f4")
            demo["dones"] = (np.arange(length) == length - 1).astype("i8")
            states = random.normal(size=(length + 1, 4)).astype("f4")
            demo["obs/state"] = states[:-1]
            demo["next_obs/state"] = states[1:]
            demo["obs/depth"] = random.integers(0, 65535, (length, 6, 8)).astype("u2")
            demo["obs/front"] = random.integers(0, 255, (length, 8, 10, 3)).astype("u1")
            files = demo.create_dataset("obs/wrist", length, h5py.vlen_dtype(np.uint8))
            for step in range(length):
                picture = random.integers(0, 255, (8, 10, 3)).astype("u1")
                files[step] = cv2.imencode(".jpg", picture)[1]
    return path


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    environment = json.dumps({"env_name": "Lift", "type": 1, "env_kwargs": {"control_freq": 20}})
    return write_demos(tmp_path_factory.mktemp("demos") / "demo.hdf5", environment=environment)


@pytest.fixture(scope="module")
def store(source: Path) -> Path:
    path = source.with_suffix(".zarr")
    unistore.convert(source, path, family="trajectory", images="keep", workers=0)
    return path


@pytest.fixture(scope="module")
def lerobot(store: Path) -> Path:
    folder = store.with_name("lerobot")
    unistore.export(store, folder, to="lerobot")
    return folder


def from_source(source: Path, dataset: str) -> np.ndarray[Any, Any]:
    with h5py.File(source) as file:
        return np.concatenate([file[f"data/demo_{number}/{dataset}"][:] for number in range(len(LENGTHS))])


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


def test_a_table_has_the_rows_of_the_sources(source: Path, lerobot: Path) -> None:
    table = pq.read_table(lerobot / "data/chunk-000/file-000.parquet")
    datasets = {
        "action": "actions",
        "next.reward": "rewards",
        "observation.state": "obs/state",
        "observation.depth": "obs/depth",
    }
    for feature, dataset in datasets.items():
        expected = from_source(source, dataset)
        np.testing.assert_array_equal(np.array(table[feature].to_pylist(), expected.dtype), expected)
    steps = [step for length in LENGTHS for step in range(length)]
    assert table["frame_index"].to_pylist() == steps
    assert table["index"].to_pylist() == list(range(sum(LENGTHS)))
    assert table["episode_index"].to_pylist() == [0] * 5 + [1] * 8 + [2]
    np.testing.assert_array_equal(table["timestamp"].to_numpy(), (np.array(steps) / 20).astype("f4"))


def test_images_are_exact_and_kept_frames_are_the_very_files(source: Path, lerobot: Path) -> None:
    table = pq.read_table(lerobot / "data/chunk-000/file-000.parquet")
    front = [image["bytes"] for image in table["observation.images.front"].to_pylist()]
    decoded = [cv2.imdecode(np.frombuffer(image, "u1"), cv2.IMREAD_COLOR) for image in front]
    pixels = np.stack(decoded)[..., ::-1]
    np.testing.assert_array_equal(pixels, from_source(source, "obs/front"))
    wrist = [image["bytes"] for image in table["observation.images.wrist"].to_pylist()]
    assert wrist == [frame.tobytes() for frame in from_source(source, "obs/wrist")]


def test_meta_of_lerobot_has_totals_splits_features_and_episodes(lerobot: Path) -> None:
    info = read_json(lerobot / "meta/info.json")
    assert info["codebase_version"] == "v3.0"
    assert (info["total_episodes"], info["total_frames"], info["total_tasks"], info["fps"]) == (3, 14, 2, 20)
    assert info["splits"] == {"train": "0:2", "valid": "2:3"}
    assert info["features"]["observation.depth"] == {"dtype": "uint16", "shape": [6, 8], "names": None}
    assert info["features"]["observation.images.front"]["dtype"] == "image"
    assert any("next observations after the last steps" in note for note in info["unistore"]["notes"])
    episodes = pq.read_table(lerobot / "meta/episodes/chunk-000/file-000.parquet").to_pylist()
    assert [row["tasks"] for row in episodes] == [["lift cube 0"], ["lift cube 1"], ["lift cube 0"]]
    bounds = [(row["dataset_from_index"], row["dataset_to_index"]) for row in episodes]
    assert bounds == [(0, 5), (5, 13), (13, 14)]
    assert [row["source_episode"] for row in episodes] == ["demo_0", "demo_1", "demo_2"]


def test_statistics_are_numpys(source: Path, lerobot: Path) -> None:
    whole = read_json(lerobot / "meta/stats.json")
    episodes = pq.read_table(lerobot / "meta/episodes/chunk-000/file-000.parquet").to_pylist()
    for feature, dataset in {"action": "actions", "observation.images.front": "obs/front"}.items():
        values = from_source(source, dataset).astype("f8")
        is_image = values.ndim == 4
        axes = (0, 1, 2) if is_image else 0
        scaled = values / 255 if is_image else values
        row = {name: episodes[1][f"stats/{feature}/{name}"] for name in (*QUANTILES, "mean", "std", "count")}
        for rows, statistics in ((scaled, whole[feature]), (scaled[5:13], row)):
            assert statistics["count"] == [len(rows)]
            np.testing.assert_allclose(np.ravel(statistics["mean"]), rows.mean(axis=axes), rtol=1e-12)
            np.testing.assert_allclose(np.ravel(statistics["std"]), rows.std(axis=axes), rtol=1e-12)
            for name, share in QUANTILES.items():
                expected = np.quantile(rows, share, axis=axes)
                np.testing.assert_allclose(np.ravel(statistics[name]), expected, rtol=1e-12)
    assert np.shape(whole["observation.images.front"]["min"]) == (3, 1, 1)
    assert np.shape(whole["observation.depth"]["max"]) == (6, 8)


def test_a_dataset_of_lerobot_comes_back(tmp_path: Path) -> None:
    unistore.convert(SAMPLE, tmp_path / "toy.zarr")
    unistore.export(tmp_path / "toy.zarr", tmp_path / "again", to="lerobot")
    done = unistore.export(tmp_path / "toy.zarr", tmp_path / "video", to="lerobot", video=True)
    assert "which is lossy" in str(done.notes)
    before = read_json(SAMPLE / "meta/info.json")
    after = read_json(tmp_path / "again/meta/info.json")
    assert before["features"].keys() == after["features"].keys()
    unistore.convert(tmp_path / "again", tmp_path / "again.zarr")
    unistore.convert(tmp_path / "video", tmp_path / "video.zarr")
    first = unistore.Dataset(tmp_path / "toy.zarr", unistore.Transitions())
    again = unistore.Dataset(tmp_path / "again.zarr", unistore.Transitions())
    encoded = unistore.Dataset(tmp_path / "video.zarr", unistore.Transitions())
    for own, same, near in zip(first, again, encoded, strict=True):
        for name, value in own.items():
            np.testing.assert_array_equal(same[name], value, err_msg=name)
            if np.ndim(value) < 3:
                np.testing.assert_array_equal(near[name], value, err_msg=name)
    expected = first[9]["observation.images.top"].numpy().astype(float)
    error = np.abs(encoded[9]["observation.images.top"].numpy() - expected).mean()
    assert 0 < error < 6


def test_robomimic_has_the_datasets_of_the_source(source: Path, store: Path, tmp_path: Path) -> None:
    unistore.export(store, tmp_path / "out", to="robomimic")
    with h5py.File(tmp_path / "out/demo.hdf5") as file, h5py.File(source) as original:
        assert sorted(file["data"]) == ["demo_0", "demo_1", "demo_2"]
        assert file["data"].attrs["total"] == sum(LENGTHS)
        assert json.loads(file["data"].attrs["env_args"])["env_name"] == "Lift"
        assert file["mask/valid"][:].tolist() == [b"demo_2"]
        for number, length in enumerate(LENGTHS):
            demo, before = file[f"data/demo_{number}"], original[f"data/demo_{number}"]
            assert demo.attrs["num_samples"] == length
            for name in (
                "actions",
                "rewards",
                "dones",
                "obs/state",
                "next_obs/state",
                "obs/depth",
                "obs/front",
            ):
                np.testing.assert_array_equal(demo[name][:], before[name][:], err_msg=name)
            decoded = [cv2.imdecode(frame, cv2.IMREAD_COLOR)[..., ::-1] for frame in before["obs/wrist"]]
            np.testing.assert_array_equal(demo["obs/wrist"][:], np.stack(decoded))


def test_robomimic_without_rewards_has_dones_at_the_last_steps(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "episode_0.hdf5", "w") as file:
        file["action"] = np.ones((4, 2), "f4")
        file["observations/qpos"] = np.ones((4, 3), "f4")
        scans = file.create_dataset("observations/scan", 4, h5py.vlen_dtype(np.float32))
        for step in range(4):
            scans[step] = np.ones(step + 1, "f4")
    unistore.convert(tmp_path / "episode_0.hdf5", tmp_path / "act.zarr", workers=0)
    done = unistore.export(tmp_path / "act.zarr", tmp_path / "out", to="robomimic")
    assert "no rewards" in str(done.notes)
    assert "steps/observation/scan is not written: its rows have variable length" in done.notes
    assert "the last step of each episode is done" in str(done.notes)
    with h5py.File(tmp_path / "out/demo.hdf5") as file:
        assert sorted(file["data/demo_0"]) == ["actions", "dones", "obs"]
        assert file["data/demo_0/dones"][:].tolist() == [0, 0, 0, 1]
    with pytest.raises(InputError, match=r"does not state its steps per second.*--fps 20"):
        unistore.export(tmp_path / "act.zarr", tmp_path / "lerobot", to="lerobot")
    assert not (tmp_path / "lerobot").exists()


def test_an_option_that_an_export_does_not_have_is_an_error(store: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(InputError, match="has rates of 10 and 20 steps per second"):
        unistore.export(store, out, to="lerobot", fps=10)
    with pytest.raises(InputError, match="this export has no --fps"):
        unistore.export(store, out, to="robomimic", fps=10)
    with pytest.raises(InputError, match="this export has no --video"):
        unistore.export(store, out, video=True)
    with pytest.raises(InputError, match="fps"):
        unistore.export(store, out, to="lerobot", fps=-1.0)
    assert not out.exists()


def test_images_of_odd_size_cannot_be_exported_as_video(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["actions"] = np.ones((4, 2), "f4")
        file["rewards"] = np.ones(4, "f4")
        file["observations/camera"] = np.ones((4, 5, 8, 3), "u1")
    unistore.convert(tmp_path / "a.hdf5", tmp_path / "a.zarr", workers=0)
    with pytest.raises(InputError, match=r"camera .* H.264 needs even numbers"):
        unistore.export(tmp_path / "a.zarr", tmp_path / "out", to="lerobot", fps=5, video=True)


@pytest.mark.parametrize("to", ["lerobot", "robomimic"])
def test_streams_are_not_exported_with_a_note(to: str, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "robot.h5", "w") as file:
        for name, rate, shape in (("action", 10, (2,)), ("obs/force", 50, (6,))):
            file[f"data/demo_0/{name}"] = np.ones((2 * rate, *shape), "f4")
            file[f"data/demo_0/{name}_timestamps"] = np.arange(2 * rate) / rate
    unistore.convert(tmp_path / "robot.h5", tmp_path / "robot.zarr", workers=0)
    fps = 10 if to == "lerobot" else None
    done = unistore.export(tmp_path / "robot.zarr", tmp_path / "out", to=to, fps=fps)
    assert "clock force is not written" in str(done.notes)


def test_splits_that_are_not_ranges_become_one_split_and_a_column(source: Path, tmp_path: Path) -> None:
    shutil.copy(source, tmp_path / "demo.hdf5")
    with h5py.File(tmp_path / "demo.hdf5", "a") as file:
        del file["mask"]
        file["mask/train"] = np.array([b"demo_0", b"demo_2"])
        file["mask/valid"] = np.array([b"demo_1"])
    unistore.convert(tmp_path / "demo.hdf5", tmp_path / "a.zarr", workers=0)
    done = unistore.export(tmp_path / "a.zarr", tmp_path / "out", to="lerobot")
    assert "splits are not ranges" in str(done.notes)
    assert read_json(tmp_path / "out/meta/info.json")["splits"] == {"train": "0:3"}
    episodes = pq.read_table(tmp_path / "out/meta/episodes/chunk-000/file-000.parquet")
    assert episodes["split"].to_pylist() == ["train", "valid", "train"]
