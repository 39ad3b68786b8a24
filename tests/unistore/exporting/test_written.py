"""A file that the exporter writes is opened again: what reads otherwise than it was written is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import h5py
import nibabel
import numpy as np
import pytest
import zarr

import unistore
from unistore.converters.array import Array
from unistore.converters.common.exported import ExportedArray, File, Form, array_values
from unistore.converters.formats.nifti import Nifti
from unistore.errors import ConversionError
from unistore.exporting import run

ROWS = np.arange(40 * 3, dtype="f4").reshape(40, 3)
PADDED = {"names": ["a", "b"], "formats": ["u1", "<f8"], "offsets": [0, 8], "itemsize": 16}
RECORDS = np.array([(1, -0.0), (2, 3.5)], np.dtype(PADDED))
TEXTS = np.array(["a", "", "grün\n"], object)
RAGGED = np.array([np.arange(2, dtype="i2"), np.zeros(0, "i2"), np.arange(5, dtype="i2")], object)


def objects(values: np.ndarray, of_items: object) -> ExportedArray:
    dtype = np.dtype(object, metadata={"vlen": of_items})
    return ExportedArray(values.shape, dtype, lambda: iter([values[:2], values[2:]]))


def in_blocks(values: np.ndarray, rows: int) -> ExportedArray:
    starts = range(0, len(values), rows)
    return ExportedArray(values.shape, values.dtype, lambda: (values[lo : lo + rows] for lo in starts))


def a_file(form: Form, **values: ExportedArray) -> File:
    return File(name="x", form=form, source=0, values=values or {"": in_blocks(ROWS, 7)})


IMAGE = np.random.default_rng(1).integers(0, 256, (5, 6, 3)).astype("u1")
FILES: dict[str, File] = {
    "npy": a_file("npy"),
    "npy of big endian": a_file("npy", **{"": in_blocks(ROWS.astype(">f8"), 11)}),
    "npy of records": a_file("npy", **{"": array_values(RECORDS)}),
    "npz": a_file(
        "npz", a=in_blocks(ROWS, 3), b=array_values(np.zeros((0, 2))), c=array_values(np.arange(3.0))
    ),
    "hdf5": a_file("hdf5", **{"g/a": in_blocks(ROWS, 3), "flags": array_values(ROWS[:, 0] > 4)}),
    "hdf5 of objects": a_file(
        "hdf5",
        text=objects(TEXTS, str),
        ragged=objects(RAGGED, np.dtype("i2")),
        rec=array_values(RECORDS),
    ),
    "hdf5, compressed": replace(
        a_file("hdf5", a=in_blocks(ROWS, 3), c=array_values(ROWS + 1j)), compressed=True
    ),
    "zarr": replace(
        a_file("zarr", v=in_blocks(ROWS.reshape(40, 3, 1), 9)), axes=("z", "y", "x"), attributes={"": {}}
    ),
    "png": a_file("png", **{"": array_values(IMAGE)}),
    "raw": a_file("raw", **{"": in_blocks(np.arange(99, dtype="u1"), 10)}),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_reads_as_it_was_written_is_accepted(tmp_path: Path, name: str) -> None:
    path = tmp_path / "x"
    run.write(FILES[name], path)
    form = FILES[name].form
    if form == "npy":
        np.testing.assert_array_equal(np.load(path), FILES[name].values[""].whole())
    if name == "hdf5 of objects":
        with h5py.File(path) as file:
            assert file["text"].asstr()[:].tolist() == TEXTS.tolist()
            assert [row.tolist() for row in file["ragged"][:]] == [row.tolist() for row in RAGGED]
            assert file["rec"][:].tolist()[0] == (1, 0.0)
    if form == "zarr":
        np.testing.assert_array_equal(zarr.open_group(path)["v"][:], ROWS.reshape(40, 3, 1))
    if form == "png":
        np.testing.assert_array_equal(cv2.imread(str(path))[..., ::-1], IMAGE)


def _flip_last(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-4])


def _longer(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def _other_shape(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, ROWS.T)


def _other_dtype(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, ROWS.astype("f8"))


def _other_member(path: Path) -> None:
    members = dict(np.load(path))
    members["c"][1] += 1
    with path.open("wb") as file:
        np.savez(file, **members)


def _no_member(path: Path) -> None:
    members = dict(np.load(path))
    del members["b"]
    with path.open("wb") as file:
        np.savez(file, **members)


def _edit_hdf5(name: str, edit: Callable[[Any], None]) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        with h5py.File(path, "r+") as file:
            edit(file[name])

    return change


def _first(value: Any) -> Callable[[Any], None]:
    def edit(dataset: Any) -> None:
        dataset[0] = value

    return edit


def _zero_chunk(path: Path) -> None:
    (path / "v" / "c" / "0" / "0" / "0").unlink()


def _other_pixel(path: Path) -> None:
    image = IMAGE.copy()
    image[0, 0, 0] ^= 1
    path.write_bytes(cv2.imencode(".png", image[..., ::-1])[1].tobytes())


@pytest.mark.parametrize(
    ("name", "damage", "reason"),
    [
        ("npy", _flip_last, "other values"),
        ("npy", _cut, "ValueError"),
        ("npy", _longer, "bytes follow it"),
        ("npy", _other_shape, r"it is float32 \(3, 40\), expected float32 \(40, 3\)"),
        ("npy", _other_dtype, r"it is float64 \(40, 3\), expected float32"),
        ("npz", _other_member, "c: it has other values"),
        ("npz", _no_member, "b.npy"),
        ("hdf5", _edit_hdf5("g/a", _first([1, 1, 1])), "g/a: it has other values"),
        ("hdf5", _edit_hdf5("flags", _first(True)), "flags: it has other values"),
        ("hdf5 of objects", _edit_hdf5("text", _first("b")), "text: it has other values"),
        ("hdf5 of objects", _edit_hdf5("ragged", _first(np.arange(3, dtype="i2"))), "ragged: it has other"),
        ("hdf5 of objects", _edit_hdf5("rec", _first((1, 0.0))), "rec: it has other values"),
        ("hdf5, compressed", _edit_hdf5("a", _first([1, 1, 1])), "a: it has other values"),
        ("hdf5, compressed", _edit_hdf5("c", _first([1, 1, 1])), "c: it has other values"),
        ("zarr", _zero_chunk, "v: it has other values"),
        ("png", _other_pixel, "other values"),
        ("raw", _flip_last, "other values"),
        ("raw", _cut, "ValueError"),
    ],
)
def test_a_file_that_reads_otherwise_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, damage: Callable[[Path], None], reason: str
) -> None:
    write_form = run._write_form

    def damaging(file: File, path: Path) -> None:
        write_form(file, path)
        damage(path)

    monkeypatch.setattr(run, "_write_form", damaging)
    with pytest.raises(
        ConversionError, match=f"x: was written, but reading it back gives other values: .*{reason}"
    ):
        run.write(FILES[name], tmp_path / "x")


def test_an_export_that_reads_otherwise_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez(tmp_path / "a.npz", x=ROWS, y=ROWS[:, 0])
    unistore.convert(tmp_path / "a.npz", tmp_path / "s.zarr")
    unistore.export(tmp_path / "s.zarr", tmp_path / "sound")
    np.testing.assert_array_equal(np.load(tmp_path / "sound" / "a.npz")["x"], ROWS)
    npz = run._write_npz

    def other(members: Any, out: Any) -> None:
        npz({name: array_values(values.whole() + 1) for name, values in members.items()}, out)

    monkeypatch.setattr(run, "_write_npz", other)
    with pytest.raises(ConversionError, match=r"a\.npz: was written, but .*: x: it has other"):
        unistore.export(tmp_path / "s.zarr", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_nifti_file_that_reads_otherwise_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    voxels = np.random.default_rng(3).integers(-1000, 1000, (4, 5, 6)).astype(np.int16)
    np.save(tmp_path / "ct_a.npy", voxels)
    unistore.convert(tmp_path / "ct_a.npy", tmp_path / "s.zarr", "ct")
    unistore.export(tmp_path / "s.zarr", tmp_path / "sound", to="nifti")
    (sound,) = (tmp_path / "sound").rglob("*.nii.gz")
    np.testing.assert_array_equal(np.asanyarray(nibabel.load(sound).dataobj).T, voxels)
    write = Nifti.write

    def other(self: Nifti, path: Path, arrays: Any, metadata: Any) -> None:
        write(self, path, {"image": Array(voxels + 1)}, metadata)

    monkeypatch.setattr(Nifti, "write", other)
    with pytest.raises(ConversionError, match=r"^ct_a/ct\.nii\.gz: the written file differs .*: row 0"):
        unistore.export(tmp_path / "s.zarr", tmp_path / "out", to="nifti")
    assert not (tmp_path / "out").exists()
