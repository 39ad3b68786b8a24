"""The format of ManiSkill's trajectories, held to what every format promises."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest

import unistore
from unistore.converters.formats import maniskill
from unistore.converters.formats.maniskill import ManiSkill
from unistore.converters.opened import SourceFile
from unistore.errors import InputError
from unistore.testing import check_format

LENGTHS = (30, 20)


def test_the_format_keeps_its_promises(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    path = tmp_path / "trajectory.state.h5"
    expected = {}
    with h5py.File(path, "w", track_order=True) as file:
        for number, steps in enumerate(LENGTHS):
            actions = rng.normal(size=(steps, 8)).astype("f4")
            position = rng.normal(size=(steps + 1, 9)).astype("f4")
            cube = rng.normal(size=(steps + 1, 13)).astype("f4")
            group = file.create_group(f"traj_{number}")
            group["actions"] = actions
            group["success"] = np.arange(steps) == steps - 1
            group["obs/agent/qpos"] = position
            group["env_states/actors/cube"] = cube
            expected |= {
                f"traj_{number}/actions": actions,
                f"traj_{number}/success": np.arange(steps) == steps - 1,
                f"traj_{number}/obs/agent/qpos": position[:-1],
                f"traj_{number}/next_obs/agent/qpos": position[1:],
                f"traj_{number}/obs/env_states/actors/cube": cube[:-1],
                f"traj_{number}/next_obs/env_states/actors/cube": cube[1:],
            }
    episodes = [{"episode_id": number, "episode_seed": 10 + number} for number in range(2)]
    path.with_suffix(".json").write_text(
        json.dumps({"env_info": {"env_id": "PickCube-v1"}, "episodes": episodes})
    )
    check_format(ManiSkill(), path, expected)


def write(path: Path, *, next_obs: bool = False, clash: bool = False) -> Path:
    """One trajectory of three steps; observations have as many rows as steps if there are next ones."""
    with h5py.File(path, "w") as file:
        group = file.create_group("traj_0")
        group["actions"] = np.arange(6, dtype="f4").reshape(3, 2)
        group["obs/x"] = np.zeros((3 if next_obs else 4, 2), "f4")
        group["obs/x"].attrs["unit"] = "m"
        if next_obs:
            group["next_obs/x"] = np.ones((3, 2), "f4")
        if clash:
            group["obs/env_states/cube"] = np.full((4, 2), 2, "f4")
            group["env_states/cube"] = np.full((4, 2), 1, "f4")
    return path


def test_next_observations_of_their_own_come_back(tmp_path: Path) -> None:
    path = write(tmp_path / "a.h5", next_obs=True)
    unistore.convert(path, tmp_path / "a.zarr", "trajectory")
    unistore.export(tmp_path / "a.zarr", tmp_path / "again")
    with h5py.File(tmp_path / "again/a.h5") as file:
        assert file["traj_0/obs/x"][()].tolist() == np.zeros((3, 2)).tolist()
        assert file["traj_0/next_obs/x"][()].tolist() == np.ones((3, 2)).tolist()


def test_attributes_of_divided_datasets_come_back(tmp_path: Path) -> None:
    unistore.convert(write(tmp_path / "a.h5"), tmp_path / "a.zarr", "trajectory")
    unistore.export(tmp_path / "a.zarr", tmp_path / "again")
    with h5py.File(tmp_path / "again/a.h5") as file:
        assert file["traj_0/obs/x"].attrs["unit"] == "m"


def test_two_arrays_of_one_path_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is read as traj_0/obs/env_states/cube"):
        unistore.convert(write(tmp_path / "a.h5", clash=True), tmp_path / "a.zarr", "trajectory")


def test_a_failed_read_is_an_error_and_not_another_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_path: Path, name: str) -> None:
        raise InputError.at(name, "cannot be read (Input/output error)", "check the disk", "unreadable")

    path = write(tmp_path / "a.h5")
    assert ManiSkill().recognise(SourceFile(path, path.name)).certainty == "sure"
    monkeypatch.setattr(maniskill, "open_hdf5", fails)
    with pytest.raises(InputError, match="Input/output error"):
        ManiSkill().recognise(SourceFile(path, path.name))
