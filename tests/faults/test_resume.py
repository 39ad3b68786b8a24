"""The short form of ``resume.py``: a few interruptions of three cases, with changing workers and ranks."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parents[2] / "tools" / "faults"

SCRIPT = PROGRAMS.joinpath("resume.py")


@pytest.mark.skipif(sys.platform != "linux", reason="takes over the workers of killed processes")
def test_interrupted_runs_deliver_what_one_serial_pass_does() -> None:
    cases = ["blocks", "shares", "random transform"]
    command = [sys.executable, str(SCRIPT), "--interruptions", "4"]
    for case in cases:
        command += ["--case", case]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.findall(
        r"^([a-z ]+): 4 interruptions .* in the middle of an epoch; ", done.stdout, re.MULTILINE
    )
    assert found == cases
