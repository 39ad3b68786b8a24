"""NRRD as pynrrd writes it and SimpleITK places it; synthetic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nrrd
import numpy as np
import pytest
import SimpleITK

from unistore.converters.formats.nrrd import Nrrd
from unistore.converters.opened import Metadata, SourceFile
from unistore.errors import InputError
from unistore.testing import check_format

VOXELS = np.random.default_rng(0).integers(-1000, 1000, (4, 5, 6), np.int16)
"""Depth, height, width; files have the fastest axis first."""
STEPS = np.array([[0.0, 0.5, 0.0], [1.2, 0, -0.9], [1.8, 0, 2.4]])
HEADER = {
    "space": "left-posterior-superior",
    "space directions": STEPS,
    "space origin": [10, -20, 30.5],
    "kinds": ["domain"] * 3,
    "content": "DOE^JANE",
}


def write(path: Path, voxels: np.ndarray = VOXELS, **fields: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    header = {**HEADER, **{key.replace("_", " "): value for key, value in fields.items()}}
    kept = {key: value for key, value in header.items() if value is not None}
    detached = path.name.endswith(".nhdr")
    nrrd.write(str(path), np.ascontiguousarray(voxels.T), kept, detached_header=detached)


def opened(path: Path) -> tuple[np.ndarray, Metadata]:
    with Nrrd().open(SourceFile(path, path.name)) as file:
        return file.arrays["image"][:], file.metadata


def edited(path: Path, old: bytes, new: bytes) -> None:
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new, 1))


@pytest.mark.parametrize("encoding", ["raw", "gzip"])
@pytest.mark.parametrize("name", ["a.nrrd", "a.nhdr"])
def test_voxels_equal_those_of_pynrrd_and_a_truncated_file_is_an_error(
    tmp_path: Path, name: str, encoding: str
) -> None:
    write(tmp_path / name, encoding=encoding)
    np.testing.assert_array_equal(nrrd.read(str(tmp_path / name), index_order="C")[0], VOXELS)
    if name == "a.nrrd":
        check_format(Nrrd(), tmp_path / name, {"image": VOXELS})
        return
    with Nrrd().open(SourceFile(tmp_path / name, name)) as file:
        np.testing.assert_array_equal(file.arrays["image"][1:3], VOXELS[1:3])
        np.testing.assert_array_equal(file.arrays["image"][:], VOXELS)
        (voxels,) = file.further
    voxels.path.write_bytes(voxels.path.read_bytes()[:-9])
    with pytest.raises(InputError, match=r"its header states|ends before its last voxel"):
        opened(tmp_path / name)


@pytest.mark.parametrize(
    "space", ["left-posterior-superior", "right-anterior-superior", "left-anterior-superior", "RAS"]
)
def test_the_geometry_of_every_space_equals_that_of_itk(tmp_path: Path, space: str) -> None:
    write(tmp_path / "a.nrrd", space=space)
    _, metadata = opened(tmp_path / "a.nrrd")
    image = SimpleITK.ReadImage(str(tmp_path / "a.nrrd"))
    np.testing.assert_array_equal(SimpleITK.GetArrayFromImage(image), VOXELS)
    np.testing.assert_allclose(metadata["spacing"], image.GetSpacing()[::-1])
    np.testing.assert_allclose(metadata["origin"], image.GetOrigin()[::-1])
    np.testing.assert_allclose(metadata["direction"], image.GetDirection()[::-1], atol=1e-12)
    assert "DOE" not in str(metadata)


def test_a_compressed_file_written_by_itk_is_read(tmp_path: Path) -> None:
    image = SimpleITK.GetImageFromArray(VOXELS)
    image.SetSpacing((0.5, 1.5, 3.0))
    image.SetOrigin((10, -20, 30.5))
    image.SetDirection([0.0, -1.0, 0.0, 0.6, 0.0, 0.8, -0.8, 0.0, 0.6])
    SimpleITK.WriteImage(image, str(tmp_path / "a.nrrd"), useCompression=True)
    voxels, metadata = opened(tmp_path / "a.nrrd")
    np.testing.assert_array_equal(voxels, VOXELS)
    np.testing.assert_allclose(metadata["spacing"], [3.0, 1.5, 0.5])
    np.testing.assert_allclose(metadata["direction"], image.GetDirection()[::-1], atol=1e-12)


def test_what_a_header_does_not_say_stays_unknown(tmp_path: Path) -> None:
    write(tmp_path / "a.nrrd", space="scanner-xyz")
    with Nrrd().open(SourceFile(tmp_path / "a.nrrd", "a.nrrd")) as file:
        assert "unknown" in file.notes["image"]
        assert list(file.metadata) == ["spacing"]
        np.testing.assert_allclose(file.metadata["spacing"], [3.0, 1.5, 0.5])
    write(tmp_path / "b.nrrd", space_units=["cm"] * 3)
    np.testing.assert_allclose(opened(tmp_path / "b.nrrd")[1]["spacing"], [30, 15, 5])
    np.testing.assert_allclose(opened(tmp_path / "b.nrrd")[1]["origin"], [305, -200, 100])
    write(tmp_path / "c.nrrd", space_units=["pixel"] * 3)
    assert opened(tmp_path / "c.nrrd")[1] == {}
    unplaced = {"space": None, "space_directions": None, "space_origin": None}
    write(tmp_path / "d.nrrd", **unplaced, spacings=[1, 2, 3])
    assert opened(tmp_path / "d.nrrd")[1] == {"spacing": [3, 2, 1]}
    write(tmp_path / "g.nrrd", **unplaced, spacings=[1, 2, 3], units=["um", "um", "mm"])
    np.testing.assert_allclose(opened(tmp_path / "g.nrrd")[1]["spacing"], [3, 0.002, 0.001])
    write(tmp_path / "e.nrrd", **unplaced)
    assert opened(tmp_path / "e.nrrd")[1] == {}
    write(tmp_path / "h.nrrd", space_units=["mm"] * 3)
    edited(tmp_path / "h.nrrd", b'space units: "mm" "mm" "mm"', b"space units: ")
    assert opened(tmp_path / "h.nrrd")[1] == {}
    write(
        tmp_path / "i.nrrd",
        VOXELS[0],
        space="2D-left-posterior",
        space_directions=STEPS[:2, :2],
        space_origin=None,
        space_units=["mm"] * 2,
        kinds=["domain"] * 2,
    )
    edited(tmp_path / "i.nrrd", b'space units: "mm" "mm"', b"space units: ")
    assert opened(tmp_path / "i.nrrd")[1] == {}
    write(tmp_path / "f.nrrd", space_origin=None)
    assert sorted(opened(tmp_path / "f.nrrd")[1]) == ["direction", "spacing"]


@pytest.mark.parametrize("dtype", ["i1", "u1", "u2", "i4", "u4", "i8", "u8", "f4", "f8", ">i2", ">f4"])
def test_voxels_keep_every_dtype_and_byte_order(tmp_path: Path, dtype: str) -> None:
    voxels = VOXELS.astype(dtype)
    write(tmp_path / "a.nrrd", voxels)
    values, _ = opened(tmp_path / "a.nrrd")
    assert values.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(values, voxels)


def test_line_skip_and_byte_skip_are_applied(tmp_path: Path) -> None:
    write(tmp_path / "a.nhdr", encoding="raw")
    (voxels,) = (path for path in tmp_path.iterdir() if path.suffix != ".nhdr")
    raw = voxels.read_bytes()
    for fields, content in (
        (b"line skip: 2\n", b"one\ntwo\n" + raw),
        (b"byte skip: 5\n", b"12345" + raw),
        (b"byte skip: -1\n", b"what stands before" + raw),
    ):
        write(tmp_path / "a.nhdr", encoding="raw")
        edited(tmp_path / "a.nhdr", b"encoding", fields + b"encoding")
        voxels.write_bytes(content)
        np.testing.assert_array_equal(opened(tmp_path / "a.nhdr")[0], VOXELS)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"encoding: raw", b"encoding: hex", "has the encoding 'hex'"),
        (b"domain domain domain", b"RGB-color domain domain", "RGB-color"),
        (b"type: int16", b"type: block", "has the type 'block'"),
        (b"endian: little\n", b"", "the byte order ''"),
        (b"sizes: 6 5 4\n", b"", "ends inside its header"),
        (b"encoding: raw", b"encoding: raw\ndata file: LIST", "in a list of files"),
        (b"\n\n", b"\ndata file: LIST\na.raw\nb.raw\n\n", "in a list of files"),
        (b"encoding: raw", b"encoding: raw\nhello", "has the line 'hello' in its header"),
        (b"dimension: 3", b"dimension: 4", "the dimension 4, but the sizes 6 5 4"),
        (b"encoding: raw", b"encoding: gzip\nbyte skip: -1", "byte skip -1, .* its gzip voxels"),
        (b"encoding: raw", b"encoding: raw\nbyte skip: -2", "byte skip -2, .* its raw voxels"),
        (b"encoding: raw", b"encoding: raw\ndata file: gone.raw", r"needs the file gone\.raw"),
    ],
)
def test_an_unsupported_or_contradictory_header_is_an_error(
    tmp_path: Path, old: bytes, new: bytes, message: str
) -> None:
    write(tmp_path / "a.nrrd", encoding="raw")
    edited(tmp_path / "a.nrrd", old, new)
    with pytest.raises(InputError, match=message):
        opened(tmp_path / "a.nrrd")


def test_keys_of_the_user_are_not_fields(tmp_path: Path) -> None:
    """Slicer and others write key:=value; pynrrd takes such a key for the field of that name."""
    keys = (
        b"byte skip:=2\nspace units:=cm\ntype:=float\nendian:=big\ndata file:=other.raw\n"
        b"DICOM_0008:0020:=1\nDICOM_0008:0030:=2\n"
    )
    write(tmp_path / "plain.nrrd", encoding="raw")
    write(tmp_path / "a.nrrd", encoding="raw")
    edited(tmp_path / "a.nrrd", b"encoding: raw\n", b"encoding: raw\n" + keys)
    voxels, metadata = opened(tmp_path / "a.nrrd")
    image = SimpleITK.ReadImage(str(tmp_path / "a.nrrd"))
    np.testing.assert_array_equal(SimpleITK.GetArrayFromImage(image), VOXELS)
    np.testing.assert_array_equal(voxels, VOXELS)
    assert metadata == opened(tmp_path / "plain.nrrd")[1]


def test_types_and_byte_orders_may_be_in_capitals(tmp_path: Path) -> None:
    write(tmp_path / "a.nrrd", VOXELS.astype(">i2"), encoding="raw")
    edited(tmp_path / "a.nrrd", b"type: int16", b"type: Signed Short")
    edited(tmp_path / "a.nrrd", b"endian: big", b"endian: Big")
    image = SimpleITK.ReadImage(str(tmp_path / "a.nrrd"))
    np.testing.assert_array_equal(SimpleITK.GetArrayFromImage(image), VOXELS)
    np.testing.assert_array_equal(opened(tmp_path / "a.nrrd")[0], VOXELS)
