"""Attributes of HDF5 files of every family: kept, compared with the sources, given back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr

import unistore
from tests.support.cases import DATA
from tests.support.family_converters import rows as rows_converter
from unistore.converters.files.hdf5 import attributes as hdf5_attributes
from unistore.converters.source_scan import scan_sources
from unistore.errors import InputError, StoreError

ARRAY = "sources/hdf5_attributes"


def attributes_of(path: Path) -> dict[tuple[str, str], tuple[Any, ...]]:
    """Every attribute of a file as h5py has it: shape, type, value."""
    found: dict[tuple[str, str], tuple[Any, ...]] = {}

    def note(place: str, item: Any) -> None:
        for name in item.attrs:
            told = item.attrs.get_id(name)
            text, enum = h5py.check_string_dtype(told.dtype), h5py.check_enum_dtype(told.dtype)
            found[place, name] = (told.shape, told.dtype, text, str(enum), repr(item.attrs[name]))

    with h5py.File(path) as file:
        note("", file)
        file.visititems(note)
    return found


def kept(store: Path) -> dict[str, Any]:
    """Attributes of the first source."""
    group = zarr.open_group(store / ARRAY, mode="r")
    found: dict[str, Any] = json.loads(group["data"][: group["offsets"][1]].tobytes())
    return found


def rows(file: h5py.File) -> None:
    file["tile/height"] = np.arange(5.0)
    file["label"] = np.arange(5)
    file.attrs["crs"] = "EPSG:25832"
    file.attrs["written"] = np.int16(1)
    file["tile"].attrs["bounds"] = np.array([[0.5, 1.5], [np.nan, -np.inf]], ">f4")
    file["tile/height"].attrs["unit"] = np.bytes_("m")
    file["label"].attrs["classes"] = ["ground", "Gebäude"]
    file["label"].attrs["nothing"] = h5py.Empty("f8")


def indices(file: h5py.File) -> None:
    file.attrs["crs"] = "EPSG:25832"
    file.create_group("header").attrs.update(x_scale=np.float32(0.5), name=np.bytes_("a"))
    for axis in "xyz":
        file[f"data/{axis}"] = np.arange(6.0)
        file[f"data/{axis}"].attrs["unit"] = "m"
    file["data"].attrs["columns"] = np.array([b"x", b"y", b"z"])
    file["segments/segment_0000/indices"] = np.array([0, 2, 4])
    file["segments/segment_0007/indices"] = np.array([1, 3])
    file["segments/segment_0007/indices"].attrs["sorted"] = True
    file["segments"].attrs["num_segments"] = np.uint8(2)
    file["segments/segment_0000"].attrs["num_points"] = 3
    file["segments/segment_0007"].attrs["num_points"] = 99
    file["segments/segment_0007"].attrs["room"] = "hall"
    file.create_group("notes").attrs["author"] = "A"
    file["unused"] = 5
    file["unused"].attrs["unit"] = "ft"


def columns(file: h5py.File) -> None:
    for axis in "XYZ":
        file[f"cloud/{axis}"] = np.arange(4.0)
        file[f"cloud/{axis}"].attrs["unit"] = "ft"
    file["cloud/Intensity"] = np.arange(4, dtype="u2")
    file["cloud/Intensity"].attrs["range"] = np.array([0, 3], "u2")
    file["cloud"].attrs["sensor"] = "S"


def segments(file: h5py.File) -> None:
    for segment in range(2):
        group = file.create_group(f"segments/segment_{segment:04d}")
        for axis in "xyz":
            group[axis] = np.arange(4.0)
            group[axis].attrs["unit"] = "m"
        group.attrs["num_points"] = 4
        group.attrs["room"] = f"r{segment}"


def batches(file: h5py.File) -> None:
    file["data"] = np.arange(24.0, dtype="f4").reshape(2, 4, 3)
    file["label"] = np.zeros((2, 1), "u1")
    file["data"].attrs["normalised"] = True
    file["label"].attrs["classes"] = ["chair", "table"]
    file.create_group("header").attrs["version"] = np.int8(3)


def demos(file: h5py.File) -> None:
    data = file.create_group("data")
    data.attrs["env_args"] = json.dumps({"env": "Lift"})
    data.attrs["rate"] = 20
    file.attrs["rate"] = np.array([20, 10], ">u2")
    for number in range(2):
        demo = file.create_group(f"data/demo_{number}")
        demo.attrs["num_samples"] = 4
        demo.attrs["seed"] = np.uint64(2**63 + number)
        demo.attrs["model"] = np.bytes_("<mujoco/>")
        demo.attrs["limits"] = [-1.5, 1.0]
        demo["actions"] = np.zeros((4, 7))
        demo["actions"].attrs["bounds"] = np.array([[-1, 1]] * 7, ">f4")
        demo["obs/eef_pos"] = np.zeros((4, 3), "f4")
        demo["obs/eef_pos"].attrs["unit"] = np.bytes_("m")
        demo["obs/joint"] = np.zeros((4, 2))
        demo["obs"].attrs["rate"] = np.float32(20)
    file["mask/train"] = np.array([b"demo_0"])


def real(file: h5py.File) -> None:
    with h5py.File(DATA / "pointcloud/thin_a.h5") as own:
        file.attrs.update(own.attrs)
        for name in own:
            own.copy(name, file)


FAMILIES: dict[Callable[[h5py.File], None], str] = {
    rows: "rows",
    demos: "trajectory",
    **dict.fromkeys((indices, columns, segments, batches, real), "point_cloud"),
}


def converted(folder: Path, write: Callable[[h5py.File], None], **options: Any) -> tuple[Path, Path]:
    """A source, and its store."""
    with h5py.File(folder / "a.h5", "w") as file:
        write(file)
    unistore.convert(folder / "a.h5", folder / "a.zarr", FAMILIES[write], **options)
    return folder / "a.h5", folder / "a.zarr"


@pytest.mark.parametrize("write", FAMILIES)
def test_an_export_has_every_attribute(write: Callable[[h5py.File], None], tmp_path: Path) -> None:
    source, store = converted(tmp_path, write)
    unistore.export(store, tmp_path / "back")
    assert attributes_of(tmp_path / "back/a.h5") == attributes_of(source)
    receipt = unistore.verify(store, against=source).receipt
    assert receipt is not None
    assert receipt.left_out == (("segments/segment_N/unique_labels",) if write is real else ())
    if write is indices:
        assert "num_points" not in kept(store).get("segments/segment_0000", {}), "it is counted again"
        assert kept(store)["segments/segment_0007"]["num_points"] == {"dtype": "<i8", "value": 99}
        unused = 1 + 1  # a dataset without axes, and its unit
        assert receipt.values == 6 * 3 + 5 + 1 + 2 + 3 + 3 + 1 + 1 + 2 + 1 + unused


CHANGES: dict[Callable[[h5py.File], None], list[tuple[str, str, Any]]] = {
    rows: [
        ("/", "crs", "EPSG:25833"),
        ("/", "written", None),
        ("/", "written", np.int32(1)),
        ("/", "new", "x"),
        ("tile", "bounds", np.array([[0.5, 1.5], [np.nan, np.inf]], ">f4")),
        ("label", "nothing", np.float64(0)),
    ],
    indices: [
        ("header", "name", "other"),
        ("data/y", "unit", "other"),
        ("segments/segment_0007", "room", "other"),
        ("notes", "author", "other"),
    ],
    demos: [("data/demo_1/obs/eef_pos", "unit", np.bytes_("f"))],
}


@pytest.mark.parametrize("write", CHANGES)
def test_a_changed_attribute_is_found(write: Callable[[h5py.File], None], tmp_path: Path) -> None:
    source, store = converted(tmp_path, write)
    sound = source.read_bytes()
    for place, name, value in CHANGES[write]:
        source.write_bytes(sound)
        with h5py.File(source, "r+") as file:
            if value is None:
                del file[place].attrs[name]
            else:
                file[place].attrs.create(name, value, dtype=getattr(value, "dtype", None))
        with pytest.raises(InputError, match=rf"source a\.h5: attribute {name} of {place}$"):
            unistore.verify(store, against=source)


def test_attributes_of_several_files_are_counted_and_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abc":
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            rows(file)
            if name == "c":
                file.attrs.clear()
                for place in ("tile", "tile/height", "label"):
                    file[place].attrs.clear()
    said = "12 attributes of 2 files stored: crs, written, bounds, classes, nothing and "
    assert any(note.startswith(said) for note in scan_sources(rows_converter(), [tmp_path]).notes)
    monkeypatch.setattr(hdf5_attributes, "MAX_STORE_BYTES", 800)
    scan = scan_sources(rows_converter(), [tmp_path])
    assert [source.detail.attributes != "{}" for source in scan.sources] == [True, False, False]
    assert scan.notes[-1].endswith("MiB of attributes in one store): those in b.h5 and 5 more")


def test_attributes_go_with_their_arrays(tmp_path: Path) -> None:
    """Those of arrays that are not in the store are not; a mapped array has its own again."""
    source, store = converted(tmp_path, rows, map={"z": "tile/height"})
    unistore.export(store, tmp_path / "back")
    expected = {key: each for key, each in attributes_of(source).items() if key[0] != "label"}
    assert attributes_of(tmp_path / "back/a.h5") == expected
    receipt = unistore.verify(store, against=source).receipt
    assert receipt is not None
    assert receipt.left_out == ("label",)
    with h5py.File(tmp_path / "b.h5", "w") as file:
        rows(file)
        file["only"] = np.arange(5)
        file["only"].attrs["unit"] = "m"
    both = [tmp_path / "a.h5", tmp_path / "b.h5"]
    unistore.convert(both, tmp_path / "b.zarr", "rows", columns="intersection")
    assert b"only" not in zarr.open_array(tmp_path / "b.zarr" / ARRAY / "data", mode="r")[:].tobytes()


def test_attributes_of_excluded_episodes_and_ignored_arrays_are_not_kept(tmp_path: Path) -> None:
    source, store = converted(tmp_path, demos, ignore=("obs/eef_pos",), exclude=("a.h5: data/demo_1",))
    assert kept(store).keys() - {"", "data", "data/demo_0"} == {"data/demo_0/obs", "data/demo_0/actions"}
    with h5py.File(source, "r+") as file:
        file["data/demo_0/actions"].attrs["reference"] = file["data"].attrs["reference"] = file.ref
    unistore.convert(source, tmp_path / "b.zarr", "trajectory")
    receipt = unistore.verify(tmp_path / "b.zarr", against=source).receipt
    assert receipt is not None
    references = ("attribute reference of data", "attribute reference of data/demo_N/actions")
    assert receipt.left_out == references


def test_segments_that_are_links_are_passed_over(tmp_path: Path) -> None:
    """Attributes are read where nothing leads elsewhere."""

    source = tmp_path / "a.h5"
    with h5py.File(source, "w") as file:
        indices(file)
        file["segments/segment_0008"] = h5py.SoftLink("/segments/segment_0007")
    unistore.convert(source, tmp_path / "a.zarr", "point_cloud")
    assert "segments/segment_0007" in kept(tmp_path / "a.zarr")
    assert "segments/segment_0008" not in kept(tmp_path / "a.zarr")
    assert unistore.verify(tmp_path / "a.zarr", against=source).ok


def test_exporting_a_malformed_text_of_attributes_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store made by someone else may say anything."""
    monkeypatch.setattr(hdf5_attributes.AttributeCollector, "text", lambda *_: '{"": {"a": 1}}')
    _, store = converted(tmp_path, rows)
    with pytest.raises(StoreError, match="the description of its sources contradicts"):
        unistore.export(store, tmp_path / "back")
    assert not (tmp_path / "back").exists()
