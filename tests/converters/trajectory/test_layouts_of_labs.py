"""Files as ManiSkill, RoboTwin, PH2D and DROID write them: values as h5py and Pillow read them."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from PIL import Image

import unistore
from tests.support.trajectories import problems_of
from unistore.errors import InputError
from unistore.plugin import whole

LENGTHS = (5, 7)


def as_stored(value: Any) -> np.ndarray[Any, Any]:
    """Images with channels last."""
    array: np.ndarray[Any, Any] = np.asarray(value)
    return array.transpose(1, 2, 0) if array.ndim == 3 else array


def maniskill(folder: Path, *, has_metadata: bool = True) -> Path:
    folder.mkdir()
    rng = np.random.default_rng(0)
    with h5py.File(folder / "trajectory.rgbd.h5", "w", track_order=True) as file:
        for number, steps in enumerate(LENGTHS):
            group = file.create_group(f"traj_{number}")
            group["actions"] = rng.normal(size=(steps, 8)).astype("f4")
            group["obs/agent/qpos"] = rng.normal(size=(steps + 1, 9)).astype("f4")
            pixels = rng.integers(0, 255, (steps + 1, 16, 12, 3)).astype("u1")
            group["obs/sensor_data/base_camera/rgb"] = pixels
            group["env_states/actors/cube"] = rng.normal(size=(steps + 1, 13)).astype("f4")
            for name in ("success", "terminated", "truncated"):
                group[name] = np.arange(steps) == steps - 1
    if has_metadata:
        episodes = [
            {"episode_id": 1, "episode_seed": 11, "success": False, "reset_kwargs": {"seed": 11}},
            {"episode_id": 0, "episode_seed": 10, "success": True, "reset_kwargs": {"seed": 10}},
        ]
        text = json.dumps({"env_info": {"env_id": "PickCube-v1"}, "episodes": episodes})
        (folder / "trajectory.rgbd.json").write_text(text)
    return folder


OBSERVED = {
    "obs/agent/qpos": "agent.qpos",
    "obs/sensor_data/base_camera/rgb": "sensor_data.base_camera.rgb",
    "env_states/actors/cube": "env_states.actors.cube",
}


def test_maniskill_gives_each_step_the_observation_that_follows(tmp_path: Path) -> None:
    source, store = maniskill(tmp_path / "in"), tmp_path / "out.zarr"
    report = unistore.convert(source, store)
    assert [(one["verdict"], one["files"]) for one in report.verdicts] == [("taken", 2)]
    steps = unistore.Dataset(store)
    first = 0
    with h5py.File(source / "trajectory.rgbd.h5") as file:
        for number, length in enumerate(LENGTHS):
            group = file[f"traj_{number}"]
            for step in range(length):
                sample = steps[first + step]
                assert np.array_equal(sample["action"].numpy(), group["actions"][step])
                assert bool(sample["next_valid"])
                for name in ("success", "terminated", "truncated"):
                    assert bool(sample[name]) == bool(group[name][step])
                for path, key in OBSERVED.items():
                    assert np.array_equal(as_stored(sample[f"observation.{key}"]), group[path][step])
                    following = as_stored(sample[f"next.observation.{key}"])
                    assert np.array_equal(following, group[path][step + 1])
            first += length
    assert len(steps) == first
    opened = unistore.Store(store)
    assert whole(opened, "episodes/success").tolist() == [
        1,
        0,
    ]  # by the number of the episode, not by its place
    seeds = [json.loads(text)["episode_seed"] for text in opened.text("episodes/attributes")]
    assert seeds == [10, 11]


def test_maniskill_is_exported_as_it_was(tmp_path: Path) -> None:
    source, store = maniskill(tmp_path / "in"), tmp_path / "out.zarr"
    unistore.convert(source, store)
    assert unistore.verify(store, against=source).receipt is not None
    unistore.export(store, tmp_path / "again")
    with (
        h5py.File(source / "trajectory.rgbd.h5") as before,
        h5py.File(tmp_path / "again" / "trajectory.rgbd.h5") as after,
    ):
        names: list[str] = []
        before.visit(names.append)
        found: list[str] = []
        after.visit(found.append)
        assert sorted(found) == sorted(names)
        for name in names:
            if isinstance(before[name], h5py.Dataset):
                assert np.array_equal(before[name][()], after[name][()]), name
        assert dict(after["traj_0"].attrs) == {}
    text = (source / "trajectory.rgbd.json").read_text()
    assert json.loads((tmp_path / "again/trajectory.rgbd.json").read_text()) == json.loads(text)


def test_maniskill_without_metadata_is_converted_without_success(tmp_path: Path) -> None:
    source = maniskill(tmp_path / "in", has_metadata=False)
    unistore.convert(source, tmp_path / "a.zarr")
    assert not unistore.Store(tmp_path / "a.zarr").has("episodes/success")
    unistore.export(tmp_path / "a.zarr", tmp_path / "again")
    assert [path.name for path in (tmp_path / "again").iterdir()] == ["trajectory.rgbd.h5"]


def test_metadata_that_were_not_given_are_not_read(tmp_path: Path) -> None:
    file = maniskill(tmp_path / "in") / "trajectory.rgbd.h5"
    report = unistore.convert(file, tmp_path / "a.zarr")
    assert any("trajectory.rgbd.json of the same folder was not given" in note for note in report.notes)
    assert not unistore.Store(tmp_path / "a.zarr").has("episodes/success")


@pytest.mark.parametrize("text", ["{", ""])
def test_damaged_metadata_of_maniskill_is_a_problem(tmp_path: Path, text: str) -> None:
    source = maniskill(tmp_path / "in")
    (source / "trajectory.rgbd.json").write_text(text)
    message = problems_of(source)
    assert "trajectory.rgbd.json" in message
    assert "is not valid JSON" in message or "is empty" in message


def test_a_maniskill_episode_with_too_few_observations_is_a_problem_or_skipped(tmp_path: Path) -> None:
    source = maniskill(tmp_path / "in")
    with h5py.File(source / "trajectory.rgbd.h5", "r+") as file:
        del file["traj_1/obs/agent/qpos"]
        file["traj_1/obs/agent/qpos"] = np.zeros((LENGTHS[1] - 1, 9), "f4")
    message = problems_of(source)
    assert "traj_1: datasets have different numbers of steps" in message
    assert "obs/agent/qpos" in message
    unistore.convert(source, tmp_path / "a.zarr", on_error="skip")
    assert len(unistore.Dataset(tmp_path / "a.zarr")) == LENGTHS[0]


def test_a_link_out_of_the_folder_is_no_episode(tmp_path: Path) -> None:
    source = maniskill(tmp_path / "elsewhere") / "trajectory.rgbd.h5"
    (tmp_path / "in").mkdir()
    with h5py.File(tmp_path / "in" / "a.h5", "w") as file:
        file["traj_0"] = h5py.ExternalLink(str(source), "traj_0")
    with pytest.raises(InputError):
        unistore.convert(tmp_path / "in", tmp_path / "a.zarr", "trajectory")


def test_groups_of_the_root_with_equal_lengths_are_episodes(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number, steps in enumerate(LENGTHS):
            file[f"episode_{number}/action"] = np.full((steps, 2), number, "f4")
            file[f"episode_{number}/observations/qpos"] = np.arange(steps * 3.0).reshape(steps, 3)
    unistore.convert(tmp_path / "a.h5", tmp_path / "a.zarr")
    steps = unistore.Dataset(tmp_path / "a.zarr")
    assert [bool(steps[step]["next_valid"]) for step in (3, 4, 11)] == [True, False, False]
    assert steps[5]["action"].tolist() == [1, 1]


def encoded(step: int, form: str = "JPEG") -> bytes:
    """A picture whose red and blue differ."""
    pixels = np.zeros((48, 64, 3), np.uint8)
    pixels[..., 2] = 200
    pixels[:, : 10 + step] = (255, 40, 0)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, form)
    return file.getvalue()


def decoded(content: bytes) -> np.ndarray[Any, Any]:
    return np.asarray(Image.open(io.BytesIO(content)))


def robotwin(folder: Path, form: str) -> list[list[bytes]]:
    """RoboTwin: byte strings of one length, each padded with zeros."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    written = []
    for episode, steps in enumerate(LENGTHS):
        frames = [encoded(step, form) for step in range(steps)]
        with h5py.File(folder / f"episode{episode}.hdf5", "w") as file:
            file["joint_action/vector"] = rng.normal(size=(steps, 14))
            file["joint_action/left_gripper"] = rng.uniform(size=steps)
            file["observation/head_camera/rgb"] = np.array(frames, f"S{max(map(len, frames)) + 3}")
            file["observation/head_camera/intrinsic_cv"] = np.ones((steps, 3, 3), "f4")
            file["endpose/left_endpose"] = rng.normal(size=(steps, 7))
        written.append(frames)
    return written


def ph2d(folder: Path, form: str) -> list[list[bytes]]:
    """PH2D: bytes of any length."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    written = []
    for episode, steps in enumerate(LENGTHS):
        frames = [encoded(step, form) for step in range(steps)]
        with h5py.File(folder / f"episode_{episode}.hdf5", "w") as file:
            file["action"] = rng.normal(size=(steps, 14))
            file["observation.state"] = rng.normal(size=(steps, 14))
            images = file.create_dataset("observation.image.left", (steps,), h5py.vlen_dtype("u1"))
            for step, frame in enumerate(frames):
                images[step] = np.frombuffer(frame, "u1")
        written.append(frames)
    return written


CAMERAS = {robotwin: "observation.head_camera.rgb", ph2d: "observation.image.left"}


@pytest.mark.parametrize("form", ["JPEG", "PNG"])
@pytest.mark.parametrize("images", ["raw", "keep"])
@pytest.mark.parametrize("write", [robotwin, ph2d])
def test_pictures_in_columns_of_bytes_are_frames(tmp_path: Path, write: Any, images: str, form: str) -> None:
    frames = [frame for episode in write(tmp_path / "in", form) for frame in episode]
    unistore.convert(tmp_path / "in", tmp_path / "a.zarr", images=images)
    steps = unistore.Dataset(tmp_path / "a.zarr")
    assert len(steps) == len(frames)
    for step, frame in enumerate(frames):
        picture = as_stored(steps[step][CAMERAS[write]]).astype(int)
        expected = decoded(frame)
        assert picture.shape == (48, 64, 3)
        tolerance = 0 if form == "PNG" else 4  # decoders of JPEG round otherwise
        assert abs(picture - expected).max() <= tolerance
    assert steps[0]["action"].shape == (14,)
    assert unistore.verify(tmp_path / "a.zarr", against=tmp_path / "in").receipt is not None


@pytest.mark.parametrize("images", ["raw", "keep"])
def test_a_damaged_picture_is_named_by_its_row(tmp_path: Path, images: str) -> None:
    robotwin(tmp_path / "in", "JPEG")
    path = tmp_path / "in" / "episode1.hdf5"
    with h5py.File(path, "r+") as file:
        rows = file["observation/head_camera/rgb"][()]
        rows[3] = rows[3][:200]
        file["observation/head_camera/rgb"][...] = rows
    with pytest.raises(
        InputError, match=r"episode1.hdf5: observation/head_camera/rgb row 3: .* truncated or damaged"
    ):
        unistore.convert(tmp_path / "in", tmp_path / "a.zarr", images=images)
    unistore.convert(tmp_path / "in", tmp_path / "b.zarr", images=images, on_error="skip")
    assert len(unistore.Dataset(tmp_path / "b.zarr")) == LENGTHS[0]


def droid(folder: Path, steps: int = 9) -> Path:
    folder.mkdir()
    rng = np.random.default_rng(0)
    with h5py.File(folder / "trajectory.h5", "w") as file:
        file["action/joint_velocity"] = rng.normal(size=(steps, 7))
        file["action/gripper_position"] = rng.normal(size=steps)
        file["action/robot_state/joint_positions"] = rng.normal(size=(steps, 7))
        file["observation/camera_extrinsics/123_left"] = rng.normal(size=(steps, 6))
        file["observation/robot_state/joint_positions"] = rng.normal(size=(steps, 7))
        file["observation/robot_state/gripper_position"] = rng.normal(size=steps)
        file["observation/controller_info/success"] = np.zeros(steps, bool)
        file["observation/timestamp/control/step_start"] = np.arange(steps) * 66 + 1_600_000_000_000
        file["observation/timestamp/skip_action"] = np.arange(steps) == 2
        file.attrs["success"] = True
    return folder


def test_droid_keeps_all_its_actions_under_their_names(tmp_path: Path) -> None:
    source, store = droid(tmp_path / "in"), tmp_path / "a.zarr"
    report = unistore.convert(source, store)
    assert any("--map action=DATASET" in note for note in report.notes)
    steps = unistore.Dataset(store)
    with h5py.File(source / "trajectory.h5") as file:
        names: list[str] = []
        file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
        for name in names:
            key = name.replace("action/", "actions/").replace("/", ".")
            found = [np.asarray(steps[step][key]) for step in range(len(steps))]
            assert np.array_equal(np.stack(found), file[name][()]), name
    assert whole(unistore.Store(store), "episodes/success").tolist() == [1]
    unistore.convert(source, tmp_path / "b.zarr", map={"action": "action/joint_velocity"})
    sample = unistore.Dataset(tmp_path / "b.zarr")[0]
    assert sample["action"].shape == (7,)
    assert "actions.joint_velocity" not in sample
    assert sample["actions.gripper_position"].shape == ()


def test_a_droid_array_of_another_length_is_a_problem(tmp_path: Path) -> None:
    source = droid(tmp_path / "in")
    with h5py.File(source / "trajectory.h5", "r+") as file:
        del file["observation/robot_state/gripper_position"]
        file["observation/robot_state/gripper_position"] = np.zeros(8)
    message = problems_of(source)
    assert "different numbers of steps" in message
    assert "--ignore observation/robot_state/gripper_position" in message
