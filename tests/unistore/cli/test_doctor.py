"""``unistore doctor``: wiring, JSON, and what a terminal shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.needs_torch import needs_torch
from tests.support.programs import call, printed
from unistore.cli.main import cli


@pytest.fixture
def store(make_store: Any) -> Path:
    path: Path = make_store("rows", {"rows/data": np.arange(6000).reshape(300, 20)}, count=300)
    return path


def test_arguments_of_doctor_reach_the_library(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []

    class Found:
        def to_json(self) -> dict[str, Any]:
            return {"line": "here"}

    def doctor(store: str | None, *, progress: Any, **options: Any) -> Found:
        asked.append((store, *options.values()))
        return Found()

    monkeypatch.setattr("unistore.doctor", doctor)
    assert "doctor" in cli.commands
    assert call("doctor", "a.zarr", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"line": "here"}
    assert call("doctor", "--json") == 0
    measured = ("--samples", "Patches(8, pad='zero')", "--measure", "--seconds", "0.5", "--json")
    assert call("doctor", "a.zarr", *measured) == 0
    assert asked == [
        ("a.zarr", None, False, None, None),
        (None, None, False, None, None),
        ("a.zarr", "Patches(8, pad='zero')", True, 0.5, None),
    ]


@needs_torch
def test_doctor_prints_the_recommended_line_for_a_store(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("doctor", str(store), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["store"]["samples"] == 300
    assert found["line"].startswith(
        f"unistore.Loader(unistore.Dataset({json.dumps(str(store))}), batch_size=64"
    )
    assert call("doctor") == 0
    assert "unistore.Loader(dataset" in capsys.readouterr().out
    assert call("doctor", str(tmp_path / "nothing")) == 2
    assert "no such store" in capsys.readouterr().err


def test_a_machine_alone_needs_no_torch() -> None:
    code = "import sys, unistore; unistore.doctor(); print('torch' in sys.modules)"
    output = printed("-c", code)
    assert output == "False\n"
