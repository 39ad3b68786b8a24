"""Problems keep file, dataset and row apart; text in messages."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unistore.errors import InputError, Location, Problem, printable

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
    assert InputError("is damaged").problems_at(place) == (replace(problem, fix="", kind="invalid"),)


def test_control_characters_of_a_file_name_are_escaped() -> None:
    problem = Problem("a\nb.h5", "is damaged", dataset="x\x1b[31m")
    assert str(problem) == r"a\x0ab.h5: x\x1b[31m: is damaged"


@given(st.text(st.characters(exclude_categories=())))  # lone surrogates, too
def test_printable_text_is_printable(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert (shown == text) == text.isprintable()
