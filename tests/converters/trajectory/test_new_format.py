"""A format of one module: `npz` is registered, nothing knows of it, and all that the family does works."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path

import cv2
import h5py
import numpy as np
import pytest
import zarr

import unistore
from tests.converters.trajectory import npz
from tests.detection import detect
from unistore import export, verify
from unistore.conversion.convert import convert
from unistore.converters.scan import Candidate, LeftOut, Taken
from unistore.converters.scanning import scan_sources
from unistore.converters.trajectory import layouts
from unistore.converters.trajectory.converter import TrajectoryConverter
from unistore.errors import InputError

RANDOM = np.random.default_rng(23)
Written = dict[str, dict[str, np.ndarray]]
"""Arrays by file, then by member."""


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "FORMATS", (*layouts.FORMATS, npz.Npz()))
    monkeypatch.setattr(TrajectoryConverter, "suffixes", layouts.suffixes())  # made of FORMATS on import


def write(path: Path, steps: int, **more: np.ndarray) -> dict[str, np.ndarray]:
    path.parent.mkdir(parents=True, exist_ok=True)
    state = RANDOM.normal(size=(steps + 1, 3)).astype(">f4")
    arrays = {
        "action": RANDOM.normal(size=(steps, 2)),
        "rewards": RANDOM.normal(size=(steps, 1)),
        "dones": (np.arange(steps) == steps - 1).astype("i8"),
        "obs/eef": state[:-1],
        "next_obs/eef": state[1:],
        "obs/top": RANDOM.integers(0, 256, (steps, 3, 20, 24), np.uint8),
        "obs/nothing": np.empty((steps, 0)),
        "task": np.array("lift" if steps % 2 else "push"),
        **more,
    }
    np.savez(path, **arrays)
    return arrays


def array(store: Path, name: str) -> np.ndarray:
    return np.asarray(zarr.open_array(store / name, mode="r")[...])


@pytest.fixture
def episodes(tmp_path: Path) -> tuple[Path, Written]:
    """A folder of three episodes, and what each of them holds."""
    folder = tmp_path / "in"
    return folder, {f"ep_{number}": write(folder / f"ep_{number}.npz", 4 + number) for number in (2, 3, 10)}


def test_recognised_by_content(tmp_path: Path) -> None:
    write(tmp_path / "a.npz", 3)
    found = detect([tmp_path])
    assert found is not None
    assert (found.family, found.layout) == ("trajectory", "npz")
    assert found.reason == "a.npz holds action beside obs/ in an archive"
    np.savez(tmp_path / "b.npz", action=np.ones(3))
    (tmp_path / "c.npz").write_bytes(b"PK no archive")
    converter = TrajectoryConverter()
    with Candidate(tmp_path / "a.npz", [tmp_path]) as file:
        assert converter.look(file) == Taken("npz", "holds action beside obs/ in an archive")
    with Candidate(tmp_path / "b.npz", [tmp_path]) as file:
        assert converter.look(file) == LeftOut("holds no action beside obs/ in an archive")
    with Candidate(tmp_path / "c.npz", [tmp_path]) as file, pytest.raises(InputError, match="is no archive"):
        converter.look(file)


def test_converted(episodes: tuple[Path, Written], tmp_path: Path, check_contract) -> None:
    folder, written = episodes
    parts = list(written.values())
    stops = np.cumsum([len(part["action"]) for part in parts])
    final = np.stack([part["next_obs/eef"][-1] for part in parts]).astype("<f4")
    top = np.concatenate([part["obs/top"].transpose(0, 2, 3, 1) for part in parts])
    oracle = {
        "steps/action": np.concatenate([part["action"] for part in parts]),
        "steps/reward": np.concatenate([part["rewards"][:, 0] for part in parts]),
        "steps/observation/eef": np.concatenate([part["obs/eef"] for part in parts]).astype("<f4"),
        "steps/observation/top": top,
        "episodes/final_observation/eef": final,
        "steps/terminated": np.isin(np.arange(stops[-1]), stops - 1),
        "episodes/offsets": np.concatenate([[0], stops]),
    }
    converted = check_contract(TrajectoryConverter(), [folder], oracle)
    assert any(note.startswith("npz: 3 episodes, 27 steps") for note in converted.scan.notes)
    convert(folder, tmp_path / "store", image_size=16)
    for path, values in oracle.items():
        np.testing.assert_array_equal(array(tmp_path / "store", path), values, path)
    small = [
        cv2.resize(image, (16, 16), interpolation=cv2.INTER_LINEAR)
        for image in oracle["steps/observation/top"]
    ]
    np.testing.assert_array_equal(array(tmp_path / "store", "steps/observation/top_16"), np.stack(small))
    store = unistore.Store(tmp_path / "store")
    assert store.text("episodes/name") == list(written)
    assert store.group("episodes")["source_layout"] == "npz"
    said = [json.loads(text) for text in store.text("episodes/attributes")]
    assert said == [{"members": 8, "task": str(part["task"])} for part in parts]


def test_compressed_frames_are_kept(tmp_path: Path, check_contract) -> None:
    frames = [
        cv2.imencode(".jpg", RANDOM.integers(0, 256, (16, 24, 3), np.uint8))[1].reshape(-1) for _ in range(5)
    ]
    padded = np.zeros((5, max(map(len, frames)) + 7), np.uint8)
    for row, frame in enumerate(frames):
        padded[row, : len(frame)] = frame
    write(tmp_path / "a.npz", 5, **{"obs/jpeg": padded})
    oracle = {"steps/observation/jpeg_jpeg/data": np.concatenate(frames)}
    check_contract(TrajectoryConverter(images="keep"), [tmp_path / "a.npz"], oracle)


def test_verified_against_the_files(
    episodes: tuple[Path, Written], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, written = episodes
    convert(folder, tmp_path / "store")
    verified = verify(tmp_path / "store", against=[folder])
    assert verified.problems == ()
    assert verified.receipt is not None
    taken = ("action", "rewards", "dones", "obs/eef", "next_obs/eef", "obs/top")
    assert verified.receipt.values == sum(part[name].size for part in written.values() for name in taken)
    plain = npz.NpzArray.read

    def wrong(self: npz.NpzArray, lo: int, hi: int, out: np.ndarray | None = None) -> np.ndarray:
        rows = plain(self, lo, hi, out)
        if self.location == ("ep_3.npz", "action", None):
            rows[...] += 1
        return rows

    monkeypatch.setattr(npz.NpzArray, "read", wrong)
    convert(folder, tmp_path / "wrong")
    (problem,) = verify(tmp_path / "wrong", against=[folder]).problems
    assert (problem.file, problem.dataset) == ("ep_3.npz", "action")
    assert "values differ" in problem.message


def test_read_as_samples(episodes: tuple[Path, Written], tmp_path: Path) -> None:
    folder, written = episodes
    convert(folder, tmp_path / "store")
    dataset = unistore.Dataset(tmp_path / "store")
    actions = np.concatenate([part["action"] for part in written.values()])
    assert len(dataset) == len(actions) == 27
    batch = dataset.read_batch(list(range(27)))
    np.testing.assert_array_equal(np.asarray(batch["action"]), actions)
    following = np.concatenate([part["next_obs/eef"] for part in written.values()]).astype("<f4")
    known = np.asarray(batch["next_valid"])  # not at the last steps: obs/top has no next one
    assert np.flatnonzero(~known).tolist() == [5, 12, 26]
    np.testing.assert_array_equal(np.asarray(batch["next.observation.eef"])[known], following[known])
    pixels = np.concatenate([part["obs/top"] for part in written.values()])
    np.testing.assert_array_equal(np.asarray(batch["observation.top"]), pixels)


def test_exported_as_they_were(episodes: tuple[Path, Written], tmp_path: Path) -> None:
    folder, written = episodes
    convert(folder, tmp_path / "store")
    export(tmp_path / "store", tmp_path / "out")
    for name, expected in written.items():
        with np.load(tmp_path / f"out/{name}.npz", allow_pickle=False) as found:
            assert set(found.files) == set(expected)
            for member, values in expected.items():
                if member != "dones":  # flags are given back as bytes
                    assert found[member].dtype == values.dtype, member
                np.testing.assert_array_equal(found[member], values, member)


def test_bad_files_are_refused_or_skipped(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    good = write(folder / "good.npz", 4)
    write(folder / "lengths.npz", 4, rewards=np.ones(3))
    write(folder / "cut.npz", 4)
    (folder / "cut.npz").write_bytes((folder / "cut.npz").read_bytes()[:-60])
    np.savez(folder / "other.npz", weights=np.ones(3))
    with pytest.raises(InputError) as caught:
        convert(sorted(folder.iterdir()), tmp_path / "store", "trajectory")
    found = {problem.source: problem.message for problem in caught.value.problems}
    assert sorted(found) == ["cut.npz", "lengths.npz", "other.npz"]
    assert "is no archive" in found["cut.npz"]
    assert "different numbers of steps" in found["lengths.npz"]
    assert "it holds weights; expected action beside obs/ in an archive" in found["other.npz"]
    convert(folder, tmp_path / "store", "trajectory", on_error="skip")
    np.testing.assert_array_equal(array(tmp_path / "store", "steps/action"), good["action"])


def test_files_of_two_formats_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.npz", 3)
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["action"], file["observations/qpos"] = np.ones((3, 2)), np.ones((3, 3))
    with pytest.raises(InputError, match=r"hold different layouts: a\.npz is npz, b\.h5 is act"):
        scan_sources(TrajectoryConverter(), [tmp_path])


def test_memory_and_scans_of_the_format(tmp_path: Path) -> None:
    written = write(tmp_path / "a.npz", 3)
    converter = TrajectoryConverter()
    scan = scan_sources(converter, [tmp_path])
    (source,) = scan.sources
    assert source.reading == sum(values.nbytes for values in written.values())
    again, copy = pickle.loads(pickle.dumps((converter, scan)))
    assert copy == scan
    out = {"eef": np.zeros((2, 3), "f4")}
    again.read(copy, "steps/observation", 0, 1, 3, out)
    np.testing.assert_array_equal(out["eef"], written["obs/eef"][1:])


def test_only_layouts_know_formats() -> None:
    folder = Path(layouts.__file__).parents[1]
    modules = sorted(folder.glob("*.py"))
    assert len(modules) > 12
    known = "|".join(each.name for each in layouts.FORMATS)
    wrong = re.compile(rf"import h5py|h5py\.[A-Z]|open_hdf5|open_with_h5py|['\"]({known})['\"]")
    assert [path.name for path in modules if wrong.search(path.read_text())] == []
