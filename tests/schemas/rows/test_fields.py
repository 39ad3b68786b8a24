"""The schema of plain arrays."""

from __future__ import annotations

from unistore.converters.registry import get_family
from unistore.schemas.array_specs import ArrayInfo


def test_every_problem_is_named() -> None:
    good = {"rows/data": ArrayInfo((5, 3), "float32"), "rows/a/b": ArrayInfo((5,), "int64")}
    problems = get_family("rows").part("specs").problems
    assert problems(good, 5) == []
    assert [problem.kind for problem in problems({}, 5)] == ["missing"]
    bad = {**good, "rows/c": ArrayInfo((4,), "int64"), "rows/d": ArrayInfo((), "int64")}
    assert [str(problem) for problem in problems(bad, 5)] == [
        "rows/c: has 4 rows, expected 5 (the root's count of samples)",
        "rows/d: has no axis, expected rows on axis 0",
    ]
