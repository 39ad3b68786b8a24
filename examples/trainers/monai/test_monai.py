"""Samples of CT stores under MONAI: the meta equals that of LoadImage, and the code of the page runs."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import torch
from monai import transforms

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
