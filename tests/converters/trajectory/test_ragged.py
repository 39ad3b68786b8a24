"""Columns with any number of values in a row: scans of a lidar, and frames that are kept, on any clock."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

import unistore
from tests.support.streams import COUNTS, SCANS, STEPS, frames, lidar, points, scans_of_one_axis
from tests.support.trajectories import converted, problems_of


@pytest.mark.parametrize("rate", [False, True])
def test_points_between_offsets_are_a_table_of_points(tmp_path: Path, rate: bool) -> None:
    path = lidar(tmp_path / "a.h5", "offsets", rate=rate)
    store = converted(path, images="keep")
    group = "clocks/lidar/observation/lidar/points_ragged"
    data, offsets = store.array(f"{group}/data"), store.array(f"{group}/offsets")
    assert data.dtype == np.float32
    assert np.array_equal(data.read(), np.concatenate([*points(0), *points(1)]))
    assert offsets.read().tolist() == np.cumsum([0, *COUNTS[0], *COUNTS[1]]).tolist()
    assert store.array("clocks/lidar/observation/lidar/ring_ragged/data").dtype == np.uint8
    assert store.array("episodes/clocks/lidar/offsets").read().tolist() == [0, SCANS, 2 * SCANS]
    assert store.array("clocks/camera/observation/camera/rgb_jpeg/offsets").shape == (2 * SCANS + 1,)
    assert unistore.verify(store.path, against=path).ok


def test_rows_of_variable_length_are_ragged(tmp_path: Path) -> None:
    path = lidar(tmp_path / "a.h5", "vlen")
    store = converted(path)
    data = store.array("clocks/lidar/observation/lidar/ranges_ragged/data")
    assert data.dtype == np.float64
    assert np.array_equal(data.read(), np.concatenate([*scans_of_one_axis(0), *scans_of_one_axis(1)]))
    images = store.array("clocks/camera/observation/camera/rgb").read()
    assert np.array_equal(images, np.stack([*frames(0), *frames(1)]))


@pytest.mark.parametrize("form", ["offsets", "vlen"])
def test_ragged_columns_are_exported_unchanged_and_compared_by_verify(tmp_path: Path, form: str) -> None:
    path = lidar(tmp_path / "a.h5", form)
    store = converted(path, images="keep")
    unistore.export(store.path, tmp_path / "again")
    with h5py.File(path, "r+") as file, h5py.File(tmp_path / "again" / "a.h5") as again:
        lidar_names = ("points", "ring", "offsets") if form == "offsets" else ("ranges",)
        for name in (*[f"lidar/{own}" for own in lidar_names], "lidar/timestamps", "camera/rgb"):
            one, two = file[f"data/demo_1/obs/{name}"][...], again[f"data/demo_1/obs/{name}"][...]
            rows = zip(one, two, strict=True)
            assert all(np.array_equal(before, after) for before, after in rows), name
        if form == "offsets":
            file["data/demo_0/obs/lidar/points"][4, 1] += 1
        else:
            row = file["data/demo_0/obs/lidar/ranges"][2]
            row[1] += 1
            file["data/demo_0/obs/lidar/ranges"][2] = row
    found = unistore.verify(store.path, against=path)
    assert "observation/lidar" in str(found.problems[0])


def test_windows_give_the_points_of_their_ticks(tmp_path: Path) -> None:
    store = converted(lidar(tmp_path / "a.h5", "offsets"), images="keep")
    key = "observation.lidar.points"
    kind = unistore.Windows({"lidar": (-1, 0), "camera": (0,)}, clock="steps", pad="edge")
    dataset = unistore.Dataset(store.path, kind)
    assert len(dataset) == 2 * STEPS
    for number, sample in enumerate(dataset):
        episode, step = divmod(number, STEPS)
        tick = int(step * 0.1 / 0.15 + 1e-9)
        rows = [max(0, tick - 1), tick]
        expected = [points(episode)[row] for row in rows]
        assert np.array_equal(sample[key], np.concatenate(expected))
        assert sample[f"{key}_counts"].tolist() == [len(scan) for scan in expected]
        assert sample["lidar_valid"].tolist() == [tick > 0, True]
        image = np.moveaxis(frames(episode)[tick], -1, 0)
        assert np.array_equal(sample["observation.camera.rgb"][0], image)
    with unistore.Loader(dataset, batch_size=5, num_workers=0) as loader:
        batch = next(iter(loader))
    assert len(batch[key]) == batch[f"{key}_offsets"][-1] == batch[f"{key}_counts"].sum()
    zero = unistore.Dataset(store.path, unistore.Windows({"lidar": (-1, 0)}, clock="steps", pad="zero"))
    assert zero[0][f"{key}_counts"].tolist() == [0, COUNTS[0][0]]
    counts = unistore.Dataset(store.path, kind, fields=[f"{key}_counts"])[3]
    assert set(counts) == {"index", f"{key}_counts"}


def test_scans_at_every_step_are_ragged_keys_of_transitions(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["data/demo_0/actions"] = np.zeros((3, 2))
        file["data/demo_0/obs/points"] = np.arange(10.0).reshape(5, 2)
        file["data/demo_0/obs/points_offsets"] = np.array([0, 2, 2, 5])
    store = converted(path)
    sample = unistore.Dataset(store.path)[0]
    assert sample["observation.points"].tolist() == [[0, 1], [2, 3]]
    assert sample["next.observation.points"].shape == (0, 2)
    window = unistore.Dataset(store.path, unistore.Windows(history=2, horizon=1, pad="edge"))[2]
    assert window["observation.points_counts"].tolist() == [0, 3]
    assert unistore.verify(store.path, against=path).ok


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([0, 3, 2, 5, 9], "row 2 is 2, less than the row before it (3)"),
        ([0, 3, 5, 6, 7], "are offsets from 0 to 7, but the arrays in the group have 9 or 4 rows"),
        ([1, 3, 5, 6, 9], "are offsets from 1 to 9"),
    ],
)
def test_offsets_that_do_not_divide_their_arrays_are_a_problem(
    offsets: list[int], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        demo = file.create_group("data/demo_0")
        demo["actions"] = np.zeros((6, 2))
        demo["actions_timestamps"] = np.arange(6) * 0.1
        demo["obs/lidar/points"] = np.zeros((9, 3))
        demo["obs/lidar/timestamps"] = np.arange(4) * 0.15
        demo["obs/lidar/offsets"] = np.array(offsets)
    found = problems_of(path)
    assert f"data/demo_0/obs/lidar/offsets: {message}" in found
    assert "--ignore" in found


def test_actions_of_variable_length_are_a_problem(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["data/demo_0/obs/state"] = np.zeros((3, 2))
        file.create_dataset("data/demo_0/actions", (3,), h5py.vlen_dtype("f4"))[:] = [np.ones(2)] * 3
    assert "actions: has rows of variable length, which action cannot have" in problems_of(path)


def test_a_stream_that_is_ragged_in_only_some_episodes_is_a_problem(tmp_path: Path) -> None:
    path = lidar(tmp_path / "a.h5", "offsets")
    with h5py.File(path, "r+") as file:
        group = file["data/demo_1/obs/lidar"]
        del group["points"], group["offsets"], group["ring"]
        group["points"] = np.zeros((SCANS, 3), "f4")
        group["ring"] = np.zeros(SCANS, "u1")
    assert "has rows of variable length in some sources, but not in others" in problems_of(path)
