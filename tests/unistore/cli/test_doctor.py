"""``unistore doctor``: wiring, JSON, and what a terminal shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.programs import call, printed


@pytest.fixture
def store(make_store: Any) -> Path:
    path: Path = make_store("rows", {"rows/data": np.arange(6000).reshape(300, 20)}, count=300)
    return path


def test_for_real(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
