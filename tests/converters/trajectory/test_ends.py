"""Ends of episodes under other names are read and must agree; a column of them that is unread is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import unistore
from tests.support.family_converters import trajectory
from unistore.converters.source_scan import scan_sources
from unistore.errors import AddOptions, InputError

STEPS = 12
END = np.zeros(STEPS, bool)
END[[2, 6, 11]] = True  # episodes of 3, 4 and 5 steps
LENGTHS = [3, 4, 5]
NUMBER = np.repeat(np.arange(3), LENGTHS)
NONE = np.zeros(STEPS)


def write(path: Path, columns: dict[str, Any]) -> Path:
    arrays = {
        "observations": np.arange(STEPS * 3, dtype="f4").reshape(STEPS, 3),
        "actions": np.zeros((STEPS, 2), "f4"),
        "rewards": np.zeros(STEPS, "f4"),
        **columns,
    }
    with h5py.File(path, "w") as file:
        for name, values in arrays.items():
            file[name] = values
    return path


def lengths(store: Path) -> list[int]:
    return np.diff(unistore.Store(store).array("episodes/offsets").read()).tolist()


MARKS: dict[str, dict[str, Any]] = {
    "d3rlpy": {"terminals": NONE, "episode_terminals": END * 1.0},
    "gymnasium": {"terminateds": END & False, "truncateds": END},
    "iql": {"dones_float": END * 1.0},
    "iql_column": {"dones_float": END[:, None] * 1.0},
    "rlds": {"is_terminal": END & False, "is_last": END, "is_first": np.roll(END, 1)},
    "first": {"is_first": np.roll(END, 1)},
    "sb3": {"episode_starts": np.roll(END, 1)},
    "start_rows": {"episode_starts": np.array([0, 3, 7])},
    "policy": {"episode_ends": np.cumsum(LENGTHS)},
    "many_ends": {"meta/episode_ends": np.cumsum(LENGTHS).astype("u4"), "timeouts": NONE},
    "lerobot": {"episode_index": NUMBER},
    "group": {"infos/episode_id": NUMBER * 1.0},
    "names": {"episode_id": np.array([f"run {number}" for number in NUMBER], object)},
    "ep_id": {"ep_id": np.repeat([7, 3, 9], LENGTHS)},
    "lengths": {"traj_lengths": np.array(LENGTHS)},
    "episode_lengths": {"episode_lengths": np.array(LENGTHS, "u1")},
    "some_terminal": {"terminals": np.arange(STEPS) == 2, "episode_index": NUMBER},
    "timeouts": {"terminals": NONE, "timeouts": END},
}


@pytest.mark.parametrize("mark", MARKS)
def test_ends_of_every_known_name_are_read(mark: str, tmp_path: Path) -> None:
    source = write(tmp_path / "run.h5", MARKS[mark])
    store = tmp_path / "out.zarr"
    unistore.convert(source, store, "trajectory")
    assert lengths(store) == LENGTHS
    data = unistore.Dataset(store)
    assert [step for step in range(STEPS) if not data[step]["next_valid"]] == np.flatnonzero(END).tolist()
    terminated = [step for step in range(STEPS) if data[step]["terminated"]]
    assert terminated == ([2] if mark == "some_terminal" else [])
    assert data[3]["observation.state"].tolist() == [9, 10, 11]
    assert unistore.verify(store, against=source).ok
    unistore.export(store, tmp_path / "again")
    with h5py.File(tmp_path / "again/run.h5") as file:
        for name, values in MARKS[mark].items():
            found = file[name][...]
            assert np.array_equal(found.astype(str) if found.dtype == object else found, values)
    unistore.convert(tmp_path / "again", tmp_path / "again.zarr", "trajectory")
    assert lengths(tmp_path / "again.zarr") == LENGTHS


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"is_last": END, "episode_index": np.repeat([0, 1], 6)},
            "does not end an episode at step 2, but is_last does",
        ),
        (
            {"timeouts": np.arange(STEPS) == 4, "episode_index": NUMBER},
            "does not end an episode at step 4, but timeouts",
        ),
        ({"episode_ends": np.array([3, 7])}, "ends the last episode at step 7, but there are 12 steps"),
        ({"episode_ends": np.array([3, 2, 12])}, "does not rise from one episode to the next"),
        ({"traj_lengths": np.array([3, 4])}, "ends the last episode at step 7"),
        ({"episode_index": np.tile([0, 1], 6)}, "row 2 is 0 again, after other episodes"),
    ],
)
def test_columns_that_contradict_are_refused(columns: dict[str, Any], message: str, tmp_path: Path) -> None:
    source = write(tmp_path / "run.h5", columns)
    with pytest.raises(InputError) as caught:
        scan_sources(trajectory(), [source])
    assert message in str(caught.value)
    check_fixes(caught.value, source, tmp_path)


def check_fixes(error: InputError, source: Path, folder: Path) -> list[list[int]]:
    """Convert with each fix that is an option, and return the lengths of the episodes."""
    found = []
    (problem,) = error.problems
    fixes = [fix for fix in problem.fixes if isinstance(fix, AddOptions)]
    assert fixes
    for number, fix in enumerate(fixes):
        option, value = fix.arguments
        options: dict[str, Any] = {"ignore": [value]}
        if option == "--map":
            name, _, path = value.partition("=")
            options = {"map": {name: path}}
        unistore.convert(source, folder / f"{number}.zarr", "trajectory", **options)
        found.append(lengths(folder / f"{number}.zarr"))
    return found


@pytest.mark.parametrize(
    ("columns", "role"),
    [
        ({"demo_over/episode_done_flag": END}, "truncated"),
        ({"timeouts": NONE, "my_done": END * 1.0}, "is_last"),
        ({"infos/terminals": END}, "terminated"),
        ({"resets": np.roll(END, 1)}, "is_first"),
        ({"rollout_number": NUMBER}, "is_number"),
        ({"my_traj_id": NUMBER}, "episode_index"),
        ({"my_episode_sizes": np.array(LENGTHS)}, "episode_lengths"),
        ({"lens": np.array(LENGTHS)}, "episode_lengths"),
        ({"traj_stops": np.cumsum(LENGTHS)}, "episode_ends"),
        ({"info/TimeLimit.truncated": END}, "truncated"),
    ],
)
def test_a_column_of_ends_that_is_not_read_is_refused_with_its_map(
    columns: dict[str, Any], role: str, tmp_path: Path
) -> None:
    source = write(tmp_path / "run.h5", columns)
    path = list(columns)[-1]
    with pytest.raises(InputError) as caught:
        scan_sources(trajectory(), [source])
    assert "could divide the 12 steps into 3 episodes" in str(caught.value)
    expected = "episode_index" if role == "is_number" else role
    assert f"--map {expected}={path}" in str(caught.value)
    assert check_fixes(caught.value, source, tmp_path) == [LENGTHS, [STEPS]]
    unistore.export(tmp_path / "0.zarr", tmp_path / "again")
    again, options = tmp_path / "again/run.h5", {"map": {expected: path}}
    unistore.convert(again, tmp_path / "again.zarr", "trajectory", **options)
    assert lengths(tmp_path / "again.zarr") == LENGTHS


def test_columns_whose_names_only_resemble_ends_do_not_cut_episodes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    columns = {
        "episode_step": np.arange(STEPS),
        "episode_return": np.repeat([0, 1, 2, 3], 3),
        "episode_success": END,
        "end_effector_closed": END,
        "stage": NUMBER,
        "infos/episode_reward": rng.normal(size=STEPS),
        "episode_id": np.full(STEPS, 4),
        "is_first": np.arange(STEPS) == 0,
    }
    source = write(tmp_path / "run.h5", columns)
    unistore.convert(source, tmp_path / "out.zarr", "trajectory")
    assert lengths(tmp_path / "out.zarr") == [STEPS]
    both = write(tmp_path / "both.h5", {"timeouts": END, "my_done": np.arange(STEPS) % 2, "stage_id": NUMBER})
    unistore.convert(both, tmp_path / "both.zarr", "trajectory")
    assert lengths(tmp_path / "both.zarr") == LENGTHS


def test_an_episode_a_file_is_divided_where_its_columns_say_so(tmp_path: Path) -> None:
    path = tmp_path / "episode_0.h5"
    with h5py.File(path, "w") as file:
        file["action"], file["observations/qpos"] = (
            np.zeros((STEPS, 2)),
            np.arange(STEPS * 2.0).reshape(-1, 2),
        )
        file["episode_index"] = NUMBER
        file.attrs["sim"] = True
    unistore.convert(path, tmp_path / "out.zarr", "trajectory")
    assert lengths(tmp_path / "out.zarr") == LENGTHS
    assert unistore.verify(tmp_path / "out.zarr", against=path).ok
    with h5py.File(path, "r+") as file:
        file["episode_index"][...] = 5
    unistore.convert(path, tmp_path / "one.zarr", "trajectory")
    assert lengths(tmp_path / "one.zarr") == [STEPS]


def test_more_ends_than_attributes_hold_are_read(tmp_path: Path) -> None:
    steps = 3000
    arrays = {
        "observations": np.zeros((steps, 1)),
        "actions": np.zeros((steps, 1)),
        "rewards": np.zeros(steps),
    }
    with h5py.File(tmp_path / "run.h5", "w") as file:
        for name, values in arrays.items():
            file[name] = values
        file["episode_ends"] = np.arange(3, steps + 1, 3)
    unistore.convert(tmp_path / "run.h5", tmp_path / "out.zarr", "trajectory")
    assert lengths(tmp_path / "out.zarr") == [3] * 1000
    unistore.export(tmp_path / "out.zarr", tmp_path / "again")
    with h5py.File(tmp_path / "again/run.h5") as file:
        assert np.array_equal(file["episode_ends"], np.arange(3, steps + 1, 3))
