"""One folder a class, as ModelNet and ShapeNet have them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unistore
from tests.support.converter_contract import check_contract
from tests.support.family_converters import point_cloud
from unistore.converters.source_scan import scan_sources

RANDOM = np.random.default_rng(1)


def save(root: Path, *names: str) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        values = RANDOM.random((int(RANDOM.integers(4, 9)), 6)).astype("f4")
        if path.suffix == ".npz":
            np.savez(path, points=values)
        else:
            np.save(path, values)
    return root


def labels_of(converted: Any) -> dict[str, int]:
    names = [source.name for source in converted.scan.sources]
    return dict(zip(names, converted.arrays["segments/label"].tolist(), strict=True))


def test_folders_of_modelnet_give_labels_and_splits(tmp_path: Path) -> None:
    names = ("table/train/b.npy", "chair/train/a.npy", "chair/test/b.npy", "night_stand/test/a.npy")
    root = save(tmp_path / "modelnet", *names)
    converted = check_contract(point_cloud(), [root])
    assert labels_of(converted) == {
        "chair/test/b.npy": 0,
        "chair/train/a.npy": 0,
        "night_stand/test/a.npy": 1,
        "table/train/b.npy": 2,
    }
    classes = {"0": "chair", "1": "night_stand", "2": "table"}
    assert converted.fields["segments/label"].attributes["classes"] == classes
    assert [source.split for source in converted.scan.sources] == ["test", "train", "test", "train"]
    assert any("labels of segments: chair, night_stand, table;" in n for n in converted.scan.notes)
    unistore.convert(root, tmp_path / "a.zarr", "point_cloud")
    assert [int(s["label"]) for s in unistore.Dataset(tmp_path / "a.zarr")] == [0, 0, 1, 2]
    assert unistore.verify(tmp_path / "a.zarr", against=[root]).problems == ()


@pytest.mark.parametrize(
    "names",
    [
        ("chair/a.npy", "chair/b.npy"),
        ("chair/a.npy", "table/b.npy"),
        ("chair/a.npy", "chair/b.npy", "c.npy"),
        ("Area_1/a.npy", "Area_1/b.npy", "Area_2/c.npy"),
        ("train/a.npy", "train/b.npy", "test/c.npy"),
    ],
)
def test_single_files_areas_and_split_folders_are_not_classes(tmp_path: Path, names: tuple[str, ...]) -> None:
    scan = scan_sources(point_cloud(), [save(tmp_path, *names)])
    assert all(source.detail.label is None for source in scan.sources)


def test_folders_of_synsets_are_classes(tmp_path: Path) -> None:
    root = save(tmp_path, "02691156/a.npy", "02691156/b.npy", "03001627/a.npy")
    scan = scan_sources(point_cloud(), [root])
    assert [source.detail.label for source in scan.sources] == [
        (0, "02691156"),
        (0, "02691156"),
        (1, "03001627"),
    ]


def test_labels_in_files_and_options_win_over_names_of_folders(tmp_path: Path) -> None:
    root = save(tmp_path / "a", "chair/a.npy", "chair/b.npy", "table/c.npy")
    for converter in (point_cloud(map={"label": ""}), point_cloud(segment="window:1")):
        scan = scan_sources(converter, [root])
        assert all(not source.detail.layout.segment_columns for source in scan.sources)
    for name in ("chair/d", "chair/e", "table/f"):
        path = tmp_path / "b" / f"{name}.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, points=RANDOM.random((5, 3)), label=np.arange(5))
    scan = scan_sources(point_cloud(), [tmp_path / "b"])
    assert all(source.detail.label is None for source in scan.sources)
    assert "points/label" in {field.path for field in scan.tables[0].fields}
