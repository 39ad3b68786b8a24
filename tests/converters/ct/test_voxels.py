from __future__ import annotations

from fractions import Fraction
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unistore.converters.adapter.formats import FileToOpen
from unistore.converters.ct import slabs as ct_slabs
from unistore.converters.ct import voxels as ct_voxels
from unistore.converters.ct.slabs import VolumeArray, VolumeFile
from unistore.converters.ct.voxels import (
    bit_shape,
    count_image,
    count_mask,
    point_coords,
    read_bits,
    read_points,
)
from unistore.converters.formats.arrays import Npy
from unistore.converters.opened import SourceFile
from unistore.schemas.ct.voxels import bounds, inside
from unistore.schemas.ct.windows import Window

DTYPES = ["<i2", ">i4", "|u1", "<f2", ">f4", "<f8", "|b1"]
WINDOW = Window("w", 60.0, 10.0)


def volume(dtype: str, shape: tuple[int, int, int] = (7, 9, 21)) -> np.ndarray:
    rng = np.random.default_rng(3)
    if dtype == "|b1":
        return rng.random(shape) < 0.3
    low = 0 if np.dtype(dtype).kind == "u" else -100
    return rng.integers(low, 100, shape).astype(dtype)


def saved(folder: Path, array: np.ndarray, name: str = "a.npy") -> VolumeFile:
    path = folder / name
    np.save(path, array)
    order = not array.flags.c_contiguous
    described = VolumeArray("image", name, str(path), "npy", array.dtype.str, array.shape, order)
    file = FileToOpen(SourceFile(path, name), Npy())
    return VolumeFile.of(described, file)


@pytest.fixture(params=["C", "F"])
def order(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(autouse=True)
def small_slabs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ct_slabs, "SLAB", 600)
    monkeypatch.setattr(ct_slabs, "BAND", 1300)
    monkeypatch.setattr(ct_voxels, "LISTED", 200)


@pytest.mark.parametrize("dtype", DTYPES)
def test_counts_and_bits_equal_the_formula(tmp_path: Path, dtype: str, order: str) -> None:
    array = np.asarray(volume(dtype), order=order)
    if array.dtype.kind == "f":
        array[2, 3, 4:9] = np.nan
        array[0, 0, 0], array[0, 0, 1] = np.inf, -np.inf
    file = saved(tmp_path, array)
    exact = array.astype("f8")
    expected = (exact >= -20) & (exact <= 40)
    counted = count_image(file, {"w": WINDOW, "none": Window("none", 1.0, 5e5)}, {})
    np.testing.assert_array_equal(counted.planes["w"], expected.sum(axis=(1, 2)))
    assert counted.planes["none"].sum() == 0
    assert counted.nan == np.isnan(exact).sum()
    tests = {"w": inside(WINDOW, file.kind)}
    bits = np.zeros(bit_shape((8, 11, 30)), np.uint8)
    read_bits(file, tests, {"w": bits})
    np.testing.assert_array_equal(bits[:7, :9, :3], np.packbits(expected, axis=-1, bitorder="little"))
    assert bits.sum(dtype=int) == bits[:7, :9, :3].sum(dtype=int)
    some = np.zeros(bit_shape((4, 9, 21)), np.uint8)
    read_bits(file, tests, {"w": some}, 3, 6)
    np.testing.assert_array_equal(some[:3], bits[3:6, :9, :3])
    assert not some[3].any()


@settings(max_examples=100)
@given(
    width=st.one_of(st.integers(1, 5000), st.floats(1e-3, 5000), st.just(2.0**40)),
    level=st.one_of(st.integers(-3000, 3000), st.floats(-3000, 3000), st.just(-1e6)),
    dtype=st.sampled_from(["i1", "u1", "i2", "u2", "i4", "u4", "f2", "f4", "f8"]),
)
def test_bounds_of_a_window_equal_exact_fractions_in_every_dtype(
    width: float, level: float, dtype: str
) -> None:
    window = Window("w", float(width), float(level))
    ends = bounds(window, np.dtype(dtype))
    kind = np.dtype(dtype)
    limits = np.finfo(kind) if kind.kind == "f" else np.iinfo(kind)
    around = np.clip(np.array([window.low, window.high], "f8"), limits.min, limits.max).astype(kind)
    if kind.kind == "f":
        with np.errstate(over="ignore"):
            steps = [np.nextafter(around, kind.type(end)) for end in (np.inf, -np.inf)]
        candidates = np.concatenate([around, *steps, np.array([0, np.inf, -np.inf, np.nan], kind)])
    else:
        wide = {int(value) + step for value in around for step in (-1, 0, 1)}
        candidates = np.array([value for value in wide if limits.min <= value <= limits.max], kind)
    for value in candidates:
        is_inside = bool(ends is not None and ends[0] <= value <= ends[1])
        finite = bool(np.isfinite(value))
        exact = finite and Fraction(window.low) <= Fraction(value.item()) <= Fraction(window.high)
        assert is_inside == exact, (value, window, ends)


def test_points_of_any_range_equal_argwhere(tmp_path: Path, order: str) -> None:
    array = np.asarray(volume("<i2", (11, 6, 13)), order=order)
    array[3:5] = 999
    file = saved(tmp_path, array)
    planewise = count_image(file, {"w": WINDOW}, {}).planes["w"]
    expected = np.argwhere((array >= -20) & (array <= 40))
    total = len(expected)
    ranges = [(0, total), (0, 0), (total, total), (5, 6), (17, total - 3), (0, 1), (total - 1, total)]
    for (lo, hi), counts in product(ranges, (planewise, None)):
        coords = np.full((hi - lo, 3), 999, np.uint16)
        values = np.full(hi - lo, 999, np.int16)
        for at, first, flat, voxels in read_points(file, inside(WINDOW, file.kind), lo, hi, counts):
            point_coords(flat, first, array.shape, coords[at])
            values[at] = voxels
        np.testing.assert_array_equal(coords, expected[lo:hi])
        np.testing.assert_array_equal(values, array[tuple(expected[lo:hi].T)])


@pytest.mark.parametrize("dtype", ["|u1", "|b1", "|i1", "<f4", ">i2"])
@pytest.mark.parametrize("other", ["C", "F"])
def test_differences_of_masks_from_their_windows_are_counted(
    tmp_path: Path, order: str, other: str, dtype: str
) -> None:
    array = np.asarray(volume("<i2"), order=order)
    same = (array >= -20) & (array <= 40)
    wrong = same.copy()
    wrong[2, 3, 4:9] ^= True
    odd = wrong.astype(dtype)
    if dtype != "|b1":
        odd[6, 1, 1:4] = 2
    masks = {
        name: np.asarray(mask, dtype, order=other)
        for name, mask in zip("swo", (same, wrong, odd), strict=True)
    }
    files = {name: saved(tmp_path, mask, f"{name}.npy") for name, mask in masks.items()}
    counted = count_image(saved(tmp_path, array), dict.fromkeys(["alone", *masks], WINDOW), files)
    for name, mask in masks.items():
        assert counted.differing[name] == (mask != same).sum()
        ones = count_mask(files[name])
        expected = mask > 0 if mask.dtype.kind == "f" else mask == 1  # floats may be a window scaled to 0…1
        np.testing.assert_array_equal(ones.planes, expected.sum(axis=(1, 2)))
        assert ones.others == (~np.isin(mask, (0, 1))).sum()
        np.testing.assert_array_equal(counted.planes[name], counted.planes["alone"])
    assert counted.differing["w"] == 5
