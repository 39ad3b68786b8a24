"""Trajectory files as they break: each its own clear error, all of them together."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from tests.support.converter_contract import check_contract, convert_in_memory
from tests.support.family_converters import trajectory
from tests.support.trajectories import problems_of
from unistore.converters.source_scan import scan_sources
from unistore.errors import InputError


def robomimic(path: Path, demos: int = 2) -> Path:
    with h5py.File(path, "w") as file:
        for k in range(demos):
            file[f"data/demo_{k}/actions"] = np.ones((6, 3))
            file[f"data/demo_{k}/obs/eef"] = np.ones((6, 3))
    return path


def test_a_problem_keeps_file_and_dataset_apart_if_their_names_contain_colons(tmp_path: Path) -> None:
    with h5py.File(robomimic(tmp_path / "run: 1.h5", demos=1), "r+") as file:
        file["data/demo_0/obs/__a: b"] = np.ones((6, 2))
    with pytest.raises(InputError, match="cannot be stored as") as caught:
        scan_sources(trajectory(), [tmp_path / "run: 1.h5"])
    (problem,) = caught.value.problems
    assert (problem.file, problem.dataset) == ("run: 1.h5", "data/demo_0/obs/__a: b")
    assert problem.advice.startswith("add --map 'obs_a_b_2=obs/__a: b'")
    assert problem.source == "run: 1.h5: data/demo_0"


def test_datasets_of_different_lengths_are_one_problem_with_a_table(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["observations/left_image"] = np.zeros((694, 4, 4, 3), np.uint8)
        file["observations/joint"] = np.zeros((649, 16))
        file["actions"] = np.zeros((694, 4))
        file["rewards"] = np.zeros(170)
        file["terminals"] = np.zeros(163)
    message = problems_of(tmp_path / "a.h5")
    assert message.count("different numbers of steps") == 1
    for name, rows in (
        ("left_image", 694),
        ("joint", 649),
        ("actions", 694),
        ("rewards", 170),
        ("terminals", 163),
    ):
        assert any(name in line and str(rows) in line for line in message.splitlines())
    assert "--ignore" in message


def test_an_episode_is_left_out_by_name(tmp_path: Path) -> None:
    with h5py.File(robomimic(tmp_path / "a.h5", 3), "r+") as file:
        del file["data/demo_1/obs/eef"]
        file["data/demo_1/obs/eef"] = np.ones((5, 3))
        file["mask/train"] = np.array(["demo_0", "demo_1"], "S")
    assert "data/demo_1" in problems_of(tmp_path / "a.h5")
    converted = check_contract(trajectory(exclude=("a.h5: data/demo_1",)), [tmp_path / "a.h5"])
    assert converted.arrays["episodes/offsets"].tolist() == [0, 6, 12]
    assert converted.finalized.splits.tolist() == [0, 1]
    assert "skipped: a.h5: data/demo_1" in converted.scan.notes


@pytest.mark.parametrize(("dtype", "value"), [(h5py.vlen_dtype(np.complex64), [1.0]), ("c16", 1j)])
def test_a_dtype_that_cannot_be_stored_is_a_problem(tmp_path: Path, dtype, value) -> None:
    with h5py.File(robomimic(tmp_path / "a.h5"), "r+") as file:
        file.create_dataset("data/demo_0/obs/strange", (6,), dtype)[0] = value
    message = problems_of(tmp_path / "a.h5")
    assert "data/demo_0/obs/strange: " in message


@pytest.mark.parametrize("name", ["next_valid", "obs/...", "__private", "a/zarr.json"])
def test_a_name_that_cannot_be_stored_is_a_problem_that_offers_map(tmp_path: Path, name: str) -> None:
    with h5py.File(robomimic(tmp_path / "a.h5"), "r+") as file:
        file[f"data/demo_0/{name}"] = np.ones((6, 3))
    message = problems_of(tmp_path / "a.h5")
    assert "cannot be stored as" in message
    assert "--map" in message


def test_two_datasets_of_one_role_are_a_problem(tmp_path: Path) -> None:
    with h5py.File(robomimic(tmp_path / "a.h5"), "r+") as file:
        file["data/demo_0/action"] = np.ones((6, 3))
    assert "would be stored as 'action'" in problems_of(tmp_path / "a.h5")
    scan_sources(trajectory(ignore=("action",)), [tmp_path / "a.h5"])


def test_flags_other_than_0_and_1_are_a_problem_that_names_the_row(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "flat.h5", "w") as file:
        file["actions"] = np.ones((5, 2))
        file["terminals"] = [0, 0, 0.5, 0, 1]
    assert "flat.h5: terminals: row 2 is 0.5, expected 0 or 1" in problems_of(tmp_path / "flat.h5")
    with h5py.File(robomimic(tmp_path / "demo.h5", 1), "r+") as file:
        file["data/demo_0/dones"] = [0, 0, 0, 0, 2, 1]
    with pytest.raises(InputError, match="data/demo_0/dones: row 4 is 2"):
        convert_in_memory(trajectory(), [tmp_path / "demo.h5"])


def test_files_of_different_layouts_are_a_problem(tmp_path: Path) -> None:
    robomimic(tmp_path / "a.h5")
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["actions"], file["rewards"] = np.ones((5, 2)), np.ones(5)
    assert "have different layouts: a.h5 is robomimic, b.h5 is flat" in problems_of(tmp_path)


def test_columns_that_differ_between_episodes_are_a_problem(tmp_path: Path) -> None:
    with h5py.File(robomimic(tmp_path / "a.h5", 4), "r+") as file:
        file["data/demo_2/obs/extra"] = np.ones((6, 2))
    message = problems_of(tmp_path / "a.h5")
    assert "a.h5: demo_0 (+2)" in message
    assert "a.h5: demo_2" in message
    assert "observation/extra" in message


def test_episodes_without_steps_are_left_out(tmp_path: Path) -> None:
    with h5py.File(robomimic(tmp_path / "a.h5"), "r+") as file:
        file.create_group("data/demo_7")
        file["data/demo_8/actions"] = np.ones((0, 3))
    converted = check_contract(trajectory(), [tmp_path / "a.h5"])
    assert converted.finalized.samples == 2
    assert len([note for note in converted.scan.notes if "has no steps" in note]) == 2


def test_a_file_of_only_empty_episodes_is_a_problem(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["data/demo_8/actions"] = np.ones((0, 3))
    assert "there are no episodes" in problems_of(tmp_path / "a.h5")


def test_a_large_array_beside_the_columns_must_match_too(tmp_path: Path) -> None:
    with h5py.File(robomimic(tmp_path / "a.h5", 3), "r+") as file:
        for k in range(3):
            file[f"data/demo_{k}/right_dpos"] = np.ones((6 if k else 700, 3))
    assert "right_dpos  700" in problems_of(tmp_path / "a.h5")
    converted = check_contract(trajectory(exclude=("a.h5: data/demo_0",)), [tmp_path / "a.h5"])
    assert converted.arrays["steps/right_dpos"].shape == (12, 3)


def test_links_that_leave_the_sources_are_problems(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    robomimic(tmp_path / "secret.h5")
    robomimic(tmp_path / "in" / "other.h5")
    with h5py.File(robomimic(tmp_path / "in" / "a.h5", 1), "r+") as file:
        file["data/demo_1"] = h5py.ExternalLink("../secret.h5", "/data/demo_0")
        file["data/demo_0/obs/more"] = h5py.ExternalLink(str(tmp_path / "secret.h5"), "/data/demo_0/actions")
    message = problems_of(tmp_path / "in")
    assert message.count("outside the given paths") == 2


def test_images_of_different_sizes_are_a_problem(tmp_path: Path) -> None:
    for k, size in enumerate((48, 64)):
        with h5py.File(tmp_path / f"episode_{k}.h5", "w") as file:
            file["action"] = np.ones((2, 2))
            file["observations/images/top"] = np.zeros((2, size, size, 3), np.uint8)
    assert "uint8 (48, 48, 3)" in problems_of(tmp_path)
