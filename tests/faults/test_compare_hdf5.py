"""The short form of ``compare_hdf5.py``."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parents[2] / "tools" / "faults"

COUNT = 100


@pytest.mark.timeout(300)
@pytest.mark.skipif(
    not hasattr(os, "fork") or not Path("/proc/self/statm").exists(), reason="needs fork and /proc"
)
def test_sound_files_are_read_as_h5py_reads_them() -> None:
    program = PROGRAMS.joinpath("compare_hdf5.py")
    command = [sys.executable, str(program), "--count", str(COUNT), "--seed", "7", "--processes", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = re.search(rf"^{COUNT} cases: (\d+) accepted, (\d+) refused, 0 failed", done.stdout, re.MULTILINE)
    assert counts, done.stdout
    assert int(counts[1]) >= COUNT // 2
    assert int(counts[2]) >= COUNT // 20
