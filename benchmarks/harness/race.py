"""Runs ways in processes of their own, in rounds, in turning order."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import statistics
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from harness.consume import consume
from harness.memory import busy_seconds, disk, evict, own_memory, processor_seconds, warm
from harness.ways import Way

_PATIENCE = 300.0
_QUIET = 0.05
"""Share of the machine that others may use while a slice counts as undisturbed."""
_TRIES = 3


@dataclass(frozen=True, slots=True)
class Slice:
    """What a way did in one round.

    Attributes
    ----------
    rate
        Samples a second.
    cost
        Processor seconds a sample, all its processes together.
    others
        Share of the machine that other processes used meanwhile.
    """

    rate: float
    cost: float
    others: float


@dataclass(slots=True)
class Result:
    """What one way has shown.

    Attributes
    ----------
    slices
        By round.
    first
        Seconds from opening to the first batch, files not in the page cache.
    memory
        MiB of its processes above what they held after importing.
    sample_bytes
        Bytes of a delivered sample.
    failure
        Last line of what went wrong.
    """

    way: Way
    slices: dict[int, Slice] = field(default_factory=dict)
    first: float = float("nan")
    memory: float = 0.0
    sample_bytes: float = 0.0
    failure: str = ""

    @property
    def rate(self) -> float:
        """Median of the rounds, samples a second."""
        return statistics.median(s.rate for s in self.slices.values()) if self.slices else 0.0

    @property
    def cost(self) -> float:
        """Median of the rounds, processor seconds a sample."""
        return statistics.median(s.cost for s in self.slices.values()) if self.slices else 0.0

    def over(self, other: Result) -> float:
        """How many times `other`'s rate, the median over the rounds that both took part in."""
        shared = self.slices.keys() & other.slices.keys()
        ratios = [self.slices[number].rate / other.slices[number].rate for number in shared]
        return statistics.median(ratios) if ratios else float("nan")

    def as_json(self) -> dict[str, Any]:
        """Everything measured, for files."""
        return {
            "name": self.way.name,
            "setting": self.way.setting,
            "kind": self.way.kind,
            "samples_per_s": self.rate,
            "processor_s_per_sample": self.cost,
            "rounds": {number: [s.rate, s.cost, s.others] for number, s in self.slices.items()},
            "first_batch_s": self.first,
            "memory_mib": self.memory,
            "sample_bytes": self.sample_bytes,
            "disk_bytes": disk(self.way.files),
            "failure": self.failure,
        }


def race(ways: Sequence[Way], batch: int, rounds: int, seconds: float) -> list[Result]:
    """Measure ways against one another.

    Parameters
    ----------
    ways
        The contenders.
    batch
        Samples of a batch.
    rounds, seconds
        How often each runs, and for how long each time. A slice that others disturbed is tried again; the
        least disturbed counts.
    """
    context = multiprocessing.get_context("spawn")
    running: list[tuple[_Runner, Result]] = []
    results = [Result(way) for way in ways]
    try:
        for result in results:
            runner = _Runner(context, result.way, result.way.samples or batch)
            running.append((runner, result))
            evict(result.way.files)
            began = runner.tell("open", result)
            if began is not None:
                result.first, result.sample_bytes = began
            _progress(f"{result.way.key}: first batch {result.first:.2f} s {result.failure}")
        warm(dict.fromkeys(file for way in ways for file in way.files))
        for number in range(rounds):
            turn = number % max(1, len(running))
            for runner, result in running[turn:] + running[:turn]:
                if not (result.way.slow and number % 3) and not result.failure:
                    _time(runner, result, number, seconds)
            _progress(f"round {number + 1} of {rounds}")
    finally:
        for runner, _ in running:
            runner.stop()
    return results


def _time(runner: _Runner, result: Result, number: int, seconds: float) -> None:
    """One slice of a way, undisturbed if possible."""
    for _ in range(_TRIES):
        _wait_for_quiet()
        told = runner.tell(("round", seconds), result)
        if told is None:
            return
        found, memory = told
        result.memory = max(result.memory, memory)
        best = result.slices.get(number)
        if best is None or found.others < best.others:
            result.slices[number] = found
        if found.others <= _QUIET:
            return


def _wait_for_quiet(most: float = 1.0) -> None:
    """Wait until others leave the machine alone for a moment, but not for long."""
    cores, end = len(os.sched_getaffinity(0)), time.perf_counter() + most
    while time.perf_counter() < end:
        before = busy_seconds()
        time.sleep(0.1)
        if busy_seconds() - before <= 2 * _QUIET * cores * 0.1:
            return


def _progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class _Runner:
    """The process of one way, as its parent sees it."""

    def __init__(self, context: Any, way: Way, batch: int) -> None:
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_run, args=(way, batch, theirs))
        self._process.start()
        theirs.close()

    def tell(self, what: Any, result: Result) -> Any:
        """Ask for something; None if it failed, which is then told in the result."""
        try:
            self._connection.send(what)
            if not self._connection.poll(_PATIENCE):
                result.failure = f"no answer within {_PATIENCE:.0f} s"
                return None
            kind, value = self._connection.recv()
        except (EOFError, OSError):
            result.failure = "its process died"
            return None
        if kind == "failed":
            result.failure = value.strip().splitlines()[-1]
            _progress(value)
            return None
        return value

    def stop(self) -> None:
        """End the process."""
        with contextlib.suppress(OSError):
            self._connection.send("stop")
        self._connection.close()
        self._process.join(20)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _run(way: Way, batch: int, connection: Connection) -> None:
    """Answer the parent's questions; runs in a process of its own."""
    multiprocessing.set_start_method("fork", force=True)  # what users have; this process itself was spawned
    feed, passed = None, 0
    try:
        for module in way.imports:
            importlib.import_module(module)
        before = own_memory(os.getpid())
        while (asked := connection.recv()) != "stop":
            if asked == "open":
                began = time.perf_counter()
                feed = way.make(**way.arguments)
                count, _ = consume(next(feed.batches))
                connection.send(("done", (time.perf_counter() - began, count / batch)))
                passed = feed.warm_up
                continue
            assert feed is not None
            for _ in range(feed.ahead + passed):
                next(feed.batches)
            passed = 0
            found = _slice(feed.batches, batch, asked[1])
            connection.send(("done", (found, own_memory(os.getpid()) - before)))
        if feed is not None:
            feed.close()
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return  # the parent process has ended
    except BaseException:
        connection.send(("failed", traceback.format_exc()))


def _slice(batches: Any, batch: int, seconds: float) -> Slice:
    """Consume batches for a while."""
    count, own, busy, began = 0, processor_seconds(os.getpid()), busy_seconds(), time.perf_counter()
    while (elapsed := time.perf_counter() - began) < seconds or count < 2:
        consume(next(batches))
        count += 1
    used = processor_seconds(os.getpid()) - own
    others = max(0.0, busy_seconds() - busy - used) / (elapsed * len(os.sched_getaffinity(0)))
    return Slice(count * batch / elapsed, used / (count * batch), others)
