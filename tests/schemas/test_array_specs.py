"""Specs of arrays: those of every store, those a family lists, and those it gives by a function."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from unistore.errors import Problem
from unistore.schemas.array_specs import SAMPLES, ArrayInfo, ArraySpec, ArraySpecs, Limit

PINGS = ArraySpec(dtypes=("uint16",), rows=(SAMPLES, 0))
OTHERS = ArraySpec(rows=("rows/echo", 0))


def others(path: str, paths: Collection[str]) -> ArraySpec:
    return OTHERS if path.startswith("rows/") and "rows/echo" in paths else ArraySpec()


SPECS = ArraySpecs(
    arrays={"rows/echo": PINGS}, required=("rows/rate",), others=others, text={"cruises": (SAMPLES, 1)}
)


def test_problems_of_all_arrays_at_once() -> None:
    arrays = {
        "rows/rate": ArrayInfo((4,), "uint16"),
        "splits/code": ArrayInfo((5,), "int8"),
        "sources/bytes": ArrayInfo((2,), "int64"),
    }
    assert [str(each) for each in SPECS.problems(arrays, 5)] == [
        "rows/echo: is missing",
        "splits/code: is int8, expected uint8",
        "sources/bytes: needs the array sources/path/offsets",
    ]
    del arrays["rows/rate"]
    assert [str(each) for each in SPECS.problems(arrays, 5)][:2] == [
        "rows/echo: is missing",
        "rows/rate: is missing",
    ]
    arrays |= {"rows/rate": ArrayInfo((4,), "uint16")}
    arrays |= {"rows/echo": ArrayInfo((6,), "uint16"), "splits/code": ArrayInfo((5,), "uint8")}
    del arrays["sources/bytes"]
    assert [str(each) for each in SPECS.problems(arrays, 5)] == [
        "rows/rate: has 4 rows, expected 6 (the rows of rows/echo)",
        "rows/echo: has 6 rows, expected 5 (the root's count of samples)",
    ]
    assert ArraySpecs().problems({"splits/code": ArrayInfo((5,), "uint8")}, 5) == []


def test_specs_in_a_circle_are_a_problem() -> None:
    circle = {"rows/a": "rows/b", "rows/b": "rows/c", "rows/c": "rows/a", "rows/d": "rows/d"}
    specs = ArraySpecs(others=lambda path, _: ArraySpec(like=(Limit(circle[path], (0,)),)))
    found = specs.problems(dict.fromkeys(circle, ArrayInfo((5,), "f4")), 5)
    assert [str(each) for each in found] == [f"{path}: its spec refers to itself" for path in circle]


def test_what_specs_cannot_say_is_checked_last() -> None:
    specs = ArraySpecs(required=("rows/echo",), check=lambda arrays: [Problem("rows", "never")])
    assert [str(each) for each in specs.problems({}, 5)] == ["rows/echo: is missing"]
    assert [str(each) for each in specs.problems({"rows/echo": ArrayInfo((5,), "f4")}, 5)] == ["rows: never"]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (ArraySpec(kinds="iuf"), "is bool, expected numbers"),
        (ArraySpec(beside=("rows/image",)), None),
        (ArraySpec(beside=("rows/gone",)), "needs the array rows/gone"),
        (ArraySpec(like=(Limit("rows/image", (1, 2), 8),)), None),
        (
            ArraySpec(like=(Limit("rows/image", (1, 2)),)),
            "has shape (5, 7, 2), expected (7, 9) at its end, as ",
        ),
        (
            ArraySpec(like=(Limit("rows/image", (1,), 8),)),
            "has shape (5, 7, 2), expected (1,) at its end, as ",
        ),
        (ArraySpec(like=(Limit("rows/gone", (1,)),)), "needs the array rows/gone"),
    ],
)
def test_kinds_and_arrays_that_belong_together(spec: ArraySpec, message: str | None) -> None:
    specs = ArraySpecs(arrays={"rows/mask": spec})
    arrays = {"rows/mask": ArrayInfo((5, 7, 2), "bool"), "rows/image": ArrayInfo((5, 7, 9), "uint8")}
    found = [each.message for each in specs.problems(arrays, 5)]
    assert [each[: len(message or "")] for each in found] == ([] if message is None else [message])
