"""The short form of ``start_methods.py``: the worst state of the parent, and the method that inherits it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAMS = Path(__file__).parents[2] / "tools" / "faults"

SCRIPT = PROGRAMS.joinpath("start_methods.py")


def test_workers_are_forked_while_the_parent_reads_in_a_thread() -> None:
    command = [sys.executable, str(SCRIPT), "--repetitions", "1", "--state", "reading", "--method", "fork"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for loader in ("DataLoader", "Loader"):
        assert f"reading, {loader}, fork: 1/1" in done.stderr
    assert done.stdout.startswith("| parent | loader | fork | forkserver | spawn |")
