"""Where voxels lie, as the format says it, beside ITK's formula."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import unistore
from unistore.schemas.ct.geometry import IDENTITY, Geometry, read_geometry

SHAPE = (4, 5, 6)
SPACING = [0.7, 0.8, 2.5]
ORIGIN = [-120.0, -80.5, 300.0]
TURN = np.deg2rad(30)
DIRECTIONS = {
    "identity": np.eye(3),
    "turned about z": np.array(
        [[np.cos(TURN), -np.sin(TURN), 0], [np.sin(TURN), np.cos(TURN), 0], [0, 0, 1.0]]
    ),
    "sagittal": np.array([[0, 0, 1.0], [1, 0, 0], [0, -1, 0]]),
}


def converted(folder: Path, info: dict[str, Any], **options: Any) -> tuple[unistore.Store, unistore.Report]:
    case = folder / "in" / "case"
    case.mkdir(parents=True)
    np.save(case / "ct_original.npy", np.arange(120, dtype="i2").reshape(SHAPE) - 500)
    (case / "info.json").write_text(json.dumps(info))
    report = unistore.convert(folder / "in", folder / "a.zarr", "ct", **options)
    return unistore.Store(folder / "a.zarr"), report


def world(geometry: Geometry, index: NDArray[Any]) -> NDArray[np.float64]:
    """The document's formula."""
    direction = np.array(geometry.direction).reshape(3, 3)
    result: NDArray[np.float64] = geometry.origin + direction @ (np.array(geometry.spacing) * index)
    return result


@pytest.mark.parametrize("name", DIRECTIONS)
def test_voxels_lie_at_the_points_of_itk_in_reversed_order(tmp_path: Path, name: str) -> None:
    direction = DIRECTIONS[name]
    info = {"spacing": SPACING, "origin": ORIGIN, "direction": direction.tolist()}
    store, report = converted(tmp_path, info, info_order="xyz")
    assert not any("order is unknown" in note for note in report.notes)
    geometry = read_geometry(store, 0)
    for index in np.ndindex(*SHAPE):
        itk = np.array(ORIGIN) + direction @ np.diag(SPACING) @ np.array(index[::-1])
        np.testing.assert_allclose(world(geometry, np.array(index))[::-1], itk)
    sample = unistore.Dataset(tmp_path / "a.zarr")[0]
    assert sample["spacing"].tolist() == SPACING[::-1]


def test_the_order_of_the_axes_is_kept(tmp_path: Path) -> None:
    info = {"spacing": SPACING, "origin": ORIGIN, "direction": IDENTITY}
    store, _ = converted(tmp_path, info, info_order="zyx")
    assert read_geometry(store, 0) == Geometry(SPACING, ORIGIN, IDENTITY)
    assert {store.array(f"volumes/{name}").attributes["frame"] for name in info} == {"LPS"}


def test_geometry_of_unknown_order_is_not_stored_with_a_note(tmp_path: Path) -> None:
    info = {"spacing": SPACING, "direction": IDENTITY}
    store, report = converted(tmp_path, info)
    (note,) = [note for note in report.notes if "order is unknown" in note]
    assert note.startswith("1 file: direction, spacing in info.json ")
    assert "--info-order zyx" in note
    assert not [path for path in store.paths() if path.startswith(("volumes/spacing", "volumes/direction"))]
    assert json.loads(store.text("volumes/info")[0]) == info
    assert read_geometry(store, 0) == Geometry(None, None, None)


@pytest.mark.parametrize("frame", [None, "RAS"])
def test_numbers_in_no_frame_or_another_are_unknown(tmp_path: Path, frame: str | None) -> None:
    """Older stores have no frame, but numbers as their sources state them."""
    converted(tmp_path, {"spacing": SPACING}, info_order="zyx")
    document = tmp_path / "a.zarr" / "volumes" / "spacing" / "zarr.json"
    content = json.loads(document.read_text())
    assert content["attributes"].pop("frame") == "LPS"
    if frame is not None:
        content["attributes"]["frame"] = frame
    document.write_text(json.dumps(content))
    assert read_geometry(unistore.Store(tmp_path / "a.zarr"), 0).spacing is None


@pytest.mark.parametrize(
    ("direction", "planes"),
    [
        (None, [None, None, None]),
        (IDENTITY, ["axial", "coronal", "sagittal"]),
        ([0, 0, -1, 0, 1, 0, 1, 0, 0], ["sagittal", "coronal", "axial"]),
        (DIRECTIONS["turned about z"].reshape(-1)[::-1].tolist(), ["axial", None, None]),
    ],
)
def test_planes_are_named_by_a_direction(direction: list[float] | None, planes: list[str | None]) -> None:
    geometry = Geometry(None, None, direction)
    assert [geometry.plane(axis) for axis in range(3)] == planes
