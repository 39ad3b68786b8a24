"""The short form of ``fuzz_sources.py``: sixty damaged sources, and cases that once failed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("fuzz_sources.py")


@pytest.mark.timeout(300)
@pytest.mark.skipif(sys.platform != "linux", reason="measures the memory of its children in /proc")
def test_damaged_sources_are_refused_or_right() -> None:
    command = [sys.executable, str(SCRIPT), "--count", "60", "--seed", "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    counted = re.search(r"^60 cases: (\d+) accepted, (\d+) refused", done.stdout, re.MULTILINE)
    assert counted, done.stdout
    assert min(map(int, counted.groups())) >= 6
