"""What `inspect` prints to convert files with problems: a command that helps, or says what is missing."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pytest

import unistore
from tests.support.programs import call
from unistore.errors import AddOptions, GiveOptions, Problem

# pixels of no camera that is known: 7 packed frames of 123 x 400
SIZE = {"--height": "123", "--width": "400"}


@pytest.fixture
def recordings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """Return packed frames (7, 123, 50) u1 of the stream that is written to a folder."""
    monkeypatch.chdir(tmp_path)
    Path("in").mkdir()
    frames = np.random.default_rng(0).integers(2, 255, (7, 123, 50), np.uint8)
    frames.tofile("in/a.dat")
    return frames


def test_the_size_of_the_camera_is_asked_for(
    recordings: np.ndarray, capfd: pytest.CaptureFixture[str]
) -> None:
    """The bare command would end in the same problem."""
    assert call("inspect", "in") == 2
    said = capfd.readouterr().out
    command = "unistore convert spike in in.zarr --height HEIGHT --width WIDTH"
    assert command in said
    assert said.count("unistore convert spike") == 1
    for name, value in SIZE.items():
        command = command.replace(name.strip("-").upper(), value)
    assert call(*shlex.split(command)[1:]) == 0
    stored = unistore.Store("in.zarr").array("spikes/bits").read()
    # rows of a store begin at the top, those of a stream at the bottom
    np.testing.assert_array_equal(stored, recordings[:, ::-1])


def test_the_fix_in_json_names_its_options_as_a_list(
    recordings: np.ndarray, capfd: pytest.CaptureFixture[str]
) -> None:
    assert recordings.nbytes == Path("in/a.dat").stat().st_size
    assert call("convert", "spike", "in", "a.zarr", "--json") == 2
    (document,) = json.loads(capfd.readouterr().out)["problems"]
    assert document["fixes"] == [{"give": ["--height", "--width"], "purpose": "of the camera"}]
    assert document["fix"] == "give --height and --width of the camera"
    assert Problem.from_json(document).fixes == (GiveOptions(("--height", "--width"), "of the camera"),)
    assert GiveOptions(("--a",)) != AddOptions(("--a", "A"))
