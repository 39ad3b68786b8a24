"""The schema of plain arrays."""

from __future__ import annotations

from unistore.schemas.arrays import ArrayInfo
from unistore.schemas.rows.fields import row_field, validate


def test_a_field_names_its_axes() -> None:
    field = row_field("obs/image", "uint8", (4, 5, 3), {"source_dtype": "|u1"})
    assert field.path == "rows/obs/image"
    assert field.axes == ("row", "image_axis_1", "image_axis_2", "image_axis_3")
    assert field.attributes == {"source_dtype": "|u1"}


def test_every_problem_is_named() -> None:
    good = {"rows/data": ArrayInfo((5, 3), "float32"), "rows/a/b": ArrayInfo((5,), "int64")}
    attributes = {"samples": {"count": 5}}
    assert validate(good, attributes) == []
    assert [problem.kind for problem in validate({}, attributes)] == ["missing"]
    bad = {**good, "rows/c": ArrayInfo((4,), "int64"), "rows/d": ArrayInfo((), "int64")}
    problems = validate(bad, {"samples": {"count": 9}})
    assert [problem.kind for problem in problems] == ["shape", "shape", "count"]
    assert "rows/c 4" in problems[1].message
