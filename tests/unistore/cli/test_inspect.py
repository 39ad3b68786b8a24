"""The command line's inspect: its wiring, its exit codes, its two faces."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unistore
from tests.support.programs import call

BETWEEN = "-- the next --"
INSPECTING = f"""
import json, os, sys
from unistore.cli.main import main
for columns, options in json.loads(sys.argv[2]):
    os.environ["COLUMNS"] = str(columns)
    try:
        main(["inspect", sys.argv[1], *options])
    except SystemExit as end:
        assert not end.code
    print({BETWEEN!r})
"""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    np.save(tmp_path / "a.npy", np.arange(4000, dtype=np.float32).reshape(1000, 4))
    unistore.convert(tmp_path / "a.npy", tmp_path / "a.zarr", "rows")
    return tmp_path / "a.zarr"


def test_json_is_that_of_the_library(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("inspect", str(store), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found == unistore.inspect(store).to_json()
    assert list(found) == [
        *("kind", "path", "family", "format_version", "samples", "main_table", "splits", "sources", "arrays"),
        *("stored_bytes", "raw_bytes", "ratio", "options", "created_with", "statistics"),
        *("samples_statistics", "side_tables", "seal", "measures"),
        *("remarks", "snippet", "problems"),
    ]


def test_all_bad_sources_are_listed_and_exit_with_2(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "a.h5").write_bytes(b"")
    (tmp_path / "b.h5").write_bytes(b"not hdf5")
    assert call("inspect", str(tmp_path)) == 2
    out = capsys.readouterr().out
    assert "a.h5" in out
    assert "b.h5" in out
    assert call("inspect", str(tmp_path), "--json") == 2
    assert len(json.loads(capsys.readouterr().out)["problems"]) == 2


def test_a_missing_path_exits_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("inspect", str(tmp_path / "nowhere")) == 2
    assert "nowhere: no such file or folder.\n  fix: check the path" in capsys.readouterr().err
    assert call("inspect", str(tmp_path / "nowhere"), "--json") == 2
    assert json.loads(capsys.readouterr().out)["problems"][0]["kind"] == "missing"


def test_a_broken_seal_exits_with_1(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (store / "unistore-manifest.jsonl").unlink()
    assert call("inspect", str(store)) == 1
    assert "DAMAGED" in capsys.readouterr().out


def test_a_terminal_shows_coloured_tables_within_its_width(store: Path) -> None:
    """Through a real pseudo-terminal: colours and boxes, every fact that it has room for."""
    cases = ((160, ["--all"]), (80, ["--all"]), (80, []))
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color"}
    environment.pop("NO_COLOR", None)
    command = [sys.executable, "-c", INSPECTING, str(store), json.dumps(cases)]
    process = subprocess.Popen(command, stdout=theirs, stderr=subprocess.PIPE, env=environment)
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the other side is closed
            break
        if not part:
            break
        shown += part
    os.close(ours)
    _, error = process.communicate()
    assert process.returncode == 0, error
    texts = shown.decode().split(BETWEEN)
    assert len(texts) == len(cases) + 1
    for text, (columns, options) in zip(texts, cases, strict=False):
        assert "\x1b[" in text
        for expected in ("rows/data", "1000 × 4", "float32", "matches manifest", "unistore"):
            assert expected in text
        assert ("blosc lz4" in text) == (columns == 160)
        assert (re.search("as the terminal is narrow: .*codec", text) is not None) == (
            columns == 80 and bool(options)
        )
        assert ("+ storage of all 7 arrays: --all" in text) == (not options)
        table = re.sub(r"\x1b\[[0-9;]*m", "", text).partition("arrays")[2].partition("load it")[0]
        assert max(map(len, table.splitlines())) <= columns
