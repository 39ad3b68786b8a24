"""What a spike store must hold, and how its arrays are tiled."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unistore.converters.registry import get_family
from unistore.errors import Problem
from unistore.schemas.array_specs import ArrayInfo
from unistore.schemas.spike.fields import (
    even_tile,
    file_table,
    image_field,
    spike_field,
    voxel_bins,
    voxel_field,
    voxel_path,
)

GOOD = {
    "frames/spike": ArrayInfo((3, 88, 360, 80), "uint8"),
    "frames/spike_length": ArrayInfo((3,), "int32"),
    "frames/spike_extent": ArrayInfo((3, 2), "int32"),
    "frames/voxel/5": ArrayInfo((3, 5, 360, 640), "uint8"),
    "frames/blur": ArrayInfo((3, 720, 1280, 3), "uint8"),
    "frames/sharp_file/data": ArrayInfo((999,), "uint8"),
    "frames/sharp_file/offsets": ArrayInfo((4,), "int64"),
    "frames/image_extent": ArrayInfo((3, 2), "int32"),
    "sequences/offsets": ArrayInfo((3,), "int64"),
    "sequences/name/data": ArrayInfo((9,), "uint8"),
    "sequences/name/offsets": ArrayInfo((3,), "int64"),
    "sources/path/data": ArrayInfo((9,), "uint8"),
    "sources/path/offsets": ArrayInfo((4,), "int64"),
    "sources/bytes": ArrayInfo((3,), "int64"),
}


SAMPLES = "(the root's count of samples"


def validate(arrays: dict[str, ArrayInfo], samples: int = 3) -> list[Problem]:
    found: list[Problem] = get_family("spike").part("specs").problems(arrays, samples)
    return found


def test_a_whole_store_has_no_problem() -> None:
    assert validate(GOOD) == []
    only_voxels = {
        path: info for path, info in GOOD.items() if path not in {"frames/spike", "frames/spike_length"}
    }
    assert validate(only_voxels) == []


@pytest.mark.parametrize(
    "path", [path for path in GOOD if not path.startswith("sources") and "voxel" not in path]
)
def test_a_missing_array_is_named(path: str) -> None:
    problems = validate({key: info for key, info in GOOD.items() if key != path})
    told = {"is missing", f"needs the array {path}"}
    assert {problem.message for problem in problems} <= told
    assert bool(problems) == (path not in {"frames/spike", "frames/blur"})  # which some stores do without


@pytest.mark.parametrize(
    ("path", "shape", "dtype", "said"),
    [
        ("frames/spike", (3, 88, 360, 80), "bool", "is bool, expected uint8"),
        ("frames/spike", (3, 88, 360), "uint8", "has shape (3, 88, 360), expected (n, n, n, n)"),
        ("frames/voxel/5", (3, 4, 360, 640), "uint8", "has shape (3, 4, 360, 640), expected (n, 5, n, n)"),
        (
            "frames/spike",
            (3, 88, 396, 80),
            "uint8",
            (
                "has shape (3, 88, 396, 80), expected (360, 80) at its end, "
                "as frames/voxel/5 has (3, 5, 360, 640)"
            ),
        ),
        ("frames/voxel/5", (3, 5, 360, 640), "bool", "is bool, expected numbers"),
        ("frames/voxel/5", (2, 5, 360, 640), "uint8", f"has 2 rows, expected 3 {SAMPLES})"),
        ("frames/blur", (3, 720, 1280, 4), "uint8", "has shape (3, 720, 1280, 4), expected (n, n, n, 3)"),
        ("frames/spike_length", (4,), "int32", f"has 4 rows, expected 3 {SAMPLES})"),
        ("frames/sharp_file/offsets", (3,), "int64", f"has 3 rows, expected 4 {SAMPLES} +1)"),
        ("frames/image_extent", (3, 3), "int32", "has shape (3, 3), expected (n, 2)"),
        ("sequences/name/offsets", (4,), "int64", "has 4 rows, expected 3 (the rows of sequences/offsets)"),
    ],
)
def test_every_contradiction_is_found(path: str, shape: tuple[int, ...], dtype: str, said: str) -> None:
    (problem,) = validate({**GOOD, path: replace(GOOD[path], shape=shape, dtype=dtype)})
    assert (problem.location, problem.message) == (path, said)


def test_another_count_of_samples() -> None:
    every = [path for path in GOOD if path.startswith("frames/") and not path.endswith("/data")]
    assert [str(problem) for problem in validate(GOOD, samples=4)] == [
        f"{path}: has 4 rows, expected 5 {SAMPLES} +1)"
        if path.endswith("/offsets")
        else f"{path}: has 3 rows, expected 4 {SAMPLES})"
        for path in every
    ]


def test_nothing_at_all() -> None:
    assert {problem.message for problem in validate({})} == {"is missing"}
    required = ("frames/spike_extent", "sequences/offsets", "sequences/name/data", "sequences/name/offsets")
    (problem,) = validate({path: GOOD[path] for path in required})
    assert "neither frames/spike nor frames/voxel" in problem.message


def test_paths_of_voxel_sets() -> None:
    assert voxel_bins(voxel_path(32)) == 32
    assert voxel_bins("frames/voxel/x") is None
    assert voxel_bins("frames/spike") is None


@given(st.integers(1, 2_000), st.integers(1, 300))
def test_even_tiles_cover_with_little_padding(extent: int, wanted: int) -> None:
    tile = even_tile(extent, wanted)
    assert 1 <= tile <= extent
    if extent > wanted:
        assert -(-extent // tile) * tile <= -(-extent // wanted) * wanted
        assert tile <= wanted * 1.6


def test_tiles_of_known_cameras() -> None:
    assert spike_field(88, 360, 640).tile == (88, 36, 40)
    assert voxel_field(5, "uint8", 360, 640, counted=True).tile == (5, 120, 128)
    assert voxel_field(10, "uint8", 360, 640, counted=True).tile == (10, 60, 128)
    assert image_field("blur", 720, 1280).tile == (120, 128, 3)
    assert voxel_field(5, "uint8", 250, 400, counted=True).tile == (5, 125, 200), "columns in groups of 8"


@given(st.integers(1, 2_000), st.integers(1, 1_500), st.integers(1, 1_500), st.integers(1, 64))
def test_chunks_stay_of_a_readable_size(length: int, height: int, width: int, bins: int) -> None:
    for field in (
        spike_field(length, height, width),
        voxel_field(bins, "uint16", height, width, counted=True),
    ):
        assert field.tile is not None
        size = 1
        for tile, extent in zip(field.tile, field.row_shape, strict=True):
            assert 1 <= tile <= extent
            size *= tile
        assert size <= 512 << 10
    assert file_table("blur", 1_000).fields[0].path == "frames/blur_file/data"
