"""Attributes of datasets, and of groups inside of episodes: kept exactly, compared, given back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr

import unistore
from unistore.errors import InputError

ARRAY = "sources/hdf5_attributes"


def write(path: Path) -> None:
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["env_args"] = json.dumps({"env": "Lift"})
        data.attrs["total"] = np.int32(8)
        data.attrs["rate"] = 20
        file.attrs["rate"] = np.array([20, 10], ">u2")
        file.attrs["author"] = "me"
        file.attrs["nothing"] = h5py.Empty("f4")
        for number in range(2):
            demo = file.create_group(f"data/demo_{number}")
            demo.attrs["num_samples"] = 4
            demo.attrs["seed"] = np.uint64(2**63 + number)
            demo.attrs["model"] = np.bytes_("<mujoco/>")
            demo.attrs["limits"] = [-1.5, 1.0]
            demo.attrs["nan"] = np.float32("nan")
            demo["actions"] = np.zeros((4, 7))
            demo["obs/eef_pos"] = np.zeros((4, 3), "f4")
            demo["obs/eef_pos"].attrs["unit"] = np.bytes_("m")
            demo["obs"].attrs["rate"] = np.float32(20)
            demo["actions"].attrs["bounds"] = np.array([[-1, 1]] * 7, ">f4")
            demo["obs/unused"] = np.zeros((4, 2))
            demo["obs/unused"].attrs["unit"] = "rad"
        file["mask/train"] = np.array([b"demo_0"])


def attributes_of(path: Path) -> dict[tuple[str, str], tuple[Any, ...]]:
    found: dict[tuple[str, str], tuple[Any, ...]] = {}

    def note(place: str, item: Any) -> None:
        for name in item.attrs:
            told = item.attrs.get_id(name)
            found[place, name] = told.shape, told.dtype, repr(item.attrs[name])

    with h5py.File(path) as file:
        note("", file)
        file.visititems(note)
    return found


@pytest.fixture
def source(tmp_path: Path) -> Path:
    write(tmp_path / "demos.hdf5")
    return tmp_path / "demos.hdf5"


def test_an_export_has_every_attribute(source: Path, tmp_path: Path) -> None:
    store = tmp_path / "a.zarr"
    report = unistore.convert(source, store, "trajectory", ignore=("obs/unused",))
    assert any(
        each.startswith("attributes kept: 17 of 1 file (author, nothing, rate, total, model and ")
        for each in report.notes
    )
    unistore.export(store, tmp_path / "back")
    expected = {key: each for key, each in attributes_of(source).items() if key[0][-6:] != "unused"}
    assert attributes_of(tmp_path / "back" / "demos.hdf5") == expected


def test_a_changed_attribute_is_found(source: Path, tmp_path: Path) -> None:
    unistore.convert(source, tmp_path / "a.zarr", "trajectory")
    with h5py.File(source, "r+") as file:
        file["data/demo_1/obs/eef_pos"].attrs["unit"] = np.bytes_("f")
    with pytest.raises(InputError, match=r"demos.hdf5: attribute unit of data/demo_1/obs/eef_pos$"):
        unistore.verify(tmp_path / "a.zarr", against=source)


def test_what_is_left_out_has_none(source: Path, tmp_path: Path) -> None:
    """Neither episodes nor arrays."""
    store = tmp_path / "a.zarr"
    unistore.convert(
        source, store, "trajectory", ignore=("obs/unused",), exclude=("demos.hdf5: data/demo_1",)
    )
    text = zarr.open_array(store / ARRAY / "data", mode="r")[:].tobytes()
    assert set(json.loads(text)) - {"", "data", "data/demo_0"} == {
        "data/demo_0/obs",
        "data/demo_0/obs/eef_pos",
        "data/demo_0/actions",
    }
    with h5py.File(source, "r+") as file:
        file["data/demo_0/actions"].attrs["reference"] = file["data"].attrs["reference"] = file.ref
    unistore.convert(source, tmp_path / "b.zarr", "trajectory")
    receipt = unistore.verify(tmp_path / "b.zarr", against=source).receipt
    assert receipt is not None
    references = ("attribute reference of data", "attribute reference of data/demo_N/actions")
    assert receipt.left_out == (*references,)
