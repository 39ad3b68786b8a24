"""Problems keep file, dataset and row apart; text in messages."""

from __future__ import annotations

import ast
import json
import pickle
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unistore.errors import InputError, Location, Problem, printable

ROOT = Path(__file__).parents[2]
PLACES = {
    Location("run: 1.h5"): "run: 1.h5",
    Location("run: 1.h5", "data/x: raw"): "run: 1.h5: data/x: raw",
    Location("run: 1.h5", "data/x", 0): "run: 1.h5: data/x row 0",
}


@pytest.mark.parametrize("place", PLACES)
def test_parts_of_a_location_are_kept(place: Location) -> None:
    problem = Problem.at(place, "is damaged", "get it again", "damaged", "run: 1.h5")
    assert (problem.file, problem.dataset, problem.row) == place
    assert str(problem) == f"{PLACES[place]}: is damaged (get it again)"
    assert Problem(**json.loads(json.dumps(problem.to_json()))) == problem
    assert pickle.loads(pickle.dumps(problem)) == problem
    assert InputError("is damaged").problems_at(place) == (replace(problem, cure="", kind="invalid"),)


def test_control_characters_of_a_file_name_are_escaped() -> None:
    problem = Problem("a\nb.h5", "is damaged", dataset="x\x1b[31m")
    assert str(problem) == r"a\x0ab.h5: x\x1b[31m: is damaged"


@given(st.text(st.characters(exclude_categories=())))  # lone surrogates, too
def test_printable_text_is_printable(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert (shown == text) == text.isprintable()


def kinds_of_problems() -> set[str]:
    """Every kind that the text of a program gives a problem, also by functions with a parameter `kind`."""
    paths = [path for room in ("unistore", "converters", "schemas") for path in (ROOT / room).rglob("*.py")]
    texts = [path.read_text() for path in paths]
    modules = [ast.parse(text) for text in texts]
    constants = {
        ast.unparse(node.targets[0]): node.value
        for module in modules
        for node in module.body
        if isinstance(node, ast.Assign)
    }
    kinds = {"invalid"}
    for text, module in zip(texts, modules, strict=True):
        lines = text.splitlines()
        nodes = list(ast.walk(module))
        places = {"Problem": 3, "at": 3, "problem": 2}
        for node in nodes:
            if isinstance(node, ast.FunctionDef) and "Problem" in str(lines[node.lineno : node.end_lineno]):
                parameters = [argument.arg for argument in node.args.args if argument.arg != "self"]
                places |= {node.name: parameters.index("kind")} if "kind" in parameters else {}
        for node in nodes:
            if not isinstance(node, ast.Call):
                continue
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if called in places:
                values = node.args[places[called] :][:1]
                values += [keyword.value for keyword in node.keywords if keyword.arg == "kind"]
                for value in values:
                    kinds |= strings(constants.get(ast.unparse(value), value))
    return kinds


def strings(node: ast.AST) -> set[str]:
    if isinstance(node, ast.IfExp):
        return strings(node.body) | strings(node.orelse)
    return {node.value} if isinstance(node, ast.Constant) and isinstance(node.value, str) else set()


def test_every_kind_has_an_anchor_in_the_guide() -> None:
    guide = (ROOT / "docs" / "errors.md").read_text()
    kinds = kinds_of_problems()
    assert len(kinds) > 70
    assert sorted(re.findall(r"^### (.+)$", guide, re.MULTILINE)) == sorted(kinds)
