"""The suite runs anywhere: from a checkout alone, in the background, beside busy processes."""

from __future__ import annotations

import importlib
import importlib.util
import os
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


BUSY_THEN_QUIET = """
import os, time
from pathlib import Path
import pytest
from tests.support.waiting import patience, wait_until

os.getloadavg = lambda: (100_000, 0, 0)

@pytest.mark.timeout(0.01)
def test_busy():
    time.sleep(0.1)
    assert patience(1) > 100
    os.getloadavg = lambda: (0, 0, 0)

@pytest.mark.timeout(0.01)
def test_quiet():
    time.sleep(10)

def test_waits_until_its_caller_has_seen_the_failure():
    assert patience(3) == 3
    wait_until(Path("seen").exists, "the failure was not printed")
"""


def test_limits_scale_with_the_load_and_failures_are_printed_at_once(tmp_path: Path) -> None:
    (tmp_path / "test_busy.py").write_text(BUSY_THEN_QUIET)
    settings = ["-p", "tests.conftest", "-p", "no:cacheprovider", "--rootdir", tmp_path, "-c", os.devnull]
    command = [sys.executable, "-u", "-m", "pytest", *settings, "-o", "timeout=60", "test_busy.py"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    lines = []
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if line.startswith("E ") and "Timeout" in line:
                (tmp_path / "seen").touch()
    assert "1 failed, 2 passed" in lines[-1], lines
    assert sum(line.startswith("E ") for line in lines) == 1, "a failure is printed once"


def test_no_program_looks_above_the_repository() -> None:
    folders = []
    for path in (path for name in FOLDERS for path in (ROOT / name).rglob("*.py")):
        for number in re.findall(r"__file__.*?\.parents\[(\d+)\]", path.read_text()):
            folders.append((path.name, path.parents[int(number)]))
    assert len(folders) > 20
    assert [(name, folder) for name, folder in folders if not folder.is_relative_to(ROOT)] == []


def test_ci_runs_what_make_test_leaves_out() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(r"^everything: .*\n\t\$\(PYTEST\)$", makefile, re.MULTILINE), "all tests, by no mark"
    assert re.search(r"^make .*\beverything\b", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)


def test_modules_that_the_conversion_benchmark_imports_exist(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A child imports them by name, so no type checker sees a name that is gone."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    conversion = importlib.import_module("conversion")
    for name, family in conversion.FAMILIES.items():
        for _, _, modules in conversion.ways_of(name, family, tmp_path, tmp_path, tmp_path).values():
            for module in modules:
                assert importlib.util.find_spec(module), module
