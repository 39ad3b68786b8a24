"""DICOM as pydicom decodes it, and placed as SimpleITK places it: files of pydicom's own tests."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
import SimpleITK
from pydicom.data import get_testdata_file

from unistore.converters.files.formats import begins_as_dicom, has_ending
from unistore.converters.formats import dicom_headers
from unistore.converters.formats.dicom import Dicom
from unistore.converters.formats.dicom_headers import read_elements, read_header
from unistore.converters.opened import SourceFile
from unistore.errors import InputError
from unistore.testing import check_format

PLAIN = (
    "CT_small.dcm",
    "MR_small.dcm",
    "MR_small_implicit.dcm",
    "MR_small_bigendian.dcm",
    "MR_small_expb.dcm",
)
PACKED = ("MR_small_RLE.dcm", "MR_small_jp2klossless.dcm", "MR_small_jpeg_ls_lossless.dcm")
NO_VOLUMES = ("JPEG2000.dcm", "rtdose.dcm", "test-SR.dcm")


def real(name: str) -> Path:
    found = get_testdata_file(name, download=False)
    assert found is not None
    return Path(found)


def values(path: Path) -> np.ndarray:
    with Dicom().open(SourceFile(path, path.name)) as opened:
        return opened.arrays["image"][:]


def of_pydicom(path: Path) -> np.ndarray:
    data_set = pydicom.dcmread(path)
    scaled = data_set.pixel_array * float(data_set.get("RescaleSlope", 1))
    return scaled[None] + float(data_set.get("RescaleIntercept", 0))


@pytest.mark.parametrize("name", [*PLAIN, *PACKED])
def test_real_files_have_the_values_of_pydicom_and_the_geometry_of_itk(name: str) -> None:
    path = real(name)
    np.testing.assert_array_equal(values(path), of_pydicom(path))
    with Dicom().open(SourceFile(path, name)) as opened:
        metadata = opened.metadata
    image = SimpleITK.ReadImage(str(path))
    np.testing.assert_allclose(metadata["spacing"][1:], image.GetSpacing()[1::-1])
    np.testing.assert_allclose(metadata["origin"], image.GetOrigin()[::-1])
    np.testing.assert_allclose(metadata["direction"], image.GetDirection()[::-1], atol=1e-12)


@pytest.mark.parametrize("name", ["MR_small.dcm", "MR_small_jp2klossless.dcm"])
def test_the_format_keeps_its_promises_for_whole_and_truncated_files(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_format(Dicom(), real(name), {"image": of_pydicom(real(name)).astype(np.int16)})


@pytest.mark.parametrize("name", NO_VOLUMES)
def test_an_image_without_a_position_in_the_patient_is_an_error(name: str) -> None:
    with pytest.raises(InputError, match="does not state where its pixels are in the patient"):
        values(real(name))


def with_bits(path: Path, raw: np.ndarray, bits: int, *, signed: bool, **tags: Any) -> None:
    """Write the numbers as they stand, with unused bits above `bits`; synthetic."""
    data_set = pydicom.dcmread(real("CT_small.dcm"))
    data_set.Rows, data_set.Columns = raw.shape
    data_set.BitsAllocated = 8 * raw.itemsize
    data_set.BitsStored, data_set.HighBit, data_set.PixelRepresentation = bits, bits - 1, int(signed)
    data_set.PixelData = raw.tobytes()
    for name, value in tags.items():
        setattr(data_set, name, value)
    data_set.save_as(path)


@pytest.mark.parametrize("bits", [1, 9, 12, 15, 16])
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("path", ["fast", "by pydicom"])
def test_bits_above_bits_stored_are_ignored(tmp_path: Path, bits: int, path: str, *, signed: bool) -> None:
    """Overlays lie there, or zeros where a sign should be (PS3.5, 8.1.1)."""
    raw = np.random.default_rng(bits).integers(0, 1 << 16, (8, 9)).astype("<u2")
    tags = {} if path == "fast" else {"NumberOfFrames": 1}
    with_bits(tmp_path / "a.dcm", raw, bits, signed=signed, **tags)
    assert (read_elements(tmp_path / "a.dcm") is not None) == (path == "fast")
    numbers = raw.astype(np.int64) % (1 << bits)
    if signed:
        numbers = np.where(numbers >> (bits - 1), numbers - (1 << bits), numbers)
    found = values(tmp_path / "a.dcm")
    np.testing.assert_array_equal(found[0], numbers - 1024)
    np.testing.assert_array_equal(found, of_pydicom(tmp_path / "a.dcm"))


def test_unused_bits_of_bytes_are_read_as_pydicom_reads_them(tmp_path: Path) -> None:
    raw = np.arange(64, dtype="u1").reshape(8, 8) | 0xC0
    with_bits(tmp_path / "a.dcm", raw, 6, signed=False)
    np.testing.assert_array_equal(values(tmp_path / "a.dcm"), of_pydicom(tmp_path / "a.dcm"))


@pytest.mark.parametrize(
    ("tags", "match"),
    [
        ({"BitsStored": 17, "HighBit": 16}, "BitsAllocated 16 and BitsStored 17,"),
        ({"BitsStored": 0, "HighBit": 0}, "BitsStored 0,"),
        ({"BitsAllocated": 12}, "BitsAllocated 8 and BitsStored 12"),
    ],
    ids=str,
)
def test_bits_that_no_number_has_are_refused(tmp_path: Path, tags: dict[str, int], match: str) -> None:
    with_bits(tmp_path / "a.dcm", np.zeros((8, 8), "<u2"), 12, signed=False, **tags)
    with pytest.raises(InputError, match=match):
        values(tmp_path / "a.dcm")


def test_a_wrong_high_bit_is_ignored_if_the_bits_above_are_zero(tmp_path: Path) -> None:
    """Many writers leave HighBit at 15; readers shift by it, or ignore it, as pydicom does."""
    raw = np.random.default_rng(0).integers(0, 1 << 12, (8, 9)).astype("<u2")
    with_bits(tmp_path / "a.dcm", raw, 12, signed=False, HighBit=15)
    np.testing.assert_array_equal(values(tmp_path / "a.dcm")[0], raw.astype(int) - 1024)
    np.testing.assert_array_equal(values(tmp_path / "a.dcm"), of_pydicom(tmp_path / "a.dcm"))
    with_bits(tmp_path / "b.dcm", raw | 0x8000, 12, signed=False, HighBit=15)
    with pytest.raises(InputError, match="BitsStored is 12 and HighBit is 15"):
        values(tmp_path / "b.dcm")


def without_preamble(path: Path, form: str) -> None:
    """Write MR_small without the 128 bytes and the mark, as old scanners do."""
    content = real("MR_small.dcm").read_bytes()
    if form == "meta":
        path.write_bytes(content[132:])
        return
    data_set = pydicom.dcmread(real("MR_small.dcm"))
    del data_set.file_meta
    data_set.preamble = None
    data_set.save_as(path, implicit_vr=form == "implicit", little_endian=True, enforce_file_format=False)


@pytest.mark.parametrize("form", ["meta", "implicit", "explicit"])
def test_a_file_without_preamble_is_recognised_and_read(tmp_path: Path, form: str) -> None:
    without_preamble(tmp_path / "a.dcm", form)
    assert b"DICM" not in (tmp_path / "a.dcm").read_bytes()[:256]
    assert Dicom().recognise(SourceFile(tmp_path / "a.dcm", "a.dcm")).certainty == "sure"
    expected = of_pydicom(real("MR_small.dcm"))
    np.testing.assert_array_equal(values(tmp_path / "a.dcm"), expected)
    if form != "meta":  # which ITK does not read
        image = SimpleITK.GetArrayFromImage(SimpleITK.ReadImage(str(tmp_path / "a.dcm")))
        np.testing.assert_array_equal(image, expected)
    header = read_header(tmp_path / "a.dcm")
    assert header._replace(pixels=header.pixels._replace(planes=())) == read_header(
        real("MR_small.dcm")
    )._replace(pixels=header.pixels._replace(planes=()))
    (tmp_path / "IM0001").write_bytes((tmp_path / "a.dcm").read_bytes())
    assert has_ending(tmp_path / "IM0001", (".dcm",)), "under any name"


@pytest.mark.parametrize(
    "content",
    [
        np.array([8, 4, 1, 2, 3, 4, 5, 6], "<u4").tobytes(),
        np.full(64, 8, "<u2").tobytes(),
        np.full(64, 2, "<u2").tobytes(),
        b"\x08\0\x05\0CS\n\0ISO_IR 100",
        b"",
    ],
)
def test_numbers_that_begin_like_an_element_are_no_dicom(content: bytes) -> None:
    assert not begins_as_dicom(content)


@pytest.mark.nightly
def test_every_file_of_pydicom_that_is_read_has_its_values() -> None:
    read = []
    for path in sorted(real("MR_small.dcm").parent.rglob("*.dcm")):
        if not begins_as_dicom(path.read_bytes()[:4096]):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                header = read_header(path)
            except Exception:
                continue
            if not header.pixels.planes or not header.is_gray:
                continue
            try:
                found = values(path)
            except InputError:
                continue
            np.testing.assert_array_equal(found.squeeze(), of_pydicom(path).squeeze(), err_msg=path.name)
        read.append(path.name)
    assert {*PLAIN, *PACKED} <= set(read)
    assert len(read) >= 15, read


def test_an_enhanced_file_has_its_frames_by_their_places(tmp_path: Path) -> None:
    """Synthetic: frames of a multi-frame file in any order, each with a slope of its own."""
    data_set = pydicom.dcmread(real("MR_small.dcm"))
    frames = np.random.default_rng(0).integers(0, 100, (4, 64, 64)).astype("<i2")
    data_set.PixelData = frames.tobytes()
    data_set.NumberOfFrames = 4
    shared = pydicom.Dataset()
    shared.PlaneOrientationSequence = [pydicom.Dataset()]
    shared.PlaneOrientationSequence[0].ImageOrientationPatient = [1, 0, 0, 0, 1, 0]
    shared.PixelMeasuresSequence = [pydicom.Dataset()]
    shared.PixelMeasuresSequence[0].PixelSpacing = [0.5, 0.25]
    data_set.SharedFunctionalGroupsSequence = [shared]
    data_set.PerFrameFunctionalGroupsSequence = []
    places = [3, 1, 2, 0]
    for place in places:
        frame = pydicom.Dataset()
        frame.PlanePositionSequence = [pydicom.Dataset()]
        frame.PlanePositionSequence[0].ImagePositionPatient = [1, 2, 10 + 4 * place]
        frame.PixelValueTransformationSequence = [pydicom.Dataset()]
        frame.PixelValueTransformationSequence[0].RescaleSlope = 1 + place
        frame.PixelValueTransformationSequence[0].RescaleIntercept = -place
        data_set.PerFrameFunctionalGroupsSequence.append(frame)
    del data_set.ImagePositionPatient, data_set.ImageOrientationPatient, data_set.PixelSpacing
    data_set.ImageType = ["ORIGINAL", "PRIMARY", "M", "ND", "MOSAIC"]  # as some scanners still call it
    data_set.save_as(tmp_path / "a.dcm")
    expected = np.stack([frames[places.index(place)] * (1 + place) - place for place in range(4)])
    np.testing.assert_array_equal(values(tmp_path / "a.dcm"), expected)
    with Dicom().open(SourceFile(tmp_path / "a.dcm", "a.dcm")) as opened:
        assert opened.metadata["spacing"] == [4.0, 0.5, 0.25]
        assert opened.metadata["origin"] == [10.0, 2.0, 1.0]


def test_headers_are_read_as_pydicom_reads_them() -> None:
    """Of every file of its tests that is read without it."""
    folder = real("MR_small.dcm").parent
    without = [path for path in sorted(folder.rglob("*.dcm")) if read_elements(path) is not None]
    assert {"CT_small.dcm", "MR_small.dcm", "MR_small_implicit.dcm"} <= {path.name for path in without}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert [read_header(path) for path in without] == [
            dicom_headers._by_pydicom(path) for path in without
        ]


@pytest.mark.parametrize(
    "tags",
    [
        {"PatientID": "Grüße"},
        {"SeriesInstanceUID": ["1.2", "1.3"]},
        {"NumberOfFrames": 1},
        {"RescaleSlope": ""},
    ],
    ids=str,
)
def test_headers_of_the_slow_path_equal_those_that_pydicom_reads(
    tmp_path: Path, tags: dict[str, object]
) -> None:
    data_set = pydicom.dcmread(real("CT_small.dcm"))
    for name, value in tags.items():
        setattr(data_set, name, value)
    data_set.SpecificCharacterSet = "ISO_IR 100"
    data_set.save_as(tmp_path / "a.dcm")
    assert (read_elements(tmp_path / "a.dcm") is None) == ("RescaleSlope" not in tags)
    header = read_header(tmp_path / "a.dcm")
    assert header == dicom_headers._by_pydicom(tmp_path / "a.dcm")
    assert header.patient == str(data_set.PatientID)
    assert header.pixels.planes[0].slope == 1


def of_ct_small(path: Path, **tags: object) -> pydicom.Dataset:
    """Write pydicom's CT_small.dcm with other elements."""
    data_set = pydicom.dcmread(real("CT_small.dcm"))
    for name, value in tags.items():
        setattr(data_set, name, value)
    data_set.save_as(path)
    return data_set


def test_a_deflated_file_has_its_values(tmp_path: Path) -> None:
    data_set = pydicom.dcmread(real("CT_small.dcm"))
    data_set.file_meta.TransferSyntaxUID = pydicom.uid.DeflatedExplicitVRLittleEndian
    data_set.save_as(tmp_path / "a.dcm")
    np.testing.assert_array_equal(values(tmp_path / "a.dcm"), of_pydicom(real("CT_small.dcm")))
    assert read_header(tmp_path / "a.dcm").pixels.planes[0].position == (-158.135803, -179.035797, -75.699997)
    del data_set.PixelData
    data_set.save_as(tmp_path / "b.dcm")
    assert read_header(tmp_path / "b.dcm").pixels.planes == ()


def test_values_that_a_table_states_are_an_error(tmp_path: Path) -> None:
    table = pydicom.Dataset()
    table.LUTDescriptor, table.ModalityLUTType = [3, 0, 16], "HU"
    table["LUTDescriptor"].VR = "US"
    table.add_new("LUTData", "OW", np.array([0, 10, 20], "<u2").tobytes())
    of_ct_small(tmp_path / "a.dcm", ModalityLUTSequence=[table])
    with pytest.raises(InputError, match=r"a\.dcm: states its values by a table \(ModalityLUTSequence\)"):
        values(tmp_path / "a.dcm")


def test_slices_as_tiles_of_one_image_are_an_error(tmp_path: Path) -> None:
    of_ct_small(tmp_path / "a.dcm", ImageType=["ORIGINAL", "PRIMARY", "M", "ND", "MOSAIC"])
    with pytest.raises(InputError, match=r"a\.dcm: has its slices as tiles of one image"):
        values(tmp_path / "a.dcm")


def test_a_slope_of_zero_is_an_error_unless_all_numbers_are_zero(tmp_path: Path) -> None:
    numbers = of_ct_small(tmp_path / "a.dcm", RescaleSlope=0).pixel_array
    with pytest.raises(InputError, match=r"RescaleSlope 0, by which all its values would be -1024"):
        values(tmp_path / "a.dcm")
    of_ct_small(tmp_path / "b.dcm", RescaleSlope=0, RescaleIntercept=7, PixelData=bytes(numbers.nbytes))
    np.testing.assert_array_equal(values(tmp_path / "b.dcm"), np.full((1, *numbers.shape), 7))
