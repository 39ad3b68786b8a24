"""Options of every command, completion, repeated commands, and what an interrupt leaves on a terminal."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support.programs import call
from unistore.cli.main import cli

DATA = Path(__file__).parents[2] / "data"


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "arrays").mkdir()
    np.savez(tmp_path / "arrays" / "a.npz", data=np.arange(40.0).reshape(20, 2), label=np.arange(20))
    return tmp_path / "arrays" / "a.npz"


@pytest.mark.parametrize("where", ["before", "behind"])
def test_quiet_prints_problems_alone(source: Path, capfd: pytest.CaptureFixture[str], where: str) -> None:
    command = ["convert", "arrays", "a.zarr"]
    assert call(*(["-q", *command] if where == "before" else [*command, "-q"])) == 0
    assert call("verify", "a.zarr", "--quiet") == 0
    assert capfd.readouterr() == ("", "")
    (Path("a.zarr") / "zarr.json").write_text("{}")
    assert call("-q", "verify", "a.zarr") != 0
    printed = capfd.readouterr()
    assert printed.out + printed.err


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_completion_prints_a_script_that_completes_commands(
    capfd: pytest.CaptureFixture[str], shell: str
) -> None:
    assert call("completion", shell) == 0
    script = capfd.readouterr().out
    assert "_UNISTORE_COMPLETE" in script
    if shell == "bash":
        subprocess.run(["bash", "-n", "-c", script], check=True)
    word = "ins" if shell == "fish" else "1"
    asked = {"_UNISTORE_COMPLETE": f"{shell}_complete", "COMP_WORDS": "unistore ins", "COMP_CWORD": word}
    done = subprocess.run(
        [sys.executable, "-c", "from unistore.cli.main import main; main([])"],
        env={**os.environ, **asked},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "inspect" in done.stdout


def test_a_finished_conversion_repeated_is_up_to_date(
    source: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = ["convert", "arrays", "a.zarr"]
    Path("arrays/.#notes.txt").symlink_to("somebody@host.1234")  # the lock of an editor, which leads nowhere
    assert call(*command) == 0
    before = (Path("a.zarr") / "zarr.json").stat().st_ctime_ns
    capfd.readouterr()
    assert call(*command) == 0
    assert "a.zarr: up to date" in capfd.readouterr().out
    assert call(*command, "--json") == 0
    assert json.loads(capfd.readouterr().out) == {"destination": "a.zarr", "up_to_date": True}
    assert (Path("a.zarr") / "zarr.json").stat().st_ctime_ns == before
    assert call(*command, "--codec", "small") == 2
    assert call(*command, "--split", "train=1.0") == 2
    os.utime(source, ns=(1, 1))  # the status change time is of now, whatever the modification time says
    assert call(*command) == 2
    assert "a finished store exists here" in capfd.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ("ct", "ct/totalseg_b_hu.npy", "--window", "lung"),
        ("point-cloud", "pointcloud/thin_b.h5", "--voxel-size", "20"),
        ("spike", "spike/reds_frames_140_162.dat"),
        ("trajectory", "trajectory/robosuite100_door_panda_demo.hdf5"),
    ],
    ids=lambda words: words[0],
)
def test_every_family_is_up_to_date_when_repeated(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    """What is found in the values of sources, such as a layout, is recorded, and is no option."""
    family, source, *options = words
    command = ["convert", family, str(DATA / source), str(tmp_path / "a.zarr"), *options]
    assert call(*command) == 0
    capfd.readouterr()
    assert call(*command) == 0
    assert "up to date" in capfd.readouterr().out


@pytest.mark.parametrize("name", ["doctor", "export", "inspect", "verify"])
def test_examples_in_the_help_can_be_typed(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert call(name, "--help") == 0
    examples = re.findall(rf"^ +(unistore {name} .*)$", capfd.readouterr().out, re.MULTILINE)
    assert len(examples) >= 2
    known = {"--help"}
    for parameter in cli.commands[name].params:
        known |= {*parameter.opts, *parameter.secondary_opts}
    for example in examples:
        assert set(re.findall(r"--[a-z-]+", example)) <= known


@pytest.mark.parametrize("name", ["", *cli.commands])
def test_help_fits_80_columns(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert call(*filter(None, [name]), "--help") == 0
    assert max(map(len, capfd.readouterr().out.splitlines())) <= 80


def test_an_error_ends_with_commands_that_explain_it(source: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert call("convert", "ct", "arrays", "a.zarr") == 2
    assert capfd.readouterr().err.splitlines()[-1] == "more: unistore explain family"


def test_the_command_for_another_family_has_the_destination_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("clouds").mkdir()
    shutil.copy(DATA / "pointcloud" / "thin_a.h5", "clouds")
    assert call("convert", "ct", "clouds", "my store.zarr", "--json") == 2
    (problem,) = json.loads(capfd.readouterr().out)["problems"]
    words = problem["fixes"][0]["command"]
    assert words[-3:] == ["point-cloud", "clouds", "my store.zarr"]


@pytest.mark.parametrize("name", ["CorruptionError", "InputError", "WorkerDiedError"])
def test_explain_leads_from_an_exception_to_its_kinds(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert call("explain", name) == 0
    printed = capfd.readouterr().out
    assert printed.startswith(f"{name}\n\n")
    named = re.findall(r"unistore explain ([a-z-]+)", printed)
    assert ("checksum" in named) == (name == "CorruptionError")
    for kind in named:
        assert call("explain", kind) == 0
    capfd.readouterr()
    assert call("explain", name, "--json") == 0
    assert json.loads(capfd.readouterr().out)[name] in printed


def test_explain_prints_and_lists_the_kinds_of_errors(capfd: pytest.CaptureFixture[str]) -> None:
    assert call("explain", "truncated") == 0
    printed = capfd.readouterr().out
    assert printed.startswith("truncated\n\n")
    assert "Fix: " in printed
    assert "##" not in printed
    assert call("explain") == 0
    listed = capfd.readouterr().out
    assert len(listed.splitlines()) > 70
    assert call("explain", "unknown-size") == 0
    assert "two-families" in listed
    assert call("explain", "trunkated") == 2
    assert "Did you mean truncated?" in capfd.readouterr().err
    assert call("explain", "--json") == 0
    texts = json.loads(capfd.readouterr().out)
    assert len(texts) == len(listed.splitlines())
    assert all("Fix: " in text and "](" not in text for text in texts.values())
