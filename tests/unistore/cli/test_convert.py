"""``unistore convert`` as it is typed: wiring, help, mistakes, and one conversion of each way for real."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import h5py
import numpy as np
import pytest

import unistore
from tests.support.cases import DATA
from tests.support.programs import call
from unistore.cli.main import cli
from unistore.conversion.settings import Settings
from unistore.converters.registry import get_family

COMMAND = [sys.executable, "-m", "unistore"]
FAMILIES = ("ct", "point-cloud", "rows", "spike", "trajectory")


def params(family: str) -> list[click.Parameter]:
    group = cli.commands["convert"]
    assert isinstance(group, click.Group)
    command = group.get_command(click.Context(group), family)
    assert command is not None
    return command.params


@pytest.fixture
def arrays(tmp_path: Path) -> Path:
    folder = tmp_path / "arrays"
    folder.mkdir()
    np.savez(folder / "a.npz", data=np.arange(40.0).reshape(20, 2), label=np.arange(20))
    return folder


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the command line asks the converter for."""
    calls: list[Any] = []

    class Report:
        skipped = ()

    def convert_with(
        settings: Settings, paths: Any, destination: str, family: str, options: Any, progress: Any
    ) -> Any:
        assert progress is not None
        calls.append(([str(path) for path in paths], destination, family, vars(settings) | options))
        return Report()

    monkeypatch.setattr("unistore.conversion.convert.convert_with", convert_with)
    monkeypatch.setattr("unistore.cli.convert.report_text", lambda _: "done")
    return calls


def test_typed_options_reach_their_converter(asked: list[Any]) -> None:
    assert call("convert", "ct", "v", "out.zarr", "--window", "lung", "--window", "mine:400:50") == 0
    assert asked[-1][3]["window"] == ("lung", "mine:400:50")
    assert (
        call("convert", "spike", "r", "out.zarr", "--voxel-bins", "5", "--voxel-bins", "10", "--no-flip") == 0
    )
    assert (asked[-1][3]["voxel_bins"], asked[-1][3]["flip"]) == ((5, 10), False)
    assert call("convert", "rows", "r", "out.zarr", "--map", "x=data", "--exclude", "b.npz") == 0
    assert (asked[-1][3]["map"], asked[-1][3]["exclude"]) == ({"x": "data"}, ("b.npz",))
    assert call("convert", "trajectory", "d", "out.zarr", "--image-size", "224", "--memory", "2GB") == 0
    assert (asked[-1][3]["image_size"], asked[-1][3]["memory"]) == (224, "2GB")


@pytest.mark.parametrize("family", FAMILIES)
def test_every_option_of_a_converter_can_be_typed(family: str) -> None:
    options = get_family(family)
    assert {field.name for field in dataclasses.fields(options)} <= {each.name for each in params(family)}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["convert", "pointclod", "a", "out.zarr"],
            "neither a family nor a file or folder: did you mean point-cloud?",
        ),
        (["convert", "nowhere/a", "out.zarr"], "nowhere/a: no such file or folder"),
        (
            ["convert", "arrays"],
            "sources and a destination are needed: unistore convert [FAMILY] SRC... DST",
        ),
        (
            ["convert", "rows", "arrays"],
            "sources and a destination are needed: unistore convert rows SRC... DST",
        ),
        (
            ["convert", "arrays", "o.zarr", "--voxel-size", "1"],
            "a.npz: is not a point cloud of a known layout",
        ),
        (
            ["convert", "arrays", "o.zarr", "--voxel-size", "1", "--window", "lung"],
            "no family has all of these options: --voxel-size is an option of point-cloud; --window is an",
        ),
        (
            ["convert", "arrays", "o.zarr", "--map", "x=y"],
            "a.npz: y: there is no such array; the arrays are data, label",
        ),
        (["convert", "arrays", "o.zarr", "--colour"], "'--colour' requires an argument"),
        (["convert", "arrays", "o.zarr", "--nonsense"], "No such option '--nonsense'"),
        (["convert", "--ct", "arrays", "o.zarr"], "No such option '--ct'"),
        (["convert", "rows", "arrays", "o.zarr", "--codec", "fastest"], "is not one of"),
        (
            ["convert", "rows", "arrays", "o.zarr", "--scheduler", "nonsense"],
            "--scheduler nonsense: is not an address",
        ),
        (["convert", "rows", "arrays", "o.zarr", "--map", "x"], "expected NAME=DATASET"),
        (
            ["convert", "spike", "arrays", "o.zarr", "--voxel-bins", "five"],
            "'--voxel-bins': 'five' is not a valid integer",
        ),
        (["covert", "arrays", "o.zarr"], "Did you mean 'convert'?"),
    ],
)
def test_a_mistyped_command_suggests_the_right_one(
    arrays: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(arrays.parent)
    assert call(*arguments) == 2
    shown = " ".join(capsys.readouterr().err.split())
    assert said in shown
    assert "detect" not in shown
    assert sorted(path.name for path in arrays.parent.iterdir()) == ["arrays"]


def test_convert_runs_with_dry_run_json_and_overwrite(
    arrays: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = arrays.parent / "o.zarr"
    assert call("convert", str(arrays), str(store), "--dry-run", "--json") == 0
    assert json.loads(capsys.readouterr().out)["family"] == "rows"
    assert not store.exists()
    assert call("convert", str(arrays), str(store), "--json") == 0
    assert json.loads(capsys.readouterr().out)["samples"] == 20
    assert call("convert", str(arrays), str(store), "--codec", "small") == 2
    assert "the same sources with other options" in capsys.readouterr().err
    assert call("convert", str(arrays), str(store), "--overwrite") == 0
    assert "next: unistore inspect" in capsys.readouterr().out
    assert len(unistore.Dataset(store)) == 20


@pytest.mark.parametrize("family", ["", *FAMILIES])
def test_an_empty_folder_is_an_error_for_every_family(
    family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    assert (
        call("convert", *([family] if family else []), str(tmp_path / "empty"), str(tmp_path / "o.zarr")) == 2
    )
    assert "empty: the folder is empty.\n  fix: check the path" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


def test_a_closed_pipe_ends_a_command_without_a_traceback(arrays: Path) -> None:
    """``unistore inspect … | head``: no traceback."""
    process = subprocess.Popen(
        [*COMMAND, "inspect", str(arrays), "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert process.wait() in (0, 1)
    assert errors == b""


def test_splits_are_reported_recorded_and_read_from_another_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    for number in range(12):
        np.savez(f"in/p{number // 3}_{number}.npz", x=np.arange(number + 1))
    split = ("--split", "train=0.6,val=0.4", "--split-seed", "1", "--group-by", r"p\d+")
    assert call("convert", "in", "a.zarr", *split, "--dry-run") == 0
    (note,) = re.findall(r"note: (splits of 78 samples: .*)", capfd.readouterr().out)
    assert call("convert", "in", "a.zarr", *split) == 0
    assert note in capfd.readouterr().out
    assert call("convert", "in", "a.zarr", *split) == 0
    assert "up to date" in capfd.readouterr().out
    codes, names = unistore.Store("a.zarr").splits()
    shown = unistore.inspect("a.zarr")
    for name, count in zip(names, np.bincount(codes).tolist(), strict=True):
        assert f"{name} {100 * count / 78:.3g} %" in note
        assert f"{name} {count} ({100 * count / 78:.3g} %)" in str(shown)
    assert r"--split train=0.6,val=0.4 --split-seed 1 --group-by 'p\d+'" in str(shown)
    taken = ("--split-from", "a.zarr")
    assert call("convert", "in", "b.zarr", *taken) == 0
    capfd.readouterr()
    assert call("convert", "in", "b.zarr", *taken) == 0
    assert "up to date" in capfd.readouterr().out
    assert unistore.Store("b.zarr").splits()[0].tolist() == codes.tolist()
    np.savez("in/p9_99.npz", x=np.arange(3))
    assert call("convert", "in", "c.zarr", *taken, "--json") == 2
    (problem,) = json.loads(capfd.readouterr().out)["problems"]
    assert problem["file"] == "--split-from a.zarr"
    assert problem["message"] == "does not contain p9_99.npz"
    assert call("convert", "in", "c.zarr", "--split-seed", "2") == 2
    assert "--split-seed: has no effect without --split" in capfd.readouterr().err


def test_an_exclude_that_a_fix_names_is_not_told_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p").mkdir()
    shutil.copy(DATA / "pointcloud" / "thin_a.h5", "p")
    with h5py.File("p/x.h5", "w") as file:
        file["x"] = np.zeros((4, 3))
    assert call("convert", "point-cloud", "p", "out.zarr") == 2
    printed = capfd.readouterr().err
    assert printed.count("--exclude x.h5") == 1
    assert "To skip it, add --on-error skip.\n" in printed


def test_skipping_is_offered_only_if_sources_remain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p").mkdir()
    np.save("p/a.npy", np.zeros((4, 3)))
    for name in ("b.npy", "c.npy"):
        (tmp_path / "p" / name).touch()
    assert call("convert", "rows", "p", "out.zarr") == 2
    assert "To skip them, add --on-error skip" in capfd.readouterr().err
    assert call("convert", "rows", "p", "out.zarr", "--on-error", "skip") == 3
    (tmp_path / "p" / "a.npy").unlink()
    for command in (["convert", "rows", "p"], ["convert", "p"]):
        for options in ([], ["--on-error", "skip"]):
            capfd.readouterr()
            assert call(*command, "none.zarr", *options) == 2
            assert "To skip" not in capfd.readouterr().err, "nothing would be left"


def test_skipping_is_not_offered_for_the_only_source_with_wrong_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p").mkdir()
    shutil.copy(DATA / "pointcloud" / "thin_a.h5", "p/a.h5")
    shutil.copy(DATA / "pointcloud" / "thin_a.h5", "p/b.h5")
    with h5py.File("p/b.h5", "r+") as file:
        file["data/x"][0] = np.nan
    assert call("convert", "point-cloud", "p/b.h5", "out.zarr") == 2
    assert "To skip" not in capfd.readouterr().err
    assert call("convert", "point-cloud", "p", "out.zarr") == 2
    assert "To skip it, add --on-error skip" in capfd.readouterr().err
