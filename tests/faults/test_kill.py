"""The short forms of ``kill.py`` (the toys, with and without an older store) and of ``long_kills.py``."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parents[2] / "tools" / "faults"

MEMORY = Path("/dev/shm")  # no power is cut here, so nothing need reach a disk

pytestmark = pytest.mark.skipif(
    not hasattr(os, "fork") or not Path("/proc/self/fd").exists(), reason="needs fork and /proc"
)


def told_by(script: str, place: Path, *options: str) -> str:
    """What a script prints; it says so itself if a trial fails."""
    work = MEMORY if os.access(MEMORY, os.W_OK) else place
    command = [sys.executable, str(PROGRAMS.joinpath(script)), *options, "--work", str(work)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("overwrite", [False, True])
def test_killed_conversions_end_in_the_same_bytes(tmp_path: Path, overwrite: bool) -> None:
    options = ("--operations", "6", "--moments", "2", *(["--overwrite"] if overwrite else []))
    told = told_by("kill.py", tmp_path, *options)
    found = re.search(r"8 trials over (\d+) operations, (\d+) kills", told)
    assert found, told
    assert int(found[1]) > 300
    assert int(found[2]) >= 6


def test_killed_workers_and_converters_end_in_the_same_bytes(tmp_path: Path) -> None:
    """Lost workers of a cluster are those of ``test_dask_executor.py``."""
    counts = [word for way in ("converter", "workers", "together") for word in (f"--{way}", "1")]
    told = told_by("long_kills.py", tmp_path, "--family", "point_cloud", *counts, "--cluster", "0")
    found = re.search(r"\| all \| (\d+) \| (\d+) \| (\d+) \| 0 \| (\d+) \|", told)
    assert found, told
    *killed, stores = map(int, found.groups())
    assert min(killed) >= 1
    assert stores >= 3
