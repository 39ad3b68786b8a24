"""Programs that tests run: Python in a process of its own, the command line in this one."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest


def printed(*arguments: object, **options: Any) -> str:
    """Run Python with arguments and return what it prints; fail with all that it says if it fails."""
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def call(*words: object) -> int:
    """Run the command line and return its exit code."""
    from unistore.cli.main import main

    with pytest.raises(SystemExit) as ended:
        main([*map(str, words)])
    return int(ended.value.code or 0)
