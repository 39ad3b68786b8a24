"""Problems keep file, dataset and row apart; text in messages."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unistore.errors import (
    AddOptions,
    Fixes,
    InputError,
    Location,
    Problem,
    RunCommand,
    merged,
    printable,
)

PLACES = {
    Location("run: 1.h5"): "run: 1.h5",
    Location("run: 1.h5", "data/x: raw"): "run: 1.h5: data/x: raw",
    Location("run: 1.h5", "data/x", 0): "run: 1.h5: data/x row 0",
}


@pytest.mark.parametrize("place", PLACES)
def test_parts_of_a_location_are_kept(place: Location) -> None:
    problem = Problem.at(place, "is damaged", "get it again", "damaged", "run: 1.h5")
    assert (problem.file, problem.dataset, problem.row) == place
    assert str(problem) == f"{PLACES[place]}: is damaged. Fix: get it again"
    assert Problem.from_json(json.loads(json.dumps(problem.to_json()))) == problem
    assert pickle.loads(pickle.dumps(problem)) == problem
    assert InputError("is damaged").problems_at(place) == (replace(problem, fix="", kind="invalid"),)


FIXES: dict[Fixes, str] = {
    "": "",
    "get it again": "get it again",
    AddOptions(("--map", "xyz=a b")): "add --map 'xyz=a b'",
    AddOptions(("--exclude", "b"), "if it is a mask"): "add --exclude b if it is a mask",
    RunCommand(("convert", "rows", "a b.npz", "a.zarr")): "unistore convert rows 'a b.npz' a.zarr",
    (AddOptions(("--layout", "packed")), "ask"): "add --layout packed, or ask",
    AddOptions(("--exclude", "a\x1b[31m")): r"add --exclude 'a\x1b[31m'",
}


@pytest.mark.parametrize("fix", FIXES)
def test_words_of_a_fix_stay_apart(fix: Fixes) -> None:
    problem = Problem("a.npz", "is damaged", fix)
    document = json.loads(json.dumps(problem.to_json()))
    assert document["fix"] == problem.advice == FIXES[fix]
    assert str(problem) == (f"a.npz: is damaged. Fix: {FIXES[fix]}" if fix else "a.npz: is damaged")
    assert Problem.from_json(document) == problem == pickle.loads(pickle.dumps(problem))


def test_words_of_a_command_are_a_list_in_json() -> None:
    fixes = AddOptions(("--map", "xyz=a b")), RunCommand(("inspect", "a b.npz"), "to see more"), "ask"
    assert Problem("a.npz", "is damaged", fixes).to_json()["fixes"] == [
        {"options": ["--map", "xyz=a b"], "purpose": ""},
        {"command": ["inspect", "a b.npz"], "purpose": "to see more"},
        {"sentence": "ask"},
    ]


def test_a_document_of_an_earlier_version_has_the_text_of_a_fix() -> None:
    problem = Problem("a.npz", "is damaged", "get it again")
    document = problem.to_json()
    del document["fixes"]
    assert Problem.from_json(document) == problem


def test_control_characters_of_a_file_name_are_escaped() -> None:
    problem = Problem("a\nb.h5", "is damaged", dataset="x\x1b[31m")
    assert str(problem) == r"a\x0ab.h5: x\x1b[31m: is damaged"


@given(st.text(st.characters(exclude_categories=())))  # lone surrogates, too
def test_printable_escapes_only_characters_that_are_not_printable(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert (shown == text) == text.isprintable()


def test_problems_that_are_alike_are_shown_once() -> None:
    fix = AddOptions(("--exclude", "x"))
    many = [Problem(f"{number}.npy", "is damaged", fix) for number in range(9)]
    alike = merged([*many, Problem("z.npy", "is empty"), Problem("z.npy", "is empty")])
    assert [str(problem) for problem in alike] == [
        "0.npy, 1.npy, 2.npy, 3.npy and 5 more: is damaged. Fix: add --exclude x",
        "z.npy (2 times): is empty",
    ]


def test_a_paragraph_has_place_problem_and_an_indented_fix() -> None:
    problem = Problem("a.h5", "is truncated: 20 bytes", "copy it again")
    assert problem.paragraph == "a.h5: is truncated: 20 bytes.\n  fix: copy it again"
    assert Problem("a.h5", "which are the coordinates?").paragraph == "a.h5: which are the coordinates?"
    assert Problem("a.h5", "columns differ:\n  x\n").paragraph == "a.h5: columns differ:\n  x"


def test_a_paragraph_has_the_first_lines_of_a_long_list_and_json_has_all() -> None:
    lines = [f"    x{number}  {number}" for number in range(86)]
    problem = Problem("a.h5", "\n".join(["lengths differ:", *lines, "   "]), "add --map x=x0")
    shown = problem.paragraph.splitlines()
    assert shown[1:11] == lines[:10]
    assert shown[11:] == ["    and 76 more (--json prints all)", "  fix: add --map x=x0"]
    assert lines[-1] in problem.to_json()["message"]
    assert lines[-1] in str(problem)
