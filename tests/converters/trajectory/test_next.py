"""Next observations that only some episodes have: no filling is taken for an observation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np
import pytest

import unistore
from unistore.errors import InputError

LENGTHS = {"a.h5": (4, 5), "b.h5": (3, 6)}  # steps of the episodes; those of a.h5 have no next observations


def observed(kind: str, name: str, number: int, steps: int) -> dict[str, np.ndarray]:
    """One observation more than steps; `kind` says of which dtypes."""
    rng = np.random.default_rng([len(name), ord(name[0]), number])
    eef = rng.normal(size=(steps + 1, 3)).astype("f8" if name == "a.h5" or kind == "follows" else "f4")
    camera = rng.integers(1, 255, (steps + 1, 8, 8, 3)).astype("u1")
    return {"eef": eef, "cam": camera}


def recorded_next(kind: str, own: np.ndarray) -> np.ndarray:
    following = own[1:].copy()
    if kind == "anew":  # as simulators do that render again
        following[:, 0] += 1
    return following


def write(folder: Path, kind: str) -> Path:
    folder.mkdir()
    for name, lengths in LENGTHS.items():
        with h5py.File(folder / name, "w") as file:
            for number, steps in enumerate(lengths):
                demo = file.create_group(f"data/demo_{number}")
                demo["actions"] = np.zeros((steps, 2))
                demo["dones"] = np.arange(steps) == steps - 1
                demo["obs/said"] = np.array([f"{name} {number} {step}" for step in range(steps)], object)
                for key, values in observed(kind, name, number, steps).items():
                    demo[f"obs/{key}"] = values[:-1]
                    if name == "b.h5":
                        demo[f"next_obs/{key}"] = recorded_next(kind, values)
                if name == "b.h5":
                    texts = np.array([f"next {name} {number} {step}" for step in range(steps)], object)
                    demo["next_obs/said"] = texts
    return folder


def expected_steps(kind: str) -> list[dict[str, Any]]:
    steps = []
    for name, lengths in LENGTHS.items():
        for number, count in enumerate(lengths):
            values = observed(kind, name, number, count)
            for step in range(count):
                is_known = name == "b.h5" or step < count - 1
                after = step + 1 if is_known else step
                own = {key: rows[after] for key, rows in values.items()}
                said = f"{name} {number} {after}"
                if name == "b.h5":
                    own = {key: recorded_next(kind, rows)[step] for key, rows in values.items()}
                    said = f"next {name} {number} {step}"
                steps.append({**own, "said": said, "next_valid": is_known})
    return steps


def check_steps(data: Any, expected: list[dict[str, Any]]) -> None:
    assert len(data) == len(expected)
    for number, step in enumerate(expected):
        sample = data[number]
        assert bool(sample["next_valid"]) == step["next_valid"]
        assert np.array_equal(sample["next.observation.eef"].numpy(), step["eef"])
        assert np.array_equal(sample["next.observation.cam"].numpy(), np.moveaxis(step["cam"], -1, 0))
        assert sample["next.observation.said"] == step["said"]


@pytest.mark.parametrize("kind", ["follows", "anew"])
def test_steps_of_files_without_next_observations_have_those_that_follow(kind: str, tmp_path: Path) -> None:
    source = write(tmp_path / "in", kind)
    store = tmp_path / "out.zarr"
    unistore.convert(source, store, "trajectory")  # as they are, without --columns union
    check_steps(unistore.Dataset(store), expected_steps(kind))
    small = unistore.Dataset(store, unistore.Transitions(only_valid=True))
    assert len(small) == 18  # the ends of a.h5 are terminal
    with unistore.ReplayBuffer(store, output="dict", seed=3) as buffer:
        batch = buffer.sample(64)
    assert not np.isnan(batch["next.observation.eef"].numpy()).any()
    assert batch["next.observation.cam"].numpy().reshape(64, -1).any(axis=1).all()
    assert unistore.verify(store, against=source).ok


@pytest.mark.parametrize("kind", ["follows", "anew"])
def test_exports_invent_no_next_observations(kind: str, tmp_path: Path) -> None:
    source = write(tmp_path / "in", kind)
    store = tmp_path / "out.zarr"
    unistore.convert(source, store, "trajectory")
    unistore.export(store, tmp_path / "again")
    for name, lengths in LENGTHS.items():
        with h5py.File(tmp_path / "again" / name) as file, h5py.File(source / name) as before:
            for number in range(len(lengths)):
                demo = file[f"data/demo_{number}"]
                assert ("next_obs" in demo) == (name == "b.h5")
                for group in ("obs", "next_obs") if name == "b.h5" else ("obs",):
                    for key in ("eef", "cam", "said"):
                        found = demo[f"{group}/{key}"][...]
                        assert np.array_equal(found, before[f"data/demo_{number}/{group}/{key}"][...])
    unistore.convert(tmp_path / "again", tmp_path / "again.zarr", "trajectory")
    check_steps(unistore.Dataset(tmp_path / "again.zarr"), expected_steps(kind))


@pytest.mark.parametrize("kind", ["follows", "anew"])
@pytest.mark.parametrize("to", ["robomimic", "lerobot"])
def test_other_exports_do_not_mark_invented_next_observations_as_valid(
    to: str, kind: str, tmp_path: Path
) -> None:
    store = tmp_path / "out.zarr"
    unistore.convert(write(tmp_path / "in", kind), store, "trajectory", ignore=["*said"])
    unistore.export(store, tmp_path / to, to=to, fps=10 if to == "lerobot" else None)
    unistore.convert(tmp_path / to, tmp_path / "again.zarr", "trajectory")
    data = unistore.Dataset(tmp_path / "again.zarr")
    before = unistore.Dataset(store)
    camera = "observation.cam" if to == "robomimic" else "observation.images.cam"
    for number, step in enumerate(expected_steps(kind)):
        sample = data[number]
        if sample["next_valid"]:
            assert step["next_valid"]
            is_recorded = to == "robomimic"  # LeRobot has the observations of the steps alone
            after = before[number if is_recorded else number + 1]
            prefix = "next." if is_recorded else ""
            for key, old in (("observation.eef", "observation.eef"), (camera, "observation.cam")):
                assert np.array_equal(sample[f"next.{key}"], after[f"{prefix}{old}"])
    ends = np.cumsum([4, 5]) - 1
    assert [bool(data[int(end)]["next_valid"]) for end in ends] == [False, False]


def test_next_observations_of_compressed_and_resized_frames_are_derived(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 255, (6, 12, 16, 3), "u1")
    frames = [cv2.imencode(".png", image)[1].tobytes() for image in images]
    (tmp_path / "in").mkdir()
    for name in ("a.h5", "b.h5"):
        with h5py.File(tmp_path / "in" / name, "w") as file:
            demo = file.create_group("data/demo_0")
            demo["actions"] = np.zeros((5, 2))
            kind = h5py.vlen_dtype(np.uint8)
            for path, first in (("obs/cam", 0), ("next_obs/cam", 1))[: 1 + (name == "b.h5")]:
                demo.create_dataset(path, (5,), kind)
                for row in range(5):
                    demo[path][row] = np.frombuffer(frames[-1 if row == 2 and first else first + row], "u1")
    for images_option in ("raw", "keep"):
        store = tmp_path / f"{images_option}.zarr"
        unistore.convert(tmp_path / "in", store, "trajectory", image_size=8, images=images_option)
        data = unistore.Dataset(store)
        for row, after in enumerate((1, 2, 3, 4, 4)):
            rgb = np.ascontiguousarray(images[after, ..., ::-1])
            assert np.array_equal(data[row]["next.observation.cam"].numpy(), np.moveaxis(rgb, -1, 0))
            small = cv2.resize(rgb, (8, 8))
            assert np.array_equal(data[row]["next.observation.cam_8"].numpy(), np.moveaxis(small, -1, 0))
            assert bool(data[row]["next_valid"]) == (row < 4)
        assert data[9]["next_valid"]  # of b.h5, recorded


def test_next_observations_never_cross_the_end_of_a_joined_episode(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("a.h5", "b.h5"):
        with h5py.File(tmp_path / "in" / name, "w") as file:
            file["observations"] = np.arange(12.0).reshape(6, 2)
            file["actions"], file["rewards"] = np.zeros((6, 1)), np.zeros(6)
            file["terminals"], file["timeouts"] = np.zeros(6), np.array([0, 0, 1, 0, 0, 1])
            if name == "b.h5":
                file["next_observations"] = np.arange(12.0).reshape(6, 2) + 100
    unistore.convert(tmp_path / "in", tmp_path / "out.zarr", "trajectory")
    data = unistore.Dataset(tmp_path / "out.zarr")
    following = [float(data[step]["next.observation.state"][0]) for step in range(12)]
    assert following == [2, 4, 4, 8, 10, 10, 100, 102, 104, 106, 108, 110]
    valid = [bool(data[step]["next_valid"]) for step in range(12)]
    assert valid == [True, True, False, True, True, False, *[True] * 6]
    unistore.export(tmp_path / "out.zarr", tmp_path / "again")
    with h5py.File(tmp_path / "again" / "a.h5") as file:
        assert "next_observations" not in file


def test_next_observations_of_several_shapes_are_an_error(tmp_path: Path) -> None:
    for name, columns in (("a", ()), ("b", (4,))):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            demo = file.create_group("data/demo_0")
            demo["actions"], demo["obs/x"] = np.zeros((5, 2)), np.zeros((5, 3))
            for width in columns:
                demo["next_obs/x"] = np.zeros((5, width))
    with pytest.raises(
        InputError, match=r"next_observation/x: float64 \(3,\) in a.h5, float64 \(4,\) in b.h5"
    ):
        unistore.convert([tmp_path / "a.h5", tmp_path / "b.h5"], tmp_path / "out.zarr", "trajectory")
    unistore.convert(tmp_path / "b.h5", tmp_path / "b.zarr", "trajectory")


def minari(folder: Path, lengths: list[tuple[int, int]]) -> Path:
    """Write a Minari dataset of episodes of (steps, observations)."""
    folder.mkdir()
    (folder / "metadata.json").write_text('{"observation_space": "x", "data_format": "hdf5"}')
    with h5py.File(folder / "main_data.hdf5", "w") as file:
        for number, (steps, observations) in enumerate(lengths):
            group = file.create_group(f"episode_{number}")
            group.attrs["id"] = number
            group["observations"] = np.arange(observations * 2.0).reshape(-1, 2) + 100 * number
            group["infos/time"] = np.arange(observations) + 0.5
            group["actions"], group["rewards"] = np.zeros((steps, 1)), np.zeros(steps)
            group["terminations"] = group["truncations"] = np.zeros(steps, bool)
    return folder


def test_minari_episodes_keep_their_number_of_observations(tmp_path: Path) -> None:
    lengths = [(4, 5), (6, 6), (5, 6)]
    source = minari(tmp_path / "in", lengths)
    store = tmp_path / "out.zarr"
    report = unistore.convert(source, store, "trajectory")
    verdicts = [(one["verdict"], one["files"]) for one in report.verdicts]
    assert verdicts == [("taken", 2)]  # metadata.json is read, and not left out besides
    assert unistore.verify(store, against=source).ok
    unistore.export(store, tmp_path / "again")
    with (
        h5py.File(tmp_path / "again" / "main_data.hdf5") as file,
        h5py.File(source / "main_data.hdf5") as before,
    ):
        for number, (_, observations) in enumerate(lengths):
            for path in ("observations", "infos/time"):
                found = file[f"episode_{number}/{path}"][...]
                assert len(found) == observations
                assert np.array_equal(found, before[f"episode_{number}/{path}"][...])
    unistore.convert(tmp_path / "again", tmp_path / "again.zarr", "trajectory")
    for path in (store, tmp_path / "again.zarr"):
        data = unistore.Dataset(path)
        assert [bool(data[step]["next_valid"]) for step in (3, 9, 14)] == [True, False, True]
        assert data[8]["next.observation.state"].tolist() == [110, 111]
