"""The family reads episodes from any format of named arrays: here from ``.npz``."""

from __future__ import annotations

from pathlib import Path

import cv2
import h5py
import numpy as np
import pytest
import zarr

from unistore import verify
from unistore.conversion.convert import convert
from unistore.converters.trajectory.converter import converter as trajectory
from unistore.converters.trajectory.family import Trajectory

RANDOM = np.random.default_rng(23)
Written = dict[str, dict[str, np.ndarray]]
"""Arrays by file, then by member."""


@pytest.fixture(autouse=True)
def taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trajectory, "formats", ("hdf5", "npz"))


def write(path: Path, steps: int, **more: np.ndarray) -> dict[str, np.ndarray]:
    path.parent.mkdir(parents=True, exist_ok=True)
    state = RANDOM.normal(size=(steps + 1, 3)).astype(">f4")
    arrays = {
        "action": RANDOM.normal(size=(steps, 2)),
        "observations/qpos": state[:-1],
        "next_observations/qpos": state[1:],
        "observations/images/top": RANDOM.integers(0, 256, (steps, 3, 20, 24), np.uint8),
        "observations/nothing": np.empty((steps, 0)),
        "gain": np.array(steps / 2),
        **more,
    }
    np.savez(path, **arrays)
    return arrays


@pytest.fixture
def episodes(tmp_path: Path) -> tuple[Path, Written]:
    """A folder of three episodes, and what each of them holds."""
    folder = tmp_path / "in"
    return folder, {f"ep_{number}": write(folder / f"ep_{number}.npz", 4 + number) for number in (2, 3, 10)}


def test_converted(episodes: tuple[Path, Written], tmp_path: Path, check_contract) -> None:
    folder, written = episodes
    parts = list(written.values())
    stops = np.cumsum([len(part["action"]) for part in parts])
    final = np.stack([part["next_observations/qpos"][-1] for part in parts]).astype("<f4")
    top = np.concatenate([part["observations/images/top"].transpose(0, 2, 3, 1) for part in parts])
    oracle = {
        "steps/action": np.concatenate([part["action"] for part in parts]),
        "steps/observation/qpos": np.concatenate([part["observations/qpos"] for part in parts]).astype("<f4"),
        "steps/observation/images/top": top,
        "episodes/final_observation/qpos": final,
        "steps/truncated": np.isin(np.arange(stops[-1]), stops - 1),
        "episodes/offsets": np.concatenate([[0], stops]),
    }
    converted = check_contract(trajectory(), [folder], oracle)
    assert any(note.startswith("act: 3 episodes, 27 steps") for note in converted.scan.notes)
    assert bytes(converted.arrays["episodes/attributes/data"]) == b'{"gain": 3.0}{"gain": 3.5}{"gain": 7.0}'
    convert(folder, tmp_path / "store", image_size=16)
    small = [cv2.resize(image, (16, 16), interpolation=cv2.INTER_LINEAR) for image in top]
    stored = zarr.open_array(tmp_path / "store" / "steps/observation/images/top_16", mode="r")[...]
    np.testing.assert_array_equal(stored, np.stack(small))


def test_verified_against_the_files(episodes: tuple[Path, Written], tmp_path: Path) -> None:
    folder, written = episodes
    convert(folder, tmp_path / "store")
    verified = verify(tmp_path / "store", against=[folder])
    assert verified.problems == ()
    assert verified.receipt is not None
    names = ("action", "observations/qpos", "next_observations/qpos", "observations/images/top")
    assert verified.receipt.values == sum(part[name].size for part in written.values() for name in names)


def test_files_of_two_formats_and_one_layout_are_one_store(tmp_path: Path, check_contract) -> None:
    member = write(tmp_path / "a.npz", 3)
    with h5py.File(tmp_path / "b.h5", "w") as file:
        for name, values in member.items():
            file[name] = values
    converted = check_contract(
        trajectory(), [tmp_path], {"steps/action": np.concatenate([member["action"]] * 2)}
    )
    assert [source.detail.formats for source in converted.scan.sources] == [("npz",), ("hdf5",)]
