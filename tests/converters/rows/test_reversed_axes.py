"""Arrays whose rows are on the last axis, as MATLAB 7.3 writes them, against what h5py reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import unistore
from tests.support.converter_contract import check_contract
from tests.support.family_converters import rows as rows_converter

RANDOM = np.random.default_rng(2)


def matlab(path: Path, rows: int = 11, **creation: Any) -> dict[str, np.ndarray]:
    """``data`` (rows, 4, 3), ``label`` (rows, 1) and ``flat`` (rows,) as MATLAB's are; their values."""
    values = {
        "data": RANDOM.random((rows, 4, 3)),
        "label": RANDOM.integers(0, 9, (rows, 1)).astype("u1"),
        "flat": np.arange(rows, dtype=">i4"),
    }
    with h5py.File(path, "w", userblock_size=512) as file:
        for name, each in values.items():
            file.create_dataset(name, data=each.T, **creation)
    return values


@pytest.mark.parametrize("creation", [{}, {"chunks": True, "compression": "gzip"}])
def test_reverse_axes_reads_rows_from_the_last_axis(tmp_path: Path, creation: dict[str, Any]) -> None:
    first, second = (
        matlab(tmp_path / f"{name}.mat", rows, **creation) for name, rows in (("a", 11), ("b", 5))
    )
    oracle = {f"rows/{key}": np.concatenate([first[key], second[key]]) for key in first}
    check_contract(rows_converter(reverse_axes=True), [tmp_path], oracle)


def test_a_store_of_reversed_axes_is_verified_and_exported(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    values = matlab(tmp_path / "a/a.mat")
    np.save(tmp_path / "a/b.npy", np.arange(3))
    report = unistore.convert(
        tmp_path / "a/a.mat", tmp_path / "a.zarr", "rows", reverse_axes=True, map={"image": "data"}
    )
    assert report.samples == 11
    assert unistore.verify(tmp_path / "a.zarr", against=[tmp_path / "a/a.mat"]).problems == ()
    unistore.export(tmp_path / "a.zarr", tmp_path / "out")
    with h5py.File(tmp_path / "out/a.mat") as given, h5py.File(tmp_path / "a/a.mat") as own:
        np.testing.assert_array_equal(given["data"][()], own["data"][()])
    matlab(tmp_path / "a/a.mat")
    assert unistore.verify(tmp_path / "a.zarr", against=[tmp_path / "a/a.mat"]).problems != ()
    np.testing.assert_array_equal(unistore.Dataset(tmp_path / "a.zarr")[4]["image"], values["data"][4])
