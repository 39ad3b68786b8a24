"""Attributes of HDF5 files of plain arrays: kept, compared with the sources, given back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr

import unistore
from unistore.converters.files.hdf5 import attributes as hdf5_attributes
from unistore.converters.rows.family import converter as rows_converter
from unistore.converters.scanning import scan_sources
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


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """Two files with attributes everywhere, one without."""
    folder = tmp_path / "sources"
    folder.mkdir()
    for number in range(3):
        with h5py.File(folder / f"part_{number}.h5", "w") as file:
            file["tile/height"] = np.arange(5.0) + number
            file["label"] = np.arange(5)
            if number < 2:
                file.attrs["crs"] = "EPSG:25832"
                file.attrs["written"] = np.int16(number)
                file["tile"].attrs["bounds"] = np.array([[0.5, 1.5], [np.nan, -np.inf]], ">f4")
                file["tile/height"].attrs["unit"] = np.bytes_("m")
                file["label"].attrs["classes"] = ["ground", "Gebäude"]
                file["label"].attrs["nothing"] = h5py.Empty("f8")
    return folder


def changed(folder: Path, tmp_path: Path, place: str, name: str, value: Any) -> Path:
    """A copy of the sources, an attribute of which is another one."""
    copy = tmp_path / "changed" / folder.name
    copy.mkdir(parents=True)
    for file in folder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    with h5py.File(copy / "part_1.h5", "r+") as file:
        if value is None:
            del file[place].attrs[name]
        else:
            file[place].attrs.create(name, value, dtype=getattr(value, "dtype", None))
    return copy


def test_an_export_has_every_attribute(sources: Path, tmp_path: Path) -> None:
    store, back = tmp_path / "a.zarr", tmp_path / "back"
    report = unistore.convert(sources, store, "rows")
    assert any(
        note.startswith("attributes kept: 12 of 2 files (crs, written, bounds, classes, nothing and ")
        for note in report.notes
    )
    unistore.export(store, back)
    assert len(attributes_of(sources / "part_0.h5")) == 6
    for path in sources.iterdir():
        assert attributes_of(back / path.name) == attributes_of(path)
    again = tmp_path / "again.zarr"
    unistore.convert(back, again, "rows")
    one, two = (zarr.open_array(each / ARRAY / "data", mode="r")[:] for each in (store, again))
    np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize(
    ("place", "name", "value"),
    [
        ("/", "crs", "EPSG:25833"),
        ("/", "written", None),
        ("/", "new", "x"),
        ("tile", "bounds", np.array([[0.5, 1.5], [np.nan, np.inf]], ">f4")),
        ("label", "nothing", np.float64(0)),
    ],
)
def test_a_changed_attribute_is_found(
    sources: Path, tmp_path: Path, place: str, name: str, value: Any
) -> None:
    store = tmp_path / "a.zarr"
    unistore.convert(sources, store, "rows")
    other = changed(sources, tmp_path, place, name, value)
    with pytest.raises(InputError, match=rf"source part_1.h5: attribute {name} of {place}$"):
        unistore.verify(store, against=other)


def test_attributes_go_with_their_arrays(sources: Path, tmp_path: Path) -> None:
    """Those of arrays that are not in the store are not; a mapped array has its own again."""
    store, back = tmp_path / "a.zarr", tmp_path / "back"
    unistore.convert(sources, store, "rows", map={"z": "tile/height"})
    unistore.export(store, back)
    expected = {key: each for key, each in attributes_of(sources / "part_0.h5").items() if key[0] != "label"}
    assert attributes_of(back / "part_0.h5") == expected
    receipt = unistore.verify(store, against=sources).receipt
    assert receipt is not None
    assert receipt.left_out == ("label",)

    with h5py.File(sources / "part_0.h5", "r+") as file:
        file["only"] = np.arange(5)
        file["only"].attrs["unit"] = "m"
    unistore.convert(sources, tmp_path / "b.zarr", "rows", columns="intersection")
    assert b"only" not in zarr.open_array(tmp_path / "b.zarr" / ARRAY / "data", mode="r")[:].tobytes()
    unistore.export(tmp_path / "b.zarr", tmp_path / "back_b")
    assert ("only", "unit") not in attributes_of(tmp_path / "back_b" / "part_0.h5")


def test_attributes_of_many_files_are_bounded(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hdf5_attributes, "MAX_STORE_BYTES", 800)
    scan = scan_sources(rows_converter(), [sources])
    held = [source.detail.attributes != "{}" for source in scan.sources]
    assert held == [True, False, False]
    assert scan.notes[-1].endswith("MiB of attributes in one store): those in part_1.h5 and 5 more")


def test_a_text_that_is_none_is_an_error(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store made by someone else may say anything."""
    monkeypatch.setattr(hdf5_attributes.AttributeCollector, "text", lambda *_: '{"": {"a": 1}}')
    unistore.convert(sources, tmp_path / "a.zarr", "rows")
    with pytest.raises(StoreError, match="the description of its sources contradicts"):
        unistore.export(tmp_path / "a.zarr", tmp_path / "back")
    assert not (tmp_path / "back").exists()
