"""Clouds known by the names and shapes of what they hold, against what h5py and numpy read."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import unistore
from tests.support.converter_contract import check_contract
from tests.support.family_converters import point_cloud
from unistore.cli.main import main
from unistore.converters.detection import survey
from unistore.converters.source_scan import scan_sources
from unistore.errors import InputError

RANDOM = np.random.default_rng(5)


def points(rows: int = 20, width: int = 3, dtype: str = "f4") -> np.ndarray:
    return (RANDOM.random((rows, width)) * 100).astype(dtype)


def hdf5(path: Path, **values: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for key, each in values.items():
            file[key.replace("__", "/")] = each
    return path


def npz(path: Path, **values: np.ndarray) -> Path:
    np.savez(path, **values)
    return path


def save(folder: Path, **values: np.ndarray) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, each in values.items():
        np.save(folder / f"{name}.npy", each)
    return folder


def families(path: Path) -> dict[str, str]:
    """Family that takes each file, by its name; ``"!"`` where it is refused."""
    found = survey([path])
    return {path.name: "!" if answer.problem else answer.family for path, answer in found}


def xyz_of(converted: Any) -> np.ndarray:
    order = np.argsort(converted.arrays["points/source_row"])
    return np.asarray(converted.arrays["points/xyz"][order])


NAMES = ("xyz", "coord", "points", "pos", "point_cloud", "vertices", "Coord")


@pytest.mark.parametrize(("name", "write"), [*((name, hdf5) for name in NAMES), ("xyz", npz), ("pos", npz)])
def test_coordinates_are_found_by_every_usual_name(
    tmp_path: Path, name: str, write: Callable[..., Path]
) -> None:
    values, colors = points(), RANDOM.integers(0, 255, (20, 3)).astype("u1")
    path = write(tmp_path / ("a.h5" if write is hdf5 else "a.npz"), **{name: values, "colors": colors})
    assert families(tmp_path) == {path.name: "point_cloud"}
    converted = check_contract(point_cloud(), [path], {"points/colors": colors})
    np.testing.assert_array_equal(xyz_of(converted), values)
    said = any("because of its name; --map xyz=NAME chooses another" in note for note in converted.scan.notes)
    assert said == (name != "xyz")


@pytest.mark.parametrize("write", [hdf5, npz])
def test_columns_after_the_coordinates_become_features(tmp_path: Path, write: Callable[..., Path]) -> None:
    values = points(width=7)
    path = write(tmp_path / ("a.h5" if write is hdf5 else "a.npz"), points=values)
    converted = check_contract(point_cloud(), [path], {"points/features": values[:, 3:]})
    np.testing.assert_array_equal(xyz_of(converted), values[:, :3])
    unistore.convert(path, tmp_path / "a.zarr")
    assert unistore.verify(tmp_path / "a.zarr", against=[path]).problems == ()
    path.unlink()
    write(path, points=values + 1)
    assert unistore.verify(tmp_path / "a.zarr", against=[path]).problems != ()
    path.unlink()
    write(path, points=values, features=values)
    with pytest.raises(InputError, match="would be stored as 'features', which exists"):
        scan_sources(point_cloud(), [path])


def test_npy_files_of_one_cloud_become_the_columns_of_one_source(tmp_path: Path) -> None:
    made = {}
    for name in ("scene_1", "scene_2"):
        made[name] = {"coord": points(), "color": points().astype("u1"), "segment20": np.arange(20)}
        save(tmp_path / "a" / name, **made[name])
    save(tmp_path / "a", scan_points_1=points(), scan_labels_1=np.arange(20), scan_labels_2=np.arange(9))
    found = families(tmp_path / "a")
    assert found["scan_labels_2.npy"] == "rows"
    assert {family for name, family in found.items() if name != "scan_labels_2.npy"} == {"point_cloud"}
    scan = scan_sources(point_cloud(columns="union"), [tmp_path / "a"])
    assert [source.name for source in scan.sources] == [
        "scan_points_1.npy",
        "scene_1/coord.npy",
        "scene_2/coord.npy",
    ]
    assert "skipped, of another family (unistore convert rows): scan_labels_2.npy" in scan.notes
    both = [tmp_path / "a/scene_1", tmp_path / "a/scene_2"]
    oracle = {
        f"points/{key}": np.concatenate([made[name][key] for name in made]) for key in ("color", "segment20")
    }
    converted = check_contract(point_cloud(), both, oracle)
    np.testing.assert_array_equal(
        converted.arrays["points/xyz"], np.concatenate([made[name]["coord"] for name in made])
    )
    unistore.convert(both, tmp_path / "a.zarr")
    assert unistore.verify(tmp_path / "a.zarr", against=both).problems == ()
    np.save(tmp_path / "a/scene_2/color.npy", points().astype("u1") + np.uint8(1))
    assert unistore.verify(tmp_path / "a.zarr", against=both).problems != ()


@pytest.mark.parametrize(
    ("name", "shape", "family"),
    [
        ("points", (9, 3), "point_cloud"),
        ("a_xyz_3", (9, 3), "point_cloud"),
        ("cloud", (9, 6), "point_cloud"),
        ("points", (9, 40), "rows"),
        ("points", (9, 5, 3), "rows"),
        ("appoints", (9, 3), "rows"),
        ("pos", (9, 3), "!"),
    ],
)
def test_the_name_and_shape_of_an_array_decide_its_family(
    tmp_path: Path, name: str, shape: tuple[int, ...], family: str
) -> None:
    folder, _, stem = name.rpartition("__")
    save(tmp_path / folder, **{stem: np.zeros(shape, "f4")})
    assert set(families(tmp_path).values()) == {family}


def test_an_array_of_any_name_is_a_cloud_if_the_family_is_given(tmp_path: Path) -> None:
    values = points(width=4)
    save(tmp_path / "a", room=values)
    unistore.convert(tmp_path / "a", tmp_path / "a.zarr", "point_cloud")
    sample = unistore.Dataset(tmp_path / "a.zarr", unistore.Segments(coordinates="absolute"))[0]
    np.testing.assert_array_equal(sample["xyz"], values[:, :3])
    np.testing.assert_array_equal(sample["features"], values[:, 3:])
    hdf5(tmp_path / "a/b.h5", coord=points())
    assert len(scan_sources(point_cloud(), [tmp_path / "a"]).sources) == 1, "a file beside clouds"


def test_positions_beside_images_are_rows(tmp_path: Path) -> None:
    images = np.zeros((9, 4, 4, 3), "u1")
    hdf5(tmp_path / "a.h5", pos=points(9), image=images)
    hdf5(tmp_path / "b.h5", points=points(9), image=images)
    npz(tmp_path / "c.npz", coords=points(9), image=images)
    assert set(families(tmp_path).values()) == {"rows"}


@pytest.mark.parametrize("write", [hdf5, npz])
def test_both_commands_offered_for_an_unclear_file_convert_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[..., Path]
) -> None:
    values = {"pos": points(9), "energy": np.arange(9)}
    path = write(tmp_path / ("a b.h5" if write is hdf5 else "a b.npz"), **values)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        unistore.convert(path, tmp_path / "asked.zarr")
    (problem,) = caught.value.problems
    assert "may be a point cloud" in problem.message
    counts = []
    for command in problem.advice.split(" or "):
        words = shlex.split(command)
        with pytest.raises(SystemExit) as left:
            main(words[1:])
        assert left.value.code in (None, 0)
        counts.append(len(unistore.Dataset(words[-1])))
        Path(words[-1]).rename(tmp_path / f"{len(counts)}.zarr")
    assert counts == [1, 9]


def test_several_coordinates_are_an_error_until_map_selects_one(tmp_path: Path) -> None:
    path = hdf5(tmp_path / "a.h5", coord=points(), vertices=points())
    with pytest.raises(InputError, match=r"contains coord and vertices.*--map xyz=coord"):
        scan_sources(point_cloud(), [path])
    scan = scan_sources(point_cloud(map={"xyz": "coord"}), [path])
    assert [field.path for field in scan.tables[0].fields][:2] == ["points/xyz", "points/vertices"]
    path = hdf5(tmp_path / "b.h5", p__coord=points(), q__coord=points())
    with pytest.raises(InputError, match=r"several groups contain x, y, z: p, q.*--map xyz=p/coord"):
        scan_sources(point_cloud(), [path])
    scan = scan_sources(point_cloud(map={"xyz": "p/coord"}), [path])
    assert scan.sources[0].detail.layout.paths == ["p/coord"]


def test_raw_integers_beside_scaled_coordinates_are_stored_only_if_mapped(tmp_path: Path) -> None:
    scaled = {axis: RANDOM.random(7) for axis in "xyz"}
    raw = {axis: np.arange(7, dtype="i4") for axis in "XYZ"}
    path = hdf5(tmp_path / "a.h5", **scaled, **raw)
    assert families(path) == {"a.h5": "point_cloud"}
    converted = check_contract(point_cloud(), [path])
    np.testing.assert_array_equal(xyz_of(converted), np.stack([scaled[axis] for axis in "xyz"], axis=1))
    (note,) = [note for note in converted.scan.notes if "before scaling" in note]
    assert note == "not stored, because it is x, y or z before scaling (--map raw_x=X stores one): X, Y, Z"
    check_contract(point_cloud(map={"raw_x": "X"}), [path], {"points/raw_x": raw["X"]})


@pytest.mark.parametrize("write", [hdf5, npz])
def test_columns_that_differ_in_case_are_both_kept(tmp_path: Path, write: Callable[..., Path]) -> None:
    values = {
        "Intensity": np.arange(20.0),
        "INTENSITY": np.arange(20),
        "intensity": np.arange(20, dtype="u1"),
    }
    path = write(tmp_path / ("a.h5" if write is hdf5 else "a.npz"), xyz=points(), **values)
    converted = check_contract(point_cloud(), [path], {"points/intensity": values["intensity"]})
    stored = {key for key in converted.arrays if "ntens" in key.lower()}
    lowered = [key.lower() for key in stored]
    assert len(set(lowered)) == 3
    for key in stored - {"points/intensity"}:
        own = key.removeprefix("points/").rpartition("_")[0]
        np.testing.assert_array_equal(converted.arrays[key], values[own])
        assert any(f"stored as {key.removeprefix('points/')}" in note for note in converted.scan.notes)
