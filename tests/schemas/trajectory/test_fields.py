"""The trajectory schema finds every fault, and names keys as samples have them."""

from __future__ import annotations

import pytest

from unistore.converters.registry import get_family
from unistore.errors import Problem
from unistore.schemas.array_specs import ArrayInfo
from unistore.schemas.trajectory.fields import (
    FINAL,
    NEXT,
    column_field,
    is_image,
    jpeg_fields,
    moved,
    sample_key,
)

GOOD = {
    "steps/action": ArrayInfo((9, 7), "float32"),
    "steps/terminated": ArrayInfo((9,), "bool"),
    "steps/truncated": ArrayInfo((9,), "bool"),
    "steps/next_valid": ArrayInfo((9,), "bool"),
    "steps/observation/cam": ArrayInfo((9, 4, 5, 3), "uint8"),
    "steps/observation/top_jpeg/data": ArrayInfo((1234,), "uint8"),
    "steps/observation/top_jpeg/offsets": ArrayInfo((10,), "int64"),
    "steps/next_observation/joint": ArrayInfo((9, 3), "float32"),
    "episodes/offsets": ArrayInfo((4,), "int64"),
    "episodes/source": ArrayInfo((3,), "int32"),
    "episodes/name/data": ArrayInfo((21,), "uint8"),
    "episodes/name/offsets": ArrayInfo((4,), "int64"),
    "episodes/final_observation/cam": ArrayInfo((3, 4, 5, 3), "uint8"),
    "sources/path/data": ArrayInfo((4,), "uint8"),
    "sources/path/offsets": ArrayInfo((2,), "int64"),
}


SAMPLES = "(the root's count of samples"


def validate(arrays: dict[str, ArrayInfo], samples: int = 3) -> list[Problem]:
    found: list[Problem] = get_family("trajectory").part("specs").problems(arrays, samples)
    return found


def test_a_good_store() -> None:
    assert validate(GOOD) == []


@pytest.mark.parametrize(
    ("path", "info", "said"),
    [
        (
            "steps/action",
            ArrayInfo((8, 7), "float32"),
            "has 8 rows, expected 9 (the rows of steps/next_valid)",
        ),
        ("steps/terminated", ArrayInfo((9,), "uint8"), "is uint8, expected bool"),
        ("steps/next_valid", ArrayInfo((9, 1), "bool"), "has shape (9, 1), expected (n)"),
        (
            "steps/observation/top_jpeg/offsets",
            ArrayInfo((9,), "int64"),
            "has 9 rows, expected 10 (the rows of steps/next_valid +1)",
        ),
        ("episodes/offsets", ArrayInfo((4,), "int32"), "is int32, expected int64"),
        ("episodes/source", ArrayInfo((4,), "int32"), f"has 4 rows, expected 3 {SAMPLES})"),
        (
            "episodes/final_observation/cam",
            ArrayInfo((9, 4, 5, 3), "uint8"),
            f"has 9 rows, expected 3 {SAMPLES})",
        ),
        ("episodes/name/offsets", ArrayInfo((3,), "int64"), f"has 3 rows, expected 4 {SAMPLES} +1)"),
    ],
)
def test_each_fault(path: str, info: ArrayInfo, said: str) -> None:
    assert [str(problem) for problem in validate({**GOOD, path: info})] == [f"{path}: {said}"]


@pytest.mark.parametrize(
    "path", ["steps/next_valid", "steps/terminated", "steps/truncated", "episodes/offsets"]
)
def test_what_is_missing(path: str) -> None:
    first, *others = validate({name: info for name, info in GOOD.items() if name != path})
    assert str(first) == f"{path}: is missing"
    assert {problem.message for problem in others} <= {f"needs the array {path}"}
    assert len(others) == (7 if path == "steps/next_valid" else 0)


def test_sample_count() -> None:
    assert [str(problem) for problem in validate(GOOD, samples=9)] == [
        f"episodes/offsets: has 4 rows, expected 10 {SAMPLES} +1)",
        f"episodes/source: has 3 rows, expected 9 {SAMPLES})",
        f"episodes/name/offsets: has 4 rows, expected 10 {SAMPLES} +1)",
        f"episodes/final_observation/cam: has 3 rows, expected 9 {SAMPLES})",
    ]


def test_several_faults_at_once() -> None:
    bad = {"steps/action": ArrayInfo((8,), "float32"), "episodes/source": ArrayInfo((9,), "int32")}
    assert [problem.location for problem in validate({**GOOD, **bad})] == list(bad)


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("steps/action", "action"),
        ("steps/observation/joint", "observation.joint"),
        ("steps/observation/images/cam_high", "observation.images.cam_high"),
        ("steps/observation/images/cam_high_jpeg/data", "observation.images.cam_high"),
        ("steps/next_observation/joint", "next.observation.joint"),
        ("episodes/final_observation/joint", "next.observation.joint"),
        ("steps/states", "states"),
    ],
)
def test_keys(path: str, key: str) -> None:
    assert sample_key(path) == key


def test_fields() -> None:
    image = column_field("observation/cam", "uint8", (4, 5, 3))
    assert is_image(image)
    assert not image.statistics
    assert is_image(moved(image, FINAL))
    assert moved(image, FINAL).path == "episodes/final_observation/cam"
    assert moved(image, NEXT).axes[0] == "step"
    joint = column_field("observation/joint", "float32", (16,))
    assert joint.statistics
    assert not moved(joint, NEXT).statistics
    assert not is_image(column_field("observation/depth", "uint8", (4, 5, 1)))
    assert not column_field("states", "float64", (32,)).statistics
    assert not column_field("terminated", "bool", ()).statistics
    data, offsets = jpeg_fields("cam", 30_000, colour="standard")
    assert (data.path, data.run) == ("steps/observation/cam_jpeg/data", 30_000)
    assert offsets.path == "steps/observation/cam_jpeg/offsets"
