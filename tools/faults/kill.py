"""Kill a conversion at its operations on the disk and at random moments; the same command must end the same.

Every trial converts into a fresh folder in a forked process that is killed with SIGKILL: before its k-th
operation (opening, making, renaming, removing a file or folder, fsync), or after a random time. Some trials
are killed again while they resume. Then the command runs undisturbed, and the store must equal, byte for
byte, the one of an uninterrupted run, with nothing beside it. With ``--overwrite`` an older store stands at
the destination, and at every moment one whole store, the old or the new, must be found there or set aside.

    python tools/faults/kill.py --operations 0 --moments 100          # 0: every operation
    python tools/faults/kill.py --family point_cloud --moments 100
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trials import FAMILIES, Case, Reference, ended, family, make_parser, start

import unistore.conversion.plan
import unistore.zarr3.durable
from unistore.conversion.run import run
from unistore.conversion.settings import Settings
from unistore.errors import StoreError
from unistore.store.names import build_folder
from unistore.store.reader import Store

OPERATIONS = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.link", "os.truncate")


def in_child(job: Callable[[], None], kill_after: float | None = None) -> bool:
    """Run a job in a forked process; True if it ended by itself, False if it was killed."""
    pid = start(job)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(pid, signal.SIGKILL)
    return ended(pid)


def with_hook(
    job: Callable[[], None], folder: Path, kill_at: Callable[[int, str], None]
) -> Callable[[], None]:
    """A job that calls ``kill_at(number, operation)`` before every operation below `folder`."""

    def wrapped() -> None:
        count = 0

        def before(operation: str, path: object) -> None:
            nonlocal count
            if str(path).startswith(str(folder)):
                count += 1
                kill_at(count, f"{operation} {Path(str(path)).name}")

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            if event in OPERATIONS and arguments and not isinstance(arguments[0], int):
                before(event, os.fsdecode(arguments[0]))

        def fsync(descriptor: int, original: Callable[[int], None] = os.fsync) -> None:
            before("fsync", Path(f"/proc/self/fd/{descriptor}").readlink())
            original(descriptor)

        os.fsync = fsync
        unistore.zarr3.durable.fsync = fsync
        sys.addaudithook(hook)
        job()

    return wrapped


def check_whole(destination: Path, digests: set[str]) -> None:
    """Exit unless there is a whole store, old or new, at the destination or set aside beside it."""
    old = build_folder(destination) / "old"
    found = []
    for path in (destination, old):
        try:
            found.append(Store(path).attributes["seal"]["digest"])
        except StoreError:
            continue
    if not found or not set(found) <= digests:
        sys.exit(f"FAILED: {destination}: no whole store after the kill, found {found}")


def main(arguments: list[str] | None = None) -> None:
    """Run the trials; exits with a message at the first that fails."""
    parser = make_parser(__doc__)
    parser.add_argument("--family", choices=["toy", *FAMILIES], default="toy")
    parser.add_argument("--operations", type=int, default=10, help="operations to kill before; 0: every one")
    parser.add_argument("--moments", type=int, default=5, help="random moments to kill at")
    parser.add_argument("--overwrite", action="store_true", help="an older store stands at the destination")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--work", type=Path, help="where the trials take place (memory is fine: no power cut)"
    )
    given = parser.parse_args(arguments)
    unistore.conversion.plan.SHARD = 16 << 10  # many small shards
    with tempfile.TemporaryDirectory(prefix="unistore-kill-", dir=given.work) as folder:
        run_trials(given, Path(folder).resolve())


def run_trials(given: argparse.Namespace, work: Path) -> None:
    """All trials of one family."""
    rng = random.Random(given.seed)
    case, old = make_case(given, work)
    first, whole = work / "first" / "out.zarr", work / "whole" / "out.zarr"
    for destination in (first, whole):
        prepare(destination, old)
    case.convert(first)  # what it imports is there when processes are forked
    began = time.perf_counter()
    in_child(lambda: case.convert(whole))
    seconds = time.perf_counter() - began
    reference = Reference.of(whole)
    total = count_operations(case, work, old)
    chosen = range(1, total + 1)
    if 0 < given.operations < total:
        chosen = sorted(rng.sample(chosen, given.operations))
    tally: Counter[str] = Counter()
    moments: list[int | float] = [*chosen, *(rng.uniform(0, seconds) for _ in range(given.moments))]
    for number, moment in enumerate(moments):
        destination = work / f"trial{number}" / "out.zarr"
        prepare(destination, old)
        strikes = [moment]
        while rng.random() < 0.3:
            strikes.append(rng.randint(1, total) if isinstance(moment, int) else rng.uniform(0, seconds))
        for kill_at in strikes:
            killed = not convert_until(case, destination, kill_at)
            tally["killed" if killed else "ended first"] += 1
            if old is not None:
                check_whole(destination, {reference.digest, Store(old).attributes["seal"]["digest"]})
        in_child(lambda destination=destination: case.convert(destination))
        reference.check(destination, strikes)
    print(
        f"{given.family}: {len(moments)} trials over {total} operations, {tally['killed']} kills "
        f"({tally['ended first']} came too late), every store byte-identical ({reference.digest}), "
        "nothing left beside"
    )


def make_case(given: argparse.Namespace, work: Path) -> tuple[Case, Path | None]:
    """The conversion, and the older store that it is to replace."""
    if given.family == "toy":
        toys = load_toys()
        sources = [toys.make_sources(work / "sources", sources=3, rows=60)]
        converter, other = toys.Toy(), toys.Toy(brightness=1)
    else:
        converter, sources = family(given.family)
        other = converter
    old = None
    if given.overwrite:
        old = work / "old" / "out.zarr"
        in_child(lambda: run(other, sources, old, Settings(codec="none")))
    return Case(converter, sources, given.overwrite), old


def prepare(destination: Path, old: Path | None) -> None:
    """Make the destination's folder, with the older store if there is one."""
    destination.parent.mkdir(parents=True)
    if old is not None:
        shutil.copytree(old, destination)


def count_operations(case: Case, work: Path, old: Path | None) -> int:
    """Operations of an undisturbed conversion."""
    destination = work / "counted" / "out.zarr"
    prepare(destination, old)
    reading, writing = os.pipe()
    job = with_hook(lambda: case.convert(destination), destination.parent, lambda *_: os.write(writing, b"."))
    in_child(job)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        return len(pipe.read())


def convert_until(case: Case, destination: Path, kill_at: float) -> bool:
    """Convert; be killed before an operation (an int) or after seconds. True if it ended first."""
    if not isinstance(kill_at, int):
        return in_child(lambda: case.convert(destination), kill_after=kill_at)

    def kill_here(number: int, operation: str) -> None:
        if number == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    return in_child(with_hook(lambda: case.convert(destination), destination.parent, kill_here))


def load_toys() -> Any:
    """The toy family, which lives beside the tests that explain it."""
    path = Path(__file__).parents[2] / "tests" / "unistore" / "conversion" / "conftest.py"
    spec = importlib.util.spec_from_file_location("toys", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["toys"] = module
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
