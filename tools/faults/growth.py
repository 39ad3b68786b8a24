"""Kill append, remove, attach, derive and compact at random moments: the store is the old or the new one.

Every trial runs in a forked process, which is killed with SIGKILL after a random time, and again with a
chance of three in ten. After each kill the store must open in the version before or after the command, with
the parts, byte for byte, of a run that nothing disturbed. Then the same command runs to its end, and all
files must be those of the undisturbed run, with nothing beside them. Last, two appends run at once, time and
again: one may be refused, and after both ran again the store has both.

    python tools/faults/growth.py --kills 500 --pairs 20
"""

from __future__ import annotations

import os
import random
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from kill import in_child
from trials import make_parser, start, tree

import unistore
from unistore.conversion.lock import BEAT, LockedError
from unistore.errors import InputError, StoreError
from unistore.store.side_tables import read_side_table, side_names
from unistore.store.versions import open_stores

STORE = "s.zarr"
COMPACTED = "one.zarr"
POINTS = 4000
# the random part of the name of a side table's folder
RANDOM = re.compile(r"(?<=\.)[a-z0-9_]{8}(?=\.zarr/)")


def write_sources(folder: Path) -> None:
    """Write four small clouds, older than all stores."""
    folder.mkdir()
    for number, name in enumerate("abcd"):
        rng = np.random.default_rng(number)
        with h5py.File(folder / f"{name}.h5", "w") as file:
            file["points/xyz"] = rng.random((POINTS, 3), np.float32)
            file["points/intensity"] = rng.integers(0, 99, POINTS).astype(np.uint8)
        os.utime(folder / f"{name}.h5", (1e9, 1e9))


def attach(folder: Path, name: str) -> None:
    """Attach a column, in place of one that a killed process may have put there."""
    unistore.attach(folder / STORE, name, np.arange(POINTS, dtype=np.int32), overwrite=True)


def ignoring(message: str, call: Callable[[], object]) -> None:
    """Call, where a command that was killed too late has nothing left to do."""
    try:
        call()
    except InputError as error:
        if message not in str(error):
            raise


@dataclass
class Command:
    """A command, and the store that it starts from."""

    name: str
    base: Path
    run: Callable[[Path], object]
    whole: dict[str, bytes] = field(default_factory=dict)  # files afterwards
    parts: dict[str, dict[str, bytes]] = field(default_factory=dict)  # of each part, by its digest
    states: list[Any] = field(default_factory=list)
    seconds: float = 0.0

    def prepare(self, folder: Path) -> Path:
        """Return a copy of the store to start from."""
        return shutil.copytree(self.base, folder)

    def rehearse(self, folder: Path) -> None:
        """Run once undisturbed, and keep what comes of it."""
        self.prepare(folder)
        self.look(folder, is_reference=True)
        began = time.perf_counter()
        in_child(lambda: self.run(folder))
        self.seconds = time.perf_counter() - began
        self.look(folder, is_reference=True)
        self.whole = named_alike(tree(folder))
        shutil.rmtree(folder)

    def look(self, folder: Path, *, is_reference: bool = False) -> None:
        """Exit unless the store is in a state before or after the command, with parts as they were sealed."""
        opened = open_stores(str(folder / STORE))
        parts = [(part.attributes["seal"]["digest"], part.path) for part in opened.stores]
        sides = []
        for store in opened.stores:
            for name in side_names(store):
                side = read_side_table(store, name)
                sides.append((name, side.attributes["seal"]["digest"], side.is_of(store)))
        compacted = None
        with suppress(StoreError):
            compacted = unistore.Store(folder / COMPACTED).attributes["seal"]["digest"]
        state = ([digest for digest, _ in parts], opened.removed, sides, compacted)
        if is_reference:
            self.states.append(state)
        elif state not in self.states:
            sys.exit(f"FAILED: {self.name}: {folder} is in no state before or after: {state}")
        for digest, path in parts:
            files = tree(Path(path))
            if Path(path).name == STORE:  # killed shortly before it is left for the grown store
                files = {
                    key: data for key, data in files.items() if not key.startswith(("parts/", "versions/"))
                }
            if self.parts.setdefault(digest, files) != files:
                sys.exit(f"FAILED: {self.name}: {path} is not as it was sealed")

    def run_again(self, folder: Path) -> None:
        """Run to the end, where a process was killed while it wrote a lock, once that is old enough."""
        try:
            self.run(folder)
        except LockedError:
            time.sleep(BEAT)
            self.run(folder)

    def trial(self, folder: Path, rng: random.Random) -> int:
        """Kill the command, perhaps again, and run it to its end. Returns how many were killed in time."""
        self.prepare(folder)
        killed = 0
        while True:
            moment = rng.uniform(0, self.seconds)
            killed += not in_child(lambda: self.run_again(folder), kill_after=moment)
            self.look(folder)
            if rng.random() >= 0.3:
                break
        in_child(lambda: self.run_again(folder))
        self.look(folder)
        files = named_alike(tree(folder))
        if differing := sorted({key for key, _ in files.items() ^ self.whole.items()}):
            sys.exit(f"FAILED: {self.name}: {folder} differs from an undisturbed run in {differing}")
        shutil.rmtree(folder)
        return killed


def named_alike(files: dict[str, bytes]) -> dict[str, bytes]:
    """Give folders of side tables one name each, and leave out the documents that name them, and locks."""
    return {
        RANDOM.sub("", key): content
        for key, content in files.items()
        if not re.search(r"unistore-side/([^/]*\.json|\.[^/]*\.lock)$", key)
    }


def commands(work: Path) -> list[Command]:
    """All commands, on a store that never grew, with a side table, and on a grown one."""
    sources = work / "sources"
    write_sources(sources)
    plain, grown = work / "plain", work / "grown"
    plain.mkdir()
    unistore.convert(sources / "a.h5", plain / STORE)
    attach(plain, "kept")
    shutil.copytree(plain, grown)
    unistore.append([sources / "b.h5"], grown / STORE)

    def append(name: str) -> Callable[[Path], object]:
        return lambda folder: unistore.append([sources / f"{name}.h5"], folder / STORE)

    def remove(folder: Path) -> None:
        ignoring("has no source of this name", lambda: unistore.remove(folder / STORE, "a*"))

    def compact(folder: Path) -> None:
        ignoring("exists here", lambda: unistore.compact(folder / STORE, folder / COMPACTED))

    return [
        Command("first append", plain, append("b")),
        Command("append", grown, append("c")),
        Command("remove", grown, remove),
        Command("attach", plain, lambda folder: attach(folder, "weight")),
        Command("derive", plain, lambda folder: unistore.derive(folder / STORE, voxel_size=0.2)),
        Command("compact", grown, compact),
    ]


def two_writers(folder: Path, base: Path, sources: Path) -> int:
    """Append two sources at once; returns how many were refused."""
    shutil.copytree(base, folder)

    def append(name: str) -> None:
        # the refusal is expected, its lines are not
        with suppress(AttributeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        unistore.append([sources / f"{name}.h5"], folder / STORE)

    pids = [start(lambda name=name: append(name)) for name in "cd"]
    refused = sum(bool(os.waitpid(pid, 0)[1]) for pid in pids)
    for name in "cd":
        unistore.append([sources / f"{name}.h5"], folder / STORE)
    names = [name for store in open_stores(str(folder / STORE)).stores for name in store.text("sources/path")]
    if sorted(names) != ["a.h5", "b.h5", "c.h5", "d.h5"] or not unistore.verify(folder / STORE).ok:
        sys.exit(f"FAILED: two writers: {folder} has {names}")
    if sorted(path.name for path in folder.iterdir()) != [STORE]:
        sys.exit(f"FAILED: two writers: left beside the store: {[*folder.iterdir()]}")
    shutil.rmtree(folder)
    return refused


def main() -> None:
    """Run the trials; exits with a message at the first that fails."""
    parser = make_parser(__doc__)
    parser.add_argument("--kills", type=int, default=12, help="processes to kill in time, over all commands")
    parser.add_argument("--pairs", type=int, default=2, help="times that two appends run at once")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path, help="where trials take place (memory is fine: no power cut)")
    given = parser.parse_args()
    rng = random.Random(given.seed)
    tally: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="unistore-growth-", dir=given.work) as name:
        work = Path(name).resolve()
        every = commands(work)
        for command in every:
            command.rehearse(work / "first")  # what it imports is there when processes are forked
            command.states.clear()
            command.rehearse(work / "whole")
        trials = 0
        while sum(tally.values()) < given.kills:
            command = every[trials % len(every)]
            tally[command.name] += command.trial(work / f"trial{trials}", rng)
            trials += 1
        refused = sum(
            two_writers(work / f"pair{number}", work / "grown", work / "sources")
            for number in range(given.pairs)
        )
    shares = ", ".join(f"{name} {count}" for name, count in tally.items())
    print(
        f"{trials} trials, {sum(tally.values())} kills ({shares}), each the old version or the new one; "
        f"{given.pairs} pairs of writers, {refused} refused, nothing lost (seed {given.seed})"
    )


if __name__ == "__main__":
    main()
