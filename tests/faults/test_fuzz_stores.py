"""The short form of ``fuzz_stores.py``, and every finding that it kept."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cases import REAL

PROGRAMS = Path(__file__).parents[2] / "tools" / "faults"

SCRIPT = PROGRAMS.joinpath("fuzz_stores.py")

pytestmark = pytest.mark.skipif(
    not hasattr(os, "fork") or not Path("/proc/self/statm").exists(), reason="needs fork and /proc"
)


def told_by(place: Path, *options: str) -> str:
    """What the program prints; it says so itself if a trial fails."""
    command = [sys.executable, str(SCRIPT), *options, "--work", str(place), "--limit", "60"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(300)
def test_findings_are_refused_by_name(tmp_path: Path) -> None:
    found = re.search(r"(\d+) findings replayed, 0 otherwise", told_by(tmp_path, "--corpus"))
    assert found
    assert int(found[1]) > 25


@pytest.mark.timeout(300)
def test_some_mutations(tmp_path: Path) -> None:
    """One a family: what was found in stores of every layout is in the corpus."""
    cases = [word for name in REAL for word in ("--case", name)]
    told = told_by(tmp_path, "--count", str(len(REAL)), "--seed", "2", *cases)
    found = re.search(
        rf"{len(REAL)} mutations in \d+ s: (\d+) accepted, (\d+) refused, \d+ unchanged, 0 FAILURE", told
    )
    assert found, told
    assert int(found[1]) >= 1
    assert int(found[2]) >= 1
