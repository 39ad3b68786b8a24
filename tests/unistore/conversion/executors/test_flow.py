"""The flow of steps through workers that are made up here: what is handed out, blamed, run again, stopped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unistore.conversion.executors.flow import Done, Lost, Step, run_steps
from unistore.conversion.job import Outcome
from unistore.errors import ConversionError


class Sized:
    """A job of numbers, each the bytes that its step needs."""

    def __call__(self, item: int) -> Outcome:
        return Outcome({"twice": 2 * item})

    def describe(self, item: int) -> str:
        return f"the step of {item}"

    def need(self, item: int) -> int:
        return item


class Scripted:
    """Workers with so many places, at which happens what the script says, one event a turn.

    ``"done"`` and ``"broken"``: the oldest step is done, or raises; ``"dies"``: its worker dies at it;
    ``"all"``: all workers are gone, by no fault of the steps; ``"given up"``; ``"nothing"``. Then all
    are done.
    """

    def __init__(self, places: int, script: str = "") -> None:
        self.places = places
        self.script = script.split(", ") if script else []
        self.at_work: list[Step[int]] = []
        self.handed_out: list[int] = []
        self.most_bytes = 0
        self.stopped = 0

    def ready(self, waiting: int) -> bool:
        assert waiting
        return len(self.at_work) < self.places

    def hand_out(self, step: Step[Any]) -> None:
        assert step not in self.at_work
        self.at_work.append(step)
        self.handed_out.append(step.item)
        if len(self.at_work) > 1:
            self.most_bytes = max(self.most_bytes, sum(each.need for each in self.at_work))

    def next(self) -> Done | Lost | None:
        happens = self.script.pop(0) if self.script else "done"
        if happens == "nothing":
            return None
        if happens == "all":
            steps, self.at_work = self.at_work, []
            return Lost(steps, None, "a reason")
        step = self.at_work.pop(0)
        if happens in ("dies", "given up"):
            return Lost([step], step, "a reason", given_up=happens == "given up")
        if happens == "broken":
            raise OSError("the disk is full")
        return Done(step, Sized()(step.item))

    def stop(self) -> None:
        self.stopped += 1


def run(workers: Scripted, items: list[int], memory: int | None = None) -> Generator[tuple[int, Outcome]]:
    return run_steps(workers, Sized(), items, memory)


@given(
    items=st.lists(st.integers(0, 9)),
    places=st.integers(1, 4),
    events=st.lists(st.sampled_from(["done", "all", "nothing"])),
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
    assert workers.handed_out == [4, 3, 2], "the next is handed out before the caller has seen to the outcome"
    assert [item for item, _ in steps] == [3, 2, 1]


def test_memory_bounds_what_is_in_flight_and_lets_one_go_alone() -> None:
    workers = Scripted(9)
    steps = run(workers, [30, 6, 5, 4, 3], memory=11)
    found = []
    for item, _ in steps:
        found.append((item, [step.item for step in workers.at_work]))
    assert found == [(30, [6, 5]), (6, [5, 4]), (5, [4, 3]), (4, [3]), (3, [])]


def test_a_step_that_loses_its_worker_runs_again_before_what_waits() -> None:
    workers = Scripted(1, "dies, dies")
    assert [item for item, _ in run(workers, [5, 4])] == [5, 4]
    assert workers.handed_out == [5, 5, 5, 4]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("dies, dies, dies", "the step of 5: its worker died 3 times (a reason); what was done is kept"),
        ("given up", "the step of 5: its worker died again and again (a reason); what was done is kept"),
    ],
)
def test_a_step_is_given_up(script: str, said: str) -> None:
    workers = Scripted(1, script)
    with pytest.raises(ConversionError) as caught:
        list(run(workers, [4, 5]))
    assert str(caught.value) == f"{said}: the same command continues"
    assert workers.stopped == 1


def test_losses_that_no_step_is_blamed_for_are_not_counted() -> None:
    workers = Scripted(2, "all, all, all, all, dies, dies")
    assert sorted(item for item, _ in run(workers, [4, 5])) == [4, 5]


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
