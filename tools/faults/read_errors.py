"""Let reads of sources fail with EIO, or return short, and convert: a Problem, or the right store.

Each case makes two or three sources of one family, every second time with other files beside them, and
converts them. Then it converts a copy while some reads of it go wrong: one, a few in a row, or all of one
file, from a random read on. The outcome must be

- the same store, byte for byte;
- or, with ``--on-error skip``, a store that lists in its report whatever it lacks;
- or an error that names a source. Then the same command, without faults, must give the same store.

The faults come from ``read_faults.c``, which is compiled by ``cc`` and preloaded. Memory maps are not hit.

    python tools/faults/read_errors.py --count 1000 --seed 1
    python tools/faults/read_errors.py --seed 1 --only 471 --keep    one case again, its folder kept
"""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from borders import JUNK, SYNTHETIC
from fuzz_oracles import Wrong, compare
from fuzz_run import ACCEPTED, FAILED, REFUSED, UNCHANGED, Failure, main, require
from trials import tree

from unistore.conversion.signatures import convert
from unistore.errors import InputError
from unistore.store.reader import Store

PLAN, LIBRARY = "UNISTORE_READ_FAULTS", "UNISTORE_READ_FAULTS_LIBRARY"
NEVER = 1 << 40
KINDS = ("one error", "some errors", "a file of errors", "one short", "all short")
NAMES = ("alpha", "beta", "gamma")


class Plan(ctypes.Structure):
    """Which reads go wrong, and what was seen: ``struct plan`` of read_faults.c."""

    _fields_ = (
        ("first", ctypes.c_long),
        ("last", ctypes.c_long),
        ("is_short", ctypes.c_long),
        ("whole_file", ctypes.c_long),
        ("seen", ctypes.c_long),
        ("fired", ctypes.c_long),
        ("has_file", ctypes.c_long),
        ("folder", ctypes.c_char * 1024),
        ("file", ctypes.c_char * 1024),
    )

    def arm(self, folder: Path, first: int, kind: str, rng: Random) -> None:
        """Let reads below a folder go wrong from number `first` on."""
        self.stop()
        self.seen = self.fired = self.has_file = 0
        self.first = first
        self.last = {"some errors": first + rng.randint(1, 6), "all short": NEVER}.get(kind, first)
        self.is_short = kind.endswith("short")
        self.whole_file = kind == "a file of errors"
        self.folder = os.fsencode(f"{folder}/")

    def stop(self) -> None:
        """Let every read succeed."""
        self.folder = b""


def shared_plan() -> Plan:
    """The plan that all processes share."""
    with Path(os.environ[PLAN]).open("r+b") as file:
        return Plan.from_buffer(mmap.mmap(file.fileno(), ctypes.sizeof(Plan)))


def case(seed: int, number: int, work: Path) -> dict[str, Any]:
    """Convert sources, then a copy of them while reads go wrong."""
    rng, plan = Random(f"{seed}/{number}"), shared_plan()
    family = list(SYNTHETIC)[number % len(SYNTHETIC)]
    layout, kind = rng.choice(list(SYNTHETIC[family])), rng.choice(KINDS)
    skip, explicit, workers = rng.random() < 0.3, rng.random() < 0.5, 2 * (rng.random() < 0.05)
    sound, faulty = work / "sound/sources", work / "faulty/sources"
    sound.mkdir(parents=True)
    for at, name in enumerate(NAMES[: rng.randint(2, 3)]):
        SYNTHETIC[family][layout](sound, name, np.random.default_rng([seed, number, at]))
    for name in JUNK if rng.random() < 0.5 else ():
        (sound / name).write_bytes(JUNK[name])
    again = work / "again/sources"
    for folder in (again, faulty):
        shutil.copytree(sound, folder)
    about = {"family": family, "layout": layout, "mutation": kind, "number": number}

    def converted(sources: Path, target: Path) -> Any:
        mode = "skip" if skip else "fail"
        return convert(sources, target, family if explicit else None, on_error=mode, workers=workers)

    converted(sound, work / "right.zarr")
    plan.arm(again, NEVER, kind, rng)  # what is cached is, in any process
    converted(again, work / "again.zarr")
    plan.arm(faulty, rng.randrange(plan.seen), kind, rng)
    store = work / "store.zarr"
    try:
        try:
            report = converted(faulty, store)
        except InputError as error:
            plan.stop()
            require(error.problems, f"no problem: {error}")
            require(any(name in str(error) for name in NAMES), f"no source is named: {error}")
            converted(faulty, store)
            require(tree(store) == tree(work / "right.zarr"), "the same command later gives another store")
            status = REFUSED
        else:
            plan.stop()
            _check_store(store, work / "right.zarr", report, faulty)
            status = ACCEPTED
    except (Failure, Wrong) as error:
        return {**about, "status": FAILED, "why": str(error)}
    except Exception as error:
        return {**about, "status": FAILED, "why": f"{type(error).__name__}: {error}"}
    finally:
        plan.stop()
    return {**about, "status": status if plan.fired else UNCHANGED}


def _check_store(store: Path, right: Path, report: Any, sources: Path) -> None:
    """Require the right store, or one that says what it lacks."""
    written, expected = tree(store), tree(right)
    if written == expected:
        return
    names = {*written, *expected}
    differing = [name for name in names if written.get(name) != expected.get(name)]
    require(report.skipped, f"{sorted(differing)} differ, and nothing is skipped: {report.notes}")
    skipped = {entry["left_out"].partition(": ")[0] for entry in report.skipped}
    taken = set(Store(store).text("sources/path"))
    missing = set(Store(right).text("sources/path")) - taken - skipped
    require(not missing, f"{sorted(missing)} missing without a report")
    compare(store, sources)


def compile_faults(folder: Path) -> Path:
    """Compile the library that is preloaded."""
    compiler = shutil.which("cc")
    if compiler is None:
        sys.exit("there is no C compiler: cc is needed to make reads fail")
    library, source = folder / "read_faults.so", Path(__file__).with_name("read_faults.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", library, source, "-ldl"], check=True)
    return library


def start_with_faults() -> None:
    """Start this program again: the one that hands out cases has the library, each that runs them a plan."""
    runs_cases = {"--child", "--only"} & set(sys.argv)
    with tempfile.TemporaryDirectory(prefix="unistore-read-errors-") as folder:
        environment = dict(os.environ)
        if LIBRARY not in environment:
            environment[LIBRARY] = str(compile_faults(Path(folder)))
        if runs_cases:
            plan = Path(folder) / "plan"
            plan.write_bytes(bytes(ctypes.sizeof(Plan)))
            environment |= {PLAN: str(plan), "LD_PRELOAD": environment[LIBRARY]}
        done = subprocess.run([sys.executable, *sys.argv], env=environment, check=False)
    sys.exit(done.returncode)


if __name__ == "__main__":
    is_ready = PLAN in os.environ if {"--child", "--only"} & set(sys.argv) else LIBRARY in os.environ
    if not is_ready:
        start_with_faults()
    main(Path(__file__), __doc__, case, 1000)
