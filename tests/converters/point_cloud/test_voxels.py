"""Quantising, windows and voxel grids against brute force."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from unistore.converters.point_cloud import sorting as point_cloud_sorting
from unistore.converters.point_cloud.coordinates import bounds_of, dequantise, quantise
from unistore.converters.point_cloud.derive import blocks_of, partition_of
from unistore.converters.point_cloud.grids import Windows, voxelise, window_rows
from unistore.converters.point_cloud.sorting import Workspace

INT32 = st.integers(-(2**31), 2**31 - 1)


def quantised(values: np.ndarray, scale: float, offset: float) -> np.ndarray | None:
    """Values as they are quantised on each axis."""
    axes = [
        np.stack([values if at == axis else np.zeros_like(values) for at in range(3)], axis=1)
        for axis in range(3)
    ]
    scales, offsets = np.where(np.eye(3), scale, 1.0), np.where(np.eye(3), offset, 0.0)
    found = [quantise(*each) for each in zip(axes, scales.tolist(), offsets.tolist(), strict=True)]
    assert len({each is None for each in found}) == 1
    columns = [each[:, axis] for axis, each in enumerate(found) if each is not None]
    assert all((column == columns[0]).all() for column in columns)
    return columns[0] if columns else None


@given(st.lists(INT32, min_size=1), st.sampled_from([0.01, 0.001, 1e-7, 0.25, 3.0]), st.floats(-1e7, 1e7))
def test_what_a_las_writer_made_is_quantised_back(integers: list[int], scale: float, offset: float) -> None:
    wanted = np.array(integers, np.int32)
    values = wanted.astype(np.float64) * scale + offset
    found = quantised(values, scale, offset)
    if found is not None:
        restored = found.astype(np.float64) * scale + offset
        np.testing.assert_array_equal(restored.view(np.int64), values.view(np.int64))
    if abs(offset) <= 2**31 * scale:
        assert found is not None
        np.testing.assert_array_equal(dequantise(found, scale, offset).view(np.int64), values.view(np.int64))


@given(hnp.arrays(np.float64, st.integers(1, 20)), st.floats(), st.floats())
def test_quantising_never_changes_a_bit(values: np.ndarray, scale: float, offset: float) -> None:
    found = quantised(values, scale, offset)
    if found is not None:
        with np.errstate(all="ignore"):
            restored = found.astype(np.float64) * scale + offset
        np.testing.assert_array_equal(restored.view(np.int64), values.view(np.int64))


@pytest.mark.parametrize("value", [np.nan, np.inf, -0.0, 2**31 * 0.01, -(2**31 + 1) * 0.01, 0.005, 1e300])
def test_values_that_no_integer_reproduces(value: float) -> None:
    for axis in range(3):
        xyz = np.zeros((3, 3))
        assert quantise(xyz, [0.01] * 3, [0.0] * 3) is not None
        xyz[1, axis] = value
        assert quantise(xyz, [0.01] * 3, [0.0] * 3) is None
    assert quantise(np.zeros((1, 3), np.float32), [0.01] * 3, [0.0] * 3) is None


def test_bounds_skip_segments_without_points() -> None:
    axis = np.array([3.0, 1.0, 2.0, 9.0])
    bounds = bounds_of([axis, -axis, axis], np.array([0, 0, 3, 3, 4, 4]))
    expected = np.zeros((5, 2, 3))
    expected[1], expected[3] = [[1, -3, 1], [3, -1, 3]], [[9, -9, 9], [9, -9, 9]]
    np.testing.assert_array_equal(bounds, expected)


@given(hnp.arrays(np.int64, 30, elements=st.integers(0, 10)), st.integers(1, 12))
def test_blocks_are_whole_segments_within_the_limit(lengths: np.ndarray, limit: int) -> None:
    ranges = list(blocks_of(lengths, limit))
    assert [number for first, last in ranges for number in range(first, last)] == list(range(30))
    assert all(lengths[first:last].sum() <= limit or last - first == 1 for first, last in ranges)
    assert all(first < last for first, last in ranges)
    assert all(lengths[first : last + 1].sum() > limit for first, last in ranges[:-1]), "no more would fit"
    assert list(blocks_of(np.empty(0, np.int64), 5)) == []


class Grid(NamedTuple):
    coords: np.ndarray
    counts: np.ndarray
    lengths: np.ndarray
    point_voxel: np.ndarray


def grid_of(axes: list[np.ndarray], lengths: np.ndarray, bounds: np.ndarray, size: float) -> Grid:
    """The grid of one block of segments."""
    xyz = np.stack(axes, axis=1)
    parts: list[tuple[np.ndarray, np.ndarray]] = []
    voxels, point_voxel = voxelise(
        xyz, lengths, bounds, size, Workspace(None), lambda *part: parts.append(part)
    )
    coords, counts = (np.concatenate(each) for each in zip(*parts, strict=True))
    return Grid(coords, counts, voxels, np.concatenate(list(point_voxel)))


def brute_force(xyz: np.ndarray, lengths: list[int], size: float):
    coords, counts, point_voxel = np.empty((0, 3), int), np.empty(0, int), np.empty(0, int)
    voxels = []
    for part in np.split(xyz, np.cumsum(lengths)[:-1]):
        cells = np.floor((part - part.min(axis=0, initial=np.inf)) / size).astype(np.int64)
        unique, inverse, number = np.unique(cells, axis=0, return_inverse=True, return_counts=True)
        coords, counts = np.concatenate([coords, unique]), np.concatenate([counts, number])
        point_voxel = np.concatenate([point_voxel, inverse.reshape(-1)])
        voxels.append(len(unique))
    return coords, counts, voxels, point_voxel


@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=6), st.integers(0, 2**32), st.booleans(), st.booleans()
)
def test_voxels_are_those_of_numpy_unique(lengths: list[int], seed: int, single: bool, wide: bool) -> None:
    random = np.random.default_rng(seed)
    xyz = random.integers(0, 5, (sum(lengths), 3)) * (0.3 if not wide else 3e5) + 1e5
    xyz = xyz.astype(np.float32) if single else xyz
    axes = [np.ascontiguousarray(xyz[:, axis]) for axis in range(3)]
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    if not offsets[-1]:
        return
    grid = grid_of(axes, np.array(lengths, np.int64), bounds_of(axes, offsets), 0.5)
    coords, counts, voxels, point_voxel = brute_force(xyz.astype(np.float64), lengths, 0.5)
    np.testing.assert_array_equal(grid.coords, coords.reshape(-1, 3))
    np.testing.assert_array_equal(grid.counts, counts)
    np.testing.assert_array_equal(grid.lengths, voxels)
    np.testing.assert_array_equal(grid.point_voxel, point_voxel)


def test_keys_too_wide_for_one_integer_sort_alike(monkeypatch) -> None:
    random = np.random.default_rng(1)
    axes = [random.random(500) * 10 for _ in range(3)]
    lengths = np.array([200, 300])
    bounds = bounds_of(axes, np.array([0, 200, 500]))
    packed = grid_of(axes, lengths, bounds, 1.0)
    monkeypatch.setattr(point_cloud_sorting, "_pack", lambda keys: None)
    for one, other in zip(packed, grid_of(axes, lengths, bounds, 1.0), strict=True):
        np.testing.assert_array_equal(one, other)


def test_really_wide_keys_are_not_packed() -> None:
    axes = [np.array([0.0, 2e9, 2e9, 1e9])] * 3
    grid = grid_of(axes, np.array([4]), bounds_of(axes, np.array([0, 4])), 1.0)
    np.testing.assert_array_equal(grid.coords, [[0] * 3, [10**9] * 3, [2 * 10**9] * 3])
    np.testing.assert_array_equal(grid.counts, [1, 1, 2])
    np.testing.assert_array_equal(grid.point_voxel, [0, 2, 2, 1])


def windows_of(x: np.ndarray, y: np.ndarray, *options):
    xyz = np.stack([x, y, x], axis=1)
    work = Workspace(None)
    pieces = ([rows] for rows in window_rows(xyz, Windows(*options), work))
    partition = partition_of(pieces, None, len(x), work)
    assert partition.rows is not None
    return partition, partition.rows


@given(
    st.integers(0, 2**32), st.integers(1, 200), st.integers(1, 9), st.one_of(st.none(), st.integers(9, 30))
)
def test_windows_cover_every_point_once(seed: int, n: int, least: int, most: int | None) -> None:
    random = np.random.default_rng(seed)
    x, y = random.integers(0, 40, n) * 1.0 - 7, random.integers(0, 25, n) * 0.5 + 3
    partition, order = windows_of(x, y, 10.0, least, most)
    np.testing.assert_array_equal(np.sort(order), np.arange(n))
    offsets = np.append(0, np.cumsum(partition.lengths))
    previous = (-1.0, -1.0)
    sizes: dict[tuple[float, float], int] = {}
    for number, lo, hi in zip(partition.numbers, offsets, offsets[1:], strict=False):
        rows = order[lo:hi]
        assert (np.diff(rows) > 0).all()
        if number == -1:
            assert hi == n
            continue
        assert least <= len(rows) <= (most or n)
        windows = {(a, b) for a, b in zip((x[rows] - x.min()) // 10, (y[rows] - y.min()) // 10, strict=True)}
        assert len(windows) == 1
        assert previous <= min(windows)
        previous = min(windows)
        sizes[previous] = sizes.get(previous, 0) + len(rows)
    if most is None:
        whole = {
            (a, b): int(np.count_nonzero(((x - x.min()) // 10 == a) & ((y - y.min()) // 10 == b)))
            for a, b in sizes
        }
        assert sizes == whole


def test_points_on_one_spot_are_halved_too() -> None:
    partition, order = windows_of(np.zeros(100), np.zeros(100), 5.0, 1, 30)
    assert partition.lengths.tolist() == [25] * 4
    np.testing.assert_array_equal(order, np.arange(100))
