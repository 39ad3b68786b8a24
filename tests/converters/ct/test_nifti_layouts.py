"""NIfTI in the layouts of TotalSegmentator, nnU-Net and the Medical Segmentation Decathlon, one command each.

Crops of a real CT, written by nibabel; labels are thresholds of them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest

import unistore
from unistore import convert, export, verify
from unistore.errors import InputError

REAL = Path(__file__).parents[2] / "data/samples/ct/totalseg_ct_cropped.nii.gz"


def save(path: Path, voxels: np.ndarray, affine: Any = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(voxels, nibabel.load(REAL).affine if affine is None else affine), path)
    return path


def crop(number: int) -> np.ndarray:
    return np.asanyarray(nibabel.load(REAL).dataobj)[: 30 + number, :25, :20]


def classes(voxels: np.ndarray) -> np.ndarray:
    return (voxels > -100).astype("u1") + (voxels > 50)


def volume(sample: Any, key: str) -> np.ndarray:
    return np.asarray(sample[key])


def total_segmentator(folder: Path) -> Path:
    for number in range(2):
        voxels = crop(number)
        save(folder / f"s{number:04d}/ct.nii.gz", voxels)
        for organ, least in (("liver", 100), ("spleen", 200)):
            save(folder / f"s{number:04d}/segmentations/{organ}.nii.gz", (voxels > least).astype("u1"))
    return folder


def nnunet(folder: Path, labels: Any, channel: str = "_0000") -> Path:
    for number in range(2):
        voxels = crop(number)
        save(folder / f"imagesTr/case_{number}{channel}.nii.gz", voxels)
        save(folder / f"labelsTr/case_{number}.nii.gz", classes(voxels))
    save(folder / f"imagesTs/case_2{channel}.nii.gz", crop(2))
    (folder / "dataset.json").write_text(json.dumps({"labels": labels}))
    return folder


def test_a_total_segmentator_folder_is_converted_verified_and_exported_unchanged(tmp_path: Path) -> None:
    folder = total_segmentator(tmp_path / "in")
    convert(folder, tmp_path / "a.zarr", window=("bone",))
    dataset = unistore.Dataset(tmp_path / "a.zarr", unistore.Volumes())
    assert len(dataset) == 2
    for number in range(2):
        sample, voxels = dataset[number], crop(number).T
        np.testing.assert_array_equal(volume(sample, "image"), voxels)
        np.testing.assert_array_equal(volume(sample, "liver"), voxels > 100)
        np.testing.assert_array_equal(volume(sample, "spleen"), voxels > 200)
        np.testing.assert_array_equal(volume(sample, "bone"), (voxels >= -450) & (voxels <= 1050))
        assert volume(sample, "spacing").tolist() == [1.5] * 3
    receipt = verify(tmp_path / "a.zarr", against=folder).receipt
    assert receipt is not None
    assert receipt.values == sum(3 * crop(number).size for number in range(2)) + 2 * 4, "and 4 facts"
    export(tmp_path / "a.zarr", tmp_path / "same")
    export(tmp_path / "a.zarr", tmp_path / "nifti", to="nifti")
    files = sorted(path.relative_to(folder) for path in folder.rglob("*.nii.gz"))
    for out in (tmp_path / "same", tmp_path / "nifti"):
        assert sorted(path.relative_to(out) for path in out.rglob("*.nii.gz")) == files
        for name in files:
            source, again = nibabel.load(folder / name), nibabel.load(out / name)
            np.testing.assert_array_equal(source.dataobj, again.dataobj)
            np.testing.assert_array_equal(source.affine, again.affine)
            assert source.get_data_dtype() == again.get_data_dtype()


@pytest.mark.parametrize(
    ("labels", "channel"),
    [
        ({"background": 0, "liver": 1, "tumour": 2, "both": [1, 2]}, "_0000"),
        ({"0": "background", "1": "liver", "2": "tumour"}, ""),
    ],
    ids=["nnU-Net", "MSD"],
)
def test_labels_of_nnunet_keep_the_class_names_of_dataset_json(
    tmp_path: Path, labels: Any, channel: str
) -> None:
    convert(nnunet(tmp_path / "in", labels, channel), tmp_path / "a.zarr")
    label = unistore.Store(tmp_path / "a.zarr").array("labels/label/label")
    assert label.attributes["classes"] == {"0": "background", "1": "liver", "2": "tumour"}
    sample = unistore.Dataset(tmp_path / "a.zarr", unistore.Volumes())[1]
    expected = crop(1).T
    np.testing.assert_array_equal(volume(sample, "label"), classes(expected))
    present = unistore.Store(tmp_path / "a.zarr").array("labels/label/present").read()
    np.testing.assert_array_equal(present, [True, True, False])


def test_a_label_number_with_two_class_names_is_an_error(tmp_path: Path) -> None:
    nnunet(tmp_path / "in/a", {"background": 0, "liver": 1, "tumour": 2})
    nnunet(tmp_path / "in/b", {"background": 0, "lung": 1, "tumour": 2})
    with pytest.raises(InputError, match=r"label 1 is 'lung', but 'liver' in a/"):
        convert(tmp_path / "in", tmp_path / "a.zarr")


def test_a_label_with_another_geometry_than_its_volume_is_an_error(tmp_path: Path) -> None:
    save(tmp_path / "in/p1/ct.nii.gz", crop(0))
    save(tmp_path / "in/p1/segmentations/liver.nii.gz", (crop(0) > 100).astype("u1"), np.diag([1.0, 1, 1, 1]))
    with pytest.raises(InputError) as error:
        convert(tmp_path / "in", tmp_path / "a.zarr")
    assert {problem.kind for problem in error.value.problems} == {"geometry"}
