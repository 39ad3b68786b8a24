"""The short form of ``borders.py``: eighty folders in which one thing is changed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("borders.py")


@pytest.mark.timeout(300)
@pytest.mark.skipif(sys.platform != "linux", reason="measures the memory of its children in /proc")
def test_a_changed_folder_is_refused_by_name_or_right() -> None:
    command = [sys.executable, str(SCRIPT), "--count", "80", "--seed", "5"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    counted = re.search(r"^80 mutations: (\d+) accepted, (\d+) refused", done.stdout, re.MULTILINE)
    assert counted, done.stdout
    assert min(map(int, counted.groups())) >= 8
