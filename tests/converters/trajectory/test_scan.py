"""What each file is taken for, and what its scan gives: alone, in any order, in any process."""

from __future__ import annotations

import pickle
import tracemalloc
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import h5py
import numpy as np
import pytest

from tests.support.family_converters import trajectory
from unistore.converters.adapter.converter import Converter
from unistore.converters.claims import Claim
from unistore.converters.common.exclusion import Exclusion
from unistore.converters.files.paths import list_files
from unistore.converters.formats.hdf5 import HDF5Dataset, OpenedHdf5
from unistore.converters.scan_types import Candidate, Scanned, SourcePart
from unistore.converters.source_scan import scan_sources
from unistore.errors import InputError, Problem


def write(path: Path, **datasets) -> Path:
    """Synthetic file: ``data__demo_0__actions=…`` is dataset ``data/demo_0/actions``."""
    with h5py.File(path, "w") as file:
        for name, values in datasets.items():
            file[name.replace("__", "/")] = values
    return path


def look(path: Path) -> Claim:
    with Candidate(path, [path.parent]) as file:
        return trajectory().look(file)


def parts_of(converter: Converter, folder: Path) -> list[SourcePart]:
    return list(converter.find(list_files([folder]), Exclusion(converter.exclude)).parts)


# Look -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "datasets",
    [
        {"data": np.ones((2, 2)), "label": np.ones(2)},
        {"data__x": np.ones(2), "data__y": np.ones(2), "segments__segment_0000__indices": np.ones(2)},
        {"actions": np.ones((2, 2)), "label": np.ones(2)},
        {},
    ],
)
def test_other_hdf5_files_are_left_out(tmp_path: Path, datasets: dict) -> None:
    verdict = look(write(tmp_path / "a.h5", **datasets))
    assert verdict.certainty == "no"
    assert verdict.reason.startswith(
        "contains neither episodes as groups of data/, nor episodes as groups of the root"
    )


# Scan -----------------------------------------------------------------------------------------------------


def robomimic(folder: Path) -> None:
    for number in range(3):
        demos = {f"data__demo_{k}__actions": np.full((k + 2, 3), number) for k in range(12)}
        write(folder / f"{number}.h5", **demos, mask__train=np.array(["demo_1", "demo_9", "demo_99"], "S"))
    with h5py.File(folder / "1.h5", "r+") as file:
        file["data/demo_4/rewards"] = np.ones(5)


def act(folder: Path) -> None:
    for number in range(3):
        write(
            folder / f"episode_{number}.h5",
            action=np.ones((4, 2)),
            observations__qpos=np.ones((4 + number // 2, 2)),
        )


def d4rl(folder: Path) -> None:
    for number in range(2):
        ends = np.arange(10) % 4 == 3
        write(
            folder / f"{number}.h5", observations=np.ones((10, 2)), actions=np.ones((10, 1)), terminals=ends
        )


def outcome(converter: Converter, part: SourcePart) -> Scanned | tuple[str, ...]:
    try:
        return converter.scan(part)
    except InputError as error:
        return tuple(map(str, error.problems))


def test_a_scan_is_the_same_in_any_process_and_order(tmp_path: Path) -> None:
    converter = trajectory(exclude=("0.h5: data/demo_3",))
    parts: list[SourcePart] = []
    for make in (robomimic, act, d4rl):
        folder = tmp_path / make.__name__
        folder.mkdir()
        make(folder)
        parts += parts_of(converter, folder)
    here = [outcome(converter, part) for part in parts]
    with ProcessPoolExecutor(1, get_context("forkserver")) as pool:
        there = list(pool.map(outcome, [converter] * len(parts), reversed(parts)))
    assert there[::-1] == here
    assert pickle.loads(pickle.dumps(here)) == here


def test_a_scan_returns_sound_episodes_and_a_problem_for_each_other(tmp_path: Path) -> None:
    robomimic(tmp_path)
    converter = trajectory(exclude=("1.h5: data/demo_3", "1.h5: data/demo_77"))
    _, part, _ = parts_of(converter, tmp_path)
    found = converter.scan(part)
    kept = [k for k in range(12) if k not in (3, 4)]
    assert [(one.name, one.length) for one in found.index.episodes] == [(f"demo_{k}", k + 2) for k in kept]
    assert found.index.masks == {"train": (1, 7)}
    assert found.excluded == ("1.h5: data/demo_3",)
    (problem,) = found.problems
    assert problem.source == "1.h5: data/demo_4"
    assert "different numbers of steps" in problem.message
    assert any("lists episodes that the file does not have: demo_99" in note for note in found.notes)


def test_an_episode_that_cannot_be_looked_at_can_be_left_out_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    robomimic(tmp_path)
    plain = HDF5Dataset.problems

    def failing(self: HDF5Dataset, *, as_objects: bool = False) -> Sequence[Problem]:
        if "demo_7/" in self.location.dataset:
            raise RuntimeError("bad heap")
        return plain(self, as_objects=as_objects)

    monkeypatch.setattr(HDF5Dataset, "problems", failing)
    found = trajectory().scan(parts_of(trajectory(), tmp_path)[0])
    names = [one.name for one in found.index.episodes]
    assert "demo_7" not in names
    assert len(names) == 11
    (problem,) = found.problems
    assert (problem.location, problem.source) == ("0.h5: data/demo_7", "0.h5: data/demo_7")
    assert "bad heap" in problem.message


def test_a_scan_of_many_equal_episodes_is_small(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for k in range(100):
            for name in ("actions", "rewards", "obs/eef", "obs/gripper", "obs/joints"):
                file[f"data/demo_{k}/{name}"] = np.ones((3, 2))
    converter = trajectory()
    (part,) = parts_of(converter, tmp_path)
    found = converter.scan(part)
    assert len(found.index.episodes) == 100
    assert len(pickle.dumps(found)) < 100 * 100


def test_rows_are_read_without_listing_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan lists all groups of a file once. Every reading of rows would take as long again."""
    actions = np.random.default_rng(0).random((9, 7))
    observed = np.arange(18.0).reshape(9, 2)
    write(tmp_path / "a.h5", data__demo_0__actions=actions, data__demo_0__obs__eef=observed)
    converter = trajectory()
    scan = scan_sources(converter, [tmp_path])
    (steps,) = [table for table in scan.tables if table.name == "steps"]
    rows = {key: np.zeros((4, *form.row_shape), form.dtype) for key, form in steps.columns().items()}
    listed: list[str] = []
    monkeypatch.setattr(OpenedHdf5, "tree", property(lambda opened: listed.append(opened.name)))
    converter.read(scan, "steps", 0, 3, 7, rows)
    assert listed == []
    assert np.array_equal(rows["action"], actions[3:7])
    assert np.array_equal(rows["observation/eef"], observed[3:7])


def test_joined_episodes_are_scanned_in_blocks(tmp_path: Path) -> None:
    steps = 200_000
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["observations"] = np.zeros((steps, 2), "f4")
        file["actions"] = np.zeros((steps, 100), "f4")
        file["rewards"] = np.zeros(steps, "f4")
        file["terminals"] = np.arange(steps) % 1000 == 999
    tracemalloc.start()
    try:
        scan = scan_sources(trajectory(), [tmp_path])
        assert tracemalloc.get_traced_memory()[1] < 48 << 20 < steps * 400
    finally:
        tracemalloc.stop()
    assert any("a.hdf5: 200 episodes by terminals" in note for note in scan.notes)
