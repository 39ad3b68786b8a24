"""Columns that only some sources have, filled with a mask; and a store for each shape in one command."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

import unistore
from unistore.cli.main import main
from unistore.conversion.convert import destinations_by_shape
from unistore.conversion.settings import Settings
from unistore.converters.common.columns import SourceColumn, shape_labels
from unistore.errors import InputError


def rows_file(path: Path, **arrays: object) -> Path:
    with h5py.File(path, "w") as file:
        for name, values in arrays.items():
            file[name] = values
    return path


def episodes_file(path: Path, states: int, *, force: tuple[bool, ...] = (False, False)) -> Path:
    with h5py.File(path, "w") as file:
        for number, has_force in enumerate(force):
            group = file.create_group(f"data/demo_{number}")
            group["actions"] = np.zeros((3, 2))
            group["states"] = np.full((3, states), number, "f8")
            if has_force:
                group["obs/force"] = np.ones((3, 6), "f4")
                group["obs/note"] = [b"a", b"b", b"c"]
            group["obs/x"] = np.arange(3.0)
    return path


def test_rows_without_a_column_have_a_false_present_key(tmp_path: Path) -> None:
    rows_file(tmp_path / "a.h5", x=np.arange(2), label=[b"a", b"b"])
    rows_file(tmp_path / "b.h5", x=np.arange(2), y=np.arange(2.0))
    sources = [tmp_path / "a.h5", tmp_path / "b.h5"]
    unistore.convert(sources, tmp_path / "s.zarr", "rows", columns="union")
    batch = unistore.collate(unistore.Dataset(tmp_path / "s.zarr").__getitems__([0, 1, 2, 3]))
    assert batch["label"] == ["a", "b", "", ""]
    assert batch["label_present"].tolist() == [True, True, False, False]
    assert batch["y_present"].tolist() == [False, False, True, True]
    assert np.isnan(batch["y"][:2].numpy()).all()
    assert "x_present" not in batch
    assert unistore.verify(tmp_path / "s.zarr", against=sources).receipt
    unistore.export(tmp_path / "s.zarr", tmp_path / "again")
    with h5py.File(tmp_path / "again/b.h5") as file:
        assert sorted(file) == ["x", "y"]


def test_episodes_without_a_column_have_a_false_present_key(tmp_path: Path) -> None:
    path = episodes_file(tmp_path / "a.h5", 3, force=(True, False))
    unistore.convert(path, tmp_path / "s.zarr", "trajectory", columns="union")
    key, note = "observation.force_present", "observation.note_present"
    steps = unistore.Dataset(tmp_path / "s.zarr")
    assert [bool(sample[key]) for sample in steps] == [True] * 3 + [False] * 3
    assert np.isnan(steps[3]["observation.force"].numpy()).all()
    assert (steps[0]["observation.note"], steps[3]["observation.note"]) == ("a", "")
    windows = unistore.Dataset(tmp_path / "s.zarr", unistore.Windows(history=2, horizon=1, pad="edge"))
    assert [bool(sample[note]) for sample in windows] == [True] * 3 + [False] * 3
    episodes = unistore.Dataset(tmp_path / "s.zarr", unistore.Episodes())
    assert [bool(sample[key]) for sample in episodes] == [True, False]
    assert "observation.x_present" not in steps[0]
    assert unistore.verify(tmp_path / "s.zarr", against=path).receipt
    unistore.export(tmp_path / "s.zarr", tmp_path / "again")
    with h5py.File(tmp_path / "again/a.h5") as file:
        assert sorted(file["data/demo_1/obs"]) == ["x"]
        assert sorted(file["data/demo_0/obs"]) == ["force", "note", "x"]


def test_one_store_per_shape_writes_a_store_of_each_shape(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    sizes = {"a": 47, "b": 71, "c": 15, "d": 47}
    for name, size in sizes.items():
        episodes_file(folder / f"{name}.h5", size)
    with pytest.raises(InputError, match="--one-store-per-shape"):
        unistore.convert(folder, tmp_path / "s.zarr", "trajectory")
    with pytest.raises(SystemExit) as ended:
        main(["convert", "trajectory", str(folder), str(tmp_path / "s.zarr"), "--one-store-per-shape"])
    assert not ended.value.code
    for size in (47, 71, 15):
        store = unistore.Store(tmp_path / f"s-states_float64_{size}.zarr")
        assert store.text("sources/path") == [f"{name}.h5" for name, own in sizes.items() if own == size]
        assert store.array("steps/states").shape[1] == size
    assert not (tmp_path / "s.zarr").exists()


@pytest.mark.parametrize(
    ("destination", "first"),
    [
        ("s.zarr/", "s-a.zarr"),
        (".zarr", "-a.zarr"),
        ("d.x/s", "d.x/s-a"),
        ("s3://b/s.zarr", "s3://b/s-a.zarr"),
    ],
)
def test_the_name_of_a_shape_is_added_to_the_destination_before_its_ending(
    destination: str, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "unistore.conversion.convert.sources_by_shape", lambda *_, **__: {"a": ["x"], "b": ["y"]}
    )
    destinations = destinations_by_shape(Settings(), [], destination, "rows", {})
    assert next(iter(destinations)) == first
    assert destinations[first] == {"exclude": ("y",)}


def test_shape_labels_name_only_the_columns_that_differ() -> None:
    plain, wide = SourceColumn("<f8", (3,)), SourceColumn("<f8", (4,))
    labels = shape_labels(
        [("a", {"obs/x": plain}), ("b", {"obs/x": wide}), ("c", {"obs/x": plain, "y": SourceColumn("|u1")})]
    )
    assert labels == {"a": "x_float64_3-no_y", "b": "x_float64_4-no_y", "c": "x_float64_3-y_uint8"}
