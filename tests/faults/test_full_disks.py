"""The short form of ``full_disks.py``."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parents[2] / "tools" / "faults"

MEMORY = Path("/dev/shm")
REFUSED = 77


@pytest.mark.skipif(sys.platform != "linux", reason="needs mount namespaces")
@pytest.mark.timeout(300)
def test_full_disks_end_in_one_line_and_nothing_left(tmp_path: Path) -> None:
    work = MEMORY if os.access(MEMORY, os.W_OK) else tmp_path
    script = str(PROGRAMS.joinpath("full_disks.py"))
    options = ["--trials", "10", "--families", "rows", "--work", str(work)]
    done = subprocess.run([sys.executable, script, *options], capture_output=True, text=True, check=False)
    if done.returncode == REFUSED:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    assert "10 trials, 0 failed" in done.stdout
    refused = re.findall(r"\| (convert|export|repair) rows \| (?!there was room)", done.stdout)
    assert set(refused) == {"convert", "export", "repair"}, done.stdout
