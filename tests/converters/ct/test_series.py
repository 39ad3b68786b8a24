"""DICOM series: slices by their places, what keeps them from being a volume, and patients without names.

Synthetic: the header of pydicom's CT_small.dcm with other pixels, places, names and UIDs.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
import SimpleITK
from pydicom.data import get_testdata_file
from pydicom.uid import UID_dictionary, generate_uid

import unistore
from unistore import convert, export, verify
from unistore.cli.main import main
from unistore.conversion.convert import make_converter
from unistore.converters.source_scan import scan_sources
from unistore.errors import InputError

PLACES = [-100 + 2.5 * number for number in range(6)]


def series(
    folder: Path,
    seed: int = 0,
    places: Sequence[float] = PLACES,
    *,
    uid: str | None = None,
    patient: str = "MRN-4711",
    name: str = "IM{:04d}",
    tilt: float = 0.0,
    **tags: Any,
) -> np.ndarray:
    """Write a series in a random order of names and numbers; its numbers by place, (n, 16, 12)."""
    folder.mkdir(parents=True, exist_ok=True)
    uid = uid or generate_uid()
    pixels = np.random.default_rng(seed).integers(0, 4096, (len(places), 16, 12)).astype("<u2")
    order = random.Random(seed).sample(range(len(places)), len(places))
    for number, place in enumerate(order):
        data_set = pydicom.dcmread(str(get_testdata_file("CT_small.dcm", download=False)))
        data_set.SeriesInstanceUID, data_set.SOPInstanceUID = uid, generate_uid()
        data_set.PatientID, data_set.PatientName = patient, "Doe^Jane"
        data_set.Rows, data_set.Columns = pixels.shape[1:]
        data_set.BitsStored, data_set.PixelRepresentation = 12, 0
        data_set.ImagePositionPatient = [-10, tilt * place, places[place]]
        data_set.InstanceNumber = number
        data_set.PixelData = pixels[place].tobytes()
        for tag, value in tags.items():
            setattr(data_set, tag, value[place] if isinstance(value, list) else value)
        data_set.save_as(folder / name.format(number))
    return pixels


def problem_of(folder: Path) -> str:
    with pytest.raises(InputError) as error:
        scan_sources(make_converter("ct", {}), [folder])
    (problem,) = error.value.problems
    assert problem.location == "series-0001"
    assert "--exclude series-0001" in problem.advice
    return problem.message


def test_a_header_that_takes_more_memory_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_memory(_: Path) -> None:
        raise MemoryError

    series(tmp_path / "in", 1)
    scan = scan_sources(make_converter("ct", {}), [tmp_path / "in"])
    assert scan.sources.names[0] == "series-0001"
    monkeypatch.setattr("unistore.converters.ct.series.read_header", without_memory)
    with pytest.raises(InputError) as caught:
        scan_sources(make_converter("ct", {}), [tmp_path / "in"])
    assert {problem.kind for problem in caught.value.problems} == {"memory"}
    assert "needs more memory than is available" in caught.value.problems[0].message


def test_slices_are_grouped_by_series_and_stacked_by_position(tmp_path: Path) -> None:
    pixels = [series(tmp_path / "in/a", seed, name=f"{seed}-{{}}") for seed in range(2)]
    pixels.append(series(tmp_path / "in/b/c", 2, name="{}.dcm", patient="MRN-12"))
    convert(tmp_path / "in", tmp_path / "a.zarr", window=("lung",))
    dataset = unistore.Dataset(
        tmp_path / "a.zarr", unistore.Volumes(), fields=["image", "lung", "name", "patient", "series"]
    )
    samples = list(dataset)
    assert [sample["name"] for sample in samples] == ["series-0001", "series-0002", "series-0003"]
    for sample, numbers in zip(samples, pixels, strict=True):
        expected = numbers.astype(np.int16) - 1024
        assert np.asarray(sample["image"]).dtype == np.int16
        np.testing.assert_array_equal(sample["image"], expected)
        np.testing.assert_array_equal(sample["lung"], (expected >= -1350) & (expected <= 150))
    patients = [sample["patient"] for sample in samples]
    assert patients[0] == patients[1] != patients[2]
    assert len({sample["series"] for sample in samples}) == 3
    assert verify(tmp_path / "a.zarr", against=tmp_path / "in").ok


def test_a_series_has_the_voxels_and_geometry_that_itk_reads(tmp_path: Path) -> None:
    turned = [0.8, 0.6, 0, 0, 0, -1]
    places = [[10 + 2 * k * 0.6, 20 - 2 * k * 0.8, 30] for k in range(6)]
    series(tmp_path / "in", ImagePositionPatient=places, ImageOrientationPatient=[turned] * 6)
    convert(tmp_path / "in", tmp_path / "a.zarr")
    reader = SimpleITK.ImageSeriesReader()
    reader.SetFileNames(reader.GetGDCMSeriesFileNames(str(tmp_path / "in")))
    image = reader.Execute()
    sample = unistore.Dataset(tmp_path / "a.zarr", unistore.Volumes())[0]
    np.testing.assert_array_equal(sample["image"], SimpleITK.GetArrayFromImage(image))
    np.testing.assert_allclose(sample["spacing"], image.GetSpacing()[::-1])
    np.testing.assert_allclose(sample["origin"], image.GetOrigin()[::-1])
    np.testing.assert_allclose(sample["direction"], image.GetDirection()[::-1], atol=1e-9)


def test_each_slice_is_rescaled_by_its_own_slope(tmp_path: Path) -> None:
    slopes = [0.5, 1, 1.5, 2, 2.5, 3]
    pixels = series(tmp_path / "in", RescaleSlope=slopes, RescaleIntercept=-3)
    convert(tmp_path / "in", tmp_path / "a.zarr")
    image = np.asarray(unistore.Dataset(tmp_path / "a.zarr", unistore.Volumes())[0]["image"])
    np.testing.assert_array_equal(image, pixels * np.array(slopes)[:, None, None] - 3)


@pytest.mark.parametrize(
    ("places", "tilt", "message"),
    [
        ([0, 2, 4, 8, 10, 12], 0, "2.000 to 4.000 mm apart and shifted by up to 0.000 mm"),
        ([0, 2, 4, 4, 6, 8], 0, "0.000 to 2.000 mm apart"),
        ([3, 3, 3], 0, "0.000 to 0.000 mm apart"),
        (PLACES, 1, "shifted by up to 1.000 mm"),
    ],
)
def test_slices_at_uneven_positions_are_a_problem(
    tmp_path: Path, places: list[float], tilt: float, message: str
) -> None:
    series(tmp_path, places=places, tilt=tilt)
    assert message in problem_of(tmp_path)


def test_slices_that_differ_in_direction_spacing_or_size_are_a_problem(tmp_path: Path) -> None:
    turned = [[1, 0, 0, 0, 1, 0]] * 5 + [[1, 0, 0, 0, 0, 1]]
    series(tmp_path / "a", ImageOrientationPatient=turned)
    assert "not parallel" in problem_of(tmp_path / "a")
    series(tmp_path / "b", PixelSpacing=[[1, 1]] * 5 + [[2, 2]])
    assert "differ in pixel spacing" in problem_of(tmp_path / "b")
    uid = generate_uid()
    series(tmp_path / "c", uid=uid)
    series(tmp_path / "c", 1, places=[0], uid=uid, name="other", Columns=8, Rows=24)
    assert "differ in size or dtype" in problem_of(tmp_path / "c")


def contents(folder: Path) -> bytes:
    return b"\n".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def enhanced(path: Path) -> None:
    """Write a file of several frames, whose sequences name the patient, too."""
    data_set = pydicom.dcmread(str(get_testdata_file("CT_small.dcm", download=False)))
    data_set.SeriesInstanceUID, data_set.SOPInstanceUID = generate_uid(), generate_uid()
    data_set.PatientID, data_set.PatientName = "MRN-4712", "Roe^Rita"
    data_set.NumberOfFrames = 3
    data_set.PixelData = data_set.PixelData * 3
    data_set.PerFrameFunctionalGroupsSequence = []
    for number in range(3):
        place = pydicom.Dataset()
        place.ImagePositionPatient = [0, 0, 3.0 * number]
        frame = pydicom.Dataset()
        frame.PlanePositionSequence = [place]
        frame.ReferencedPatientPhotoSequence = [pydicom.Dataset()]
        frame.ReferencedPatientPhotoSequence[0].PatientName = "Roe^Second"
        frame.ReferencedPatientPhotoSequence[0].ReferencedSOPInstanceUID = generate_uid()
        data_set.PerFrameFunctionalGroupsSequence.append(frame)
    data_set.save_as(path)


def secrets_of(folder: Path, files: Sequence[Path]) -> set[str]:
    """Every name, identifier and UID of files, whatever sequence it is in, and each part of their paths."""
    values = set()
    for file in files:
        values |= {file.stem, *file.relative_to(folder).parts}
        for element in pydicom.dcmread(file).iterall():
            is_told = element.VR in ("PN", "UI") or (element.VR in ("LO", "SH") and "ID" in element.keyword)
            is_several = isinstance(element.value, pydicom.multival.MultiValue)
            told = element.value if is_several else [element.value]
            values |= {str(value) for value in told} if is_told else set()
    parts = {part for value in values for part in value.split("^")}
    return {secret for secret in values | parts if len(secret) > 3 and secret not in UID_dictionary}


def called(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit):
        main(list(arguments))
    captured = capsys.readouterr()
    return captured.out + captured.err


def test_slices_of_several_patients_and_of_tiles_are_a_problem(tmp_path: Path) -> None:
    series(tmp_path / "a", PatientID=["MRN-1"] * 3 + ["MRN-2"] * 3)
    assert problem_of(tmp_path / "a") == "its slices are of several patients"
    series(tmp_path / "b", ImageType=["ORIGINAL\\PRIMARY\\MOSAIC"] * 6)
    assert "tiles of one image (MOSAIC)" in problem_of(tmp_path / "b")


def test_names_and_ids_of_patients_are_in_no_store_page_error_or_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By stores, pages, errors, and what is printed for people and for machines."""
    folder = tmp_path / "Roe_Rita"
    series(folder / "visit-in-May", places=PLACES[:2], name="JaneDoe{}.dcm", StudyInstanceUID=generate_uid())
    series(folder / "june", 1, places=[0, 1, 5], name="gappy{}")
    enhanced(folder / "rita-frames.dcm")
    damaged = (folder / "rita-frames.dcm").read_bytes()
    files = [path for path in folder.rglob("*") if path.is_file()]
    secrets = secrets_of(tmp_path, files)
    assert {"Jane", "Roe^Second", "MRN-4712", "visit-in-May", "gappy0", "Roe_Rita"} <= secrets
    assert sum(secret.startswith("1.2.") for secret in secrets) > 10
    (folder / "rita-damaged.dcm").write_bytes(damaged[:2000])
    secrets.add("rita-damaged")
    store, page = tmp_path / "a.zarr", tmp_path / "page.html"
    source, sealed = os.path.relpath(folder), os.path.relpath(store)
    told = {"error": called(capsys, "convert", "ct", source, sealed)}
    assert "series-000" in told["error"]
    assert "its slices are 1.000 to 4.000 mm apart" in told["error"]
    told["json"] = called(capsys, "convert", "ct", source, sealed, "--on-error", "skip", "--json")
    assert json.JSONDecoder().raw_decode(told["json"])[0]["skipped"]  # then what was left out, for people
    told["inspect"] = called(capsys, "inspect", sealed) + called(capsys, "inspect", sealed, "--json")
    called(capsys, "inspect", sealed, "--html", str(page))
    bytes_told = {name: text.replace(source, "").encode() for name, text in told.items()}
    export(store, tmp_path / "out")
    bytes_told |= {"store": contents(store), "page": page.read_bytes(), "export": contents(tmp_path / "out")}
    for name, content in bytes_told.items():
        found = [secret for secret in secrets if secret.encode() in content]
        assert not found, (name, found)
    convert(folder, tmp_path / "named.zarr", keep_names=True, on_error="skip")
    assert b"visit-in-May" in contents(tmp_path / "named.zarr")


def test_a_patient_is_in_one_split(tmp_path: Path) -> None:
    for seed in range(6):
        series(tmp_path / "in", seed, [0, 1], name=f"{seed}-{{}}", patient=f"MRN-{seed // 3}")
    convert(tmp_path / "in", tmp_path / "a.zarr", split="exact:train=0.5,val=0.5")
    patients = {
        split: {
            sample["patient"]
            for sample in unistore.Dataset(tmp_path / "a.zarr", split=split, fields=["patient"])
        }
        for split in ("train", "val")
    }
    assert not patients["train"] & patients["val"]


def test_verify_finds_a_slice_that_changed_after_the_conversion(tmp_path: Path) -> None:
    series(tmp_path / "in", name="{}.dcm")
    convert(tmp_path / "in", tmp_path / "a.zarr")
    data_set = pydicom.dcmread(tmp_path / "in/3.dcm")
    data_set.PixelData = bytes(len(data_set.PixelData))
    data_set.save_as(tmp_path / "in/3.dcm")
    assert not verify(tmp_path / "a.zarr", against=tmp_path / "in").ok


@pytest.mark.parametrize(
    ("tags", "missing", "reason"),
    [
        ({}, "PixelSpacing", "does not state PixelSpacing"),
        ({}, "ImagePositionPatient", "does not state ImagePositionPatient"),
        ({}, "PixelData", "has no pixels of whole numbers"),
        ({"NumberOfFrames": 3}, "", "has 3 frames, but states the places of 1"),
    ],
)
def test_an_image_that_is_skipped_is_told_what_it_lacks(
    tmp_path: Path, tags: dict[str, int], missing: str, reason: str
) -> None:
    series(tmp_path / "in", name="a{}.dcm")
    series(tmp_path / "in", 1, places=[0.0], name="b{}.dcm", **tags)
    if missing:
        data_set = pydicom.dcmread(tmp_path / "in/b0.dcm")
        del data_set[missing]
        data_set.save_as(tmp_path / "in/b0.dcm")
    report = convert(tmp_path / "in", tmp_path / "a.zarr")
    assert report.sources == 1
    assert any(f"CT Image Storage, and {reason}" in note for note in report.notes), report.notes
