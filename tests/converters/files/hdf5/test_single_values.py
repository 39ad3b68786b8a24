"""Datasets without rows are kept of every family of HDF5 files, compared, and exported as they were."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import unistore
from unistore.errors import InputError

ENUM = h5py.enum_dtype({"GROUND": 1, "OTHER": 8}, "u1")
COMPOUND = np.dtype([("a", "<i4"), ("b", ">f8")])
VALUES: dict[str, tuple[Any, Any]] = {
    "instruction": ("pick the cüp", h5py.string_dtype()),
    "ascii": (b"abc", "S5"),
    "texts": (["one"], h5py.string_dtype()),
    "scale": (0.5, "<f4"),
    "big": (7, ">i2"),
    "flag": (True, bool),
    "class": (8, ENUM),
    "both": (np.array((1, 2.5), COMPOUND), COMPOUND),
}


def rows(file: h5py.File) -> str:
    file["x"] = np.arange(10.0)
    return ""


def cloud(file: h5py.File) -> str:
    for axis in "xyz":
        file[f"data/{axis}"] = np.linspace(0, 1, 9)
    file["segments/segment_0000/indices"] = np.arange(9)
    return "calibration/"


def episode(file: h5py.File) -> str:
    file["action"] = np.zeros((5, 14))
    file["observations/qpos"] = np.ones((5, 14))
    return ""


def demonstrations(file: h5py.File) -> str:
    for number in range(2):
        file[f"data/demo_{number}/actions"] = np.zeros((4, 7))
    file["mask/train"] = [b"demo_0"]
    return "data/demo_1/"


@pytest.fixture(params=[rows, cloud, episode, demonstrations], ids=lambda write: write.__name__)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str]:
    """A file, and the folder in it that its single values are in."""
    write: Callable[[h5py.File], str] = request.param
    with h5py.File(tmp_path / "a.h5", "w") as file:
        folder = write(file)
        for name, (value, dtype) in VALUES.items():
            file.create_dataset(f"{folder}{name}", data=value, dtype=dtype)
        file[f"{folder}scale"].attrs["unit"] = "m"
    return tmp_path / "a.h5", folder


def test_datasets_without_rows_are_kept_exported_and_compared_by_verify(
    source: tuple[Path, str], tmp_path: Path
) -> None:
    path, folder = source
    report = unistore.convert(path, tmp_path / "a.zarr")
    assert any(f"{folder}class" in note for note in report.notes)
    receipt = unistore.verify(tmp_path / "a.zarr", against=path).receipt
    assert receipt is not None
    assert receipt.line.startswith("lossless")
    (text,) = unistore.Store(tmp_path / "a.zarr").text("sources/hdf5_attributes")
    assert json.loads(text)[f"{folder}instruction"][""]["value"] == "pick the cüp"

    unistore.export(tmp_path / "a.zarr", tmp_path / "out")
    with h5py.File(path) as before, h5py.File(tmp_path / "out/a.h5") as after:
        for name, (_, dtype) in VALUES.items():
            was, now = before[f"{folder}{name}"], after[f"{folder}{name}"]
            assert (now.shape, now.dtype) == (was.shape, was.dtype)
            assert h5py.check_string_dtype(now.dtype) == h5py.check_string_dtype(was.dtype)
            assert h5py.check_enum_dtype(now.dtype) == h5py.check_enum_dtype(was.dtype)
            assert np.asarray(now[()], object).tolist() == np.asarray(was[()], object).tolist(), dtype
        assert after[f"{folder}scale"].attrs["unit"] == "m"
        assert "instruction" not in after[folder or "/"].attrs

    changed: dict[str, Any] = {"instruction": "pick it", "scale": 0.25, "both": np.array((1, 2.0), COMPOUND)}
    for name, value in changed.items():
        with h5py.File(path, "r+") as file:
            before = file[f"{folder}{name}"][()]
            del file[f"{folder}{name}"]
            file.create_dataset(f"{folder}{name}", data=value, dtype=VALUES[name][1])
            if name == "scale":
                file[f"{folder}{name}"].attrs["unit"] = "m"
        with pytest.raises(InputError, match=f"source a.h5: {folder}{name}"):
            unistore.verify(tmp_path / "a.zarr", against=path)
        with h5py.File(path, "r+") as file:
            file[f"{folder}{name}"][()] = before
    with h5py.File(path, "r+") as file:
        file["added"] = 0.5
    with pytest.raises(InputError, match=r"source a\.h5: added"):
        unistore.verify(tmp_path / "a.zarr", against=path)
