from __future__ import annotations

from fractions import Fraction
from itertools import chain, product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unistore.converters.ct import counting as ct_counting
from unistore.converters.ct import slabs as ct_slabs
from unistore.converters.ct import voxels as ct_voxels
from unistore.converters.ct.counting import MaskComparison, count_voxels, ones_of
from unistore.converters.ct.slabs import planes, read_image, slabs
from unistore.converters.ct.source import Voxels, voxels_of
from unistore.converters.ct.voxels import bit_shape, point_coords, read_bits, read_points
from unistore.converters.formats.arrays import Npy
from unistore.converters.plugin import SourceFile
from unistore.errors import InputError
from unistore.schemas.ct.voxels import bounds, inside
from unistore.schemas.ct.windows import Window

DTYPES = ["<i2", ">i2", "<i4", ">i4", "|u1", "|i1", "<u2", "<f2", ">f4", "<f8", "|b1"]
WINDOW = Window("w", 60.0, 10.0)


def volume(dtype: str, shape: tuple[int, int, int] = (7, 9, 21)) -> np.ndarray:
    rng = np.random.default_rng(3)
    if dtype == "|b1":
        return rng.random(shape) < 0.3
    low = 0 if np.dtype(dtype).kind == "u" else -100
    return rng.integers(low, 100, shape).astype(dtype)


def saved(folder: Path, array: np.ndarray, name: str = "a.npy") -> Voxels:
    np.save(folder / name, array)
    return voxels_of(SourceFile(folder / name, name), Npy())


@pytest.fixture(params=["C", "F"])
def order(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(autouse=True)
def small_slabs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ct_slabs, "SLAB", 600)
    monkeypatch.setattr(ct_slabs, "BAND", 1300)
    monkeypatch.setattr(ct_voxels, "LISTED", 200)


@pytest.mark.parametrize("dtype", DTYPES)
def test_slabs_cover_the_volume_once(tmp_path: Path, dtype: str, order: str) -> None:
    array = np.asarray(volume(dtype), order=order)
    file = saved(tmp_path, array)
    seen = np.zeros(array.shape, int)
    rebuilt = np.zeros(array.shape, array.dtype.newbyteorder("="))
    parts = 0
    for box, (values,) in slabs([file]):
        assert values.dtype.isnative
        assert (box[2].start or 0) % 8 == 0
        seen[box] += 1
        rebuilt[box] = values
        parts += 1
    assert parts > 1
    assert (seen == 1).all()
    np.testing.assert_array_equal(rebuilt, array)


@pytest.mark.parametrize("dtype", DTYPES)
def test_image_is_read_into_a_larger_block(tmp_path: Path, dtype: str, order: str) -> None:
    array = np.asarray(volume(dtype), order=order)
    file = saved(tmp_path, array)
    exact = np.empty(array.shape, array.dtype.newbyteorder("="))
    read_image(file, exact)
    np.testing.assert_array_equal(exact, array)
    padded = np.full((8, 10, 24), 7, "f8")
    read_image(file, padded)
    np.testing.assert_array_equal(padded[:7, :9, :21], array)
    assert (padded[7:] == 7).all()
    assert (padded[:, 9:] == 7).all()
    assert (padded[:, :, 21:] == 7).all()
    some = np.full((4, 9, 21), 7, exact.dtype)
    read_image(file, some, 2, 5)
    np.testing.assert_array_equal(some[:3], array[2:5])
    assert (some[3] == some.dtype.type(7)).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_survey_equals_the_formula(tmp_path: Path, dtype: str, order: str) -> None:
    array = np.asarray(volume(dtype), order=order)
    file = saved(tmp_path, array)
    expected = (array.astype("f8") >= -20) & (array.astype("f8") <= 40)
    windows = {"w": WINDOW, "none": Window("none", 1.0, 5e5)}
    tests = {name: inside(window, file.dtype) for name, window in windows.items()}
    found = count_voxels(file, tests, {})
    counts, nan = found.counts, found.nan
    np.testing.assert_array_equal(counts["w"], expected.sum(axis=(1, 2)))
    assert counts["none"].sum() == 0
    assert nan == 0
    bits = np.zeros(bit_shape((8, 11, 30)), np.uint8)
    read_bits(file, tests, {"w": bits})
    np.testing.assert_array_equal(bits[:7, :9, :3], np.packbits(expected, axis=-1, bitorder="little"))
    assert bits.sum(dtype=int) == bits[:7, :9, :3].sum(dtype=int)
    some = np.zeros(bit_shape((4, 9, 21)), np.uint8)
    read_bits(file, tests, {"w": some}, 3, 6)
    np.testing.assert_array_equal(some[:3], bits[3:6, :9, :3])
    assert not some[3].any()


def test_nan_is_counted_and_in_no_window(tmp_path: Path, order: str) -> None:
    array = volume("<f4")
    array[2, 3, 4:9] = np.nan
    array[0, 0, 0], array[0, 0, 1] = np.inf, -np.inf
    file = saved(tmp_path, np.asarray(array, order=order))
    everything = Window("all", 1e30, 0.0)
    found = count_voxels(file, {"all": inside(everything, array.dtype)}, {})
    assert found.nan == 5
    assert found.counts["all"].sum() == array.size - 7


@settings(max_examples=300)
@given(
    width=st.one_of(st.integers(1, 5000), st.floats(1e-3, 5000), st.just(2.0**40)),
    level=st.one_of(st.integers(-3000, 3000), st.floats(-3000, 3000), st.just(-1e6)),
    dtype=st.sampled_from(["i1", "u1", "i2", "u2", "i4", "u4", "f2", "f4", "f8"]),
)
def test_bounds_are_exact(width: float, level: float, dtype: str) -> None:
    window = Window("w", float(width), float(level))
    found = bounds(window, np.dtype(dtype))
    kind = np.dtype(dtype)
    around = np.clip(np.array([window.low, window.high], "f8"), *limits(kind)).astype(kind)
    if kind.kind == "f":
        with np.errstate(over="ignore"):
            steps = [
                around,
                np.nextafter(around, kind.type(np.inf)),
                np.nextafter(around, kind.type(-np.inf)),
            ]
        candidates = np.concatenate([*steps, np.array([0, np.inf, -np.inf, np.nan], kind)])
    else:
        wide = around.astype(object)
        candidates = np.array(
            sorted({int(c) for d in (-1, 0, 1) for c in wide + d if limits(kind)[0] <= c <= limits(kind)[1]}),
            kind,
        )
    for value in candidates:
        inside = bool(found is not None and found[0] <= value <= found[1])
        finite = bool(np.isfinite(value))
        exact = finite and Fraction(window.low) <= Fraction(value.item()) <= Fraction(window.high)
        assert inside == exact, (value, window, found)


def limits(dtype: np.dtype) -> tuple[float, float]:
    info = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
    return info.min, info.max


@pytest.mark.parametrize("dtype", ["|u1", "<i2", "<f4", "|b1"])
def test_ones_of_a_mask(tmp_path: Path, dtype: str, order: str) -> None:
    mask = np.random.default_rng(0).random((5, 6, 13)) < 0.4
    array = np.asarray(mask.astype(dtype), order=order)
    if dtype != "|b1":
        array[1, 2, 3:6] = 2
    file = saved(tmp_path, array)
    bits = np.zeros(bit_shape(array.shape), np.uint8)
    read_bits(file, {"m": inside(None, file.dtype)}, {"m": bits})
    ones = array > 0 if array.dtype.kind == "f" else array == 1  # floats may be a window scaled to 0…1
    np.testing.assert_array_equal(bits, np.packbits(ones, axis=-1, bitorder="little"))


def test_points_are_argwhere(tmp_path: Path, order: str) -> None:
    array = np.asarray(volume("<i2", (11, 6, 13)), order=order)
    inside_it = (array >= -20) & (array <= 40)
    array[3:5] = 999
    inside_it[3:5] = False
    file = saved(tmp_path, array)
    test = inside(WINDOW, file.dtype)
    planewise = count_voxels(file, {"w": test}, {}).counts["w"]
    expected = np.argwhere(inside_it)
    total = len(expected)
    ranges = [(0, total), (0, 0), (total, total), (5, 6), (17, total - 3), (0, 1), (total - 1, total)]
    for (lo, hi), counts in product(ranges, (planewise, None)):
        coords = np.full((hi - lo, 3), 999, np.uint16)
        values = np.full(hi - lo, 999, np.int16)
        for at, first, flat, voxels in read_points(file, test, lo, hi, counts):
            point_coords(flat, first, array.shape, coords[at])
            values[at] = voxels
        np.testing.assert_array_equal(coords, expected[lo:hi])
        np.testing.assert_array_equal(values, array[tuple(expected[lo:hi].T)])


@pytest.mark.parametrize("of", [1, 2, 5])
@pytest.mark.parametrize("other", ["C", "F"])
def test_files_together_are_read_at_the_same_places(tmp_path: Path, order: str, other: str, of: int) -> None:
    shares = of if order == other else 1
    arrays = [np.asarray(volume("<i2"), order=order), np.asarray(volume(">f8"), order=other)]
    files = [saved(tmp_path, array, f"{number}.npy") for number, array in enumerate(arrays)]
    seen = np.zeros(arrays[0].shape, int)
    parts = 0
    shared = [slabs(files, share=share, of=shares) for share in range(shares)]
    for box, several in chain.from_iterable(shared):
        seen[box] += 1
        parts += 1
        for values, array in zip(several, arrays, strict=True):
            np.testing.assert_array_equal(values, array[box])
    assert parts > 1
    assert (seen == 1).all()


def test_planes_come_in_their_order(tmp_path: Path, order: str) -> None:
    array = np.asarray(volume(">i2"), order=order)
    file = saved(tmp_path, array)
    found = list(planes(file, 2, 6))
    assert len(found) > 1
    assert found[0][0] == 2
    for first, values in planes(file, 2, 6):
        np.testing.assert_array_equal(values, array[first : first + len(values)])
        assert first + len(values) <= 6
        assert values.flags.c_contiguous


@pytest.mark.parametrize("dtype", ["|u1", "|b1", "|i1", "<f4", ">i2"])
@pytest.mark.parametrize("other", ["C", "F"])
def test_masks_are_compared_with_their_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: str, other: str, dtype: str
) -> None:
    monkeypatch.setattr(ct_counting, "usable_cores", lambda: 3)
    array = np.asarray(volume("<i2"), order=order)
    found = (array >= -20) & (array <= 40)
    wrong = found.copy()
    wrong[2, 3, 4:9] ^= True
    odd = wrong.astype(dtype)
    if dtype != "|b1":
        odd[6, 1, 1:4] = 2
    forms = {"same": found, "wrong": wrong, "odd": odd}
    masks = {name: np.asarray(mask, dtype, order=other) for name, mask in forms.items()}
    files = {name: saved(tmp_path, mask, f"{name}.npy") for name, mask in masks.items()}
    test = inside(WINDOW, array.dtype)
    image = saved(tmp_path, array)
    result = count_voxels(image, {"alone": test, **dict.fromkeys(masks, test)}, files)
    for name, mask in masks.items():
        expected = MaskComparison(
            ones=int((mask == 1).sum()),
            others=int((~np.isin(mask, (0, 1))).sum()),
            differing=int(((mask == 1) != found).sum()),
        )
        assert result.masks[name] == expected
        ones = ones_of(files[name])
        np.testing.assert_array_equal(ones.counts, (mask == 1).sum(axis=(1, 2)))
        assert ones.others == expected.others
        np.testing.assert_array_equal(result.counts[name], result.counts["alone"])
    assert result.masks["wrong"].differing == 5


def test_what_holds_neither_windows_nor_nan_is_not_read(tmp_path: Path) -> None:
    file = saved(tmp_path, volume("<i2"))
    file.file.path.unlink()
    assert count_voxels(file, {}, {}).nan == 0
    with pytest.raises(InputError, match="cannot be read"):
        count_voxels(file, {"w": inside(WINDOW, file.dtype)}, {})
