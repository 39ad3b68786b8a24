"""Samples of CT stores under MONAI: the meta equals that of LoadImage, and the code of the page runs.

The readers of LoadImage are the oracles: nibabel for NIfTI, ITK and pydicom for a DICOM series.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pydicom
import pytest
import torch
from monai import transforms
from pydicom.data import get_testdata_file
from pydicom.uid import generate_uid

import unistore

ROOT = Path(__file__).parents[3]
specification: Any = importlib.util.spec_from_file_location(
    "medical_meta", ROOT / "examples" / "medical_meta.py"
)
medical_meta: Any = importlib.util.module_from_spec(specification)
specification.loader.exec_module(medical_meta)


def oblique() -> Any:
    """Return an affine (4, 4) whose axes are those of no patient."""
    matrix = np.array([[-0.7, 0.1, 0, 12], [0.1, 0.7, 0.2, -5], [0, -0.3, 2.5, 100], [0, 0, 0, 1.0]])
    axes, _ = np.linalg.qr(matrix[:3, :3])
    matrix[:3, :3] = axes * (0.7, 0.8, 2.5)
    return matrix


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two cases of a volume and a label, and their store."""
    path = tmp_path_factory.mktemp("ct")
    generator = np.random.default_rng(0)
    for number, shape in enumerate([(64, 48, 48), (48, 64, 48)]):
        case = path / "cases" / f"case{number}"
        (case / "segmentations").mkdir(parents=True)
        volume = generator.normal(0, 200, shape).astype(np.int16)
        label = np.zeros(shape, np.uint8)
        label[20:30, 22:32, 10:20] = 1
        affine = oblique()
        nibabel.save(nibabel.Nifti1Image(volume, affine), case / "ct.nii.gz")
        nibabel.save(nibabel.Nifti1Image(label, affine), case / "segmentations" / "tumour.nii.gz")
    unistore.convert(path / "cases", path / "ct.zarr", "ct", foreground_locations=1000)
    return path


def read(folder: Path, kind: Any, *fields: str, **options: Any) -> unistore.Dataset[Any]:
    """Return a dataset whose samples are for MONAI."""

    def transform(sample: Any) -> Any:
        return medical_meta.to_monai(sample, **options)

    return unistore.Dataset(
        folder / "ct.zarr", kind, [*medical_meta.FIELDS, "tumour", *fields], transform=transform
    )


def load(folder: Path, source: str) -> Any:
    """Return the image (1, W, H, D) as MONAI reads it."""
    return transforms.LoadImage(ensure_channel_first=True)(folder / "cases" / source)


def test_a_volume_equals_load_image(folder: Path) -> None:
    to_ras = transforms.Orientation("RAS", labels=None)
    for sample in read(folder, unistore.Volumes()):
        ours = sample["image"]
        theirs = load(folder, ours.meta["filename_or_obj"])
        np.testing.assert_allclose(ours.meta["original_affine"], theirs.meta["original_affine"], atol=1e-6)
        assert ours.meta["spatial_shape"].tolist() == theirs.meta["spatial_shape"].tolist()
        assert ours.meta["space"] == theirs.meta["space"]
        assert ours.pixdim.tolist() == pytest.approx(theirs.pixdim.flip(0).tolist(), rel=1e-6)
        assert ours.meta["spacing"].tolist() == pytest.approx(ours.pixdim.tolist(), rel=1e-6)
        assert torch.equal(ours.as_tensor(), theirs.as_tensor().permute(0, 3, 2, 1))
        assert transforms.EnsureChannelFirst()(ours).shape == ours.shape
        mine, placed = to_ras(ours), to_ras(theirs)
        assert torch.equal(mine.as_tensor().float(), placed.as_tensor())
        np.testing.assert_allclose(mine.affine, placed.affine, atol=1e-6)


def test_a_patch_equals_the_crop_of_load_image_in_voxels_and_affine(folder: Path) -> None:
    to_ras = transforms.Orientation("RAS", labels=None)
    for sample in read(folder, unistore.Patches((16, 24, 32), per_volume=3), "corner"):
        ours = sample["image"]
        theirs = load(folder, ours.meta["filename_or_obj"])
        start = sample["corner"].flip(0)
        crop = transforms.SpatialCrop(roi_start=start, roi_end=start + torch.tensor([32, 24, 16]))(theirs)
        np.testing.assert_allclose(ours.meta["original_affine"], crop.meta["original_affine"], atol=1e-6)
        mine, placed = to_ras(ours), to_ras(crop)
        assert torch.equal(mine.as_tensor().float(), placed.as_tensor())
        np.testing.assert_allclose(mine.affine, placed.affine, atol=1e-5)


@pytest.mark.parametrize("kind", [unistore.Volumes(step=2), unistore.Patches(8, per_volume=2, step=2)])
def test_a_step_of_two_keeps_the_original_affine_and_doubles_the_spacing(folder: Path, kind: Any) -> None:
    for sample in read(folder, kind, step=2):
        meta = sample["image"].meta
        theirs = load(folder, meta["filename_or_obj"])
        np.testing.assert_allclose(meta["original_affine"], theirs.meta["original_affine"], atol=1e-5)
        assert sample["image"].pixdim.tolist() == pytest.approx(
            (2 * theirs.pixdim.flip(0)).tolist(), rel=1e-6
        )


def test_a_saved_label_equals_the_source(folder: Path, tmp_path: Path) -> None:
    save = transforms.SaveImage(
        tmp_path, resample=True, mode="nearest", output_dtype=np.uint8, separate_folder=False, print_log=False
    )
    save(read(folder, unistore.Volumes())[1]["tumour"])
    (path,) = tmp_path.iterdir()
    saved = nibabel.load(path)
    source = nibabel.load(folder / "cases" / "case1" / "segmentations" / "tumour.nii.gz")
    np.testing.assert_allclose(saved.affine, source.affine, atol=1e-5)
    assert np.asarray(source.dataobj).any()
    assert np.array_equal(np.asarray(saved.dataobj), np.asarray(source.dataobj))


SLICES, ROWS, COLUMNS = 6, 20, 16
DISTANCE = 2.5  # of slices, in mm
ASCENDING = range(SLICES)  # instance numbers of slices, which are in the order of their positions


def write_series(folder: Path, instance_numbers: Iterable[int]) -> None:
    """Write a DICOM series of slices that are oblique to the patient, with pixels of 0.8 × 0.6 mm.

    The header is that of pydicom's CT_small.dcm: little endian, uncompressed, HU = value - 1024.
    """
    folder.mkdir(parents=True)
    uid = generate_uid()
    right, down, _ = (oblique()[:3, :3] / (0.7, 0.8, 2.5)).T
    normal = np.cross(right, down)
    pixels = np.random.default_rng(1).integers(0, 4096, (SLICES, ROWS, COLUMNS)).astype("<i2")
    for place, number in enumerate(instance_numbers):
        header = pydicom.dcmread(get_testdata_file("CT_small.dcm", download=False))
        header.SeriesInstanceUID, header.SOPInstanceUID = uid, generate_uid()
        header.Rows, header.Columns = ROWS, COLUMNS
        header.PixelSpacing = [0.8, 0.6]  # between rows, between columns
        header.ImageOrientationPatient = [*np.round((*right, *down), 9)]
        header.ImagePositionPatient = [*np.round(np.array([-40, 25, 100]) + DISTANCE * place * normal, 9)]
        header.InstanceNumber = number
        header.PixelData = pixels[place].tobytes()
        header.save_as(folder / f"{(place * 5) % SLICES}.dcm")  # names in another order


def read_series(tmp_path: Path, instance_numbers: Iterable[int]) -> Any:
    """Return the image of the only volume of a store of a series."""
    write_series(tmp_path / "series", instance_numbers)
    unistore.convert(tmp_path / "series", tmp_path / "ct.zarr", "ct")
    kind = unistore.Volumes()
    (sample,) = unistore.Dataset(
        tmp_path / "ct.zarr", kind, medical_meta.FIELDS, transform=medical_meta.to_monai
    )
    return sample["image"]


def load_series(tmp_path: Path, reader: str) -> Any:
    """Return the image (1, W, H, D) of the series as MONAI reads it."""
    return transforms.LoadImage(reader, ensure_channel_first=True)(tmp_path / "series")


@pytest.mark.parametrize(
    ("reader", "instance_numbers"),
    [
        ("ITKReader", ASCENDING),
        ("ITKReader", ASCENDING[::-1]),
        ("ITKReader", [3, 0, 5, 1, 4, 2]),
        ("PydicomReader", ASCENDING),
    ],
)
def test_a_dicom_series_equals_load_image(
    tmp_path: Path, reader: str, instance_numbers: Sequence[int]
) -> None:
    ours = read_series(tmp_path, instance_numbers)
    theirs = load_series(tmp_path, reader)
    assert ours.shape == (1, SLICES, ROWS, COLUMNS)
    assert torch.equal(ours.as_tensor().float(), theirs.as_tensor().permute(0, 3, 2, 1))
    assert ours.meta["space"] == theirs.meta["space"] == "RAS"
    np.testing.assert_allclose(ours.meta["original_affine"], theirs.meta["original_affine"], atol=1e-5)
    assert list(ours.meta["spatial_shape"]) == list(theirs.meta["spatial_shape"])
    assert ours.pixdim.tolist() == pytest.approx([DISTANCE, 0.8, 0.6], rel=1e-6)
    assert ours.meta["spacing"].tolist() == pytest.approx(ours.pixdim.tolist(), rel=1e-6)
    assert theirs.pixdim.tolist() == pytest.approx([0.6, 0.8, DISTANCE], rel=1e-6)
    assert list(theirs.meta["spacing"]) == pytest.approx([0.6, 0.8, DISTANCE], rel=1e-6)
    to_ras = transforms.Orientation("RAS", labels=None)
    mine, placed = to_ras(ours), to_ras(theirs)
    assert torch.equal(mine.as_tensor().float(), placed.as_tensor())
    np.testing.assert_allclose(mine.affine, placed.affine, atol=1e-5)


def test_readers_of_dicom_order_slices_by_other_headers(tmp_path: Path) -> None:
    """The store and ITKReader order slices by their positions, PydicomReader by InstanceNumber."""
    ours = read_series(tmp_path, ASCENDING[::-1])
    theirs = load_series(tmp_path, "PydicomReader")
    stacked = theirs.as_tensor().permute(0, 3, 2, 1)
    assert not torch.equal(ours.as_tensor().float(), stacked)
    assert torch.equal(ours.as_tensor().float(), stacked.flip(1))
    # in the patient, each voxel is at the same place
    to_ras = transforms.Orientation("RAS", labels=None)
    mine, placed = to_ras(ours), to_ras(theirs)
    assert torch.equal(mine.as_tensor().float(), placed.as_tensor())
    np.testing.assert_allclose(mine.affine, placed.affine, atol=1e-5)


@pytest.mark.parametrize("reader", ["ITKReader", "PydicomReader"])
def test_a_dicom_series_has_a_name_and_an_axis_of_channels(tmp_path: Path, reader: str) -> None:
    """LoadImage has the path, which may identify the patient, and no number for the axis that it adds."""
    ours = read_series(tmp_path, ASCENDING)
    theirs = load_series(tmp_path, reader)
    assert ours.meta["filename_or_obj"] == "series-0001"
    assert theirs.meta["filename_or_obj"] == str(tmp_path / "series")
    assert ours.meta["original_channel_dim"] == 0
    assert np.isnan(theirs.meta["original_channel_dim"])
    assert transforms.EnsureChannelFirst()(ours).shape == ours.shape


@pytest.mark.timeout(300)
def test_the_code_of_the_page_runs(folder: Path) -> None:
    page = (ROOT / "docs" / "monai.md").read_text()
    code = "\n\n".join(re.findall(r"^```py\n(.*?)^```$", page, re.DOTALL | re.MULTILINE))
    assert code.count("unistore.Loader") == 2
    (folder / "page.py").write_text(code)
    paths = [str(ROOT / "examples"), str(ROOT)]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "page.py"]
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    saved = nibabel.load(folder / "predicted" / "ct_trans.nii.gz")
    np.testing.assert_allclose(saved.affine, oblique(), atol=1e-5)
    assert saved.shape == (64, 48, 48)
