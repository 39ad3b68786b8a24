"""Change stores and seal them again: they must be read correctly, or refused by name.

Small real stores of all families and layouts are mutated (documents, manifest lines, values of index arrays,
bytes of shards, kinds of files) and sealed, so that checksums and seal are right. Then everything that reads
a store runs in a process of its own, with limits. A trial is

- accepted: every sample was read; arrays and samples equal what zarr-python alone reads;
- refused: an error of unistore's own that names the store or a file of it;
- unchanged: the mutation changed no file;
- a FAILURE: any other exception, a crash, a hang, too much memory, a file changed outside of the store.

    python tools/faults/fuzz_stores.py --count 5000 --seed 1
    python tools/faults/fuzz_stores.py --corpus
    python tools/faults/fuzz_stores.py --replay '{"case": "rows_npy", "steps": [...]}'
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import os
import random
import resource
import shlex
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from store_mutations import Step, apply, copy_store, draw
from store_readings import OK, outcome, readings
from trials import make_parser, tree

LIMIT = 10.0
"""Seconds of a trial."""
MEMORY = 1 << 30
"""Peak bytes of a trial."""
SPACE = 4 << 30
"""Bytes of address space beyond that of the program, in case a trial allocates without end."""
CORPUS = Path(__file__).with_name("corpus") / "stores.jsonl"
"""Mutations that failed once, one per line, with the verdict that they must have."""
CASES = Path(__file__).parents[2] / "tests" / "support" / "cases.py"


def makers() -> dict[str, Any]:
    """Sources and options of every family in every layout."""
    spec = importlib.util.spec_from_file_location("unistore_cases", CASES)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return dict(module.MAKERS)


def make_stores(folder: Path, wanted: list[str]) -> None:
    """Convert the sources of every case."""
    every = makers()
    for name in wanted:
        sources = folder / f"{name}.sources"
        sources.mkdir(parents=True)
        every[name](sources).convert(folder / f"{name}.zarr")


def trial(case: str, steps: list[Step], stores: Path, work: Path, limit: float = LIMIT) -> dict[str, Any]:
    """Change a store and read it in a child process: the verdict, and the output of each reading."""
    place = Path(tempfile.mkdtemp(dir=work))
    try:
        canary, out, temporary = place / "canary", place / "exported", place / "tmp"
        for folder in (canary, temporary):
            folder.mkdir()
        (canary / "victim").write_text("untouched")
        store = copy_store(stores / f"{case}.zarr", place / f"{case}.zarr")
        before = _facts(store)
        output = _in_child(partial(_mutate, store, steps, canary), limit)
        if output["mutation"] != OK:
            return {"verdict": "unchanged", "said": output}
        changed = before != _facts(store)
        said = _in_child(partial(_read_all, store, out, temporary), limit)
        shutil.rmtree(out, ignore_errors=True)
        left = sorted(path.name for path in place.iterdir() if path not in (canary, temporary, store))
        left += [f"tmp/{path.name}" for path in temporary.iterdir()]
        if left:
            said["left"] = f"FAILED: files left behind: {left}"
        if tree(canary) != {"victim": b"untouched"}:
            said["canary"] = "FAILED: a file outside of the store was changed"
        return {"verdict": _verdict(said, changed), "said": said}
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _mutate(store: Path, steps: list[Step], canary: Path) -> dict[str, str]:
    """Apply a mutation; returns the error if it does not apply."""
    try:
        apply(store, steps, canary)
    except (LookupError, TypeError, ValueError, OSError, RecursionError) as error:
        return {"mutation": repr(error)}
    return {"mutation": OK}


def _facts(store: Path) -> dict[str, Any]:
    """Every entry of a store: bytes of files, modes of others."""
    found: dict[str, Any] = {}
    for path in store.rglob("*"):
        plain = path.is_file() and not path.is_symlink()
        found[path.relative_to(store).as_posix()] = path.read_bytes() if plain else path.lstat().st_mode
    return found


def _verdict(said: dict[str, str], changed: bool) -> str:
    if any(text.startswith("FAILED") for text in said.values()):
        return "FAILURE"
    if not changed:
        return "unchanged"
    data = [text for name, text in said.items() if name.startswith(("Dataset", "arrays"))]
    return "accepted" if data and all(text == OK for text in data) else "refused"


def _read_all(store: Path, out: Path, temporary: Path) -> dict[str, str]:
    """Run all readings in this process."""
    tempfile.tempdir = str(temporary)
    os.environ["TMPDIR"] = str(temporary)
    warnings.simplefilter("ignore")
    os.sync = lambda: None  # as there is no power failure
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + SPACE, used + SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    said = {name: outcome(store, read) for name, read in readings(store, out)}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if peak > MEMORY:
        said["memory"] = f"FAILED: {peak >> 20} MiB at most"
    return said


def _in_child(work: Any, limit: float) -> Any:
    """Run a function in a forked process with a time limit; reports crashes and hangs.

    zarr-python starts threads, so it runs in children only: this process forks.
    """
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        try:
            with os.fdopen(write_end, "w") as end:
                json.dump(work(), end)
        finally:
            os._exit(0)
    os.close(write_end)
    signal.signal(signal.SIGALRM, lambda *_: os.kill(child, signal.SIGKILL))
    began = time.perf_counter()
    signal.setitimer(signal.ITIMER_REAL, limit)
    with os.fdopen(read_end) as end:
        text = end.read()
    _, status = os.waitpid(child, 0)
    signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        return json.loads(text)
    except ValueError:
        took = time.perf_counter() - began
        how = (
            f"hung for {took:.0f} s"
            if took >= limit
            else f"ended by signal {os.waitstatus_to_exitcode(status)}"
        )
        return {"process": f"FAILED: {how}"}


def drawn(number: int, seed: int, cases: list[str], stores: Path) -> tuple[str, str, list[Step]]:
    """Case, kind and steps of a numbered mutation."""
    rng = random.Random(f"{seed} {number}")
    case = cases[number % len(cases)]
    kind, steps = draw(stores / f"{case}.zarr", rng)
    return case, kind, steps


def _numbered(
    number: int, seed: int, cases: list[str], stores: Path, work: Path, limit: float
) -> tuple[str, str, list[Step], dict[str, Any]]:
    case, kind, steps = _in_child(partial(drawn, number, seed, cases, stores), limit)
    return case, kind, steps, trial(case, steps, stores, work, limit)


def main(arguments: list[str] | None = None) -> None:
    """Run the trials; exits with 1 if any failed."""
    parser = make_parser(__doc__)
    parser.add_argument("--count", type=int, default=5000, help="mutations")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--case", action="append", help="sources to make stores of; all if not given")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds of a trial")
    parser.add_argument("--replay", help="one mutation, as a failure prints it")
    parser.add_argument("--corpus", action="store_true", help="replay the findings that are kept")
    parser.add_argument("--work", type=Path, help="folder to work in; in memory if not given")
    given = parser.parse_args(arguments)
    replayed = json.loads(given.replay) if given.replay else None
    findings = [json.loads(line) for line in CORPUS.read_text().splitlines()] if given.corpus else []
    named = [each["case"] for each in ([replayed] if replayed else findings)]
    cases = list(dict.fromkeys(named)) or given.case or list(makers())
    in_memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="unistore-fuzz-", dir=given.work or in_memory) as folder:
        stores, work = Path(folder, "stores"), Path(folder, "work")
        work.mkdir()
        make_stores(stores, cases)
        if replayed:
            found = trial(replayed["case"], replayed["steps"], stores, work, given.limit)
            print(found["verdict"], *(f"{name}: {text}" for name, text in found["said"].items()), sep="\n")
            sys.exit(found["verdict"] == "FAILURE")
        if findings:
            sys.exit(_replay_all(findings, stores, work, given))
        sys.exit(_fuzz(given, cases, stores, work))


def _replay_all(findings: list[dict[str, Any]], stores: Path, work: Path, given: argparse.Namespace) -> int:
    """Replay the corpus: each mutation must have its verdict and its expected message."""
    wrong = 0
    job = partial(_found_again, stores=stores, work=work, limit=given.limit)
    with ProcessPoolExecutor(given.workers, multiprocessing.get_context("fork")) as pool:
        for finding, found in zip(findings, pool.map(job, findings), strict=True):
            output = "\n".join(f"{name}: {text}" for name, text in found["said"].items())
            if found["verdict"] != finding["verdict"] or finding["says"] not in output:
                wrong += 1
                print(f"{json.dumps(finding)}\n  {found['verdict']}\n{output}", flush=True)
    print(f"{len(findings)} findings replayed, {wrong} otherwise than expected")
    return int(wrong > 0)


def _found_again(finding: dict[str, Any], stores: Path, work: Path, limit: float) -> dict[str, Any]:
    return trial(finding["case"], finding["steps"], stores, work, limit)


def _fuzz(given: argparse.Namespace, cases: list[str], stores: Path, work: Path) -> int:
    counts: Counter[tuple[str, str, str]] = Counter()
    failures: Counter[str] = Counter()
    began = time.perf_counter()
    job = partial(_numbered, seed=given.seed, cases=cases, stores=stores, work=work, limit=given.limit)
    with ProcessPoolExecutor(given.workers, multiprocessing.get_context("fork")) as pool:
        for case, kind, steps, found in pool.map(job, range(given.count), chunksize=4):
            counts[case.partition("_")[0], kind, found["verdict"]] += 1
            if found["verdict"] == "FAILURE":
                failures[_failing_line(found["said"])] += 1
                _report(case, steps, found["said"])
    verdicts = ("accepted", "refused", "unchanged", "FAILURE")
    for title, at in (("family", 0), ("mutation", 1)):
        print(f"\n| {title} | {' | '.join(verdicts)} |\n|---|{'---|' * len(verdicts)}")
        for name in sorted({key[at] for key in counts}):
            row = [sum(n for key, n in counts.items() if key[at] == name and key[2] == v) for v in verdicts]
            print(f"| {name} | {' | '.join(map(str, row))} |")
    total = {v: sum(n for key, n in counts.items() if key[2] == v) for v in verdicts}
    took = time.perf_counter() - began
    print(f"\n{given.count} mutations in {took:.0f} s: {', '.join(f'{n} {v}' for v, n in total.items())}")
    for where, count in failures.most_common():
        print(f"{count:5} {where}")
    return int(total["FAILURE"] > 0)


def _failing_line(said: dict[str, str]) -> str:
    """File and error at the end of the first traceback."""
    text = next(text for text in said.values() if text.startswith("FAILED"))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    files = [
        line.partition(", in ")[0].rpartition("/unistore/")[2] for line in lines if line.startswith("File")
    ]
    return f"{files[-1] if files else ''} {lines[-1][:160]}"


def _report(case: str, steps: list[Step], said: dict[str, str]) -> None:
    replay = shlex.quote(json.dumps({"case": case, "steps": steps}))
    shown = [
        f"{name}: {_failing_line({name: text})}" for name, text in said.items() if text.startswith("FAILED")
    ]
    print(f"FAILURE {shown}\n  python tools/faults/fuzz_stores.py --replay {replay}", flush=True)


if __name__ == "__main__":
    main()
