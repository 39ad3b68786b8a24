"""The format of ManiSkill's trajectories, held to what every format promises."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np

from unistore.converters.formats.maniskill import ManiSkill
from unistore.testing import check_format

LENGTHS = (30, 20)


def test_maniskill(tmp_path: Path) -> None:
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
