"""The short forms of the programs in ``tools/faults``, which say themselves what went wrong."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.kernel import needs_kernel

PROGRAMS = Path(__file__).parents[2] / "tools" / "faults"
MEMORY = Path("/dev/shm")  # no power is cut here, so nothing need reach a disk
REFUSED = 77

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(300),
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
]


def run(program: str, *options: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / program), *options], capture_output=True, text=True, check=False
    )
    if done.returncode == REFUSED:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def counts(pattern: str, *command: str) -> list[int]:
    """Return the numbers that a program tells in the line of a pattern."""
    told = run(*command).stdout
    found = re.search(pattern, told, re.MULTILINE)
    assert found, told
    return [int(number) for number in found.groups()]


@pytest.fixture
def work(tmp_path: Path) -> tuple[str, str]:
    """Option of a folder in memory, where there is one."""
    return "--work", str(MEMORY if os.access(MEMORY, os.W_OK) else tmp_path)


def test_sound_files_are_read_as_h5py_reads_them() -> None:
    options = ("--count", "100", "--seed", "7", "--processes", "1")
    pattern = "^100 cases: (\\d+) accepted, (\\d+) refused, 0 failed"
    accepted, refused = counts(pattern, "compare_hdf5.py", *options)
    assert accepted >= 50
    assert refused >= 5


@pytest.mark.parametrize(
    ("program", "count", "seed", "least"),
    [
        ("fuzz_sources.py", "10", "3", 1),
        ("borders.py", "12", "5", 1),
        pytest.param(
            *("read_errors.py", "8", "5", 1),
            marks=pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler (cc)"),
        ),
    ],
)
def test_fuzzed_sources_are_read_right_or_an_error_that_names_them(
    program: str, count: str, seed: str, least: int
) -> None:
    options = ("--count", count, "--seed", seed, "--processes", "1")
    assert min(counts(rf"^{count} cases: (\d+) accepted, (\d+) refused", program, *options)) >= least


def test_recorded_findings_of_the_fuzzer_are_errors_that_name_the_file(tmp_path: Path) -> None:
    command = ("fuzz_stores.py", "--corpus", "--work", str(tmp_path), "--limit", "60")
    assert counts(r"(\d+) findings replayed, 0 otherwise", *command) > [25]


def test_every_changed_byte_is_found_and_repaired(work: tuple[str, str]) -> None:
    told = run("bit_flips.py", "--changes", "12", "--repairs", "1", *work).stdout
    assert "60 single-byte changes, 60 found; 5 repaired" in told
    assert len(re.findall(r"12 changes .* all found", told)) == 5


@needs_kernel
def test_damaged_frames_are_refused_by_the_kernel() -> None:
    read, refused = counts(
        r"^10000 trials, 0 failed: .* (\d+) read, (\d+) refused,", "frames.py", "--count", "10000"
    )
    assert read > 500
    assert refused > 2000


def test_full_disks_end_in_one_line_and_nothing_left(work: tuple[str, str]) -> None:
    told = run("full_disks.py", "--trials", "3", "--families", "rows", *work).stdout
    assert "3 trials, 0 failed" in told
    assert re.findall(r"\| (convert|export|repair) rows \| (?!there was room)", told), told


def test_killed_growth_is_the_old_version_or_the_new_one(work: tuple[str, str]) -> None:
    kills, pairs = counts(r" (\d+) kills .* (\d+) pairs", "growth.py", "--kills", "6", "--pairs", "1", *work)
    assert (kills >= 6, pairs) == (True, 1)


def test_killed_conversions_end_in_the_same_bytes(work: tuple[str, str]) -> None:
    """Toys, where an older store stands."""
    command = ("kill.py", "--operations", "4", "--moments", "2", "--overwrite", *work)
    operations, kills = counts(r"6 trials over (\d+) operations, (\d+) kills", *command)
    assert operations > 300
    assert kills >= 4
