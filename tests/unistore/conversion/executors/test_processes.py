"""Worker processes: what becomes of their errors, of lost workers, of memory, and of steps when one stops."""

from __future__ import annotations

import _thread
import os
import resource
import signal
import time
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import psutil
import pytest

from unistore.conversion.executors.local import Job, Outcome
from unistore.conversion.executors.processes import Processes
from unistore.conversion.memory import PROCESS
from unistore.conversion.run import run
from unistore.conversion.settings import Settings
from unistore.converters.families import modules_of
from unistore.converters.registry import families
from unistore.errors import ConversionError, InputError, Problem, StoreError, UnistoreError
from unistore.system.progress import advanced, listening, portion

FAMILIES = tuple(chain.from_iterable(map(modules_of, families().values())))
DEATHS = {"dies": signal.SIGKILL, "crashes": signal.SIGSEGV}


@dataclass(frozen=True)
class Faulty(Job[str]):
    """A job whose steps do what they are told; `marks` is a folder in which they leave their traces."""

    marks: Path
    megabytes: int = 1

    def __call__(self, item: str) -> Outcome:
        what, _, rest = item.partition(" ")
        count = len(list(self.marks.glob(f"{what}-*")))
        (self.marks / f"{what}-{count}-{os.getpid()}-{time.monotonic_ns()}").touch()
        if what == "sleep":
            time.sleep(float(rest))
        if what in DEATHS and count < int(rest):
            os.kill(os.getpid(), DEATHS[what])
        if what == "raises":
            raise ERRORS[int(rest)]
        if what == "tells":
            with portion(1_000):
                for _ in range(4):
                    time.sleep(0.11)  # longer than between two messages
                    advanced(250)
                    if count < int(rest):
                        os.kill(os.getpid(), signal.SIGKILL)
        if what == "starves" and count < int(rest):
            _thread.start_new_thread(_find_no_memory, ())
            time.sleep(60)
        return Outcome({"pid": os.getpid()})

    def describe(self, item: str) -> str:
        return f"step {item!r} of a.h5"

    def need(self, item: str) -> int:
        return self.megabytes << 20


def _find_no_memory() -> None:
    raise MemoryError


ERRORS = [
    InputError([Problem("a.h5: data/x", "holds NaN", "fix it", "nan"), Problem("b.h5", "is empty")]),
    InputError("plain words"),
    ConversionError("disk full"),
    StoreError("no store"),
    PermissionError(13, "Permission denied", "/data/a.h5"),
    KeyError("a fault of the converter"),
]


def test_errors_arrive_as_they_were_raised_and_the_worker_goes_on(tmp_path: Path) -> None:
    with Processes(1) as executor:
        for number, error in enumerate(ERRORS):
            with pytest.raises(type(error)) as caught:
                list(executor.run(Faulty(tmp_path), [f"raises {number}"]))
            told_where = "in a worker process" in str(getattr(caught.value, "__notes__", ""))
            assert told_where != isinstance(error, UnistoreError), "a fault of ours is told with its place"
            assert type(caught.value) is type(error)
            assert str(caught.value) == str(error)
            assert getattr(caught.value, "problems", None) == getattr(error, "problems", None)
    assert len({path.name.split("-")[2] for path in tmp_path.iterdir()}) == 1, "one process"


@pytest.mark.parametrize("workers", [0, 1])
def test_bytes_of_a_step_are_told_while_it_runs(tmp_path: Path, workers: int) -> None:
    told: list[int] = []
    with listening(told.append), Processes(workers) as executor:
        ((_, outcome),) = executor.run(Faulty(tmp_path), ["tells 0"])
    assert told == [250] * 4
    assert outcome.told == 1_000


def test_bytes_of_a_lost_step_are_taken_back(tmp_path: Path) -> None:
    told: list[int] = []
    with listening(told.append), Processes(1) as executor:
        ((_, outcome),) = executor.run(Faulty(tmp_path), ["tells 1"])
    assert told == [250, -250, 250, 250, 250, 250]
    assert outcome.told == 1_000


@pytest.mark.timeout(30)
def test_a_thread_without_memory_ends_the_worker_and_the_step_runs_again(tmp_path: Path) -> None:
    told: list[str] = []
    with Processes(1, tell=told.append) as executor:
        assert len(list(executor.run(Faulty(tmp_path), ["starves 1"]))) == 1
    assert len(told) == 1
    assert "SIGKILL" in told[0]
    assert "--memory" in told[0]


def test_a_memory_limit_starts_a_new_worker_instead_of_a_used_one(tmp_path: Path) -> None:
    pids = []
    for memory in (None, None, PROCESS + (64 << 20)):
        with Processes(0, memory=memory) as executor:
            executor._start(0, 1)  # as for a file that a foreign library opens
            pids += executor.pids
            list(executor.run(Faulty(tmp_path), ["works"]))
    assert pids[0] == pids[1] != pids[2]


EARLIER: set[psutil.Process] = set()
"""Children of this process that other tests keep: servers of multiprocessing, of a bucket."""


@pytest.fixture(autouse=True)
def earlier() -> None:
    EARLIER.clear()
    EARLIER.update(psutil.Process().children())


def children() -> set[psutil.Process]:
    return set(psutil.Process().children()) - EARLIER


class TwoWordsError(Exception):
    """Pickles, but cannot be loaded again."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


def test_an_error_that_cannot_be_pickled_arrives_as_text(tmp_path: Path) -> None:
    class Odd(Faulty):
        def __call__(self, item: str) -> Outcome:
            raise TwoWordsError("first", "second")

    with Processes(1) as executor, pytest.raises(RuntimeError, match=r"^TwoWordsError: first second\n"):
        list(executor.run(Odd(tmp_path), ["one"]))


def test_a_lost_worker_is_replaced_and_its_step_runs_again(tmp_path: Path) -> None:
    told: list[str] = []
    with Processes(2, tell=told.append) as executor:
        steps = ["dies 2", *(f"other{n}" for n in range(6))]
        done = dict(executor.run(Faulty(tmp_path), steps))
        assert set(done) == set(steps)
        assert len(executor.pids) == 2
    assert len(list(tmp_path.glob("dies-*"))) == 3
    assert len(told) == 2
    line = "a worker process died (killed by SIGKILL); its task runs again in a new one; if memory ran out,"
    assert all(each.startswith(line) for each in told)


def test_a_step_that_crashes_three_workers_is_named(tmp_path: Path) -> None:
    said = (
        r"step 'crashes 9' of a\.h5: its worker died 3 times "
        r"\(killed by SIGSEGV\); all finished work is kept\. Fix: .*--exclude"
    )
    with Processes(2) as executor, pytest.raises(ConversionError, match=said):
        list(executor.run(Faulty(tmp_path), [*(f"sleep 0.{n}" for n in range(4)), "crashes 9"]))
    assert len(list(tmp_path.glob("crashes-*"))) == 3


def test_a_shard_is_described_by_table_rows_and_sources(tmp_path: Path, toys: Path, toy: Any) -> None:
    class Deadly(toy):  # type: ignore[misc]
        def read(self, scan: Any, table: str, source: int, lo: int, hi: int, out: Any) -> None:
            if table == "rows" and lo == 0 and source == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            super().read(scan, table, source, lo, hi, out)

    said = (
        r"rows \d+:\d+ of table 'rows' \(from .*train/s3\.npz rows 0:.*: its worker died 3 times "
        r"\(killed by SIGKILL\).* Fix: if memory ran out, use fewer --workers"
    )
    with Processes(1) as executor, pytest.raises(ConversionError, match=said):
        run(Deadly(), [toys], tmp_path / "out.zarr", Settings(codec="fast"), executor=executor)
    assert not (tmp_path / "out.zarr.unistore-build/lock").exists()
    report = run(toy(), [toys], tmp_path / "out.zarr", Settings(restart=True))
    assert report.tasks > report.resumed


def test_a_lost_idle_worker_is_replaced(tmp_path: Path) -> None:
    told: list[str] = []
    with Processes(1, tell=told.append) as executor:
        list(executor.run(Faulty(tmp_path), ["first"]))
        (idle,) = executor.pids
        os.kill(idle, signal.SIGKILL)
        psutil.wait_procs([psutil.Process(idle)])
        assert [item for item, _ in executor.run(Faulty(tmp_path), ["second"])] == ["second"]
        assert executor.pids != [idle]
    assert len(told) == 1


def test_workers_that_cannot_start_are_an_error_and_leave_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_library.py").write_text("import os; os._exit(3)")
    monkeypatch.syspath_prepend(tmp_path)
    with (
        Processes(2, imports=("broken_library",)) as executor,
        pytest.raises(ConversionError, match=r"step 'never' of a\.h5: its worker died 3 times \(exit code 3"),
    ):
        list(executor.run(Faulty(tmp_path), ["never"]))
    assert not list(tmp_path.glob("never-*"))
    assert not children()


def test_workers_inherit_no_descriptor_and_no_session(tmp_path: Path) -> None:
    """A descriptor of ours would keep our files and sockets open; Ctrl-C is for this process alone."""
    with (tmp_path / "open").open("wb") as file, Processes(2, imports=FAMILIES) as executor:
        os.set_inheritable(file.fileno(), True)
        list(executor.run(Faulty(tmp_path), ["a", "b"]))
        sockets = []
        for pid in executor.pids:
            opened = [str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()]
            assert not any(str(tmp_path) in name for name in opened)
            sockets.append([name for name in opened if name.startswith("socket:")])
        assert [len(each) for each in sockets] == [1, 1]
        assert sockets[0] != sockets[1]
        sessions = {os.getsid(pid) for pid in (0, *executor.pids)}
        assert len(sessions) == 3


def test_stopping_early_leaves_no_step_at_work(tmp_path: Path) -> None:
    with Processes(2) as executor:
        steps = executor.run(Faulty(tmp_path), ["first", "sleep 30", "sleep 31", "never"])
        next(steps)
        pids = executor.pids
        steps.close()
        assert not any(psutil.pid_exists(pid) for pid in pids)
        assert [item for item, _ in executor.run(Faulty(tmp_path), ["again"])] == ["again"], "it starts anew"


def test_steps_of_two_jobs_are_not_mixed(tmp_path: Path) -> None:
    with Processes(1) as executor:
        steps = executor.run(Faulty(tmp_path), ["a", "b"])
        next(steps)
        with pytest.raises(RuntimeError, match="steps of another job are at work"):
            list(executor.run(Faulty(tmp_path), ["c"]))
        assert [item for item, _ in steps] == ["b"]


@pytest.mark.parametrize(("room", "expected"), [(2, 2), (1.9, 1)])
def test_the_memory_limit_bounds_the_number_of_workers(tmp_path: Path, room: float, expected: int) -> None:
    each = PROCESS + (100 << 20)
    told: list[str] = []
    with Processes(2, memory=int(PROCESS + room * each), tell=told.append) as executor:
        list(executor.run(Faulty(tmp_path, 100), ["a", "b", "c", "d"]))
        assert len(executor.pids) == expected
    assert bool(told) == (expected < 2)


def test_a_worker_that_crashes_writes_no_core(tmp_path: Path) -> None:
    with Processes(1) as executor:
        list(executor.run(Faulty(tmp_path), ["a"]))
        (pid,) = executor.pids
        soft, _ = resource.prlimit(pid, resource.RLIMIT_CORE)
    assert soft == 0
