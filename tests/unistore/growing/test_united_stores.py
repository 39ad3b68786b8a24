"""Stores whose arrays have other forms, read as one: numpy says what their rows are together."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import h5py
import numpy as np
import pytest

import unistore
from unistore.growing.alike import unite
from unistore.growing.sources import kept_sources, numbers_in
from unistore.schemas.array_specs import SOURCE_BOUNDS
from unistore.schemas.tables import Field
from unistore.store.joined import MadeArray, SelectedSources, UnitedStores

SMALL = np.arange(12, dtype=np.int16).reshape(6, 2)
LARGE = np.arange(20, dtype=np.float32).reshape(5, 4) / 4
ROWS = {"a": (0, 4), "b": (4, 6), "c": (0, 2), "d": (2, 5)}  # of the sources, in SMALL and in LARGE


@pytest.fixture
def stores(tmp_path: Path) -> list[unistore.Store]:
    """Return a store of int16 (n, 2), and one of float32 (n, 4), of two sources each."""
    opened = []
    for folder, values in (("ab", SMALL), ("cd", LARGE)):
        (tmp_path / folder).mkdir()
        for name in folder:
            np.savez(tmp_path / folder / f"{name}.npz", x=values[slice(*ROWS[name])])
        unistore.convert(tmp_path / folder, tmp_path / f"{folder}.zarr", columns="union")
        opened.append(unistore.Store(os.fspath(tmp_path / f"{folder}.zarr")))
    return opened


def test_rows_are_promoted_padded_and_follow_one_another(stores: list[unistore.Store]) -> None:
    kept = kept_sources(stores, [(), ()], by_name=False)
    united = unite(stores, kept, "union")
    expected = np.concatenate([np.pad(SMALL.astype(np.float32), ((0, 0), (0, 2))), LARGE])
    united.array("rows/x")  # opened before it is pickled
    for view in (united, pickle.loads(pickle.dumps(united))):
        assert isinstance(view, UnitedStores)
        for lo, hi in ((0, 11), (5, 7), (6, 11), (0, 6), (3, 3), (11, 11)):
            read = view.array("rows/x").read(lo, hi)
            assert read.dtype == np.float32
            np.testing.assert_array_equal(read, expected[lo:hi])
        assert view.array("sources/rows/offsets").read().tolist() == [0, 4, 6, 8, 11]
        assert view.text("sources/path") == ["a.npz", "b.npz", "c.npz", "d.npz"]
        assert view.source_counts(SOURCE_BOUNDS).tolist() == [1, 1, 1, 1]
        assert view.sample_count == 11


def test_selected_sources_have_their_rows_in_the_new_order(stores: list[unistore.Store]) -> None:
    kept = kept_sources(stores, [(), ()], by_name=False)
    united = unite(stores, kept, "union")
    order = [kept[3], kept[0], kept[1]]
    selected = SelectedSources(united, numbers_in(united, order))
    first, count = selected.rows("rows/x")
    assert (first.tolist(), count.tolist()) == ([8, 0, 4], [3, 4, 2])
    assert selected.values("sources/rows/offsets").tolist() == [0, 3, 7, 9]
    digests = [store.array("sources/hash").read() for store in stores]
    np.testing.assert_array_equal(
        selected.values("sources/hash"), [digests[1][1], digests[0][0], digests[0][1]]
    )


@pytest.mark.parametrize("has_splits", [0, 1])
def test_splits_of_some_stores_alone_are_refused(tmp_path: Path, has_splits: int) -> None:
    opened = []
    for number in range(2):
        folder = tmp_path / f"src{number}"
        folder.mkdir()
        for name in "ab":
            np.savez(folder / f"{name}{number}.npz", x=np.ones(3))
        split = "exact:train=0.5,val=0.5" if number == has_splits else None
        unistore.convert(folder, tmp_path / f"{number}.zarr", split=split)
        opened.append(unistore.Store(os.fspath(tmp_path / f"{number}.zarr")))
    kept = kept_sources(opened, [(), ()], by_name=False)
    united = unite(opened, kept, None)
    with pytest.raises(unistore.InputError) as refused:
        SelectedSources(united, numbers_in(united, kept)).splits()
    text = str(refused.value)
    assert f"{1 - has_splits}.zarr: has no splits, but other parts have" in text
    assert "convert all sources together" in text


@pytest.mark.parametrize("narrow", [np.int16, np.float32])
@pytest.mark.parametrize("wide", [np.int16, np.float32])
def test_rows_that_a_source_lacks_are_missing_in_the_form_of_all_stores(
    tmp_path: Path, narrow: type, wide: type
) -> None:
    small = np.arange(1, 9, dtype=narrow).reshape(4, 2)
    large = np.arange(1, 9, dtype=wide).reshape(2, 4)
    for folder in ("ab", "c"):
        (tmp_path / folder).mkdir()
    np.savez(tmp_path / "ab/a.npz", x=small, y=np.zeros(4))
    np.savez(tmp_path / "ab/b.npz", y=np.ones(3))
    np.savez(tmp_path / "c/c.npz", x=large, y=np.ones(2))
    stores = []
    for folder in ("ab", "c"):
        unistore.convert(tmp_path / folder, tmp_path / f"{folder}.zarr", columns="union")
        stores.append(unistore.Store(os.fspath(tmp_path / f"{folder}.zarr")))
    united = unite(stores, kept_sources(stores, [(), ()], by_name=False), "union")
    dtype = np.result_type(narrow, wide)
    missing = np.full((3, 4), np.nan if dtype.kind == "f" else 0, dtype)
    expected = np.concatenate([np.pad(small, ((0, 0), (0, 2))), missing, large])
    read = united.array("rows/x").read()
    assert read.dtype == dtype
    np.testing.assert_array_equal(read, expected)
    np.testing.assert_array_equal(united.array("rows/x").read(2, 6), expected[2:6])


def test_an_array_that_is_made_reads_any_range_of_its_rows() -> None:
    field = Field(path="rows/x", dtype="int64", axes=("row",))
    array = MadeArray(field, 3, np.arange)
    assert array.read().tolist() == [0, 1, 2]
    assert array.read(1).tolist() == [1, 2]
    assert array.read(hi=2).tolist() == [0, 1]
    assert array.read(2, 1).tolist() == []


def test_texts_say_nothing_of_sources_that_have_what_stores_without_them_stand_for(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    for number in range(4):
        with h5py.File(tmp_path / f"src/{number}.h5", "w") as file:
            file["data/demo_0/actions"] = np.ones((4, 2))
            if number == 0:
                file["data/demo_0"].attrs["task"] = "lift"
    unistore.convert(tmp_path / "src", tmp_path / "s.zarr")
    store = unistore.Store(tmp_path / "s.zarr")
    assert store.text("episodes/attributes")[1:] == ["{}"] * 3
    united = unite([store], kept_sources([store], [()], by_name=False), None)
    for numbers, is_empty in (([0], False), ([1], True), ([2, 3], True), ([0, 1, 2, 3], False)):
        assert SelectedSources(united, numbers).says_nothing("episodes/attributes/data") == is_empty
