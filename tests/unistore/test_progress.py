"""Bars are shown where a person looks; the notebooks' test sees those of notebooks."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import unistore
from tests.waiting import wait_until
from unistore.cli.main import main
from unistore.progress import ProgressBar, duration


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def source(tmp_path: Path) -> Path:
    np.savez(tmp_path / "a.npz", data=np.zeros((30, 2)), label=np.arange(30))
    return tmp_path / "a.npz"


def test_a_script_is_silent_unless_asked(source: Path, capfd: pytest.CaptureFixture[str]) -> None:
    store = source.with_name("a.zarr")
    unistore.convert(source, store)
    unistore.verify(store)
    assert capfd.readouterr() == ("", "")
    unistore.convert(source, store, overwrite=True, progress=True)
    out, err = capfd.readouterr()
    assert not out
    assert err == "writing 720 B\n"


@pytest.mark.parametrize("progress", [None, False])
def test_a_terminal_has_bars_unless_they_are_refused(
    source: Path, monkeypatch: pytest.MonkeyPatch, progress: bool | None
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    store = source.with_name("a.zarr")
    unistore.convert(source, store, progress=progress)
    unistore.export(store, source.with_name("out"), progress=progress)
    assert ("0/720 bytes" in terminal.getvalue()) == (progress is None)


def test_a_log_says_how_far_a_long_stage_is(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("unistore.progress.REPORT_SECONDS", 0.02)
    with ProgressBar() as bar:
        bar.begin("writing", 2_000_000)
        bar.advance(500_000)
        told: list[str] = []

        def is_told() -> object:
            told.append(capfd.readouterr().err)
            return re.search(r"writing: 25 % of 2\.0 MB, [\d.]+ [kM]?B/s, \d+ s left\n", "".join(told))

        wait_until(is_told, "nothing was said of the stage")
        bar.advance(1_500_000)
    assert duration(90) == "90 s"
    assert duration(720) == "12 min"
    assert duration(12600) == "3.5 h"


def test_machines_read_a_log(source: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["convert", "rows", str(source), str(source.with_name("a.zarr")), "--log", "json", "--json"])
    out, err = capfd.readouterr()
    assert json.loads(out)["samples"] == 30
    events = [json.loads(line) for line in err.splitlines()]
    assert [(each["event"], each["stage"], each["bytes"]) for each in events] == [
        ("begin", "writing", 0),
        ("step", "writing", 720),
        ("end", "writing", 720),
    ]
    assert {each["store"] for each in events} == {str(source.with_name("a.zarr"))}
    assert events[-1].keys() >= {"retries", "cache_hits", "waited_ms"}
    assert events[-1]["error"] is None
