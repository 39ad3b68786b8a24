"""The flow of steps through workers that are made up here: what is handed out, blamed, run again, stopped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unistore.conversion.executors.flow import run_steps
from unistore.conversion.executors.local import Job, Outcome
from unistore.conversion.executors.worker_process import WorkerLostError
from unistore.errors import ConversionError


class Sized(Job[int]):
    """A job of numbers, each the bytes that its step needs."""

    def __call__(self, item: int) -> Outcome:
        return Outcome({"twice": 2 * item})

    def describe(self, item: int) -> str:
        return f"the step of {item}"

    def need(self, item: int) -> int:
        return item


class Future:
    """Of a step at a worker; `error` is raised in the place of its outcome."""

    def __init__(self, item: int) -> None:
        self.item = item
        self.error: Exception | None = None

    def result(self) -> Outcome:
        if self.error is not None:
            raise self.error
        return Sized()(self.item)


class Scripted:
    """Workers with so many places, at which happens what the script says, one event a turn.

    ``"done"`` and ``"broken"``: the oldest step is done, or raises; ``"dies"``: its worker dies at it;
    ``"idle"``: its worker had died before; ``"given up"``; ``"nothing"``. Then all are done.
    """

    def __init__(self, places: int, script: str = "") -> None:
        self.steps_at_once = places
        self.script = script.split(", ") if script else []
        self.at_work: list[Future] = []
        self.submitted: list[int] = []
        self.most_bytes = 0
        self.replaced = 0
        self.stopped = 0

    def submit(self, job: Any, item: Any) -> Future:
        assert isinstance(job, Sized)
        assert len(self.at_work) < self.steps_at_once
        self.at_work.append(Future(item))
        self.submitted.append(item)
        if len(self.at_work) > 1:
            self.most_bytes = max(self.most_bytes, sum(each.item for each in self.at_work))
        return self.at_work[-1]

    def wait(self, futures: Any) -> Future | None:
        assert set(futures) == set(self.at_work)
        happens = self.script.pop(0) if self.script else "done"
        if happens == "nothing":
            return None
        future = self.at_work.pop(0)
        if happens == "broken":
            future.error = OSError("the disk is full")
        elif happens != "done":
            future.error = WorkerLostError(
                "a reason", "a hint", blamed=happens != "idle", final=happens == "given up"
            )
        return future

    def replace_lost(self, error: WorkerLostError) -> None:
        assert error.cause == "a reason"
        self.replaced += 1

    def stop(self) -> None:
        self.stopped += 1


def run(workers: Scripted, items: list[int], memory: int | None = None) -> Generator[tuple[int, Outcome]]:
    return run_steps(workers, Sized(), items, memory)


@given(
    items=st.lists(st.integers(0, 9)),
    places=st.integers(1, 4),
    events=st.lists(st.sampled_from(["done", "idle", "nothing"])),
    deaths=st.integers(0, 2),
    memory=st.none() | st.integers(0, 20),
)
def test_every_item_is_done_once_whatever_happens(
    items: list[int], places: int, events: list[str], deaths: int, memory: int | None
) -> None:
    workers = Scripted(places, ", ".join([*["dies"] * deaths, *events]))
    found = list(run(workers, items, memory))
    assert Counter(item for item, _ in found) == Counter(items)
    assert all(outcome.record == {"twice": 2 * item} for item, outcome in found)
    assert workers.most_bytes <= (20 * 9 if memory is None else memory)
    assert not workers.stopped


def test_the_largest_come_first_and_places_are_filled() -> None:
    workers = Scripted(2)
    steps = run(workers, [1, 4, 2, 3])
    assert next(steps)[0] == 4
    assert workers.submitted == [4, 3, 2], "the next is submitted before the caller has seen to the outcome"
    assert [item for item, _ in steps] == [3, 2, 1]


def test_memory_bounds_what_is_in_flight_and_lets_one_go_alone() -> None:
    workers = Scripted(9)
    steps = run(workers, [30, 6, 5, 4, 3], memory=11)
    found = []
    for item, _ in steps:
        found.append((item, [future.item for future in workers.at_work]))
    assert found == [(30, [6, 5]), (6, [5, 4]), (5, [4, 3]), (4, [3]), (3, [])]


def test_a_step_that_loses_its_worker_runs_again_before_what_waits() -> None:
    workers = Scripted(1, "dies, dies")
    assert [item for item, _ in run(workers, [5, 4])] == [5, 4]
    assert workers.submitted == [5, 5, 5, 4]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (
            "dies, dies, dies",
            "the step of 5: its worker died 3 times (a reason: a hint); what was done is kept",
        ),
        (
            "given up",
            "the step of 5: its worker died again and again (a reason: a hint); what was done is kept",
        ),
    ],
)
def test_a_step_is_given_up(script: str, said: str) -> None:
    workers = Scripted(1, script)
    with pytest.raises(ConversionError) as caught:
        list(run(workers, [4, 5]))
    assert str(caught.value) == f"{said}: the same command continues"
    assert workers.stopped == 1


def test_losses_that_no_step_is_blamed_for_are_not_counted() -> None:
    workers = Scripted(1, "idle, idle, idle, idle, dies, dies")
    assert [item for item, _ in run(workers, [4, 5])] == [5, 4]
    assert workers.replaced == 6


def test_an_error_of_a_step_stops_the_workers() -> None:
    workers = Scripted(2, "done, broken")
    with pytest.raises(OSError, match="the disk is full"):
        list(run(workers, [4, 5, 6]))
    assert workers.stopped == 1


@pytest.mark.parametrize("error", [GeneratorExit, KeyboardInterrupt])
def test_stopping_early_stops_the_workers(error: type[BaseException]) -> None:
    workers = Scripted(2)
    steps = run(workers, [4, 5, 6])
    next(steps)
    with pytest.raises(error):
        steps.throw(error)
    assert workers.stopped == 1


def test_nothing_to_do() -> None:
    workers = Scripted(2)
    assert list(run(workers, [])) == []
    assert not workers.stopped
