"""Every fix that is options or a command helps: the files convert, or end in another problem."""

from __future__ import annotations

import ast
import json
import shutil
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import unistore
from tests.support.fix_cases import CASES, NOT_PROVOKED, Words, run
from unistore.errors import AddOptions, Fix, Problem, RunCommand

PACKAGE = Path(unistore.__file__).parent
MODULE = "<module>"
MAKERS = (AddOptions.__name__, RunCommand.__name__)


def problems_of(words: Sequence[str], capfd: pytest.CaptureFixture[str]) -> list[Problem]:
    """Run a command and return its problems, none if it ends well."""
    capfd.readouterr()
    code = run(*words, "--json")
    said = capfd.readouterr().out
    if code in (0, 3):
        return []
    document = json.loads(said.splitlines()[-1] if said.lstrip().startswith("{") is False else said)
    return [Problem.from_json(problem) for problem in document["problems"]] or [
        Problem("", document["error"])
    ]


def with_fix(words: Words, fix: AddOptions | RunCommand) -> Words:
    return [*fix.arguments] if isinstance(fix, RunCommand) else [*words, *fix.arguments]


def sites() -> set[str]:
    """Return the functions of the package that make options and commands."""
    found: set[str] = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        name = str(path.relative_to(PACKAGE))

        def visit(node: ast.AST, function: str, name: str = name) -> None:
            if isinstance(node, ast.FunctionDef):
                function = node.name
            called = node.func if isinstance(node, ast.Call) else None
            if isinstance(called, ast.Name) and called.id in MAKERS:
                found.add(f"{name}:{function}")
            for child in ast.iter_child_nodes(node):
                visit(child, function)

        visit(ast.parse(path.read_text()), MODULE)
    # constants are made when their module is loaded, whatever the case
    return {site for site in found if not site.endswith(MODULE)}


def constants() -> dict[str, AddOptions | RunCommand]:
    """Return the fixes that modules of the package keep under a name."""
    found: dict[str, AddOptions | RunCommand] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            made = node.value if isinstance(node, ast.Assign) else None
            if isinstance(made, ast.Call) and isinstance(made.func, ast.Name) and made.func.id in MAKERS:
                module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
                for target in node.targets:
                    assert isinstance(target, ast.Name)
                    found[f"{module}.{target.id}"] = getattr(import_module(module), target.id)
    return found


def recording(make: Callable[..., None], log: Path) -> Callable[..., None]:
    """Return the constructor, which writes who calls it, in whatever process."""

    def init(*arguments: Any, **named: Any) -> None:
        make(*arguments, **named)
        code = sys._getframe(1).f_code
        functions = [part for part in code.co_qualname.split(".") if not part.startswith("<")]
        if PACKAGE in Path(code.co_filename).parents:
            with log.open("a") as file:
                name = functions[-1] if functions else MODULE
                file.write(f"{Path(code.co_filename).relative_to(PACKAGE)}:{name}\n")

    return init


@pytest.mark.nightly
def test_every_function_that_makes_a_fix_is_in_a_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "made.txt"
    log.touch()
    for maker in (AddOptions, RunCommand):
        monkeypatch.setattr(maker, "__init__", recording(maker.__init__, log))
    printed = set[Fix]()
    for name, make in CASES.items():
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        for problem in problems_of(make(), capfd):
            printed.update(problem.fixes)
    provoked = set(log.read_text().splitlines())
    missing = sites() - provoked
    for site in sorted(missing & set(NOT_PROVOKED)):
        print(f"not provoked: {site}: {NOT_PROVOKED[site]}")
    assert sorted(missing - set(NOT_PROVOKED)) == []
    assert sorted(set(NOT_PROVOKED) - sites()) == [], "no longer made"
    assert [name for name, fix in constants().items() if fix not in printed] == []


QUICK = ("rows_of_other_columns", "arrays_for_a_volume", "a_finished_store", "two_actions")
"""Cases that every run of the tests has; the others are nightly."""


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.nightly) for name in CASES]
)
def test_a_printed_fix_solves_its_problem(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def made() -> Words:
        shutil.rmtree(tmp_path / "files", ignore_errors=True)
        (tmp_path / "files").mkdir()
        monkeypatch.chdir(tmp_path / "files")
        return CASES[name]()

    words = made()
    before = problems_of(words, capfd)
    fixes = [fix for problem in before for fix in problem.fixes if isinstance(fix, AddOptions | RunCommand)]
    assert fixes, [str(problem) for problem in before]
    for fix in dict.fromkeys(fixes):
        after = problems_of(with_fix(made(), fix), capfd)
        assert not set(before) & set(after), f"{fix}: {after}"
