"""DICOM as pydicom decodes it, and placed as SimpleITK places it: files of pydicom's own tests."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pydicom
import pytest
import SimpleITK
from pydicom.data import get_testdata_file

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
def test_values_and_places_of_real_files(name: str) -> None:
    path = real(name)
    np.testing.assert_array_equal(values(path), of_pydicom(path))
    with Dicom().open(SourceFile(path, name)) as opened:
        facts = opened.facts
    image = SimpleITK.ReadImage(str(path))
    np.testing.assert_allclose(facts["spacing"][1:], image.GetSpacing()[1::-1])
    np.testing.assert_allclose(facts["origin"], image.GetOrigin()[::-1])
    np.testing.assert_allclose(facts["direction"], image.GetDirection()[::-1], atol=1e-12)


@pytest.mark.parametrize("name", ["MR_small.dcm", "MR_small_jp2klossless.dcm"])
def test_whole_and_truncated(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_format(Dicom(), real(name), {"image": of_pydicom(real(name)).astype(np.int16)})


@pytest.mark.parametrize("name", NO_VOLUMES)
def test_what_lies_nowhere_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="has no pixels that lie in the patient"):
        values(real(name))


def test_numbers_of_more_bits_than_are_told(tmp_path: Path) -> None:
    data_set = pydicom.dcmread(real("MR_small.dcm"))
    data_set.BitsStored = 8
    data_set.save_as(tmp_path / "a.dcm")
    with pytest.raises(InputError, match="more than the 8 bits that it tells of"):
        values(tmp_path / "a.dcm")


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
    data_set.save_as(tmp_path / "a.dcm")
    expected = np.stack([frames[places.index(place)] * (1 + place) - place for place in range(4)])
    np.testing.assert_array_equal(values(tmp_path / "a.dcm"), expected)
    with Dicom().open(SourceFile(tmp_path / "a.dcm", "a.dcm")) as opened:
        assert opened.facts["spacing"] == [4.0, 0.5, 0.25]
        assert opened.facts["origin"] == [10.0, 2.0, 1.0]


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
def test_headers_that_are_left_to_pydicom(tmp_path: Path, tags: dict[str, object]) -> None:
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
