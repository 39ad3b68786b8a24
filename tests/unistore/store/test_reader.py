"""Opening stores: what is found in them, and what is refused, with the fix."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
import zarr

import unistore
from tests.support.golden_stores import STORES
from tests.support.needs_torch import needs_torch
from tests.support.programs import call, in_child
from unistore.converters.common.exported import sources_of
from unistore.errors import CorruptionError, StoreError
from unistore.store.names import build_folder
from unistore.store.reader import Store
from unistore.zarr3 import LocalStorage

VALUES = np.arange(60, dtype=np.float32).reshape(20, 3)
PLAIN = [path for path in sorted(STORES.iterdir()) if (path / "zarr.json").exists()]
NAMES = ["plain", "", "höhe 🗻", "tab\tand\nnewline"] * 5


@pytest.fixture
def path(make_store: Any) -> Path:
    store: Path = make_store(
        "rows",
        {"rows/data": VALUES, "rows/deep/label": np.arange(20), "rows/name_utf8": NAMES},
        count=20,
        splits={"train": range(15), "val": range(15, 20)},
        attributes={"rows/deep": {"level": 3}},
    )
    return store


def root_of(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((path / "zarr.json").read_text())
    return document


def change_root(path: Path, **changes: Any) -> None:
    document = root_of(path)
    unistore = document["attributes"]["unistore"]
    for name, value in changes.items():
        if value is None:
            del unistore[name]
        else:
            unistore[name] = value
    (path / "zarr.json").write_text(json.dumps(document))


def test_a_store_lists_arrays_groups_texts_and_splits(path: Path) -> None:
    store = Store(path)
    assert (store.family, store.sample_table, store.sample_count) == ("rows", "rows", 20)
    assert store.paths() == [
        "rows/data",
        "rows/deep/label",
        "rows/name_utf8/data",
        "rows/name_utf8/offsets",
        "splits/code",
    ]
    assert set(store.arrays()) == set(store.paths())
    assert store.has("rows/data")
    assert not store.has("rows")
    array = store.array("rows/data")
    assert array is store.array("rows/data")
    np.testing.assert_array_equal(array.read_box([0, 0], [20, 3]), VALUES)
    assert store.group("rows/deep") == {"level": 3}
    assert store.text("rows/name_utf8") == NAMES
    codes, names = store.splits()
    assert names == ["train", "val"]
    np.testing.assert_array_equal(codes, [0] * 15 + [1] * 5)


def test_a_missing_array_is_told_with_those_there_are(path: Path) -> None:
    with pytest.raises(StoreError, match=r"no array 'rows/x'. Fix: use one of rows/data, .*name_utf8"):
        Store(path).array("rows/x")


def test_opening_reads_one_file_and_keeps_none_open(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    original = LocalStorage.get

    def get(self: Any, key: str) -> bytes:
        read.append(key)
        data: bytes = original(self, key)
        return data

    before = len(list(Path("/proc/self/fd").iterdir()))
    monkeypatch.setattr("unistore.zarr3.storage.LocalStorage.get", get)
    Store(path)
    assert read == ["zarr.json"]
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_missing_store_names_the_unfinished_conversion(tmp_path: Path) -> None:
    build_folder(tmp_path / "out.zarr").mkdir()
    with pytest.raises(StoreError, match=r"out\.zarr\.unistore-build\)"):
        Store(tmp_path / "out.zarr")


@pytest.mark.parametrize("kind", ["empty folder", "folder", "file"])
def test_a_file_or_folder_that_is_not_a_store_is_an_error(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "thing"
    if kind == "file":
        path.write_text("text")
    else:
        path.mkdir()
        if kind == "folder":
            (path / "notes.txt").write_text("text")
    with pytest.raises(StoreError, match=r"thing: this is not a unistore store .*Fix: unistore inspect"):
        Store(path)


def test_a_plain_zarr_group_is_an_error_that_names_open_zarr(tmp_path: Path) -> None:
    zarr.create_group(tmp_path / "plain.zarr")
    with pytest.raises(StoreError, match=r"a Zarr group, not a unistore store.*unistore\.open"):
        Store(tmp_path / "plain.zarr")


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_another_format_version_is_an_error(path: Path, version: Any) -> None:
    change_root(path, format_version=version)
    with pytest.raises(StoreError, match=f"format version {version!r}, but .* reads 1. Fix: install"):
        Store(path)


def test_a_store_without_seal_is_an_error(path: Path) -> None:
    change_root(path, seal=None)
    with pytest.raises(StoreError, match=r"this conversion is not finished \(no seal\)"):
        Store(path)


@pytest.mark.parametrize("name", ["family", "samples", "fields"])
def test_a_root_without_a_required_member_is_an_error(path: Path, name: str) -> None:
    change_root(path, **{name: None})
    with pytest.raises(StoreError, match=f"{name}.*unistore verify"):
        Store(path)


def test_a_damaged_group_document_is_an_error(path: Path) -> None:
    (path / "rows/deep/zarr.json").write_text("{")
    with pytest.raises(StoreError, match=r"rows/deep/zarr\.json.*unistore verify"):
        Store(path).group("rows/deep")


@needs_torch
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("was_read", [False, True])
def test_a_shard_deleted_before_a_fork_is_an_error_unless_already_open(path: Path, was_read: bool) -> None:
    """An error through `Dataset` in the child, unless the parent has its index and its open file."""
    dataset = unistore.Dataset(path)
    expected = dataset[0]["data"].tolist() if was_read else None
    (path / "rows/data/c/0/0").unlink()
    said = in_child(lambda: dataset[0]["data"].tolist())
    if was_read:
        assert said == str(dataset[0]["data"].tolist()) == str(expected), "the parent reads on"
    else:
        missing = r"CorruptionError: .*array 'rows/data': .* is missing, although the store is sealed"
        assert re.match(missing, said)


def test_damage_is_repaired_by_the_command_of_the_message(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(6.0).reshape(3, 2))
    store = tmp_path / "a store.zarr"
    unistore.convert(tmp_path / "a.npy", store)
    (shard,) = (path for path in (store / "rows").rglob("c/0/*") if path.is_file())
    shard.unlink()
    with pytest.raises(CorruptionError) as raised:
        unistore.Dataset(store)[0]
    command = f"unistore verify '{store}' --repair SOURCES"
    assert f"Fix: {command}, or restore the file from a copy" in str(raised.value)
    words = shlex.split(command.replace("SOURCES", shlex.quote(str(tmp_path / "a.npy"))))[1:]
    assert call(*words) == 0
    assert shard.exists()


@pytest.mark.parametrize("how", ["altered", "of another user"])
def test_a_forged_manifest_is_not_believed(make_case: Callable[..., Any], tmp_path: Path, how: str) -> None:
    """It names a shard with other values, which lies in the cache with the checksum that it names."""
    _, path = make_case("rows_real")
    store = unistore.Store(path, cache_dir=tmp_path / "cache")
    expected = store.array("rows/data").read()
    sealed = store.attributes["seal"]["digest"]
    copy = tmp_path / "cache" / sealed
    manifest = copy.read_bytes()
    shard = xxhash.xxh3_128_hexdigest((path / "rows/data/c/0/0").read_bytes())
    other = (path / "sources/rows/offsets/c/0").read_bytes()
    planted = xxhash.xxh3_128_hexdigest(other)
    assert shard.encode() in manifest
    copy.write_bytes(manifest.replace(shard.encode(), planted.encode()))
    if how == "of another user":
        if os.geteuid() != 0:
            pytest.skip("giving a file away needs root")
        os.chown(copy, 4711, 4711)
        with pytest.raises(
            StoreError, match=rf"{sealed} is not a file that only this user can change.*Fix: remove it, or"
        ):
            unistore.Store(path, cache_dir=tmp_path / "cache").array("rows/data")
        return
    np.testing.assert_array_equal(
        unistore.Store(path, cache_dir=tmp_path / "cache").array("rows/data").read(), expected
    )
    assert copy.read_bytes() == manifest, "read again"


def test_a_split_code_without_a_name_is_an_error(make_case: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "store.zarr"
    shutil.copytree(make_case("rows_side_by_side")[1], path)
    codes, names = Store(path).splits()
    assert sorted(set(codes.tolist())) == [0, 1]
    assert len(names) == 2
    document = path / "splits" / "zarr.json"
    document.write_text(document.read_text().replace(json.dumps(names[1]), "").replace(",\n   \n", "\n"))
    with pytest.raises(StoreError, match=r"splits/code: row \d+ is 1, but the store has only 1 split,"):
        Store(path).splits()


def soundings(make_store: Any, rows: list[int]) -> Store:
    """Two segments of seven echoes in all."""
    path = make_store(
        "soundings",
        {
            "echoes/offsets": np.array([0, 3, 7]),
            "echoes/depth": np.arange(7.0),
            "sources/path": ["a", "b"],
            "sources/echoes/offsets": np.cumsum([0, *rows]),
        },
        count=2,
        table="segments",
        main_table="echoes",
        axes={"echoes/offsets": ["segment_bound"], "echoes/depth": ["echo"]},
    )
    return Store(path)


def test_counts_of_sources_with_another_sum_than_the_rows_are_an_error(make_store: Any) -> None:
    with pytest.raises(StoreError, match="sources/echoes/offsets: ends with 6, but there are 7 rows"):
        sources_of(soundings(make_store, [5, 1]))


@pytest.mark.parametrize("store", PLAIN, ids=lambda store: store.stem)
def test_the_root_as_json_is_the_object_that_it_was_read_from(store: Path) -> None:
    opened = Store(store)
    stated = root_of(store)["attributes"]["unistore"]
    assert opened.attributes == stated
    assert [*opened.attributes] == [*stated]
    assert opened.root.seal.to_json() == stated["seal"]
    assert {path: field.axes for path, field in opened.root.fields.items()} == {
        path: tuple(field["axes"]) for path, field in stated["fields"].items()
    }
