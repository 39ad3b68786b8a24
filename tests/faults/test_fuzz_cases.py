"""Short forms of ``fuzz_sources.py`` and ``borders.py``."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parents[2] / "tools" / "faults"


@pytest.mark.timeout(300)
@pytest.mark.skipif(sys.platform != "linux", reason="measures the memory of its children in /proc")
@pytest.mark.parametrize(("program", "count", "seed"), [("fuzz_sources.py", 20, 3), ("borders.py", 30, 5)])
def test_cases_are_refused_by_name_or_right(program: str, count: int, seed: int) -> None:
    command = [
        sys.executable,
        str(PROGRAMS.joinpath(program)),
        "--count",
        str(count),
        "--seed",
        str(seed),
        "--processes",
        "1",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    counted = re.search(rf"^{count} cases: (\d+) accepted, (\d+) refused", done.stdout, re.MULTILINE)
    assert counted, done.stdout
    assert min(map(int, counted.groups())) >= count // 10
