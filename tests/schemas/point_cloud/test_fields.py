"""The schema of point clouds."""

from __future__ import annotations

import pytest

from unistore.converters.registry import get_family
from unistore.errors import Problem
from unistore.schemas.array_specs import ArrayInfo
from unistore.schemas.point_cloud.fields import (
    column_field,
    scale_fields,
    segment_fields,
    source_row_field,
    voxel_fields,
    voxel_group,
    voxel_offsets_field,
    xyz_field,
)
from unistore.schemas.tables import name_problem

N, S, V, F = 10, 3, 6, 2
BOUNDS = ArrayInfo((F + 1,), "int64")


def validate(arrays: dict[str, ArrayInfo]) -> list[Problem]:
    found: list[Problem] = get_family("point_cloud").part("specs").problems(arrays, 2)
    return found


def store() -> dict[str, ArrayInfo]:
    fields = [
        *(
            (field, N)
            for field in (xyz_field("int32", 3, "m"), column_field("points", "rgb", "uint8", (3,), run=3))
        ),
        (source_row_field(3), N),
        *((field, S + (name == "offsets")) for name, field in segment_fields("m").items()),
        *((field, F) for field in scale_fields()),
        *zip(voxel_fields(0.5, 2, 3, "m"), (V, V, N), strict=True),
        (voxel_offsets_field(0.5), S + 1),
    ]
    arrays = {field.path: ArrayInfo((rows, *field.row_shape), field.dtype) for field, rows in fields}
    return {"sources/path/data": ArrayInfo((9,), "uint8"), "sources/path/offsets": BOUNDS, **arrays}


def test_the_fields_make_a_valid_store() -> None:
    arrays = store()
    assert validate(arrays) == []
    assert arrays["voxels/0.5/point_voxel"] == ArrayInfo((N,), "int32")
    for path in arrays:
        assert name_problem(path) is None
    named = {
        "sources/note/data": ArrayInfo((99,), "uint8"),
        "sources/note/offsets": BOUNDS,
    }
    assert validate({**arrays, **named}) == []


COUNTED = {
    "points/xyz": {"points/rgb", "points/source_row", "voxels/0.5/point_voxel"},
    "segments/number": {
        *("segments/offsets", "segments/origin", "segments/bounds", "segments/source"),
        "voxels/0.5/offsets",
    },
    "voxels/0.5/coords": {"voxels/0.5/counts"},
}
"""Arrays that have the rows of another, and where it is only known by them that one has others."""


@pytest.mark.parametrize(
    "path", sorted(set(store()) - {"points/rgb", "sources/path/data", "sources/path/offsets"})
)
def test_each_array_is_needed(path: str) -> None:
    arrays = store()
    del arrays[path]
    told = {problem.message for problem in validate(arrays)}
    assert told
    assert told <= {"is missing", f"needs the array {path}"}


@pytest.mark.parametrize("path", sorted(set(store()) - {"sources/path/data", "sources/path/offsets"}))
def test_each_array_has_its_rows(path: str) -> None:
    arrays = store()
    info = arrays[path]
    arrays[path] = ArrayInfo((info.shape[0] + 1, *info.shape[1:]), info.dtype)
    found = {problem.location: problem.message for problem in validate(arrays)}
    assert set(found) == COUNTED.get(path, {path})
    for location, message in found.items():
        rows = arrays[location].shape[0]
        expected = rows - 1 if location == path else rows + 1
        assert message.startswith(f"has {rows} rows, expected {expected} (the rows of ")


def test_all_problems_at_once() -> None:
    arrays = store()
    arrays["points/xyz"] = ArrayInfo((N, 2), "int16")
    arrays["segments/origin"] = ArrayInfo((S, 3), "float32")
    assert [str(problem) for problem in validate(arrays)] == [
        "points/xyz: is int16, expected int32 or float64 or float32",
        "segments/origin: is float32, expected float64",
    ]


def test_scale_is_needed_beside_quantised_coordinates_only() -> None:
    arrays = store()
    arrays["points/xyz"] = ArrayInfo((N, 3), "float64")
    del arrays["sources/scale"], arrays["sources/offset"]
    assert validate(arrays) == []


@pytest.mark.parametrize(
    ("size", "group"), [(0.5, "voxels/0.5"), (1.0, "voxels/1"), (1e-7, "voxels/0.0000001")]
)
def test_names_of_voxel_grids(size: float, group: str) -> None:
    assert voxel_group(size) == group


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("a//b", "empty or made of dots"),
        ("..", "empty or made of dots"),
        ("__reserved", "Zarr reserves"),
        ("a/zarr.json", "every Zarr node"),
        ("a\tb", "control character"),
        ("a\\b", "backslash"),
        ("é" * 128, "longer than 255 bytes"),
    ],
)
def test_names_that_no_array_can_have(name: str, reason: str) -> None:
    assert reason in str(name_problem(name))
    assert name_problem("points/Größe 2") is None
