"""Change one thing in the code of a package, many times over, and see whether its tests notice.

    python tools/mutants.py --seed 1 --count 40 --rooms loader store
    python tools/mutants.py --missed build/mutants/COMMIT-1/results.jsonl

The mutants are a sample by the seed of all that can be made of each room at the commit. Each is tried in a
clone, on the tests of its room that run its line, those of its own test file first. If no test runs the line,
the files of tests that import its module are tried. If these pass, all tests of the room are tried (not with
``--quick``): lines also run in other processes, in imports, and for data that tests share. With ``--most``
only so many tests of a mutant are tried: the score is then a lower bound. A mutant whose tests outlast the
limit is listed, and does not count as noticed.

Results are kept line by line in ``build/mutants``: the same command goes on where it stopped, and
``--minutes`` ends it early. With ``--processes`` several are tried at once, each in a clone of its own.
``--missed`` tries mutants again that earlier results missed, for example with the tests of a later commit. It
does not measure which tests run a line: the files of tests that import the module are tried.
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
from coverage import Coverage, CoverageData

ROOT = Path(__file__).resolve().parents[1]
# Each room, and the folders of its tests: those of what is built on it test it, too
ROOMS = {
    "order": ["order", "loader", "data"],
    "zarr3": ["zarr3", "store", "data", "growing"],
    "integrity": ["integrity", "growing"],
    "conversion": ["conversion", "remote", "growing"],
    "growing": ["growing", "remote"],
    "store": ["store", "remote", "growing", "side", "data"],
    "loader": ["loader", "data"],
    "data": ["data", "loader", "side"],
}
LEFT = (ast.Add, ast.Mult, ast.LShift, ast.BitAnd, ast.And, ast.Lt, ast.Gt, ast.Eq, ast.In, ast.Is)
RIGHT = (
    ast.Sub,
    ast.FloorDiv,
    ast.RShift,
    ast.BitOr,
    ast.Or,
    ast.LtE,
    ast.GtE,
    ast.NotEq,
    ast.NotIn,
    ast.IsNot,
)
OPERATORS: dict[type[ast.AST], type[ast.AST]] = dict(zip(LEFT + RIGHT, RIGHT + LEFT, strict=True))
OPERATORS |= {ast.Div: ast.Mult, ast.Mod: ast.FloorDiv, ast.BitXor: ast.BitAnd}
REMOVABLE = (ast.Expr, ast.AugAssign, ast.Raise, ast.Break, ast.Continue)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
ANNOTATIONS = ("annotation", "returns", "decorator_list", "type_params")


@dataclass(frozen=True)
class Mutant:
    """One change of one module: the number of the node in its tree, and which of the node's changes."""

    module: str
    node: int
    choice: int


def code_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield nodes in a fixed order, without annotations, decorators and what only type checkers read."""
    yield tree
    if isinstance(tree, ast.If) and "TYPE_CHECKING" in ast.unparse(tree.test):
        return
    for name, value in ast.iter_fields(tree):
        if name in ANNOTATIONS:
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from code_nodes(child)


def changes(node: ast.AST) -> list[ast.AST]:
    """Return what a node can become."""
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        return [ast.Constant(not node.value)]
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return [ast.Constant(node.value + 1), ast.Constant(node.value - 1)]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return [node.operand]
    if isinstance(node, ast.Compare):
        return [_with(node, ops=_changed_operators(node.ops, at)) for at in range(len(node.ops))]
    if isinstance(node, ast.BinOp | ast.BoolOp | ast.AugAssign) and type(node.op) in OPERATORS:
        changed = [_with(node, op=OPERATORS[type(node.op)]())]
        return [*changed, ast.Pass()] if isinstance(node, ast.AugAssign) else changed
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return [ast.Pass()] if isinstance(node, REMOVABLE) and not is_text else []


def _changed_operators(operators: list[ast.cmpop], at: int) -> list[ast.AST]:
    return [OPERATORS[type(one)]() if number == at else one for number, one in enumerate(operators)]


def _with(node: ast.AST, **fields: object) -> ast.AST:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


class _Replacing(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return ast.copy_location(self.new, node) if node is self.old else self.generic_visit(node)


def all_mutants(tree: Path, room: str) -> list[Mutant]:
    """Return every change that can be made in a room."""
    found = []
    for path in sorted((tree / "unistore" / room).rglob("*.py")):
        module = path.relative_to(tree).as_posix()
        for number, node in enumerate(code_nodes(ast.parse(path.read_text()))):
            found += [Mutant(module, number, choice) for choice in range(len(changes(node)))]
    return found


def missed_mutants(tree: Path, results: Path) -> list[Mutant]:
    """Return the mutants that earlier results missed; the code that they change must be the same."""
    missed = []
    for result in latest_results(results).values():
        mutant = Mutant(**result["mutant"])
        old = list(code_nodes(ast.parse((tree / mutant.module).read_text())))[mutant.node]
        if ast.unparse(old) != result["before"]:
            sys.exit(f"{mutant.module} has changed since {results} was written")
        if result["outcome"] != "killed":
            missed.append(mutant)
    return missed


def latest_results(path: Path) -> dict[Mutant, dict[str, Any]]:
    """Return the results in a file by mutant; the last one of a mutant counts."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {Mutant(**result["mutant"]): result for result in map(json.loads, lines)}


def lines_of(tree: ast.Module, node: ast.AST) -> range:
    """Return the lines of the innermost statement around a node, of a block its head; none at the top."""
    around = [statement for statement in ast.walk(tree) if isinstance(statement, ast.stmt)]
    around = [statement for statement in around if any(child is node for child in ast.walk(statement))]
    functions = [statement for statement in around if isinstance(statement, FUNCTIONS)]
    if not functions:
        return range(0)
    innermost = around[-1]  # walking is breadth first
    body = getattr(innermost, "body", None)
    end = body[0].lineno - 1 if body else innermost.end_lineno or innermost.lineno
    return range(innermost.lineno, max(innermost.lineno, end) + 1)


def tests_of(tree: Path, module: str, lines: range, measured: Sequence[CoverageData]) -> list[str]:
    """Return tests of a module's room that run one of the lines, the likeliest and fastest first.

    `tree` is the clone in which the folders of the tests were measured. If no test was seen to run a line,
    the files of tests that import the module are returned.
    """
    own = f"test_{Path(module).name}"
    imported = module.removesuffix(".py").replace("/", ".")

    def distance(file: Path) -> int:
        if file.name == own:
            return 0
        return 1 if imported in file.read_text() else 2

    files = [file for folder in test_folders(module) for file in (tree / folder).rglob("test_*.py")]
    distances = {file.relative_to(tree).as_posix(): distance(file) for file in files}
    durations: dict[str, float] = {}
    running: set[str] = set()
    for folder in measured:
        durations |= json.loads(Path(folder.data_filename()).with_suffix(".json").read_text())
        contexts = folder.contexts_by_lineno(str(tree / module))
        running |= {test for line in lines for test in contexts.get(line, ())}
    running = {test for test in running if test.partition("::")[0] in distances}
    if not running:  # other processes run it, or the import of the module
        importing = [file for file, far in distances.items() if far < 2]
        return sorted(importing, key=lambda file: (distances[file], file))
    return sorted(
        running, key=lambda test: (distances[test.partition("::")[0]], durations.get(test, 0), test)
    )


def test_folders(module: str) -> list[str]:
    """Return the folders of the tests of a module's room."""
    return [f"tests/unistore/{folder}" for folder in ROOMS[Path(module).parts[1]]]


_durations: dict[str, float] = {}  # seconds of each test, while a folder is measured


def pytest_runtest_protocol(item: pytest.Item) -> None:
    """Count the lines that run from now on as those of this test: a hook, while a folder is measured."""
    coverage = Coverage.current()
    if coverage is not None:
        coverage.switch_context(item.nodeid.partition("[")[0])


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up the seconds of a test: a hook, while a folder is measured."""
    test = report.nodeid.partition("[")[0]
    _durations[test] = _durations.get(test, 0) + report.duration


def pytest_sessionfinish() -> None:
    """Keep the seconds of all tests: a hook, while a folder is measured."""
    Path(os.environ["DURATIONS"]).write_text(json.dumps(_durations))


def measure(tree: Path, folder: str, data: Path, limit: float) -> CoverageData:
    """Run the tests of a folder and return which of them run which line of the rooms."""
    if not data.exists():
        settings = data.with_suffix(".ini")
        sources = [str(tree / "unistore" / room) for room in ROOMS]
        settings.write_text("\n    ".join(["[run]\nsource =", *sources]))
        tracer = ["coverage", "run", f"--rcfile={settings}", f"--data-file={data}", "-m"]
        os.environ["DURATIONS"] = str(data.with_suffix(".json"))
        if not passes(tree, ["-p", "tools.mutants", folder], limit, tracer):
            data.unlink(missing_ok=True)
            sys.exit(f"{folder} fails, or takes too long, without a mutant")
    measured = CoverageData(str(data))
    measured.read()
    return measured


def passes(tree: Path, tests: list[str], limit: float, tracer: Sequence[str] = ()) -> bool | None:
    """Run tests until the first fails; None if they take longer than the limit."""
    arguments = ["-x", "-q", "-n", "0", "-p", "no:cacheprovider", "--timeout", "60"]
    command = [sys.executable, "-m", *tracer, "pytest", *tests, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    if not tracer:  # compiled tests are kept while a folder is measured, compiled mutants never
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
    null = subprocess.DEVNULL
    process = subprocess.Popen(command, cwd=tree, env=environment, stdout=null, stderr=null, process_group=0)
    try:
        return process.wait(limit) == 0
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def try_mutant(
    tree: Path, first: Path, mutant: Mutant, measured: Sequence[CoverageData], options: argparse.Namespace
) -> dict[str, Any]:
    """Write a mutant into a clone, run its tests, and write the module back."""
    path = tree / mutant.module
    whole = path.read_text()
    parsed = ast.parse(whole)
    old = list(code_nodes(parsed))[mutant.node]
    new = changes(old)[mutant.choice]
    before, after, line = ast.unparse(old), ast.unparse(new), getattr(old, "lineno", 0)
    tests = tests_of(first, mutant.module, lines_of(parsed, old), measured)[: options.most]
    changed = ast.unparse(ast.fix_missing_locations(_Replacing(old, new).visit(parsed)))
    started = time.monotonic()
    times = path.stat()
    path.write_text(changed)
    try:
        passed = not tests or passes(tree, tests, options.limit)
        if passed and not options.quick:
            passed = passes(tree, test_folders(mutant.module), options.limit)
    finally:
        path.write_text(whole)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # its compiled code is up to date again
    outcome = {True: "survived", False: "killed", None: "timeout"}[passed]
    seconds = round(time.monotonic() - started, 1)
    result = {"line": line, "before": before, "after": after, "outcome": outcome, "seconds": seconds}
    result["tests"] = len(tests)
    return {"mutant": asdict(mutant), **result}


def clone(tree: Path, commit: str) -> Path:
    """Clone the repository, with the compiled kernel and compiled modules."""
    if not tree.exists():
        subprocess.run(["git", "clone", "--quiet", "--shared", str(ROOT), str(tree)], check=True)
    subprocess.run(["git", "checkout", "--quiet", "--force", commit], cwd=tree, check=True)
    for kernel in (ROOT / "unistore/system").glob("_kernel*"):
        shutil.copy(kernel, tree / "unistore/system")
    subprocess.run([sys.executable, "-m", "compileall", "-q", "unistore"], check=True, cwd=tree)
    return tree


def main() -> None:
    """Try the mutants that have no result yet, and print score and survivors."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=40, help="mutants of a room")
    parser.add_argument("--rooms", nargs="+", choices=ROOMS, default=list(ROOMS))
    parser.add_argument("--missed", type=Path, help="results whose missed mutants are tried again")
    parser.add_argument("--limit", type=float, default=600, help="seconds of a mutant's tests")
    parser.add_argument("--quick", action="store_true", help="try only tests that are seen to run the line")
    parser.add_argument("--most", type=int, help="tests of a mutant, the likeliest ones")
    parser.add_argument("--processes", type=int, default=1, help="mutants at once")
    parser.add_argument("--minutes", type=float, default=math.inf, help="of this run, which can go on later")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "mutants")
    options = parser.parse_args()
    commit = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=ROOT, text=True).strip()
    sample = f"{options.missed.parent.name}-missed" if options.missed else str(options.seed)
    work = options.work / f"{commit[:12]}-{sample}{'-quick' if options.quick else ''}"
    results = work / "results.jsonl"
    trees = [clone(work / f"tree{number}", commit) for number in range(options.processes)]
    measured: dict[str, list[CoverageData]] = {room: [] for room in ROOMS}
    chosen: list[Mutant] = []
    if options.missed:
        chosen = missed_mutants(trees[0], options.missed)
    else:
        for room in options.rooms:
            mutants = all_mutants(trees[0], room)
            count = min(options.count, len(mutants))
            chosen += random.Random(options.seed).sample(mutants, count)  # noqa: S311  a sample, no secret
            for folder in test_folders(f"unistore/{room}/"):
                data = work / f"{Path(folder).name}.coverage"
                measured[room].append(measure(trees[0], folder, data, options.limit))
    done = latest_results(results)
    end = time.monotonic() + 60 * options.minutes
    lock = threading.Lock()
    waiting = iter([mutant for mutant in chosen if mutant not in done])

    def try_some(tree: Path) -> None:
        while time.monotonic() < end:
            with lock:
                mutant = next(waiting, None)
            if mutant is None:
                return
            room = Path(mutant.module).parts[1]
            result = try_mutant(tree, trees[0], mutant, measured[room], options)
            with lock:
                done[mutant] = result
                with results.open("a") as file:
                    file.write(f"{json.dumps(result)}\n")
                told = f"{result['outcome']} {mutant.module}:{result['line']}"
                print(f"{len(done)}/{len(chosen)} {told}", flush=True)

    with ThreadPoolExecutor(len(trees)) as pool:
        list(pool.map(try_some, trees))
    tried = [mutant for mutant in chosen if mutant in done]
    for room in dict.fromkeys(Path(mutant.module).parts[1] for mutant in tried):
        of_room = [done[mutant] for mutant in tried if Path(mutant.module).parts[1] == room]
        missed = [result for result in of_room if result["outcome"] != "killed"]
        score = 1 - len(missed) / len(of_room)
        print(f"\n{room}: {score:.1%} of {len(of_room)} mutants noticed")
        for result in missed:
            where = f"{result['outcome']} {result['mutant']['module']}:{result['line']}"
            print(f"  {where}: {result['before']}  ->  {result['after']}")
    if len(tried) < len(chosen):
        sys.exit(f"{len(tried)} of {len(chosen)} mutants were tried: the same command goes on")


if __name__ == "__main__":
    main()
