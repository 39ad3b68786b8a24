"""One process, and one apart for foreign libraries: who does which step, threads, the bytes of one thread."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.family_converters import ct as ct_converter
from tests.support.waiting import patience
from unistore.conversion import plan as planning
from unistore.conversion.executors.local import Job, Outcome
from unistore.conversion.executors.processes import Processes
from unistore.conversion.run import run
from unistore.conversion.settings import Settings
from unistore.converters.source_scan import scan_sources
from unistore.errors import InputError
from unistore.system.foreign import opening


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """No thread outlives what it worked for."""
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


@dataclass(frozen=True)
class Opening(Job[str]):
    """A job whose steps open files of that name, or none, as a foreign library does."""

    foreign: tuple[str, ...] = ()

    def __call__(self, item: str) -> Outcome:
        if item in self.foreign:
            with opening(item, item):
                pass
        return Outcome({"pid": os.getpid()})

    def describe(self, item: str) -> str:
        return f"step {item}"


def test_steps_run_here_until_one_needs_a_foreign_library() -> None:
    with Processes() as executor:
        assert [outcome.record["pid"] for _, outcome in executor.run(Opening(), "abc")] == [os.getpid()] * 3
        found = list(executor.run(Opening(foreign=("c",)), "abcd"))
        again = list(executor.run(Opening(), "e"))
    assert [item for item, _ in found] == ["a", "b", "c", "d"]
    pids = [outcome.record["pid"] for _, outcome in (*found, *again)]
    assert pids[:2] == [os.getpid()] * 2
    assert len(set(pids[2:])) == 1
    assert pids[2] != os.getpid()


def worker(executor: Processes) -> int:
    ((_, outcome),) = executor.run(Opening(foreign=("a",)), "a")
    pid: int = outcome.record["pid"]
    return pid


def test_the_next_command_in_the_same_environment_reuses_the_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = []
    for memory in (1 << 30, None):
        with Processes(memory=memory) as executor:
            pids.append(worker(executor))
    monkeypatch.chdir(tmp_path)
    with Processes() as executor:
        pids.append(worker(executor))
    monkeypatch.setenv("HDF5_PLUGIN_PATH", str(tmp_path))
    with Processes() as executor:
        pids.append(worker(executor))
    assert pids[0] == pids[1]
    assert len(set(pids)) == 3, "not in another folder or environment"
    with pytest.raises(ZeroDivisionError), Processes() as executor:
        assert worker(executor) / 0
    with Processes() as executor:
        assert worker(executor) not in pids, "nor after an error"


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_starts_a_worker_of_its_own() -> None:
    with Processes() as executor:
        own = worker(executor)
    ours, theirs = multiprocessing.Pipe()

    def ask() -> None:
        with Processes() as executor:
            theirs.send(worker(executor))

    child = multiprocessing.get_context("fork").Process(target=ask)
    child.start()
    assert ours.poll(patience(60))
    assert ours.recv() != own
    child.join()
    assert child.exitcode == 0
    with Processes() as executor:
        assert worker(executor) == own


def test_volumes_in_parts_give_the_bytes_of_one_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2):
        folder = tmp_path / "ct" / f"case_{number}"
        folder.mkdir(parents=True)
        volume = np.random.default_rng(number).integers(-1000, 1000, (70, 40, 50), np.int16)
        np.save(folder / "ct_original.npy", volume)
    monkeypatch.setattr("unistore.conversion.plan.SHARD", 64 << 10)
    monkeypatch.setattr(planning, "LARGE", 1 << 10)
    monkeypatch.setattr(planning, "PLANES_BYTES", 32 << 10)
    monkeypatch.setattr("unistore.zarr3.writer.RUN_BYTES", 1 << 10)
    alone = run(ct_converter(tile=(16, 16, 16)), [tmp_path / "ct"], tmp_path / "alone.zarr")
    executor = Processes(threads=3)
    threaded = run(
        ct_converter(tile=(16, 16, 16)), [tmp_path / "ct"], tmp_path / "threads.zarr", executor=executor
    )
    assert threaded.digest == alone.digest


def test_bad_sources_are_all_named(tmp_path: Path, toys: Path, toy: Any) -> None:
    bad = sorted(toys.rglob("*.npz"))[::2]
    for path in bad:
        with np.load(path) as arrays:
            values = dict(arrays)
        values["value"][0] = np.nan
        np.savez(path, **values)
    with pytest.raises(InputError) as caught:
        run(toy(tables=("rows",)), [toys], tmp_path / "out.zarr", executor=Processes(threads=2))
    assert {problem.source for problem in caught.value.problems} == {
        f"{path.parent.name}/{path.name}" for path in bad
    }


@pytest.mark.parametrize("thread_safe", [False, True])
def test_threads_scan_and_read_sources_only_where_the_converter_says_so(
    tmp_path: Path, toys: Path, toy: Any, thread_safe: bool
) -> None:
    alone = run(toy(), [toys], tmp_path / "alone.zarr", Settings(codec="fast"))
    scanners, readers = set(), set()

    class Noting(toy):  # type: ignore[misc]
        def scan(self, *arguments: Any) -> Any:
            scanners.add(threading.current_thread().name.partition("_")[0])
            return super().scan(*arguments)

        def read(self, *arguments: Any) -> None:
            readers.add(threading.current_thread().name.partition("_")[0])
            super().read(*arguments)

    Noting.__name__ = toy.__name__
    if thread_safe:
        Noting.thread_safe = True
    assert len(scan_sources(Noting(), [toys]).sources) > 1
    assert scanners == {"unistore-scan" if thread_safe else "MainThread"}
    threaded = run(
        Noting(), [toys], tmp_path / "threads.zarr", Settings(codec="fast"), executor=Processes(threads=3)
    )
    assert threaded.digest == alone.digest
    assert readers == {"unistore-encode" if thread_safe else "MainThread"}
