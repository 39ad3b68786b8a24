"""The matrix of `tools/faults/formats.py`: a file of every registered format, damaged in every way."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "tools/faults/formats.py"

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler (cc)"),
]


def run(*options: str) -> str:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *options], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(120)
def test_the_first_cells_of_the_matrix_have_no_failure() -> None:
    assert ", 0 failed" in run("--count", "6", "--processes", "1")


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_every_fault_of_every_format_is_read_right_or_an_error() -> None:
    assert ", 0 failed" in run()
