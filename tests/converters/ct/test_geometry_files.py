"""Spacing, origin and direction survive an export and another conversion, without an option."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

import unistore
from unistore import convert, export

SPACING, ORIGIN = [2.5, 0.75, 0.5], [-10.0, 20.0, 30.5]
DIRECTION = [0.0, 0.0, 1.0, 0.0, -1.0, 0.0, 1.0, 0.0, 0.0]
STATED = {"spacing": SPACING, "origin": ORIGIN, "direction": DIRECTION}


def geometry(store: Path) -> dict[str, Any]:
    opened = unistore.Store(store)
    return {name: opened.array(f"volumes/{name}").read().tolist() for name in STATED}


def volume(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-1000, 1000, (4, 5, 6), np.int16)


def test_the_geometry_of_case_folders_survives_export_and_conversion(tmp_path: Path) -> None:
    case = tmp_path / "in/p1"
    case.mkdir(parents=True)
    np.save(case / "ct_original.npy", volume(0))
    (case / "info.json").write_text(json.dumps({name: numbers[::-1] for name, numbers in STATED.items()}))
    convert(tmp_path / "in", tmp_path / "a.zarr", "ct", info_order="xyz")
    expected = {name: [numbers] for name, numbers in STATED.items()}
    assert geometry(tmp_path / "a.zarr") == expected
    export(tmp_path / "a.zarr", tmp_path / "out")
    (said,) = (tmp_path / "out").rglob("geometry.json")
    assert said.parent == next((tmp_path / "out").rglob("ct_original.npy")).parent
    assert json.loads(said.read_text()) == {"frame": "LPS", "order": "zyx", **STATED}
    convert(tmp_path / "out", tmp_path / "b.zarr", "ct")
    assert geometry(tmp_path / "b.zarr") == expected
    assert unistore.verify(tmp_path / "b.zarr", against=tmp_path / "out").ok


def test_the_geometry_of_loose_volumes_survives_export_and_conversion(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number, name in enumerate(("a", "b")):
        np.save(tmp_path / f"in/{name}.npy", volume(number))
    said = tmp_path / "in/b.geometry.json"
    said.write_text(json.dumps(STATED))
    convert(tmp_path / "in", tmp_path / "a.zarr", "ct")
    for name, numbers in geometry(tmp_path / "a.zarr").items():
        assert np.isnan(numbers[0]).all()
        assert numbers[1] == STATED[name]
    export(tmp_path / "a.zarr", tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a.npy", "b.geometry.json", "b.npy"]
    convert(tmp_path / "out", tmp_path / "b.zarr", "ct")
    np.testing.assert_equal(geometry(tmp_path / "b.zarr"), geometry(tmp_path / "a.zarr"))
    said.write_text(said.read_text().replace("2.5", "2.25"))
    problems = unistore.verify(tmp_path / "a.zarr", against=tmp_path / "in").problems
    assert {problem.location for problem in problems} == {"volumes/spacing"}


def test_a_link_to_a_geometry_file_outside_of_the_sources_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    np.save(tmp_path / "in/a.npy", volume(0))
    (tmp_path / "secret.json").write_text(json.dumps({"spacing": SPACING}))
    (tmp_path / "in/a.geometry.json").symlink_to(tmp_path / "secret.json")
    convert(tmp_path / "in", tmp_path / "a.zarr", "ct")
    assert not unistore.Store(tmp_path / "a.zarr").has("volumes/spacing")
