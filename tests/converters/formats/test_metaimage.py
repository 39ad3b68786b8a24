"""MetaImage as SimpleITK writes and places it; synthetic."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import SimpleITK
from isal import isal_zlib

import unistore
from unistore.conversion import plan
from unistore.conversion.signatures import convert
from unistore.converters.files import unpacked
from unistore.converters.formats.metaimage import MetaImage
from unistore.converters.opened import SourceFile
from unistore.errors import InputError
from unistore.testing import check_format

VOXELS = np.random.default_rng(0).integers(-1000, 1000, (4, 5, 6), np.int16)
DIRECTION = [0.0, -1.0, 0.0, 0.6, 0.0, 0.8, -0.8, 0.0, 0.6]


def write(path: Path, dtype: str = "i2", *, compressed: bool = False) -> SimpleITK.Image:
    image = SimpleITK.GetImageFromArray(VOXELS.astype(dtype))
    image.SetSpacing((0.5, 1.5, 3.0))
    image.SetOrigin((10, -20, 30.5))
    image.SetDirection(DIRECTION)
    path.parent.mkdir(parents=True, exist_ok=True)
    SimpleITK.WriteImage(image, str(path), useCompression=compressed)
    return image


@pytest.mark.parametrize("name", ["a.mha", "a.mhd"])
@pytest.mark.parametrize("compressed", [False, True])
def test_voxels_and_geometry_equal_those_of_itk(tmp_path: Path, name: str, compressed: bool) -> None:
    image = write(tmp_path / name, compressed=compressed)
    with MetaImage().open(SourceFile(tmp_path / name, name)) as opened:
        np.testing.assert_array_equal(opened.arrays["image"][:], VOXELS)
        np.testing.assert_array_equal(opened.arrays["image"][1:3], VOXELS[1:3])
        assert len(opened.further) == (name == "a.mhd")
        np.testing.assert_allclose(opened.metadata["spacing"], image.GetSpacing()[::-1])
        np.testing.assert_allclose(opened.metadata["origin"], image.GetOrigin()[::-1])
        np.testing.assert_allclose(opened.metadata["direction"], image.GetDirection()[::-1])


@pytest.mark.parametrize("compressed", [False, True])
def test_the_format_keeps_its_promises_for_whole_and_truncated_files(
    tmp_path: Path, compressed: bool
) -> None:
    write(tmp_path / "a.mha", compressed=compressed)
    check_format(MetaImage(), tmp_path / "a.mha", {"image": VOXELS})


def test_compressed_voxels_are_unpacked_as_far_as_the_header_tells(tmp_path: Path) -> None:
    write(tmp_path / "a.mhd", compressed=True)
    raw = next(tmp_path.glob("a.*raw"))
    whole = raw.read_bytes()
    for content in (zlib.compress(bytes(1 << 26)), zlib.compress(VOXELS.tobytes() + b"1")):
        raw.write_bytes(content)
        with pytest.raises(InputError, match="the 240 bytes that its header states"):
            voxels_of(tmp_path / "a.mhd")
    raw.write_bytes(whole[:-4])  # the checksum alone
    with pytest.raises(InputError, match="ends before its last voxel"):
        voxels_of(tmp_path / "a.mhd")


DECOMPRESSOR = isal_zlib.decompressobj


class Counted:
    """A decompressor that counts the bytes it gives."""

    total = 0

    def __init__(self) -> None:
        self._own = DECOMPRESSOR()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def decompress(self, packed: bytes, most: int) -> bytes:
        content: bytes = self._own.decompress(packed, most)
        Counted.total += len(content)
        return content


def test_a_large_volume_is_unpacked_once_a_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was unpacked as a whole for every slab: 13 times for 150 MiB."""
    monkeypatch.setattr(plan, "LARGE", 1 << 10)
    monkeypatch.setattr(plan, "PLANES_BYTES", 1 << 10)
    voxels = np.random.default_rng(0).integers(-99, 99, (320, 20, 20)).astype("i2")
    (tmp_path / "in").mkdir()
    SimpleITK.WriteImage(SimpleITK.GetImageFromArray(voxels), str(tmp_path / "in/a.mha"), useCompression=True)
    monkeypatch.setattr(unpacked.isal_zlib, "decompressobj", Counted)
    convert(tmp_path / "in", tmp_path / "out", "ct", workers=0)
    monkeypatch.undo()
    # Once to look at every voxel, once to write them
    assert 0 < Counted.total <= 2 * voxels.nbytes
    dataset = unistore.Dataset(tmp_path / "out", unistore.Volumes())
    np.testing.assert_array_equal(np.asarray(dataset[0]["image"]).reshape(voxels.shape), voxels)


@pytest.mark.parametrize(
    ("extents", "message"),
    [
        ("-1 1 1", "has the DimSize '-1 1 1'"),
        ("6 -5 -4", "'6 -5 -4'"),
        ("6 five 4", "'6 five 4'"),
        ("", "has the DimSize ''"),
        ("0 5 4", "the 0 bytes that"),
        (f"{1 << 40} {1 << 40} 4", "which no file has"),
    ],
)
def test_an_invalid_dim_size_is_an_error_before_anything_is_unpacked(
    tmp_path: Path, extents: str, message: str
) -> None:
    write(tmp_path / "a.mha", "u1", compressed=True)
    path = edited(tmp_path / "a.mha", b"DimSize = 6 5 4", f"DimSize = {extents}".encode())
    with pytest.raises(InputError, match=message):
        voxels_of(path)


@pytest.mark.parametrize("dtype", ["u1", "u2", "i4", "f4", "f8"])
def test_the_format_keeps_its_promises_for_every_dtype(tmp_path: Path, dtype: str) -> None:
    write(tmp_path / "a.mha", dtype)
    check_format(MetaImage(), tmp_path / "a.mha", {"image": VOXELS.astype(dtype)})


def test_a_voxel_file_that_is_missing_or_outside_of_the_paths_is_an_error(tmp_path: Path) -> None:
    write(tmp_path / "in/a.mhd")
    (tmp_path / "in/a.raw").rename(tmp_path / "a.raw")
    file = SourceFile(tmp_path / "in/a.mhd", "a.mhd", (tmp_path / "in",))
    with pytest.raises(InputError, match=r"needs the file a\.raw"), MetaImage().open(file):
        pass
    text = file.path.read_text().replace("a.raw", "../a.raw")
    file.path.write_text(text)
    with pytest.raises(InputError, match="outside the given paths"), MetaImage().open(file):
        pass


def edited(path: Path, old: bytes, new: bytes) -> Path:
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new, 1))
    return path


def voxels_of(path: Path) -> np.ndarray:
    with MetaImage().open(SourceFile(path, path.name, (path.parent,))) as opened:
        return opened.arrays["image"][:]


def test_flags_are_read_by_their_first_letter(tmp_path: Path) -> None:
    expected = SimpleITK.GetArrayFromImage(write(tmp_path / "a.mha"))
    edited(tmp_path / "a.mha", b"BinaryDataByteOrderMSB = False", b"BinaryDataByteOrderMSB = true")
    np.testing.assert_array_equal(voxels_of(tmp_path / "a.mha"), expected.byteswap())


def test_voxels_as_text_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.mha")
    path = edited(tmp_path / "a.mha", b"BinaryData = True", b"BinaryData = False")
    with pytest.raises(InputError, match="contains its voxels as text"):
        voxels_of(path)


def test_a_header_size_of_minus_one_reads_voxels_from_the_end_of_the_file(tmp_path: Path) -> None:
    expected = SimpleITK.GetArrayFromImage(write(tmp_path / "a.mhd"))
    raw = tmp_path / "a.raw"
    raw.write_bytes(b"a header of another program" + raw.read_bytes())
    edited(tmp_path / "a.mhd", b"ElementDataFile", b"HeaderSize = -1\nElementDataFile")
    np.testing.assert_array_equal(voxels_of(tmp_path / "a.mhd"), expected)


@pytest.mark.parametrize("local", [b"local", b"Local"])
def test_local_voxels_are_named_in_any_case(tmp_path: Path, local: bytes) -> None:
    write(tmp_path / "a.mha")
    edited(tmp_path / "a.mha", b"ElementDataFile = LOCAL", b"ElementDataFile = " + local)
    image = SimpleITK.ReadImage(str(tmp_path / "a.mha"))
    np.testing.assert_array_equal(SimpleITK.GetArrayFromImage(image), VOXELS)
    np.testing.assert_array_equal(voxels_of(tmp_path / "a.mha"), VOXELS)


@pytest.mark.parametrize(("dtype", "said", "long"), [("i4", b"INT", b"LONG"), ("u4", b"UINT", b"ULONG")])
def test_long_integers_have_four_bytes_as_itk_reads_them(
    tmp_path: Path, dtype: str, said: bytes, long: bytes
) -> None:
    write(tmp_path / "a.mha", dtype)
    edited(tmp_path / "a.mha", b"MET_" + said, b"MET_" + long)
    image = SimpleITK.ReadImage(str(tmp_path / "a.mha"))
    voxels = voxels_of(tmp_path / "a.mha")
    assert voxels.dtype == dtype
    np.testing.assert_array_equal(voxels, SimpleITK.GetArrayFromImage(image))
    np.testing.assert_array_equal(voxels, VOXELS.astype(dtype))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"ElementSpacing = 0.5 ", b"ElementSpacing = 0,5 ", r"a\.mhd: has the ElementSpacing '0,5 1\.5 3'"),
        (b"Offset = 10 ", b"Offset = x ", r"a\.mhd: has the Offset 'x -20 30\.5'"),
        (b"ElementDataFile", b"HeaderSize = ?\nElementDataFile", r"a\.mhd: has the HeaderSize '\?'"),
        (b"MET_SHORT", b"MET_STRING", r"a\.mhd: has the ElementType MET_STRING, and only one channel"),
        (
            b"ElementType",
            b"ElementNumberOfChannels = 3\nElementType",
            r"has 3 channels of the ElementType MET_S",
        ),
    ],
)
def test_an_entry_that_cannot_be_used_is_named(tmp_path: Path, old: bytes, new: bytes, message: str) -> None:
    write(tmp_path / "a.mhd")
    edited(tmp_path / "a.mhd", old, new)
    with pytest.raises(InputError, match=message):
        voxels_of(tmp_path / "a.mhd")
