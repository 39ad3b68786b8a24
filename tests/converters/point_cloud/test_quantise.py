"""Coordinates as integers: only where every bit comes back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from unistore.converters.point_cloud.coordinates import dequantise, quantise
from unistore.converters.point_cloud.derive import bounds_of

INT32 = st.integers(-(2**31), 2**31 - 1)


def quantised(values: np.ndarray, scale: float, offset: float) -> np.ndarray | None:
    """Values as they are quantised on each axis."""
    axes = [
        np.stack([values if at == axis else np.zeros_like(values) for at in range(3)], axis=1)
        for axis in range(3)
    ]
    scales, offsets = np.where(np.eye(3), scale, 1.0), np.where(np.eye(3), offset, 0.0)
    results = [quantise(*each) for each in zip(axes, scales.tolist(), offsets.tolist(), strict=True)]
    assert len({each is None for each in results}) == 1
    columns = [each[:, axis] for axis, each in enumerate(results) if each is not None]
    assert all((column == columns[0]).all() for column in columns)
    return columns[0] if columns else None


@given(st.lists(INT32, min_size=1), st.sampled_from([0.01, 0.001, 1e-7, 0.25, 3.0]), st.floats(-1e7, 1e7))
def test_coordinates_of_a_las_writer_are_quantised_to_the_bit(
    integers: list[int], scale: float, offset: float
) -> None:
    values = np.array(integers, np.int32).astype(np.float64) * scale + offset
    result = quantised(values, scale, offset)
    if result is not None:
        np.testing.assert_array_equal(dequantise(result, scale, offset).view(np.int64), values.view(np.int64))
    assert result is not None or abs(offset) > 2**31 * scale


@given(hnp.arrays(np.float64, st.integers(1, 20)), st.floats(), st.floats())
def test_quantising_never_changes_a_bit(values: np.ndarray, scale: float, offset: float) -> None:
    result = quantised(values, scale, offset)
    if result is not None:
        with np.errstate(all="ignore"):
            restored = result.astype(np.float64) * scale + offset
        np.testing.assert_array_equal(restored.view(np.int64), values.view(np.int64))


@pytest.mark.parametrize("value", [np.nan, np.inf, -0.0, 2**31 * 0.01, -(2**31 + 1) * 0.01, 0.005, 1e300])
def test_coordinates_that_integers_cannot_reproduce_are_not_quantised(value: float) -> None:
    for axis in range(3):
        xyz = np.zeros((3, 3))
        assert quantise(xyz, [0.01] * 3, [0.0] * 3) is not None
        xyz[1, axis] = value
        assert quantise(xyz, [0.01] * 3, [0.0] * 3) is None
    assert quantise(np.zeros((1, 3), np.float32), [0.01] * 3, [0.0] * 3) is None


def test_bounds_of_segments_without_points_are_zero() -> None:
    axis = np.array([3.0, 1.0, 2.0, 9.0])
    bounds = bounds_of([axis, -axis, axis], np.array([0, 0, 3, 3, 4, 4]))
    expected = np.zeros((5, 2, 3))
    expected[1], expected[3] = [[1, -3, 1], [3, -1, 3]], [[9, -9, 9], [9, -9, 9]]
    np.testing.assert_array_equal(bounds, expected)
