"""The trajectory schema finds every fault, and names keys as samples have them."""

from __future__ import annotations

import pytest

from unistore.schemas.trajectory.fields import (
    FINAL,
    NEXT,
    bounds_of,
    column_field,
    is_image,
    moved,
    sample_key,
    values_field,
)


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
def test_sample_key_replaces_slashes_of_a_path_by_dots(path: str, key: str) -> None:
    assert sample_key(path) == key


def test_column_fields_know_images_statistics_and_their_moved_paths() -> None:
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
    frames = values_field("observation/cam", "steps", "frames", "uint8", (4, 5, 3), {})
    assert frames.path == "steps/observation/cam_jpeg/data"
    assert bounds_of("steps/observation/cam_jpeg").path == "steps/observation/cam_jpeg/offsets"
