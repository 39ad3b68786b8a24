"""Bars are shown where a person looks; the notebooks' test sees those of notebooks."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
import pytest

import unistore


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
