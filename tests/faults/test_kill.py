"""The short form of ``kill.py``: a few kills of the toy conversion, with and without an older store."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("kill.py")
MEMORY = Path("/dev/shm")  # no power is cut here, so nothing need reach a disk


@pytest.mark.skipif(
    not hasattr(os, "fork") or not Path("/proc/self/fd").exists(), reason="needs fork and /proc"
)
@pytest.mark.parametrize("overwrite", [False, True])
def test_killed_conversions_end_in_the_same_bytes(tmp_path: Path, overwrite: bool) -> None:
    work = MEMORY if os.access(MEMORY, os.W_OK) else tmp_path
    command = [sys.executable, str(SCRIPT), "--operations", "12", "--moments", "4", "--work", str(work)]
    done = subprocess.run(
        [*command, *(["--overwrite"] if overwrite else [])], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"16 trials over (\d+) operations, (\d+) kills", done.stdout)
    assert found, done.stdout
    assert int(found[1]) > 300
    assert int(found[2]) >= 12
