"""The short form of ``tools/faults/bit_flips.py``: some changes of single bytes in every family's store."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "tools" / "faults" / "bit_flips.py"
MEMORY = Path("/dev/shm")  # no power is cut here, so nothing need reach a disk


def test_every_changed_byte_is_found_and_repaired(tmp_path: Path) -> None:
    work = MEMORY if os.access(MEMORY, os.W_OK) else tmp_path
    command = [sys.executable, str(SCRIPT), "--changes", "30", "--repairs", "2", "--work", str(work)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "150 single-byte changes, 150 found; 10 repaired" in done.stdout
    assert len(re.findall(r"30 changes .* all found", done.stdout)) == 5
