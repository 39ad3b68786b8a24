"""Windows that were computed before: in `windows/`, beside a volume, by a preset's name, of another size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unistore
from unistore.errors import InputError

SIZE = 16
LOW, HIGH = -1350, 150  # lung: 1500 / -600


def volume(number: int, size: int = SIZE) -> np.ndarray[Any, Any]:
    values: np.ndarray[Any, Any] = np.random.default_rng(number).integers(-1024, 1500, (size,) * 3)
    return values.astype("i2")


def lung(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return ((values >= LOW) & (values <= HIGH)).astype("u1")


def save(path: Path, values: np.ndarray[Any, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, values)


PLACES = {
    "preset in windows/": ("case{}/ct_original_16.npy", "case{}/windows/lung_16.npy"),
    "preset without a size": ("case{}/ct_original_16.npy", "case{}/windows/lung.npy"),
    "preset of a volume of any name": ("case{}/ct.npy", "case{}/windows/lung_16.npy"),
    "beside the volume of a case": ("case{}/ct_original_16.npy", "case{}/lung_w1500_l-600.npy"),
    "windows/ beside volumes": ("case{}.npy", "windows/case{}_lung_w1500_l-600.npy"),
    "windows/ beside a folder of volumes": ("volumes/case{}.npy", "windows/case{}_lung_w1500_l-600.npy"),
    "preset in windows/ beside a folder of volumes": ("volumes/case{}.npy", "windows/case{}_lung_16.npy"),
    "preset in windows/ beside volumes": ("case{}.npy", "windows/case{}_lung_16.npy"),
}


@pytest.mark.parametrize("place", PLACES)
def test_windows_in_every_place_are_paired_with_their_volume(tmp_path: Path, place: str) -> None:
    image, window = PLACES[place]
    for number in range(2):
        save(tmp_path / "in" / image.format(number), volume(number))
        save(tmp_path / "in" / window.format(number), lung(volume(number)))
    report = unistore.convert(tmp_path / "in", tmp_path / "a.zarr")
    assert [(one["verdict"], one["files"]) for one in report.verdicts] == [("taken", 4)]
    data = unistore.Dataset(tmp_path / "a.zarr", unistore.Volumes(), fields=["image", "lung"])
    assert len(data) == 2
    for number in range(2):
        sample = data[number]
        assert np.array_equal(np.squeeze(sample["image"].numpy()), volume(number))
        assert np.array_equal(np.squeeze(sample["lung"].numpy()), lung(volume(number)))
    is_assumed = "w1500" not in window
    assert (
        any("lung:1500:-600, because the name does not state width" in note for note in report.notes)
        == is_assumed
    )


def test_a_window_that_contradicts_its_volume_is_refused(tmp_path: Path) -> None:
    save(tmp_path / "in/case0/ct_original_16.npy", volume(0))
    save(tmp_path / "in/case0/windows/lung_16.npy", lung(volume(1)))
    with pytest.raises(InputError, match=r"lung_16\.npy"):
        unistore.convert(tmp_path / "in", tmp_path / "a.zarr")


def test_windows_without_a_volume_are_stored_as_points(tmp_path: Path) -> None:
    for number in range(2):
        save(tmp_path / f"in/case{number}/windows/lung_16.npy", lung(volume(number)))
    unistore.convert(tmp_path / "in", tmp_path / "a.zarr")
    data = unistore.Dataset(tmp_path / "a.zarr", unistore.SparsePoints("lung"))
    for number in range(2):
        expected = np.argwhere(lung(volume(number)))
        assert np.array_equal(data[number]["coords"].numpy(), expected)


def test_points_beside_the_volume_of_a_case_are_its_window(tmp_path: Path) -> None:
    save(tmp_path / "in/case0/ct_original_16.npy", volume(0))
    indices = np.argwhere(lung(volume(0))).astype("i2")
    path = tmp_path / "in/case0/lung_w1500_l-600_sparse.npz"
    np.savez(path, indices=indices, values=np.ones(len(indices), "f2"))
    report = unistore.convert(tmp_path / "in", tmp_path / "a.zarr")
    assert {one["verdict"] for one in report.verdicts} == {"taken", "left out"}
    data = unistore.Dataset(tmp_path / "a.zarr", unistore.SparsePoints("lung"))
    assert np.array_equal(data[0]["coords"].numpy(), indices)


def test_a_window_of_another_size_is_skipped_with_a_note_of_both_sizes(tmp_path: Path) -> None:
    save(tmp_path / "in/case0/ct_original_16.npy", volume(0))
    save(tmp_path / "in/case0/windows/lung_8.npy", lung(volume(0, 8)))
    report = unistore.convert(tmp_path / "in", tmp_path / "a.zarr")
    assert any(
        "a window of 8 × 8 × 8 voxels, because the volume has 16 × 16 × 16" in note for note in report.notes
    )
    assert not unistore.Store(tmp_path / "a.zarr").has("windows/lung/bits")
    assert "lung" not in unistore.Dataset(tmp_path / "a.zarr")[0]


def test_the_window_of_the_chosen_resolution_is_taken(tmp_path: Path) -> None:
    for size in (8, 16):
        save(tmp_path / f"in/case0/ct_original_{size}.npy", volume(0, size))
        save(tmp_path / f"in/case0/windows/lung_{size}.npy", lung(volume(0, size)))
    unistore.convert(tmp_path / "in", tmp_path / "a.zarr", "ct", resolution=8)
    sample = unistore.Dataset(tmp_path / "a.zarr", unistore.Volumes(), fields=["lung"])[0]
    assert np.array_equal(np.squeeze(sample["lung"].numpy()), lung(volume(0, 8)))


@pytest.mark.parametrize("has_volumes", [True, False])
def test_a_mask_in_windows_without_a_name_needs_a_volume(tmp_path: Path, has_volumes: bool) -> None:
    for number in range(2):
        save(tmp_path / f"in/windows/case{number}_16.npy", lung(volume(number)))
        if has_volumes:
            save(tmp_path / f"in/case{number}.npy", volume(number))
    if has_volumes:
        report = unistore.convert(tmp_path / "in", tmp_path / "a.zarr")
        assert any("does not state width and level" in note for note in report.notes)
        assert len(unistore.Dataset(tmp_path / "a.zarr")) == 2
    else:
        with pytest.raises(InputError, match="does not state width and level"):
            unistore.convert(tmp_path / "in", tmp_path / "a.zarr")


def test_volumes_in_a_folder_named_windows_stay_volumes(tmp_path: Path) -> None:
    for number in range(2):
        save(tmp_path / f"in/windows/case{number}_16.npy", volume(number))
    unistore.convert(tmp_path / "in", tmp_path / "a.zarr")
    sample = unistore.Dataset(tmp_path / "a.zarr")[1]
    assert np.array_equal(np.squeeze(sample["image"].numpy()), volume(1))


def test_geometry_that_the_sources_lack_is_recorded_as_unknown(tmp_path: Path) -> None:
    save(tmp_path / "in/case0/ct_original_16.npy", volume(0))
    unistore.convert(tmp_path / "in", tmp_path / "a.zarr")
    geometry = unistore.Store(tmp_path / "a.zarr").group("volumes")["geometry"]
    assert geometry == {"unknown": ["spacing", "origin", "direction", "affine"]}
    (tmp_path / "in/case0/geometry.json").write_text('{"spacing": [1, 2, 3]}')
    unistore.convert(tmp_path / "in", tmp_path / "b.zarr")
    geometry = unistore.Store(tmp_path / "b.zarr").group("volumes")["geometry"]
    assert geometry["spacing"] == "volumes/spacing"
    assert geometry["unknown"] == ["origin", "direction", "affine"]


def test_a_window_that_fits_volumes_of_two_folders_is_an_error(tmp_path: Path) -> None:
    for folder in ("first", "second"):
        save(tmp_path / "in" / folder / "case.npy", volume(0))
    save(tmp_path / "in/windows/case_lung_16.npy", lung(volume(0)))
    with pytest.raises(InputError, match="has no image"):
        unistore.convert(tmp_path / "in", tmp_path / "a.zarr")
