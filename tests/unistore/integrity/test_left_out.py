"""What sources hold and a store does not is named at conversion, and nothing is lossless then."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np
import pytest

import unistore

Write = Callable[[Path], dict[str, Any]]


def aloha(folder: Path) -> dict[str, Any]:
    with h5py.File(folder / "episode_0.hdf5", "w") as file:
        file["action"] = np.zeros((5, 14))
        file["observations/qpos"] = np.zeros((5, 14))
        file["language_instruction"] = "pick the cup"
        file["offsets"] = np.zeros(3)
        file["extra/calibration"] = np.zeros(5000)
    return {"family": "trajectory", "ignore": ["observations/depth"]}


def robomimic(folder: Path) -> dict[str, Any]:
    with h5py.File(folder / "demos.hdf5", "w") as file:
        for number in range(2):
            file[f"data/demo_{number}/actions"] = np.zeros((4, 7))
            file[f"data/demo_{number}/obs/arm"] = np.ones((4, 3))
            file[f"data/demo_{number}/obs/depth"] = np.ones((4, 3))
        file["data/demo_1/rewards"] = np.ones(4)
        file["camera/intrinsics"] = np.eye(3)
        file["note"] = "left"
        file["mask/train"] = [b"demo_0"]
    return {"family": "trajectory", "ignore": ["obs/depth"], "columns": "intersection"}


def resized(folder: Path) -> dict[str, Any]:
    with h5py.File(folder / "run.hdf5", "w") as file:
        file["actions"] = np.zeros((4, 7))
        file["terminals"] = np.zeros(4, bool)
        file["observations/camera"] = np.zeros((4, 16, 16, 3), np.uint8)
    return {"family": "trajectory", "image_size": 8, "images": "resized"}


def rows_mapped(folder: Path) -> dict[str, Any]:
    np.savez(folder / "a.npz", data=np.zeros((9, 2)), weight=np.zeros(9), names=np.array(["a", "b"]))
    return {"family": "rows", "map": {"weight": "weight"}}


def rows_side_by_side(folder: Path) -> dict[str, Any]:
    np.save(folder / "image.npy", np.zeros((9, 4, 4), np.uint8))
    np.save(folder / "label.npy", np.arange(9))
    return {"family": "rows", "map": {"label": "label"}}


def rows_intersection(folder: Path) -> dict[str, Any]:
    for number in range(2):
        with h5py.File(folder / f"{number}.h5", "w") as file:
            fields = [("a", "f4"), ("b", "f4")] if number else [("a", "f4")]
            file["table"] = np.zeros(9, fields)
            if number:
                file["weight"] = np.zeros(9)
    return {"family": "rows", "columns": "intersection"}


def rows_bookkeeping(folder: Path) -> dict[str, Any]:
    with h5py.File(folder / "a.h5", "w") as file:
        file["data"] = np.zeros((9, 2))
        file["_i_data/sorted"] = np.arange(3)
        file["texts"] = np.array([b"a"] * 9, h5py.string_dtype())
    return {"family": "rows", "map": {"data": "data"}}


def cloud_columns(folder: Path) -> dict[str, Any]:
    with h5py.File(folder / "cloud.h5", "w") as file:
        for axis in "xyz":
            file[f"points/{axis}"] = np.linspace(0, 1, 9)
            file[f"points/{axis.upper()}"] = np.arange(9)
        file["points/scale"] = 0.1
        file["other/thing"] = np.zeros(3)
    return {"family": "point_cloud"}


def cloud_segments(folder: Path) -> dict[str, Any]:
    with h5py.File(folder / "scene.h5", "w") as file:
        for segment in range(2):
            group = file.create_group(f"segments/segment_{segment:04d}")
            for axis in "xyz":
                group[axis] = np.linspace(0, 1, 5)
            group["unique_labels"] = np.arange(2)
            group["indices"] = np.arange(5)
    return {"family": "point_cloud"}


def cloud_arrays(folder: Path) -> dict[str, Any]:
    xyz = np.random.default_rng(0).normal(size=(9, 3))
    np.savez(folder / "cloud.npz", xyz=xyz, label=np.zeros(9, int), scene=np.array("kitchen"))
    return {"family": "point_cloud"}


def ct_points(folder: Path) -> dict[str, Any]:
    case = folder / "case_0" / "windows"
    case.mkdir(parents=True)
    indices, values = np.argwhere(np.ones((3, 3, 3))).astype(np.int16), np.linspace(0.1, 1, 27)
    np.savez(case / "lung_w1500_l-600_sparse.npz", indices=indices, values=values, affine=np.eye(4))
    return {"family": "ct"}


def spike_images(folder: Path) -> dict[str, Any]:
    for role in ("spike", "blur"):
        (folder / "seq" / role).mkdir(parents=True)
    spikes = (np.random.default_rng(0).random((8, 10, 12)) < 0.4).astype(np.uint8)
    np.savez(folder / "seq/spike/000.npz", spk=spikes, exposure=np.zeros(3))
    pixels = np.random.default_rng(1).integers(0, 65535, (20, 24, 3), dtype=np.uint16)
    cv2.imwrite(str(folder / "seq/blur/000.png"), pixels)
    return {"family": "spike", "convert_images": True}


NAMES: dict[Write, tuple[str, ...]] = {
    aloha: ("extra/calibration", "offsets (only as an attribute)"),
    robomimic: ("camera/intrinsics", "data/demo_N/obs/depth", "data/demo_N/rewards"),
    resized: ("observations/camera (only resized)",),
    rows_mapped: ("data", "names"),
    rows_side_by_side: ("image",),
    rows_intersection: ("table/b", "weight"),
    rows_bookkeeping: ("_i_data/sorted", "texts"),
    cloud_columns: ("other/thing", "points/X", "points/Y", "points/Z"),
    cloud_segments: ("segments/segment_N/indices", "segments/segment_N/unique_labels"),
    cloud_arrays: ("scene",),
    ct_points: ("lung_wN_l-N_sparse.npz: affine",),
    spike_images: ("blur/N.png (alpha, or more than N bits)", "exposure"),
}
"""What verify names, by what writes the sources and returns how they are converted."""


@pytest.mark.parametrize("write", NAMES, ids=lambda write: write.__name__)
def test_content_that_is_not_stored_is_named_by_notes_and_receipt(write: Write, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    options = write(source)
    report = unistore.convert(source, tmp_path / "a.zarr", options.pop("family"), **options)
    receipt = unistore.verify(tmp_path / "a.zarr", against=source).receipt
    assert receipt is not None
    assert receipt.left_out == tuple(sorted(NAMES[write]))
    assert not receipt.line.startswith("lossless")
    notes = re.sub(r"\d+", "N", " ".join(report.notes))
    for name in receipt.left_out:
        bare = re.sub(r" \(.*", "", name).removeprefix("data/demo_N/")
        assert bare in notes or bare.partition("/")[0] in notes.split(": ")[-1], name


def test_a_mask_that_names_missing_episodes_is_reported_as_not_stored(tmp_path: Path) -> None:
    robomimic(tmp_path)
    path = tmp_path / "demos.hdf5"
    with h5py.File(path, "r+") as file:
        file["mask/valid"] = [b"demo_1", b"demo_7"]
    report = unistore.convert(path, tmp_path / "a.zarr", columns="union")
    receipt = unistore.verify(tmp_path / "a.zarr", against=path).receipt
    assert receipt is not None
    assert receipt.left_out == ("camera/intrinsics", "mask/valid")
    assert any("mask/valid" in note and "demo_7" in note for note in report.notes)
