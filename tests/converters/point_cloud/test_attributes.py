"""Attributes of point cloud files: kept, compared with the sources, given back."""

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
SAMPLE = Path(__file__).parents[2] / "data" / "pointcloud" / "thin_a.h5"


def attributes_of(path: Path) -> dict[tuple[str, str], tuple[Any, ...]]:
    """Every attribute of a file as h5py has it: shape, type, value."""
    found: dict[tuple[str, str], tuple[Any, ...]] = {}

    def note(place: str, item: Any) -> None:
        for name in item.attrs:
            told = item.attrs.get_id(name)
            found[place, name] = (
                told.shape,
                told.dtype,
                h5py.check_string_dtype(told.dtype),
                repr(item.attrs[name]),
            )

    with h5py.File(path) as file:
        note("", file)
        file.visititems(note)
    return found


def write_indices(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.attrs["crs"] = "EPSG:25832"
        file.create_group("header").attrs.update(x_scale=np.float32(0.5), name=np.bytes_("a"))
        for axis in "xyz":
            file[f"data/{axis}"] = np.arange(6.0)
            file[f"data/{axis}"].attrs["unit"] = "m"
        file["data"].attrs["columns"] = np.array([b"x", b"y", b"z"])
        file["segments/segment_0/indices"] = np.array([0, 2, 4])
        file["segments/segment_7/indices"] = np.array([1, 3])
        file["segments/segment_7/indices"].attrs["sorted"] = True
        file["segments"].attrs["num_segments"] = np.uint8(2)
        file["segments/segment_0"].attrs["num_points"] = 3
        file["segments/segment_7"].attrs["num_points"] = 99
        file["segments/segment_7"].attrs["room"] = "hall"
        file.create_group("notes").attrs["author"] = "A"
        file["unused"] = 5
        file["unused"].attrs["unit"] = "ft"


def write_columns(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.attrs["crs"] = "EPSG:25832"
        for axis in "XYZ":
            file[f"cloud/{axis}"] = np.arange(4.0)
            file[f"cloud/{axis}"].attrs["unit"] = "ft"
        file["cloud/Intensity"] = np.arange(4, dtype="u2")
        file["cloud/Intensity"].attrs["range"] = np.array([0, 3], "u2")
        file["cloud"].attrs["sensor"] = "S"


def write_segments(path: Path) -> None:
    with h5py.File(path, "w") as file:
        for segment in range(2):
            for axis in "xyz":
                file[f"segments/segment_{segment}/{axis}"] = np.arange(4.0)
                file[f"segments/segment_{segment}/{axis}"].attrs["unit"] = "m"
            file[f"segments/segment_{segment}"].attrs["num_points"] = 4
            file[f"segments/segment_{segment}"].attrs["room"] = f"r{segment}"


def write_batches(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["data"] = np.arange(24.0, dtype="f4").reshape(2, 4, 3)
        file["label"] = np.zeros((2, 1), "u1")
        file["data"].attrs["normalised"] = True
        file["label"].attrs["classes"] = ["chair", "table"]
        file.create_group("header").attrs["version"] = np.int8(3)


def kept(store: Path) -> dict[str, Any]:
    """Attributes of the first source."""
    group = zarr.open_group(store / ARRAY, mode="r")
    found: dict[str, Any] = json.loads(group["data"][: group["offsets"][1]].tobytes())
    return found


def around(folder: Path, write: Any) -> tuple[Path, Path, Path]:
    """A source, its store, and the file that the store is exported as."""
    source = folder / "cloud.h5"
    write(source)
    unistore.convert(source, folder / "a.zarr", "point_cloud")
    unistore.export(folder / "a.zarr", folder / "back")
    return source, folder / "a.zarr", folder / "back" / "cloud.h5"


def test_a_pointsuite_file_has_its_own_again(tmp_path: Path) -> None:
    source, store, back = around(tmp_path, write_indices)
    named = {
        (path.replace("segment_0", "segment_0000").replace("segment_7", "segment_0007"), name): value
        for (path, name), value in attributes_of(source).items()
    }
    assert attributes_of(back) == named
    assert "num_points" not in kept(store).get("segments/segment_0", {}), "it is counted again"
    assert kept(store)["segments/segment_7"]["num_points"] == {"dtype": "<i8", "value": 99}
    receipt = unistore.verify(store, against=source).receipt
    assert receipt is not None
    unused = 1 + 1  # a dataset without axes, and its unit
    assert receipt.values == 6 * 3 + 5 + 1 + 2 + 3 + 3 + 1 + 1 + 2 + 1 + unused
    assert receipt.left_out == (), "what is counted again is not left out"


def test_a_real_file_has_its_own_again(tmp_path: Path) -> None:
    _, _, back = around(tmp_path, lambda path: path.write_bytes(SAMPLE.read_bytes()))
    assert attributes_of(back) == attributes_of(SAMPLE)


def test_batches_have_their_own_again(tmp_path: Path) -> None:
    source, _, back = around(tmp_path, write_batches)
    assert attributes_of(back) == attributes_of(source)


def test_columns_have_their_own_again(tmp_path: Path) -> None:
    source, store, back = around(tmp_path, write_columns)
    assert attributes_of(back) == attributes_of(source)
    assert set(kept(store)) == {path for path, _ in attributes_of(source)}
    assert unistore.verify(store, against=source).ok


def test_columns_of_segments_have_their_own_again(tmp_path: Path) -> None:
    source, store, back = around(tmp_path, write_segments)
    assert kept(store)["segments/segment_1/x"] == {
        "unit": {"dtype": "text", "encoding": "utf-8", "value": "m"}
    }
    assert attributes_of(back) == {
        (path.replace("segment_", "segment_000"), name): value
        for (path, name), value in attributes_of(source).items()
    }
    assert unistore.verify(store, against=source).ok


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/", "crs"),
        ("header", "name"),
        ("data/y", "unit"),
        ("segments/segment_7", "room"),
        ("notes", "author"),
    ],
)
def test_a_changed_attribute_is_found(tmp_path: Path, path: str, name: str) -> None:
    source, store, _ = around(tmp_path, write_indices)
    with h5py.File(source, "r+") as file:
        file[path].attrs[name] = "other"
    with pytest.raises(InputError, match=rf"source cloud.h5: attribute {name} of {path}$"):
        unistore.verify(store, against=source)


def test_segments_that_are_links_are_passed_over(tmp_path: Path) -> None:
    """Attributes are read where nothing leads elsewhere."""
    source = tmp_path / "cloud.h5"
    write_indices(source)
    with h5py.File(source, "r+") as file:
        file["segments/segment_8"] = h5py.SoftLink("/segments/segment_7")
    unistore.convert(source, tmp_path / "a.zarr", "point_cloud")
    assert "segments/segment_7" in kept(tmp_path / "a.zarr")
    assert "segments/segment_8" not in kept(tmp_path / "a.zarr")
    assert unistore.verify(tmp_path / "a.zarr", against=source).ok
