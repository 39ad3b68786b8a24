"""Damage small sources of every family at random and convert them: refused by name, or every value right.

Each case makes a source, damages it in one way, and converts it, every second time beside a sound source with
``--on-error skip``. It must end within 10 s and 1 GB, without a crash or an error that nobody expected; touch
nothing outside; leave nothing behind but what resumes; name the file where it refuses or leaves it out; and
hold, where it accepts, what h5py, numpy and OpenCV read in the sources. Some accepted cases are converted
twice and must give the same bytes.

    python tests/faults/fuzz_sources.py --count 10000 --seed 1
    python tests/faults/fuzz_sources.py --seed 1 --only 4711 --keep    one case again, its folder kept
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import re
import resource
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import h5py
import numpy as np
from fuzz_mutations import MUTATIONS
from fuzz_oracles import SECRET, Wrong, compare
from fuzz_samples import SAMPLES
from trials import tree

from unistore.conversion.convert import convert
from unistore.errors import ConversionError, InputError, printable

SECONDS = 10
MEMORY = 1 << 30
ADDRESSES = 8 << 30
"""Limit of a child's address space: less than an absurd shape asks for."""
SOUND = "a_sound_one"
DAMAGED = "b_damaged"
ACCEPTED, REFUSED, UNCHANGED, FAILED = "accepted", "refused", "unchanged", "failed"


def outside_files(folder: Path) -> None:
    """What no conversion may read, change or remove."""
    folder.mkdir()
    secret = np.full(1000, SECRET, "u8")
    secret.tofile(folder / "secret.bin")
    secret.tofile(folder / "secret.dat")
    np.save(folder / "secret.npy", secret)
    np.savez(folder / "secret.npz", spk=secret, secret=secret)
    for name in ("secret.h5", "secret.hdf5"):
        with h5py.File(folder / name, "w") as file:
            file["secret"] = secret
    (folder / "secret.json").write_text("{}")


def entries(folder: Path) -> dict[str, Any]:
    """Every entry below a folder: a file's bytes, a link's target, what else it is."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        key = os.fsencode(path.relative_to(folder)).decode("latin-1")
        if path.is_symlink():
            found[key] = str(path.readlink())
        else:
            found[key] = path.read_bytes() if path.is_file() else oct(path.stat().st_mode)
    return found


class Failure(Exception):  # noqa: N818
    """What a case did that it must not."""


def demand(condition: object, message: str) -> None:
    """Raise unless it holds."""
    if not condition:
        raise Failure(message)


def case(seed: int, number: int, work: Path) -> dict[str, Any]:
    """Make, damage and convert one source; returns what became of it."""
    rng = Random(f"{seed}/{number}")
    family = list(SAMPLES)[number % len(SAMPLES)]
    layout = rng.choice(list(SAMPLES[family]))
    sources, outside, target = work / "sources", work / "outside", work / "out"
    sources.mkdir()
    outside_files(outside)
    target.mkdir()
    paths = SAMPLES[family][layout](sources, DAMAGED, np.random.default_rng([seed, number]))
    if skip := number % 2 == 1:
        SAMPLES[family][layout](sources, SOUND, np.random.default_rng([seed, number, 1]))
    before = entries(sources)
    while True:
        mutation = rng.choice(list(MUTATIONS))
        try:
            damaged = MUTATIONS[mutation](paths, outside, rng)
        except Exception:  # what h5py does not write at all; the file is left as far as it came
            damaged = paths[0]
        if damaged is not None:
            break
    about = {"family": family, "layout": layout, "mutation": mutation, "number": number}
    given = entries(sources)
    beside = entries(outside)
    explicit = family if rng.random() < 0.5 else None
    store = target / "store.zarr"
    try:
        status, text = _convert(sources, store, explicit, skip=skip, given=explicit is not None)
        demand(entries(sources) == given, "a source was changed")
        demand(entries(outside) == beside, "a file outside was changed")
        left = {path.name for path in target.iterdir()}
        if status == ACCEPTED:
            demand(left == {"store.zarr"}, f"left behind: {sorted(left)}")
            names = compare(store, sources)
            report = store / "unistore-report.json"
            noted = re.search(rf"left out.*{DAMAGED}", text)  # no step, or of another family
            text = report.read_text() if report.exists() else ""
            mine = [name for name in names if SOUND not in name]
            if not mine:
                status = REFUSED
                other = damaged.is_dir() or damaged.suffix not in {path.suffix for path in paths}
                demand(text or other or noted, "the damaged source is missing without a report")
            elif rng.random() < 0.1:
                convert(sources, target / "again.zarr", explicit, on_error="skip" if skip else "fail")
                demand(tree(store) == tree(target / "again.zarr"), "two conversions differ")
        else:
            demand(left <= {"store.zarr.unistore-build"}, f"left behind: {sorted(left)}")
        if status == REFUSED and text:
            demand(_is_named(text, damaged, sources), f"the file {damaged.name!r} is not named: {text[:500]}")
    except (Failure, Wrong) as error:
        return {**about, "status": FAILED, "why": str(error)}
    unchanged = given == before
    return {**about, "status": UNCHANGED if unchanged else status}


def _convert(sources: Path, store: Path, family: str | None, *, skip: bool, given: bool) -> tuple[str, str]:
    try:
        report = convert(sources, store, family, on_error="skip" if skip else "fail")
    except InputError as error:
        sound = [problem for problem in error.problems if problem.source.startswith(SOUND)]
        demand(not sound or not given, f"the sound source has problems: {sound}")
        alone = error.problems and all(problem.source for problem in error.problems)
        demand(not (skip and alone), f"should have been left out: {error}")
        lines = str(error).split("\n")
        demand(all(line.isprintable() for line in lines), f"control characters in {str(error)!r}")
        return REFUSED, f"{error} {sources}" if not error.problems else str(error)
    except ConversionError as error:
        msg = f"ConversionError: {error}"
        raise Failure(msg) from error
    except Exception as error:
        msg = f"{type(error).__name__}: {error}"
        raise Failure(msg) from error
    return ACCEPTED, "; ".join(report.notes)


def _is_named(text: str, damaged: Path, sources: Path) -> bool:
    parts = [*damaged.relative_to(sources).parts, damaged.stem]
    text = text.encode().decode("unicode_escape", "replace") + text
    return any(part in text or printable(part) in text for part in parts) or str(sources) in text


def _peak() -> int:
    """Most memory that the process has held since the last call, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) << 10
    Path("/proc/self/clear_refs").write_text("5")
    return peak


def work_off(seed: int, folder: Path, case: Callable[[int, int, Path], dict[str, Any]]) -> None:
    """Child: one case for every number that is read, an answer in one line for each."""
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
            wrong = [f"took {took:.0f} s"] if took > SECONDS else []
            wrong += [f"held {peak >> 20} MiB"] if peak > MEMORY else []
            wrong += ["left temporary files"] if any(temporary.iterdir()) else []
            if wrong:
                answer |= {"status": FAILED, "why": "; ".join(wrong)}
        print(json.dumps(answer), file=answers, flush=True)


class Child:
    """A process that works off cases, started again where one ends it."""

    def __init__(self, seed: int, folder: Path, script: Path) -> None:
        self._seed, self._folder, self._script = seed, folder, script
        self._process: subprocess.Popen[str] | None = None
        self.number = -1
        self._since = 0.0

    def begin(self, number: int) -> None:
        """Hand out a case."""
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
        """Of what it answers."""
        assert self._process is not None
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    @property
    def is_late(self) -> bool:
        """Whether its case takes far too long."""
        return time.monotonic() - self._since > 3 * SECONDS

    def answer(self) -> dict[str, Any]:
        """What became of the case, once there is something to read or it is late."""
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


def run_all(
    numbers: list[int], seed: int, children: int, work: Path, script: Path = Path(__file__)
) -> list[dict[str, Any]]:
    """Answers of all cases of a program, which its children work off."""
    crew = [Child(seed, work / str(number), script) for number in range(children)]
    todo, answers = iter(numbers), list[dict[str, Any]]()
    busy = [child for child, number in zip(crew, todo, strict=False) if child.begin(number) is None]
    try:
        while busy:
            ready, _, _ = select.select(busy, [], [], 1)
            for child in [*ready, *(each for each in busy if each.is_late and each not in ready)]:
                answers.append(child.answer())
                _tell(answers[-1], seed, script)
                number = next(todo, None)
                if number is None:
                    busy.remove(child)
                else:
                    child.begin(number)
    finally:
        for child in crew:
            child.stop()
    return answers


def _tell(answer: dict[str, Any], seed: int, script: Path) -> None:
    if answer["status"] == FAILED:
        about = " ".join(str(answer.get(key, "")) for key in ("family", "layout", "mutation"))
        print(f"FAILED {about}: {answer['why']}")
        print(
            f"  python tests/faults/{script.name} --seed {seed} --only {answer['number']} --keep",
            flush=True,
        )


def table(answers: list[dict[str, Any]], key: str) -> None:
    """Counts of each outcome, by family or mutation."""
    counts = Counter((answer[key], answer["status"]) for answer in answers)
    names = sorted({name for name, _ in counts})
    columns = (ACCEPTED, REFUSED, UNCHANGED, FAILED)
    print(f"{key:12}" + "".join(f"{column:>11}" for column in columns))
    for name in names:
        print(f"{name:12}" + "".join(f"{counts[name, column]:11}" for column in columns))


def main() -> None:
    """Run the cases, print counts, leave with 1 if any failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--work", type=Path, help="folder to work in; in memory if not given")
    parser.add_argument("--only", type=int, help="run this one case, in this process")
    parser.add_argument("--keep", action="store_true", help="keep the folder of --only")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child is not None:
        work_off(given.seed, given.child, case)
        return
    began = time.monotonic()
    in_memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    work = Path(tempfile.mkdtemp(prefix="unistore-fuzz-", dir=given.work or in_memory))
    try:
        if given.only is not None:
            answer = case(given.seed, given.only, work)
            print(json.dumps(answer))
            sys.exit(answer["status"] == FAILED)
        numbers = list(range(given.first, given.first + given.count))
        answers = run_all(numbers, given.seed, given.processes, work)
    finally:
        if given.keep:
            print(f"kept: {work}")
        else:
            shutil.rmtree(work)
    table(answers, "family")
    table(answers, "mutation")
    outcomes = Counter(answer["status"] for answer in answers)
    share = outcomes[ACCEPTED] / max(1, len(answers))
    counts = ", ".join(f"{outcomes[each]} {each}" for each in (ACCEPTED, REFUSED, UNCHANGED, FAILED))
    took = time.monotonic() - began
    print(f"{len(answers)} cases: {counts}; {share:.0%} accepted, in {took:.0f} s")
    if outcomes[FAILED] or share < 0.1:
        sys.exit(1)


if __name__ == "__main__":
    main()
