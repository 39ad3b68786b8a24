"""Kill converters, workers, and converters with their workers at random moments, over all families.

Five ways, each until it has made so many kills of each family's conversions:

- ``converter``: a conversion in one process is killed, and some of them again while they resume;
- ``workers``: a conversion with two workers loses one of them, or both at once, twice; it has to get over
  that by itself;
- ``together``: the converter and its workers are killed at once, and no process may be left;
- ``cluster``: a conversion on a dask cluster that was started by hand loses a worker, twice;
- ``parts``: jobs of a conversion in 4 to 8 parts, all at once, are killed and run again, ``--seal`` too.

Then the same command runs undisturbed, with workers or without, and the store must equal, byte for byte, the
one of an uninterrupted conversion in one process, with nothing beside it. Ends with a table in Markdown.

    python tools/faults/long_kills.py
    python tools/faults/long_kills.py --family ct --converter 20 --workers 20 --together 5 --cluster 5
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import distributed  # noqa: F401 - once, before the processes that need it are forked
import psutil
from cluster import Cluster
from trials import FAMILIES, Case, Reference, ended, family, make_parser, start

import unistore.conversion.plan
from unistore.conversion.executors.dask_executor import Dask
from unistore.conversion.executors.processes import Processes
from unistore.store.names import build_folder

WAYS = ("converter", "workers", "together", "cluster", "parts")
STRIKES = 2
"""Times that a conversion loses workers: a step that loses three is given up."""
AGAIN = 0.3
"""Share of the killed converters that are killed again."""


@dataclass
class Family:
    """One family's trials."""

    name: str
    work: Path
    rng: random.Random
    cluster: Cluster | None
    tally: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.case = Case(*family(self.name))
        first = self.work / f"{self.name}-first" / "out.zarr"
        self.case.convert(first)  # what it imports is there when processes are forked
        shutil.rmtree(first.parent)
        self.seconds = {
            workers: min(self._undisturbed(workers) for _ in range(3)) for workers in (False, True)
        }

    def _undisturbed(self, workers: bool) -> float:
        """Convert once; returns how long that took. A store of one process is what the others must equal."""
        store = self.work / f"{self.name}-whole" / "out.zarr"
        began = time.perf_counter()
        ended(start(partial(self.convert, store, workers)))
        seconds = time.perf_counter() - began
        if not workers:
            self.whole = Reference.of(store)
        self.whole.check(store, f"{self.name}, undisturbed")
        return seconds

    def convert(self, destination: Path, workers: bool) -> None:
        """The command."""
        if not workers:
            self.case.convert(destination)
            return
        with Processes(2) as executor:
            self.case.convert(destination, executor)

    def convert_on_cluster(self, destination: Path) -> None:
        """The command with ``--scheduler``."""
        assert self.cluster is not None
        with Dask(self.cluster.address) as executor:
            self.case.convert(destination, executor)

    def trial(self, way: str) -> None:
        """Kill one conversion in a way, resume it, check the store."""
        number = self.tally["stores"]
        destination = self.work / f"{self.name}-{number}" / "out.zarr"
        kill: Callable[[Path], int] = getattr(self, f"_kill_{way}")
        killed = kill(destination)
        while way in ("converter", "together") and self.rng.random() < AGAIN:
            killed += kill(destination)
        ended(start(partial(self.convert, destination, self.rng.random() < (way != "converter") / 2)))
        self.whole.check(destination, f"{self.name}, {way}, store {number}")
        self.tally["stores"] += 1
        self.tally[way] += killed

    def _kill_converter(self, destination: Path) -> int:
        pid = start(partial(self.convert, destination, False))
        time.sleep(self.rng.uniform(0, self.seconds[False]))
        os.kill(pid, signal.SIGKILL)
        return not ended(pid)

    def _kill_workers(self, destination: Path) -> int:
        pid = start(partial(self.convert, destination, True))
        killed = 0
        for _ in range(STRIKES):
            self._wait(pid)
            killed += self._strike(pid)
        if not ended(pid):
            sys.exit(f"FAILED: {self.name}: the converter did not get over {killed} lost workers")
        return killed

    def _kill_together(self, destination: Path) -> int:
        pid = start(partial(self.convert, destination, True))
        self._wait(pid)
        found = workers_of(pid)
        processes = [pid, *(each.pid for each in found)]
        self.rng.shuffle(processes)
        for process in processes:
            with suppress(ProcessLookupError):  # one takes the others with it
                os.kill(process, signal.SIGKILL)
        killed = not ended(pid)
        if psutil.wait_procs(found, timeout=20)[1]:
            sys.exit(f"FAILED: {self.name}: workers outlive their converter")
        return killed

    def _kill_cluster(self, destination: Path) -> int:
        assert self.cluster is not None
        pid = start(partial(self.convert_on_cluster, destination))
        journal = build_folder(destination) / "journal.jsonl"
        while not journal.exists() and status_of(pid) != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
        killed = 0
        for _ in range(STRIKES):
            time.sleep(self.rng.uniform(0, self.seconds[True] / STRIKES))
            if status_of(pid) != psutil.STATUS_ZOMBIE:
                self.cluster.kill_worker(self.rng)
                killed += 1
        if not ended(pid):
            sys.exit(
                f"FAILED: {self.name}: the converter did not get over {killed} lost workers of the cluster"
            )
        return killed

    def _kill_parts(self, destination: Path) -> int:
        count = self.rng.randint(4, 8)
        todo: list[dict[str, Any]] = [{"part": f"{number}/{count}"} for number in range(1, count + 1)]
        killed = 0
        while not destination.exists() or build_folder(destination).exists():
            last: dict[str, Any] = {"part": f"1/{count}"} if destination.exists() else {"seal": True}
            jobs = [start(partial(self.case.convert, destination, **job)) for job in todo or [last]]
            victims = self.rng.sample(jobs, self.rng.randint(0, len(jobs)))
            for victim in victims:
                time.sleep(self.rng.uniform(0, self.seconds[False]))
                os.kill(victim, signal.SIGKILL)
            ends = [ended(pid) for pid in jobs]
            todo = [job for job, is_done in zip(todo, ends, strict=False) if not is_done]
            killed += ends.count(False)
        return killed

    def _strike(self, pid: int) -> int:
        """Kill a worker, or both; returns how many were killed."""
        found = workers_of(pid)
        chosen = self.rng.sample(found, min(len(found), self.rng.choice((1, 1, 2))))
        killed = 0
        for process in chosen:
            with suppress(psutil.NoSuchProcess):  # it was done
                process.kill()
                killed += 1
        return killed

    def _wait(self, pid: int) -> None:
        """Wait until there are workers, and then for a random part of a conversion."""
        while not workers_of(pid) and status_of(pid) != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
        time.sleep(self.rng.uniform(0, self.seconds[True] / STRIKES))


def workers_of(pid: int) -> list[psutil.Process]:
    """Living workers of a converter."""
    return [child for child in psutil.Process(pid).children() if status_of(child.pid) != psutil.STATUS_ZOMBIE]


def status_of(pid: int) -> str:
    """State of a process; one that is gone is a zombie's."""
    try:
        return str(psutil.Process(pid).status())
    except psutil.NoSuchProcess:
        return str(psutil.STATUS_ZOMBIE)


def table(families: list[Family]) -> str:
    """The figures in Markdown."""
    lines = [
        "| family | converter | workers | converter with workers | dask workers | parts | stores, all equal |"
    ]
    lines.append("|---|--:|--:|--:|--:|--:|--:|")
    total: Counter[str] = Counter()
    for each in families:
        total.update(each.tally)
    for name, tally in [*((each.name, each.tally) for each in families), ("all", total)]:
        lines.append(f"| {name} | " + " | ".join(str(tally[column]) for column in (*WAYS, "stores")) + " |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Run the trials; exits with a message at the first that fails."""
    parser = make_parser(__doc__)
    parser.add_argument("--family", choices=list(FAMILIES), help="one family; all of them if not given")
    parser.add_argument("--converter", type=int, default=25, help="converters to kill, per family")
    parser.add_argument("--workers", type=int, default=25, help="workers to kill, per family")
    parser.add_argument("--together", type=int, default=5, help="both to kill, per family")
    parser.add_argument("--cluster", type=int, default=25, help="workers of a dask cluster, per family")
    parser.add_argument("--parts", type=int, default=25, help="jobs of parts to kill, per family")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--work", type=Path, help="where the trials take place (memory is fine: no power cut)"
    )
    given = parser.parse_args(arguments)
    unistore.conversion.plan.SHARD = 8 << 10  # many small shards
    began = time.perf_counter()
    with ExitStack() as stack:
        folder, own = (
            stack.enter_context(tempfile.TemporaryDirectory(prefix="unistore-kill-", dir=given.work))
            for _ in range(2)
        )
        cluster = Cluster(Path(own)) if given.cluster else None
        if cluster is not None:
            stack.callback(cluster.stop)
        rng = random.Random(given.seed)
        names = [given.family] if given.family else list(FAMILIES)
        families = [Family(name, Path(folder).resolve(), rng, cluster) for name in names]
        for way in WAYS:
            for each in families:
                while each.tally[way] < getattr(given, way):
                    each.trial(way)
                print(f"{way}, {each.name}: {each.tally[way]} killed", file=sys.stderr)
        left = sorted(path.name for path in Path(folder).iterdir())
        if left:
            sys.exit(f"FAILED: left behind: {left}")
    print(table(families))
    print(f"\n{time.perf_counter() - began:.0f} s, seed {given.seed}")


if __name__ == "__main__":
    main()
