"""HDF5 files that hang or crash the HDF5 library: told as damaged by every command, and the others go on.

That the files do so is seen in a process of its own that opens them with h5py alone.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import unistore
from tests.support.damaged_hdf5 import (
    CRASHES,
    HANGS_IT,
    WRONG,
    changed,
    free_space_of_nothing,
    own_branch,
    own_neighbour_of_chunks,
    write,
    write_damaged,
)
from tests.support.programs import printed
from unistore.conversion.executors.local import Job, Outcome
from unistore.conversion.executors.processes import Processes
from unistore.errors import ConversionError, InputError
from unistore.system.foreign import BYTES_PER_SECOND, SECONDS, begin_reading, opening

FEW_SECONDS = "import sys, resource; resource.setrlimit(resource.RLIMIT_CPU, (1, 1)); import h5py; "
LOOK = "f = h5py.File(sys.argv[1]); [dict(each.attrs) for each in (f, *map(f.get, f))]"


def ends_itself(path: Path) -> bool:
    """Whether h5py alone comes to an end with a file, of whatever kind, within 1 s of processor time."""
    done = subprocess.run(
        [sys.executable, "-c", FEW_SECONDS + LOOK, str(path)], capture_output=True, check=False
    )
    return done.returncode >= 0


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readings are ended after a second."""
    monkeypatch.setenv(SECONDS, "1")


def problems(path: Path) -> list[tuple[str, str, str]]:
    """What is wrong with sources, as `inspect` tells it."""
    return [(each.location, each.message, each.kind) for each in unistore.inspect(path).problems]


def test_a_file_that_hangs_the_library_is_a_problem(tmp_path: Path) -> None:
    changed(tmp_path / "a.h5", own_neighbour_of_chunks)
    assert problems(tmp_path) == [("a.h5", HANGS_IT, "damaged")]


def test_the_hdf5_library_hangs_at_the_file_of_these_tests(tmp_path: Path) -> None:
    assert not ends_itself(changed(tmp_path / "a.h5", free_space_of_nothing))


def test_a_file_that_crashes_the_library_is_a_problem_until_it_is_replaced(tmp_path: Path) -> None:
    path = changed(tmp_path / "a.h5", own_branch)
    assert not ends_itself(path)
    for _ in range(2):
        assert problems(path) == [("a.h5", CRASHES, "damaged")]
    assert ends_itself(write(path))
    assert not problems(path)


def test_skip_converts_the_sound_files_beside_damaged_ones(tmp_path: Path) -> None:
    folder = write_damaged(tmp_path)
    report = unistore.convert(folder, tmp_path / "some.zarr", "rows", workers=2, on_error="skip")
    assert [(each["file"], each["reason"], each["kind"]) for each in report.skipped] == WRONG
    assert report.samples == 6


def test_verify_and_repair_name_a_source_that_became_damaged(tmp_path: Path) -> None:
    path, store = write(tmp_path / "a.h5"), tmp_path / "out.zarr"
    unistore.convert(path, store, "rows")
    changed(path, own_branch)
    with pytest.raises(InputError, match=r"a\.h5: is damaged: it crashes the HDF5 library \(signal 11\)"):
        unistore.verify(store, against=path)
    next(store.glob("rows/x/c/0*")).write_bytes(b"")
    with pytest.raises(InputError, match=r"a\.h5: is damaged: it crashes the HDF5 library \(signal 11\)"):
        unistore.repair(store, path)


@dataclass(frozen=True)
class Reading(Job[str]):
    """A job that opens files; something happens while the library reads them. `marks` counts its steps."""

    marks: Path
    happens: Callable[[Path, Path], None]

    def __call__(self, item: str) -> Outcome:
        first, second = self.marks / "first", self.marks / "second"
        with opening(first, "first"), opening(second, "second", "OpenCV"):
            (self.marks / f"mark-{time.monotonic_ns()}").touch()
            self.happens(first, second)
        return Outcome({"item": item})

    def describe(self, item: str) -> str:
        return f"step {item}"


def read(folder: Path, happens: Callable[[Path, Path], None]) -> Outcome:
    for name in ("first", "second"):
        (folder / name).touch()
    with Processes() as executor:
        ((_, outcome),) = executor.run(Reading(folder, happens), ["one"])
    return outcome


def die(number: int) -> None:
    os.kill(os.getpid(), number)


def work(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def reads_the_first_again(first: Path, _: Path) -> None:
    begin_reading(first)
    die(signal.SIGBUS)


@pytest.mark.parametrize(
    ("happens", "said"),
    [
        (lambda *_: die(signal.SIGSEGV), "second: is damaged: it crashes OpenCV (signal 11)"),
        (lambda *_: os._exit(1), "second: is damaged: it crashes OpenCV (exit code 1)"),
        (lambda *_: work(10), "second: is damaged: it hangs OpenCV"),
        (reads_the_first_again, "first: is damaged: it crashes the HDF5 library (signal 7)"),
    ],
)
def test_a_crash_or_hang_is_a_problem_of_the_file_that_was_read_last(
    tmp_path: Path, happens: Callable[[Path, Path], None], said: str
) -> None:
    with pytest.raises(InputError) as refused:
        read(tmp_path, happens)
    assert str(refused.value) == f"{said}. Fix: copy or write it again"
    assert len(list(tmp_path.glob("mark-*"))) == 1, "it is not opened again"


def test_a_worker_killed_by_others_is_not_blamed_on_the_file(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match=r"its worker died 3 times \(killed by SIGKILL"):
        read(tmp_path, lambda *_: die(signal.SIGKILL))
    assert len(list(tmp_path.glob("mark-*"))) == 3


def test_many_reads_of_a_file_together_are_not_taken_for_a_hang(tmp_path: Path) -> None:
    """The limit is for one reading, not for all of a file, and not for what is done afterwards."""

    def readings(first: Path, _: Path) -> None:
        for _ in range(4):
            work(0.4)
            begin_reading(first)

    class Lasting(Reading):
        def __call__(self, item: str) -> Outcome:
            outcome = super().__call__(item)
            work(1.4)
            return outcome

    assert read(tmp_path, readings).record == {"item": "one"}
    with Processes() as executor:
        ((_, outcome),) = executor.run(Lasting(tmp_path, lambda *_: None), ["two"])
    assert outcome.record == {"item": "two"}


def test_the_time_limit_of_a_read_grows_with_the_file(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(int(BYTES_PER_SECOND))

    class Large(Reading):
        def __call__(self, item: str) -> Outcome:
            with opening(self.marks / item, item):
                work(1.4)
            return Outcome()

    with Processes() as executor:
        assert len(list(executor.run(Large(tmp_path, lambda *_: None), ["large"]))) == 1


def test_the_parent_reads_no_hdf5(tmp_path: Path) -> None:
    """Whatever the command: it does not even import h5py."""
    write(tmp_path / "a.h5")
    code = """
import pathlib, sys, unistore
from unistore.conversion.convert import make_converter
from unistore.conversion.dry_run import dry_run
unistore.convert("a.h5", "0.zarr")
unistore.convert("a.h5", "split.zarr", split="a=1", group_by="column:x")
assert unistore.verify("0.zarr", against="a.h5", workers=2).receipt
unistore.inspect("a.h5")
dry_run(make_converter("rows", {}), [pathlib.Path("a.h5")])
open("0.zarr/rows/x/c/0", "wb").close()
assert unistore.repair("0.zarr", "a.h5").repaired
print("h5py" in sys.modules)
"""
    output = printed("-W", "error", "-c", code, cwd=tmp_path)
    assert output == "False\n"
