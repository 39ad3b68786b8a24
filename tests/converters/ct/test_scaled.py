"""Windows that come as floats scaled to 0…1, with the volume beside them and without."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import unistore
from unistore.errors import InputError

IMAGE = np.random.default_rng(5).integers(-2000, 1000, (9, 10, 11)).astype("i2")
IMAGE.flat[:2] = -1350, 150
SCALED = (np.clip(IMAGE, -1350, 150) - -1350) / 1500
NAME = "lung_w1500_l-600.npy"


def save(path: Path, values: np.ndarray) -> np.ndarray:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, values)
    return values


@pytest.mark.parametrize("dtype", ["f2", ">f4"])
def test_a_scaled_window_beside_its_volume_is_stored_as_a_mask_and_scaled_on_read(
    tmp_path: Path, dtype: str
) -> None:
    save(tmp_path / "in" / "a" / "ct_original.npy", IMAGE)
    save(tmp_path / "in" / "a" / "windows" / NAME, np.asfortranarray(SCALED.astype(dtype)))
    report = unistore.convert(tmp_path / "in", tmp_path / "a.zarr", "ct", sparse="mask")
    assert any(
        "scaled to 0…1" in note and 'Volumes(window="lung", scale=True)' in note for note in report.notes
    )
    read = unistore.Dataset(tmp_path / "a.zarr", unistore.Volumes("lung", scale=True))[0]
    np.testing.assert_allclose(read["image"], SCALED, atol=1e-6)
    assert np.array_equal(read["lung"], (IMAGE >= -1350) & (IMAGE <= 150))
    assert unistore.verify(tmp_path / "a.zarr", against=[tmp_path / "in"]).ok


def test_a_scaled_window_without_a_volume_is_stored_as_points_with_values(tmp_path: Path) -> None:
    scaled = save(tmp_path / "in" / "a" / "windows" / NAME, SCALED.astype("f2"))
    ones = save(tmp_path / "in" / "b" / "windows" / NAME, (IMAGE > 0).astype("u1"))
    report = unistore.convert(tmp_path / "in", tmp_path / "a.zarr", "ct")
    assert any("the voxels above 0 are stored as points with these values" in note for note in report.notes)
    first, second = unistore.Dataset(tmp_path / "a.zarr", unistore.SparsePoints("lung"))
    assert np.array_equal(first["coords"], np.argwhere(scaled > 0))
    assert first["values"].numpy().dtype == scaled.dtype
    assert np.array_equal(first["values"][:, 0], scaled[scaled > 0])
    assert np.array_equal(second["coords"], np.argwhere(ones))
    assert (second["values"] == 1).all()
    assert unistore.verify(tmp_path / "a.zarr", against=[tmp_path / "in"]).ok
    unistore.export(tmp_path / "a.zarr", tmp_path / "out")
    written = np.load(tmp_path / "out" / "a" / "windows" / NAME)
    assert written.dtype == scaled.dtype
    assert np.array_equal(written, scaled)


def test_a_scaled_window_that_differs_from_its_volume_is_an_error(tmp_path: Path) -> None:
    save(tmp_path / "in" / "a" / "ct_original.npy", IMAGE)
    scaled = SCALED.astype("f4")
    scaled[3, 4, 5] = 0.5 if scaled[3, 4, 5] < 0.4 else 0.25
    save(tmp_path / "in" / "a" / "windows" / NAME, scaled)
    with pytest.raises(InputError, match="differs from the window lung:1500:-600"):
        unistore.convert(tmp_path / "in", tmp_path / "a.zarr", "ct")


@pytest.mark.parametrize("wrong", [1.5, -0.5, np.nan])
def test_a_scaled_window_with_values_outside_of_0_to_1_is_an_error(tmp_path: Path, wrong: float) -> None:
    scaled = SCALED.astype("f4")
    scaled[3, 4, 5] = wrong
    save(tmp_path / "in" / "a" / "windows" / NAME, scaled)
    with pytest.raises(InputError, match="is not a mask"):
        unistore.convert(tmp_path / "in", tmp_path / "a.zarr", "ct")


def test_sparse_mask_for_a_scaled_window_without_a_volume_is_an_error(tmp_path: Path) -> None:
    save(tmp_path / "in" / "a" / "windows" / NAME, SCALED.astype("f4"))
    with pytest.raises(InputError, match=r"have values.*mask.*--sparse auto, or add --sparse coords"):
        unistore.convert(tmp_path / "in", tmp_path / "a.zarr", "ct", sparse="mask")


def test_masks_of_floats_stay_masks(tmp_path: Path) -> None:
    ones = save(tmp_path / "in" / "a" / "windows" / NAME, (IMAGE > -1500).astype("f4"))
    unistore.convert(tmp_path / "in", tmp_path / "a.zarr", "ct", sparse="mask")
    points = unistore.Dataset(tmp_path / "a.zarr", unistore.SparsePoints("lung"))[0]
    assert np.array_equal(points["coords"], np.argwhere(ones))
    assert points["values"].numpy().dtype == np.uint8
