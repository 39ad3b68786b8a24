"""Conversion on threads: the bytes of one thread, sources read by a single one, nothing left running."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unistore.conversion import columns
from unistore.conversion.executors.local import Threaded
from unistore.conversion.job import Outcome
from unistore.conversion.memory import PROCESS
from unistore.conversion.runner import run
from unistore.converters.ct.converter import CtConverter
from unistore.converters.spike.converter import SpikeConverter
from unistore.errors import ConversionError, InputError, Problem
from unistore.zarr3.threads import EncoderThreads, OrderedMap

DATA = Path(__file__).resolve().parents[3] / "data"


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """No thread outlives what it worked for."""
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


@dataclass
class Steps:
    """Steps that note what they do, and on which thread; a number fails where it is told to."""

    size: int = 0
    refused: int = -1
    broken: int = -1
    unwritten: int = -1
    slow: float = 0.0
    events: list[tuple[str, int, int]] = field(default_factory=list)

    def __call__(self, item: int) -> Outcome:
        raise AssertionError(item)

    def read(self, item: int, ordered_map: OrderedMap) -> Callable[[], Outcome]:
        self._note("read", item)
        if item == self.broken:
            raise ConversionError("the source changed")
        if item == self.refused:
            return lambda: Outcome(problems=(Problem("a.h5", "is bad"),))
        return lambda: self._write(item, ordered_map)

    def _write(self, item: int, ordered_map: OrderedMap) -> Outcome:
        self._note("write", item)
        squares = list(ordered_map(self._square, range(10), 2))
        if item == self.unwritten:
            raise ConversionError("the disk is full")
        self._note("written", item)
        return Outcome({"squares": squares})

    def _square(self, number: int) -> int:
        time.sleep(self.slow)
        return number**2

    def _note(self, what: str, item: int) -> None:
        self.events.append((what, item, threading.get_ident()))

    def describe(self, item: int) -> str:
        return f"step {item}"

    def need(self, item: int) -> int:
        return self.size


def position(steps: Steps, what: str, item: int) -> int:
    return next(at for at, event in enumerate(steps.events) if event[:2] == (what, item))


def test_one_thread_reads_and_another_writes() -> None:
    steps = Steps(refused=2)
    found = list(Threaded(cores=3).run(steps, range(5)))
    assert [item for item, _ in found] == [0, 1, 2, 3, 4]
    squares = [number**2 for number in range(10)]
    assert [outcome.record for _, outcome in found if not outcome.problems] == [{"squares": squares}] * 4
    assert [item for item, outcome in found if outcome.problems] == [2]
    (reader,) = {thread for what, _, thread in steps.events if what == "read"}
    (writer,) = {thread for what, _, thread in steps.events if what == "write"}
    assert len({reader, writer, threading.get_ident()}) == 3, "the calling thread can be interrupted"


def test_at_most_two_steps_are_held() -> None:
    steps = Steps(slow=0.001)
    list(Threaded(cores=2).run(steps, range(6)))
    for item in range(4):
        assert position(steps, "written", item) < position(steps, "read", item + 2)


def test_one_step_is_held_where_memory_has_no_room_for_two() -> None:
    steps = Steps(size=10, slow=0.001)
    list(Threaded(PROCESS + 19, cores=2).run(steps, range(4)))
    for item in range(3):
        assert position(steps, "written", item) < position(steps, "read", item + 1)


def test_how_many_steps_are_held() -> None:
    assert Threaded(cores=1).steps_at_once(10) == Threaded(PROCESS + 19, cores=2).steps_at_once(10) == 1
    assert Threaded(cores=2).steps_at_once(10) == Threaded(PROCESS + 20, cores=2).steps_at_once(10) == 2


def test_what_was_read_before_an_error_is_written_and_told() -> None:
    done: list[int] = []
    steps = Steps(broken=3)
    with pytest.raises(ConversionError, match="the source changed"):
        follow(Threaded(cores=2).run(steps, range(6)), done)
    assert done == [0, 1, 2]


def test_an_error_of_writing_stops_it() -> None:
    done: list[int] = []
    steps = Steps(unwritten=1)
    with pytest.raises(ConversionError, match="the disk is full"):
        follow(Threaded(cores=2).run(steps, range(50)), done)
    assert done == [0]
    assert not [event for event in steps.events if event[1] > 3]


def follow(outcomes: Iterable[tuple[int, Outcome]], done: list[int]) -> None:
    """Take outcomes, noting each at once."""
    for item, _ in outcomes:
        done.append(item)


@pytest.mark.parametrize("error", [GeneratorExit, KeyboardInterrupt])
def test_stopping_early_ends_what_is_at_work(error: type[BaseException]) -> None:
    steps = Steps(slow=0.02)
    outcomes = Threaded(cores=2).run(steps, range(50))
    assert next(outcomes)[0] == 0
    with pytest.raises(error):
        outcomes.throw(error)
    begun = [event for event in steps.events if event[0] == "write"]
    time.sleep(0.05)
    assert [event for event in steps.events if event[0] == "write"] == begun
    assert len([event for event in steps.events if event[0] == "written"]) < len(begun), "none was waited for"


def test_few_results_wait_to_be_taken() -> None:
    done = 0

    def note(number: int) -> int:
        nonlocal done
        done += 1
        return number

    threads = EncoderThreads(1)
    results = threads.ordered_map(note, range(100), 4)
    for number, result in enumerate(results):
        assert result == number
        time.sleep(0.0002)
        assert done <= number + 1 + 4
    threads.stop()


@pytest.mark.parametrize("codec", ["auto", "none"])
def test_toys_give_the_bytes_of_one_thread(tmp_path: Path, toys: Path, toy: Any, codec: str) -> None:
    alone = run(toy(), [toys], tmp_path / "alone.zarr", codec=codec)
    assert alone.tasks > 5
    for cores in (2, 5):
        executor = Threaded(cores=cores)
        threaded = run(toy(), [toys], tmp_path / f"{cores}.zarr", codec=codec, executor=executor)
        assert threaded.digest == alone.digest


def test_volumes_in_parts_give_the_bytes_of_one_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2):
        folder = tmp_path / "ct" / f"case_{number}"
        folder.mkdir(parents=True)
        volume = np.random.default_rng(number).integers(-1000, 1000, (70, 40, 50), np.int16)
        np.save(folder / "ct_original.npy", volume)
    monkeypatch.setattr("unistore.conversion.layout.SHARD", 64 << 10)
    monkeypatch.setattr(columns, "LARGE", 1 << 10)
    monkeypatch.setattr(columns, "PLANES_BYTES", 32 << 10)
    monkeypatch.setattr("unistore.zarr3.writer.RUN_BYTES", 1 << 10)
    alone = run(CtConverter(tile=(16, 16, 16)), [tmp_path / "ct"], tmp_path / "alone.zarr")
    executor = Threaded(cores=3)
    threaded = run(
        CtConverter(tile=(16, 16, 16)), [tmp_path / "ct"], tmp_path / "threads.zarr", executor=executor
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
        run(toy(tables=("rows",)), [toys], tmp_path / "out.zarr", executor=Threaded(cores=2))
    assert {problem.source for problem in caught.value.problems} == {
        f"{path.parent.name}/{path.name}" for path in bad
    }


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_forked_meanwhile_can_convert(tmp_path: Path, toys: Path, toy: Any) -> None:
    """As torch's workers are forked: the parent's threads are not there in the child."""

    def convert() -> None:
        run(toy(), [toys], tmp_path / "child.zarr", executor=Threaded(cores=2))

    outcomes = Threaded(cores=2).run(Steps(slow=0.001), range(5))
    next(outcomes)
    child = multiprocessing.get_context("fork").Process(target=convert)
    child.start()
    child.join(30)
    code = child.exitcode
    child.kill()
    outcomes.close()
    assert code == 0


@pytest.mark.parametrize("thread_safe", [False, True])
def test_threads_read_sources_only_where_the_converter_says_so(
    tmp_path: Path, toys: Path, toy: Any, thread_safe: bool
) -> None:
    alone = run(toy(), [toys], tmp_path / "alone.zarr", codec="fast")
    readers = set()

    class Noting(toy):  # type: ignore[misc]
        def read(self, *arguments: Any) -> None:
            readers.add(threading.current_thread().name.rpartition("_")[0])
            super().read(*arguments)

    Noting.__name__ = toy.__name__
    if thread_safe:
        Noting.thread_safe = True
    threaded = run(Noting(), [toys], tmp_path / "threads.zarr", codec="fast", executor=Threaded(cores=3))
    assert threaded.digest == alone.digest
    assert readers == {"unistore-encode" if thread_safe else "unistore-read"}


def test_spike_frames_give_the_bytes_of_one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unistore.conversion.layout.SHARD", 1 << 20)
    converter = SpikeConverter(height=250, width=400, voxel_bins=(5,))
    alone = run(converter, [DATA / "spike"], tmp_path / "alone.zarr")
    threaded = run(converter, [DATA / "spike"], tmp_path / "threads.zarr", executor=Threaded(cores=3))
    assert threaded.digest == alone.digest
