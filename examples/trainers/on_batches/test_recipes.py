"""Augmentations of batches keep images and labels together, and change every sample in its own way."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import torch

import unistore

specification: Any = importlib.util.spec_from_file_location("recipes", Path(__file__).parent / "recipes.py")
recipes: Any = importlib.util.module_from_spec(specification)
specification.loader.exec_module(recipes)
SIZE = 16


@pytest.fixture(scope="module")
def volumes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two volumes; a voxel has the label if its value is above 500."""
    folder = tmp_path_factory.mktemp("ct")
    generator = np.random.default_rng(0)
    for number in range(2):
        case = folder / "cases" / f"case{number}"
        (case / "segmentations").mkdir(parents=True)
        volume = generator.integers(-1000, 1000, (24, 24, 24)).astype(np.int16)
        label = (volume > 500).astype(np.uint8)
        nibabel.save(nibabel.Nifti1Image(volume, np.eye(4)), case / "ct.nii")
        nibabel.save(nibabel.Nifti1Image(label, np.eye(4)), case / "segmentations" / "tumour.nii")
    unistore.convert(folder / "cases", folder / "ct.zarr", "ct")
    return folder / "ct.zarr"


def batches(dataset: Any, transform: Any) -> list[Any]:
    """Return the batches of an epoch. A transform is called with the batch on the device."""
    options = {"batch_transform": transform, "device": "cpu"} if transform else {}
    with unistore.Loader(dataset, 4, shuffle=True, seed=1, num_workers=1, **options) as loader:
        return list(loader)


@pytest.mark.parametrize("name", ["flip_patches", "rotate_patches"])
def test_image_and_label_change_together(volumes: Path, name: str) -> None:
    torch.manual_seed(0)
    kind = unistore.Patches(SIZE, per_volume=8)
    dataset = unistore.Dataset(volumes, kind, ["image", "tumour"])
    changed = kept = 0
    for before, after in zip(batches(dataset, None), batches(dataset, getattr(recipes, name)), strict=True):
        assert torch.equal(after["index"], before["index"])
        assert after["image"].dtype == torch.float32
        assert after["tumour"].dtype == before["tumour"].dtype
        for label, source, image in zip(after["tumour"], before["tumour"], after["image"], strict=True):
            threshold = image[label > 0].min()
            assert torch.equal(label > 0, image >= threshold)
            changed += not torch.equal(label, source)
            kept += torch.equal(label, source)
    assert changed > 0
    assert kept > 0


def test_each_cloud_turns_by_an_angle_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "clouds").mkdir()
    generator = np.random.default_rng(0)
    for number in range(4):
        np.save(tmp_path / "clouds" / f"{number}.npy", generator.normal(size=(50 + number, 3)))
    unistore.convert(tmp_path / "clouds", tmp_path / "clouds.zarr", "point_cloud")
    dataset = unistore.Dataset(tmp_path / "clouds.zarr")
    (before,) = batches(dataset, None)
    (after,) = batches(dataset, recipes.turn_clouds)
    assert torch.equal(before["offsets"], after["offsets"])
    assert torch.equal(before["xyz"][:, 2], after["xyz"][:, 2])
    torch.testing.assert_close(after["xyz"].norm(dim=1), before["xyz"].norm(dim=1))
    turned = torch.view_as_complex(after["xyz"][:, :2].contiguous())
    angles = (turned / torch.view_as_complex(before["xyz"][:, :2].contiguous())).angle()
    means = []
    for start, stop in zip(before["offsets"][:-1], before["offsets"][1:], strict=True):
        own = angles[start:stop]
        torch.testing.assert_close(own, own[:1].expand_as(own), atol=1e-4, rtol=0)
        means.append(round(float(own[0]), 3))
    assert len(set(means)) == len(means) == 4
