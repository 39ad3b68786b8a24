"""One run of a function in a process of its own: how long it took, and what it held."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from harness.memory import busy_seconds, own_memory, processor_seconds


@dataclass(frozen=True, slots=True)
class Once:
    """One run.

    Attributes
    ----------
    seconds
        What the function says that it took, or else the wall time of the call.
    cost
        Processor seconds of the process and its children.
    peak
        Most MiB held above the imports (anonymous and shared memory).
    own
        Most MiB that were resident in the process itself, above the imports.
    others
        Share of the machine that other processes used meanwhile.
    failure
        Last line of what went wrong.
    """

    seconds: float = float("nan")
    cost: float = float("nan")
    peak: float = float("nan")
    own: float = float("nan")
    others: float = 0.0
    failure: str = ""


def run_once(function: Callable[..., float | None], arguments: Sequence[Any], imports: Sequence[str]) -> Once:
    """Call a function of the script in a new process, after it has imported what it needs."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=_run, args=(function, tuple(arguments), tuple(imports), theirs)
    )
    process.start()
    theirs.close()
    try:
        return ours.recv()  # type: ignore[no-any-return]
    except EOFError:
        return Once(failure="its process died")
    finally:
        process.join()


def _run(
    function: Callable[..., float | None],
    arguments: tuple[Any, ...],
    imports: tuple[str, ...],
    connection: Connection,
) -> None:
    for module in imports:
        importlib.import_module(module)
    before, most, done = own_memory(os.getpid()), [0.0], threading.Event()
    resident = _resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forgets the most that was resident until now

    def watch() -> None:
        while not done.wait(0.05):
            most[0] = max(most[0], own_memory(os.getpid()))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        cost, busy, began = processor_seconds(os.getpid()), busy_seconds(), time.perf_counter()
        told = function(*arguments)
        elapsed = time.perf_counter() - began
        used = processor_seconds(os.getpid()) - cost
        others = max(0.0, busy_seconds() - busy - used) / (elapsed * len(os.sched_getaffinity(0)))
        done.set()
        watcher.join()
        own = _resident("VmHWM") - resident
        connection.send(Once(elapsed if told is None else told, used, most[0] - before, own, others))
    except BaseException as error:
        print(traceback.format_exc(), file=sys.stderr)
        connection.send(Once(failure=f"{type(error).__name__}: {error}".splitlines()[0]))
    finally:
        done.set()


def _resident(what: str) -> float:
    """MiB of this process that are resident (``VmRSS``), or were at most (``VmHWM``)."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition(f"{what}:")[2].split()[0]) / 1024
