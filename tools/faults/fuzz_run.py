"""Run many small cases in child processes with limits, count the outcomes, repeat one case."""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import resource
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fuzz_samples import SAMPLES

SECONDS = 10
MEMORY = 1 << 30
ADDRESSES = 8 << 30
"""Limit of a child's address space: less than an absurd shape asks for."""
ACCEPTED, REFUSED, UNCHANGED, FAILED = "accepted", "refused", "unchanged", "failed"

Case = Callable[[int, int, Path], dict[str, Any]]
"""``case(seed, number, folder)`` returns family, mutation, number and status of a case."""


def entries(folder: Path) -> dict[str, Any]:
    """Every entry below a folder: bytes of files, targets of links, modes of others."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        key = os.fsencode(path.relative_to(folder)).decode("latin-1")
        if path.is_symlink():
            found[key] = str(path.readlink())
        else:
            found[key] = path.read_bytes() if path.is_file() else oct(path.stat().st_mode)
    return found


class Failure(Exception):  # noqa: N818
    """A case did something that it must not do."""


def require(condition: object, message: str) -> None:
    """Raise `Failure` unless the condition is true."""
    if not condition:
        raise Failure(message)


def _peak() -> int:
    """Peak memory of the process since the last call, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) << 10
    Path("/proc/self/clear_refs").write_text("5")
    return peak


def slowness() -> float:
    """Return how many runnable processes share a core, at least 1: limits are those of a quiet machine."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def run_child(seed: int, folder: Path, case: Case) -> None:
    """Run a case for every number on standard input, and print one line of JSON for each."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.enable()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    temporary = folder / "tmp"
    tempfile.tempdir = str(temporary)
    for line in sys.stdin:
        number = int(line)
        shutil.rmtree(folder / "case", ignore_errors=True)
        shutil.rmtree(temporary, ignore_errors=True)
        for each in (folder / "case", temporary):
            each.mkdir(parents=True)
        _peak()
        began = time.monotonic()
        answer = case(seed, number, folder / "case")
        took, peak = time.monotonic() - began, _peak()
        if answer["status"] != FAILED:
            wrong = [f"took {took:.0f} s"] if took > SECONDS * slowness() else []
            wrong += [f"held {peak >> 20} MiB"] if peak > MEMORY else []
            wrong += ["left temporary files"] if any(temporary.iterdir()) else []
            if wrong:
                answer |= {"status": FAILED, "why": "; ".join(wrong)}
        print(json.dumps(answer), file=answers, flush=True)


class Child:
    """A process that runs cases; it is started again if a case ends it."""

    def __init__(self, seed: int, folder: Path, script: Path) -> None:
        self._seed, self._folder, self._script = seed, folder, script
        self._process: subprocess.Popen[str] | None = None
        self.number = -1
        self._since = 0.0

    def begin(self, number: int) -> None:
        """Start a case."""
        if self._process is None:
            command = [sys.executable, str(self._script), "--seed", str(self._seed)]
            command += ["--child", str(self._folder)]
            self._folder.mkdir(parents=True, exist_ok=True)
            with (self._folder / "said").open("w") as said:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True
                )
        assert self._process.stdin is not None
        self.number, self._since = number, time.monotonic()
        print(number, file=self._process.stdin, flush=True)

    def fileno(self) -> int:
        """Descriptor of its output, for ``select``."""
        assert self._process is not None
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    @property
    def is_late(self) -> bool:
        """Whether its case takes too long."""
        return time.monotonic() - self._since > 3 * SECONDS * slowness()

    def answer(self) -> dict[str, Any]:
        """Result of the case, once there is output or it is late."""
        assert self._process is not None
        assert self._process.stdout is not None
        line = "" if self.is_late else self._process.stdout.readline()
        if line:
            found: dict[str, Any] = json.loads(line)
            return found
        late = self.is_late
        if late:
            self._process.kill()
        code = self._process.wait()
        self._process = None
        said = (self._folder / "said").read_text(errors="replace").strip().splitlines()[-12:]
        why = "hangs" if late else f"ended with {code}: {' | '.join(said)}"
        family = list(SAMPLES)[self.number % len(SAMPLES)]
        return {"family": family, "mutation": "?", "number": self.number, "status": FAILED, "why": why}

    def stop(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def run_all(numbers: list[int], seed: int, processes: int, work: Path, script: Path) -> list[dict[str, Any]]:
    """Results of all cases of a program, run by `children` processes."""
    children = [Child(seed, work / str(number), script) for number in range(processes)]
    todo, answers = iter(numbers), list[dict[str, Any]]()
    busy = [child for child, number in zip(children, todo, strict=False) if child.begin(number) is None]
    try:
        while busy:
            ready, _, _ = select.select(busy, [], [], 1)
            for child in [*ready, *(each for each in busy if each.is_late and each not in ready)]:
                answers.append(child.answer())
                _report(answers[-1], seed, script)
                number = next(todo, None)
                if number is None:
                    busy.remove(child)
                else:
                    child.begin(number)
    finally:
        for child in children:
            child.stop()
    return answers


def _report(answer: dict[str, Any], seed: int, script: Path) -> None:
    if answer["status"] == FAILED:
        about = " ".join(str(answer.get(key, "")) for key in ("family", "layout", "mutation"))
        print(f"FAILED {about}: {answer['why']}")
        print(
            f"  python tools/faults/{script.name} --seed {seed} --only {answer['number']} --keep",
            flush=True,
        )


def _table(answers: list[dict[str, Any]], key: str, columns: Sequence[str]) -> None:
    """Counts of each outcome, by family or mutation."""
    counts = Counter((answer[key], answer["status"]) for answer in answers)
    print(f"{key:12}" + "".join(f"{column:>11}" for column in columns))
    for name in sorted({name for name, _ in counts}):
        print(f"{name:12}" + "".join(f"{counts[name, column]:11}" for column in columns))


def main(script: Path, about: str | None, case: Case, count: int) -> None:
    """Run cases of a program, print counts, leave with 1 if any failed.

    Parameters
    ----------
    script, about
        The program and its docstring.
    case, count
        The function that runs a case, and the default number of cases.
    """
    parser = argparse.ArgumentParser(description=(about or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=count)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--work", type=Path, help="folder to work in; in memory if not given")
    parser.add_argument("--only", type=int, help="run this one case, in this process")
    parser.add_argument("--keep", action="store_true", help="keep the folder of --only")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child is not None:
        run_child(given.seed, given.child, case)
        return
    began = time.monotonic()
    in_memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    work = Path(tempfile.mkdtemp(prefix=f"unistore-{script.stem}-", dir=given.work or in_memory))
    try:
        if given.only is not None:
            answer = case(given.seed, given.only, work)
            print(json.dumps(answer))
            sys.exit(answer["status"] == FAILED)
        numbers = list(range(given.first, given.first + given.count))
        answers = run_all(numbers, given.seed, given.processes, work, script)
    finally:
        if given.keep:
            print(f"kept: {work}")
        else:
            shutil.rmtree(work)
    outcomes = Counter(answer["status"] for answer in answers)
    columns = [each for each in (ACCEPTED, REFUSED, UNCHANGED, FAILED) if outcomes[each] or each != UNCHANGED]
    for key in ("family", "mutation"):
        _table(answers, key, columns)
    asked = sum(answer.get("asked", False) for answer in answers)
    share = outcomes[ACCEPTED] / max(1, len(answers))
    counts = ", ".join(f"{outcomes[each]} {each}" for each in columns)
    took = time.monotonic() - began
    first = f"; {asked} asked which of several families first" if asked else ""
    print(f"{len(answers)} cases: {counts}; {share:.0%} accepted, in {took:.0f} s{first}")
    if outcomes[FAILED] or share < 0.1:
        sys.exit(1)
