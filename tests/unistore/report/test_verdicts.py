"""What inspect, previews and reports say of the files under a path: taken, left out, refused."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import unistore
from tests.support.programs import call
from unistore.converters.detection import verdict_counts
from unistore.report.blocks import verdict_table
from unistore.report.text import to_text


@pytest.fixture
def mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "in it"
    (folder / "seq" / "spike").mkdir(parents=True)
    for number in range(3):
        np.save(folder / f"vol{number}.npy", np.full((4, 5, 6), number, "i2"))
        np.save(folder / "seq" / "spike" / f"{number}.npy", np.ones((4, 5, 6), "u1"))
    with h5py.File(folder / "robot.hdf5", "w") as file:
        file["data/demo_0/actions"] = np.zeros((5, 2))
        file["data/demo_0/obs/x"] = np.zeros((5, 2))
    np.savez(folder / "table.npz", a=np.arange(5))
    for name in ("README.md", "a.mp4", "b.mp4", ".hidden"):
        (folder / name).write_bytes(b"x")
    monkeypatch.chdir(tmp_path)
    return folder


def test_each_printed_command_makes_a_store_of_its_own(mixed: Path, capsys: Any) -> None:
    found = unistore.inspect("in it")
    commands = [each["command"] for each in found.details["families"]]
    assert [each["files"] for each in found.details["families"]] == [1, 3, 3]
    samples = []
    for command in commands:
        assert command in str(found)
        words = shlex.split(command)
        assert words[:2] == ["unistore", "convert"]
        assert call(*words[1:]) == 0
        samples.append(unistore.inspect(words[4]).details["samples"]["count"])
    assert samples == [1, 3, 3]
    assert "files: 1 used, 11 skipped" in capsys.readouterr().out


def test_inspect_counts_files_by_result_and_reason(mixed: Path) -> None:
    counts = {
        (each["verdict"], each["why"]): (each["files"], each["examples"])
        for each in unistore.inspect(mixed).details["verdicts"]
    }
    assert counts == {
        ("taken", "trajectory (robomimic)"): (1, ["robot.hdf5"]),
        ("taken", "spike (sequences)"): (3, ["0.npy", "1.npy", "2.npy"]),
        ("taken", "ct (files)"): (3, ["vol0.npy", "vol1.npy", "vol2.npy"]),
        ("left out", "of another family (unistore convert rows)"): (1, ["table.npz"]),
        ("left out", "documentation"): (1, ["README.md"]),
        ("left out", "MP4 video, which is not supported"): (2, ["a.mp4", "b.mp4"]),
        ("left out", "hidden"): (1, [".hidden"]),
    }


def test_a_damaged_file_is_refused_and_the_family_stays(mixed: Path) -> None:
    np.save(mixed / "vol9.npy", np.zeros((4, 5, 6), "i2"))
    (mixed / "vol9.npy").write_bytes((mixed / "vol9.npy").read_bytes()[:150])
    found = unistore.inspect(mixed).details
    assert [each["files"] for each in found["families"]] == [1, 3, 3]
    assert [each["examples"] for each in found["verdicts"] if each["verdict"] == "refused"] == [["vol9.npy"]]
    report = unistore.convert(mixed, mixed.parent / "ct.zarr", "ct", exclude=("table.npz",), on_error="skip")
    assert [each["examples"] for each in report.verdicts if each["verdict"] == "refused"] == [["vol9.npy"]]
    assert report.samples == 3


@pytest.mark.parametrize(
    ("plain", "words"),
    [
        (["tables/a/0.npy", "tables/1.npy", "left.npy"], "ct source --exclude left.npy --exclude tables"),
        ([f"scans/{number}.npy" for number in range(9)], "source"),
    ],
)
def test_a_command_leaves_folders_of_plain_arrays_out(
    plain: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in plain:
        Path("source", name).parent.mkdir(parents=True, exist_ok=True)
        np.save(Path("source", name), np.zeros((4, 5), "f4"))
    for name in ("scans/v0.npy", "scans/v1.npy"):
        Path("source", name).parent.mkdir(exist_ok=True)
        np.save(Path("source", name), np.zeros((4, 5, 6), "i2"))
    command = unistore.inspect("source").details["command"]
    first, *excluded = words.split(" --exclude ")
    expected = " ".join(
        [f"unistore convert {first} source.zarr", *(f"--exclude {name}" for name in excluded)]
    )
    assert command == expected
    assert call(*shlex.split(command)[1:], "-q") == 0
    assert unistore.inspect("source.zarr").details["sources"]["count"] == 2


@pytest.mark.parametrize("kinds", [1, 7, 30])
def test_the_table_is_short_and_fits_80_columns(kinds: int) -> None:
    verdicts = [
        {"verdict": "refused", "why": f"{number} " + "long " * 30, "files": number, "examples": ["n" * 50]}
        for number in range(1, kinds + 1)
    ]
    (block,) = verdict_table(verdicts)
    text = to_text([block])
    assert max(map(len, text.splitlines())) <= 85
    assert len(block.rows) == min(kinds, 9)
    assert sum(int(row[0]) for row in block.rows) == sum(range(kinds + 1))
    assert verdict_counts(verdicts) == f"0 used, {sum(range(kinds + 1))} failed"
    assert verdict_table([{"verdict": "taken", "why": "ct", "files": 2, "examples": []}]) == []
