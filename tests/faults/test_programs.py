"""The short forms of the programs in ``tools/faults``, which say themselves what went wrong."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cases import REAL

PROGRAMS = Path(__file__).parents[2] / "tools" / "faults"
MEMORY = Path("/dev/shm")  # no power is cut here, so nothing need reach a disk
REFUSED = 77

pytestmark = [
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
        ("fuzz_sources.py", "20", "3", 2),
        ("borders.py", "30", "5", 3),
        pytest.param(
            *("read_errors.py", "20", "5", 4),
            marks=pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler (cc)"),
        ),
    ],
)
def test_cases_are_refused_by_name_or_right(program: str, count: str, seed: str, least: int) -> None:
    options = ("--count", count, "--seed", seed, "--processes", "1")
    assert min(counts(rf"^{count} cases: (\d+) accepted, (\d+) refused", program, *options)) >= least


def test_findings_are_refused_by_name(tmp_path: Path) -> None:
    command = ("fuzz_stores.py", "--corpus", "--work", str(tmp_path), "--limit", "60")
    assert counts(r"(\d+) findings replayed, 0 otherwise", *command) > [25]


def test_some_mutations(tmp_path: Path) -> None:
    """One a family: what was found in stores of every layout is in the corpus."""
    cases = [word for name in REAL for word in ("--case", name)]
    options = ("--count", str(len(REAL)), "--seed", "2", *cases, "--work", str(tmp_path), "--limit", "60")
    pattern = rf"{len(REAL)} mutations in \d+ s: (\d+) accepted, (\d+) refused, \d+ unchanged, 0 FAILURE"
    assert min(counts(pattern, "fuzz_stores.py", *options)) >= 1


def test_every_changed_byte_is_found_and_repaired(work: tuple[str, str]) -> None:
    told = run("bit_flips.py", "--changes", "30", "--repairs", "2", *work).stdout
    assert "150 single-byte changes, 150 found; 10 repaired" in told
    assert len(re.findall(r"30 changes .* all found", told)) == 5


def test_full_disks_end_in_one_line_and_nothing_left(work: tuple[str, str]) -> None:
    told = run("full_disks.py", "--trials", "10", "--families", "rows", *work).stdout
    assert "10 trials, 0 failed" in told
    refused = re.findall(r"\| (convert|export|repair) rows \| (?!there was room)", told)
    assert set(refused) == {"convert", "export", "repair"}, told


@pytest.mark.parametrize("options", [(), ("--overwrite",)])
def test_killed_conversions_end_in_the_same_bytes(work: tuple[str, str], options: tuple[str, ...]) -> None:
    """Toys, with and without an older store."""
    command = ("kill.py", "--operations", "6", "--moments", "2", *options, *work)
    operations, kills = counts(r"8 trials over (\d+) operations, (\d+) kills", *command)
    assert operations > 300
    assert kills >= 6


def test_killed_workers_and_converters_end_in_the_same_bytes(work: tuple[str, str]) -> None:
    """Lost workers of a cluster are those of ``test_dask_executor.py``."""
    kills = [word for way in ("converter", "workers", "together") for word in (f"--{way}", "1")]
    options = ("--family", "point_cloud", *kills, "--cluster", "0", *work)
    *killed, stores = counts(r"\| all \| (\d+) \| (\d+) \| (\d+) \| 0 \| (\d+) \|", "long_kills.py", *options)
    assert min(killed) >= 1
    assert stores >= 3


def test_interrupted_runs_deliver_what_one_serial_pass_does() -> None:
    """With changing workers and ranks."""
    cases = ["blocks", "shares", "random transform"]
    words = [word for case in cases for word in ("--case", case)]
    told = run("resume.py", "--interruptions", "4", *words).stdout
    line = r"^([a-z ]+): 4 interruptions .* in the middle of an epoch; "
    assert re.findall(line, told, re.MULTILINE) == cases


def test_workers_are_forked_while_the_parent_reads_in_a_thread() -> None:
    """The worst state of the parent, and the method that inherits it."""
    done = run("start_methods.py", "--repetitions", "1", "--state", "reading", "--method", "fork")
    for loader in ("DataLoader", "Loader"):
        assert f"reading, {loader}, fork: 1/1" in done.stderr
    assert done.stdout.startswith("| parent | loader | fork | forkserver | spawn |")
