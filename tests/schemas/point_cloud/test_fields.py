"""The schema of point clouds."""

from __future__ import annotations

import pytest

from unistore.schemas.point_cloud.fields import voxel_group
from unistore.schemas.tables import name_problem


@pytest.mark.parametrize(
    ("size", "group"), [(0.5, "voxels/0.5"), (1.0, "voxels/1"), (1e-7, "voxels/0.0000001")]
)
def test_a_voxel_group_is_named_by_its_size(size: float, group: str) -> None:
    assert voxel_group(size) == group


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("a//b", "is empty or has only dots"),
        ("..", "is empty or has only dots"),
        ("__reserved", "Zarr reserves"),
        ("a/zarr.json", "'zarr.json' is the name of Zarr's own files"),
        ("a\tb", "control character"),
        ("a\\b", "backslash"),
        ("é" * 128, "longer than 255 bytes"),
    ],
)
def test_a_name_that_no_array_can_have_is_a_problem(name: str, reason: str) -> None:
    assert reason in str(name_problem(name))
    assert name_problem("points/Größe 2") is None
