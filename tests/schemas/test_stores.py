"""What the store of a family must hold: sound stores, and every fault of one array, for all families."""

from __future__ import annotations

import pytest

from unistore.converters.families import specs_of
from unistore.converters.registry import get_family
from unistore.schemas.array_specs import ArrayInfo
from unistore.schemas.point_cloud.fields import (
    column_field,
    scale_fields,
    segment_fields,
    source_row_field,
    voxel_fields,
    voxel_offsets_field,
    xyz_field,
)
from unistore.schemas.tables import name_problem


def info(text: str) -> ArrayInfo:
    """An array by its type and shape: ``int16 2 8 9``."""
    dtype, *shape = text.split()
    return ArrayInfo(tuple(map(int, shape)), dtype)


def cloud() -> dict[str, str]:
    """A cloud of 10 points in 3 segments, 6 voxels and 2 files, of the fields that a converter writes."""
    fields = [(xyz_field("int32", 3, "m"), 10), (column_field("points", "rgb", "uint8", (3,), run=3), 10)]
    fields += [(source_row_field(3), 10)]
    fields += [(field, 3 + (name == "offsets")) for name, field in segment_fields("m").items()]
    fields += [(field, 2) for field in scale_fields()]
    fields += [*zip(voxel_fields(0.5, 2, 3, "m"), (6, 6, 10), strict=True), (voxel_offsets_field(0.5), 4)]
    arrays = {"sources/path/data": "uint8 9", "sources/path/offsets": "int64 3"}
    for field, rows in fields:
        arrays[field.path] = " ".join(map(str, (field.dtype, rows, *field.row_shape)))
    return arrays


CLOUD = cloud()
STORES = {
    "ct": {
        "volumes/image": "int16 2 8 9 10",
        "volumes/extent": "int32 2 3",
        "volumes/name/data": "uint8 9",
        "volumes/name/offsets": "int64 3",
        "windows/lung/coords": "uint16 5 3",
        "windows/lung/values": "int16 5",
        "windows/lung/offsets": "int64 3",
        "windows/lung/present": "bool 2",
        "windows/bone/mask": "uint8 2 8 9 2",
        "windows/bone/offsets": "int64 3",
        "windows/bone/present": "bool 2",
        "masks/1/mask": "uint8 2 8 9 2",
        "masks/1/present": "bool 2",
        "sdf/lung/coords": "int32 7 3",
        "sdf/lung/values": "float32 7",
        "sdf/lung/offsets": "int64 3",
        "sdf/lung/present": "bool 2",
    },
    "point_cloud": CLOUD,
    "rows": {"rows/data": "float32 5 3", "rows/a/b": "int64 5"},
    "spike": {
        "spikes/bits": "uint8 264 360 80",
        "frames/offsets": "int64 4",
        "frames/source": "int32 3",
        "frames/spike_extent": "int32 3 2",
        "frames/voxel/5": "uint8 3 5 360 640",
        "frames/blur": "uint8 3 720 1280 3",
        "frames/sharp_file/data": "uint8 999",
        "frames/sharp_file/offsets": "int64 4",
        "frames/image_extent": "int32 3 2",
        "sequences/offsets": "int64 3",
        "sequences/name/data": "uint8 9",
        "sequences/name/offsets": "int64 3",
        "sources/path/data": "uint8 9",
        "sources/path/offsets": "int64 4",
        "sources/bytes": "int64 3",
    },
    "trajectory": {
        "steps/action": "float32 9 7",
        "steps/terminated": "bool 9",
        "steps/truncated": "bool 9",
        "steps/next_valid": "bool 9",
        "steps/observation/cam": "uint8 9 4 5 3",
        "steps/observation/top_jpeg/data": "uint8 1234",
        "steps/observation/top_jpeg/offsets": "int64 10",
        "steps/next_observation/joint": "float32 9 3",
        "episodes/offsets": "int64 4",
        "episodes/source": "int32 3",
        "episodes/name/data": "uint8 21",
        "episodes/name/offsets": "int64 4",
        "episodes/final_observation/cam": "uint8 3 4 5 3",
        "sources/path/data": "uint8 4",
        "sources/path/offsets": "int64 2",
    },
}
"""Type and shape of each array of a sound store."""
SAMPLES = {"ct": 2, "point_cloud": 2, "rows": 5, "spike": 3, "trajectory": 3}


def problems(family: str, changes: dict[str, str | None], samples: int | None = None) -> list[str]:
    """What is said of a sound store whose arrays are changed, or gone."""
    arrays = {path: info(text) for path, text in {**STORES[family], **changes}.items() if text is not None}
    found = specs_of(get_family(family)).problems(arrays, SAMPLES[family] if samples is None else samples)
    return [str(problem) for problem in found]


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        *((family, {}) for family in STORES),
        ("ct", {"volumes/image": None}),
        ("spike", {"spikes/bits": None, "frames/offsets": None}),
        ("point_cloud", {"sources/note/data": "uint8 99", "sources/note/offsets": "int64 3"}),
        ("point_cloud", {"points/xyz": "float64 10 3", "sources/scale": None, "sources/offset": None}),
    ],
)
def test_sound_stores_of_every_family_have_no_problem(family: str, changes: dict[str, str | None]) -> None:
    assert problems(family, changes) == []
    assert [name_problem(path) for path in STORES[family]] == [None] * len(STORES[family])


FREE = {
    "spike": {"frames/source", "frames/blur", "frames/voxel/5", "sources/bytes"},
    "point_cloud": {"points/rgb"},
    "trajectory": set(),
}
"""Arrays that a store may do without."""


NEEDED = [
    *(("spike", path) for path in STORES["spike"]),
    *(("point_cloud", path) for path in CLOUD),
    *(("trajectory", f"steps/{name}") for name in ("next_valid", "terminated", "truncated")),
    ("trajectory", "episodes/offsets"),
]


@pytest.mark.parametrize(("family", "path"), NEEDED)
def test_an_array_that_is_missing_is_named(family: str, path: str) -> None:
    found = problems(family, {path: None})
    needs = [problem for problem in found if f"needs the array {path}," in problem]
    missing = [problem for problem in found if problem.startswith(f"{path}: is missing")]
    assert sorted(needs + missing) == sorted(found)
    assert bool(found) == (path not in FREE[family])
    if family == "trajectory":
        assert missing == [f"{path}: is missing"]
        assert len(needs) == (7 if path == "steps/next_valid" else 0)


SPIKE_REQUIRED = [
    "frames/spike_extent",
    *(f"sequences/{name}" for name in ("offsets", "name/data", "name/offsets")),
]
WIDE = "has shape (264, 396, 80), expected (…, 360, 80), because frames/voxel/5 has shape (3, 5, 360, 640)"


@pytest.mark.parametrize(
    ("family", "path", "changed", "said"),
    [
        ("ct", "volumes/extent", None, "is missing"),
        ("ct", "volumes/extent", "int32 2 2", "has shape (2, 2), expected (n, 3)"),
        (
            "ct",
            "volumes/image",
            "complex64 2 8 9 10",
            "has dtype complex64, expected booleans, integers, unsigned integers or floats",
        ),
        ("ct", "volumes/image", "int16 3 8 9 10", "has 3 rows, expected 2, the number of samples"),
        ("ct", "windows/lung/coords", "int64 5 3", "has dtype int64, expected uint16 or int32"),
        (
            "ct",
            "windows/lung/values",
            "int16 4",
            "has 4 rows, expected 5, the number of rows of windows/lung/coords",
        ),
        (
            "ct",
            "windows/bone/offsets",
            "int64 2",
            "has 2 rows, expected 3, one more than the number of samples",
        ),
        (
            *("ct", "windows/bone/mask", "uint8 2 8 9 10"),
            "has shape (2, 8, 9, 10), expected (…, 8, 9, 2), because volumes/image has shape (2, 8, 9, 10)",
        ),
        ("rows", "rows/c", "int64 4", "has 4 rows, expected 5, the number of samples"),
        ("rows", "rows/d", "int64", "has no axes, expected rows on axis 0"),
        ("point_cloud", "points/xyz", "int16 10 2", "has dtype int16, expected int32, float64 or float32"),
        (
            *("spike", "frames/voxel/5", "uint8 3 4 360 640"),
            "has shape (3, 4, 360, 640), expected (n, 5, n, n)",
        ),
        (
            *("spike", "spikes/bits", "uint8 264 396 80"),
            WIDE,
        ),
        ("spike", "frames/blur", "uint8 3 720 1280 4", "has shape (3, 720, 1280, 4), expected (n, n, n, 3)"),
        ("spike", "frames/source", "int32 4", "has 4 rows, expected 3, the number of samples"),
        ("trajectory", "steps/next_valid", "bool 9 1", "has shape (9, 1), expected (n)"),
        (
            *("trajectory", "steps/observation/top_jpeg/offsets", "int64 9"),
            "has 9 rows, expected 10, one more than the number of rows of steps/next_valid",
        ),
        ("trajectory", "episodes/source", "int32 4", "has 4 rows, expected 3, the number of samples"),
    ],
)
def test_a_fault_of_one_array_is_the_only_problem(
    family: str, path: str, changed: str | None, said: str
) -> None:
    assert problems(family, {path: changed}) == [f"{path}: {said}"]


def test_a_spike_store_has_spikes_or_voxels() -> None:
    kept = [*SPIKE_REQUIRED, "frames/source", "sources/path/data", "sources/path/offsets"]
    (problem,) = problems("spike", {path: None for path in STORES["spike"] if path not in kept})
    assert "neither spikes/bits nor frames/voxel" in problem
