"""A failed read of a copy is no absence: nothing is removed for it, and the folder is named."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unistore
from unistore.conversion.clean import clean
from unistore.errors import InputError, StoreError
from unistore.store.reader import Store
from unistore.store.shard_cache import ShardCache
from unistore.store.warming import warm_cache
from unistore.zarr3 import storage

GOLDEN = Path(__file__).parents[2] / "data" / "golden"
FAILED = {errno.EIO: "Input/output error", errno.EACCES: "Permission denied", errno.EMFILE: "Too many open"}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN / "rows.zarr", tmp_path / "rows.zarr"))


@pytest.fixture
def cache(store: Path, tmp_path: Path) -> Path:
    """Return a folder with copies of the whole store."""
    warm_cache(store, tmp_path / "cache")
    return tmp_path / "cache"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def failing(monkeypatch: pytest.MonkeyPatch, function: str, number: int, fits: Callable[[Any], bool]) -> None:
    original = getattr(os, function)

    def refuse(target: Any, *rest: Any, **named: Any) -> Any:
        if fits(target):
            raise OSError(number, os.strerror(number), target if isinstance(target, str) else None)
        return original(target, *rest, **named)

    monkeypatch.setattr(os, function, refuse)


def path_of(descriptor: int) -> str:
    return str(Path(f"/proc/self/fd/{descriptor}").readlink())


def is_copy(name: Any) -> bool:
    return len(Path(str(name)).name) == 32


@pytest.mark.parametrize("number", FAILED)
def test_a_copy_that_cannot_be_opened_stays(
    store: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    before = names(cache)
    with monkeypatch.context() as patch:
        failing(patch, "open", number, is_copy)
        with pytest.raises(StoreError, match=rf"cache_dir .*cannot be used: .*{FAILED[number]}") as error:
            Store(store, cache_dir=cache).array("rows/label").read()
        # that others may have planted it is said of rights and links alone
        assert ("of your own" in str(error.value)) == (number == errno.EACCES)
        with pytest.raises(StoreError, match=r"cache_dir .*cannot be used"):
            warm_cache(store, cache)
    assert names(cache) == before
    expected = Store(store).array("rows/label").read()
    np.testing.assert_array_equal(Store(store, cache_dir=cache).array("rows/label").read(), expected)


def test_a_copy_that_cannot_be_read_stays(store: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = names(cache)
    with monkeypatch.context() as patch:
        failing(patch, "pread", errno.EIO, lambda number: is_copy(path_of(number)))
        with pytest.raises(StoreError, match=r"cache_dir .*cannot be used: .*Input/output error"):
            Store(store, cache_dir=cache).array("rows/label").read()
    assert names(cache) == before
    # the sound twin of a failed read: one that was read, and is not what was written
    copy = next(path for path in cache.iterdir() if is_copy(path) and path.stat().st_size > 100)
    copy.write_bytes(bytes(copy.stat().st_size))
    warm_cache(store, cache)
    assert names(cache) == before
    assert any(copy.read_bytes())


@pytest.mark.parametrize("function", ["listdir", "stat"])
def test_no_copy_is_evicted_where_the_folder_cannot_be_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    import xxhash

    contents = [bytes([number]) * 300 for number in range(3)]
    copies = ShardCache(tmp_path / "cache", 700)
    for content in contents[:2]:
        assert copies.ensure(xxhash.xxh3_128_hexdigest(content), 300, lambda: [content], "object")  # noqa: B023
    before = names(tmp_path / "cache")
    last = xxhash.xxh3_128_hexdigest(contents[2])
    with monkeypatch.context() as patch:
        fits = is_copy if function == "stat" else lambda target: isinstance(target, int)
        failing(patch, function, errno.EIO, fits)
        with pytest.raises(StoreError, match=r"cannot be used: .*Input/output error"):
            copies.ensure(last, 300, lambda: [contents[2]], "object")
    assert set(before) <= set(names(tmp_path / "cache"))
    assert copies.ensure(last, 300, lambda: [contents[2]], "object")


def test_a_cache_of_samples_that_cannot_be_read_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = shutil.copytree(GOLDEN / "ct.zarr", tmp_path / "ct.zarr")
    dataset = unistore.Dataset(path, unistore.SparsePoints(), ["values"], cache_dir=tmp_path / "cache")

    def load() -> list[Any]:
        with unistore.Loader(dataset, batch_size=2, num_workers=0, cache="disk", shuffle=False) as loader:
            return [np.asarray(batch["values"]).copy() for batch in loader]

    expected = load()
    before = {path.name: path.read_bytes() for path in (tmp_path / "cache").iterdir()}
    with monkeypatch.context() as patch:
        failing(patch, "pread", errno.EIO, lambda number: "samples-" in path_of(number))
        with pytest.raises(InputError, match=r"cannot be written .*Input/output error"):
            load()
    assert {path.name: path.read_bytes() for path in (tmp_path / "cache").iterdir()} == before
    for found, known in zip(load(), expected, strict=True):
        np.testing.assert_array_equal(found, known)


def test_clean_says_which_folder_it_could_not_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").mkdir()
    build = tmp_path / "a.zarr.unistore-build"
    build.mkdir()
    (build / "journal.jsonl").touch()
    failing(monkeypatch, "scandir", errno.EACCES, lambda path: str(path).endswith("secret"))
    found = {Path(left.path).name: left for left in clean(tmp_path, remove=True)}
    assert found[build.name].removed
    assert "cannot be listed (Permission denied)" in found["secret"].kept
    assert (tmp_path / "secret").is_dir()


@pytest.mark.parametrize("number", FAILED)
def test_a_root_that_cannot_be_read_is_not_one_that_was_replaced(
    store: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    opened = Store(store)
    os.utime(store / "zarr.json")  # so that readers look whether it is the same
    read = storage.read_regular

    def failing(path: Any, limit: int) -> bytes:
        if str(path).endswith("rows.zarr/zarr.json"):
            raise OSError(number, os.strerror(number), str(path))
        return read(path, limit)

    monkeypatch.setattr(storage, "read_regular", failing)
    path = next(path for path in opened.paths() if path.startswith("rows/"))
    with pytest.raises(StoreError, match=f"cannot be read: {FAILED[number]}") as caught:
        opened.array(path).read()
    assert "was replaced" not in str(caught.value)
    monkeypatch.undo()
    assert len(opened.array(path).read())
