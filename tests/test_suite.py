"""The suite runs anywhere: from a checkout alone, in the background too."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("tests", "benchmarks", "examples", "tools")
ASSERTS_DEFAULT = "import signal; assert signal.getsignal(signal.SIGINT) is signal.default_int_handler"
TEST_WITH_CHILD = f"""
import subprocess, sys
import tests.conftest
exec({ASSERTS_DEFAULT!r})
subprocess.run([sys.executable, "-c", {ASSERTS_DEFAULT!r}], check=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")
def test_tests_and_their_children_can_be_interrupted_in_the_background() -> None:
    in_background = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh", sys.executable, "-c"]
    ignoring = subprocess.run([*in_background, ASSERTS_DEFAULT], capture_output=True, check=False)
    assert b"AssertionError" in ignoring.stderr
    done = subprocess.run(
        [*in_background, TEST_WITH_CHILD], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_no_program_looks_above_the_repository() -> None:
    folders = []
    for path in (path for name in FOLDERS for path in (ROOT / name).rglob("*.py")):
        for number in re.findall(r"__file__.*?\.parents\[(\d+)\]", path.read_text()):
            folders.append((path.name, path.parents[int(number)]))
    assert len(folders) > 20
    assert [(name, folder) for name, folder in folders if not folder.is_relative_to(ROOT)] == []
