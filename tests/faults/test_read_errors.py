"""The short form of ``read_errors.py``."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parents[2] / "tools" / "faults"


@pytest.mark.timeout(300)
@pytest.mark.skipif(sys.platform != "linux", reason="finds the files of descriptors in /proc")
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler (cc)")
def test_read_errors_end_in_a_problem_or_in_the_right_store() -> None:
    program = str(PROGRAMS.joinpath("read_errors.py"))
    words = ["--count", "40", "--seed", "5", "--processes", "1"]
    done = subprocess.run([sys.executable, program, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    counted = re.search(r"^40 cases: (\d+) accepted, (\d+) refused", done.stdout, re.MULTILINE)
    assert counted, done.stdout
    assert min(map(int, counted.groups())) >= 8, "faults fire, and some conversions end well"
