"""Local copies: bounded, checked, shared by processes that come, go and die."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

import unistore
from tests.support.store_files import full_disk
from tests.unistore.remote.conftest import process_of, upload
from unistore.errors import CorruptionError, InputError, StoreError
from unistore.store.reader import Store
from unistore.store.shard_cache import ShardCache


def copies(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("[0-9a-f]" * 32 + "*")}


def held(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("[0-9a-f]" * 32 + "*"))


def test_a_local_store_may_have_a_shard_cache(local: Path, tmp_path: Path) -> None:
    """On a slow network file system, say."""
    store = Store(local, cache_dir=tmp_path / "cache")
    assert np.array_equal(
        store.array("rows/data").read_rows([599, 0]), Store(local).array("rows/data").read_rows([599, 0])
    )
    assert len(copies(tmp_path / "cache")) == 4, "two shards, the metadata and the manifest"
    assert store.fork_safe


def test_a_damaged_object_never_enters(bucket: Any, uploaded: str, tmp_path: Path) -> None:
    key = "deep/store.zarr/rows/data/c/0/0"
    raw = bytearray(bucket.get(key))
    raw[50] ^= 1
    bucket.put(key, bytes(raw))
    with pytest.raises(CorruptionError, match=r"c/0/0: does not match its checksum in the manifest"):
        Store(uploaded, cache_dir=tmp_path / "cache").array("rows/data").read_rows([0])
    assert not list((tmp_path / "cache").glob("*.part"))
    bucket.put("deep/store.zarr/unistore-manifest.jsonl", b"{}\n")
    with pytest.raises(CorruptionError, match=r"manifest\.jsonl differs from the sealed one"):
        Store(uploaded, cache_dir=tmp_path / "other").array("rows/data").read_rows([0])


def test_the_limit_holds_and_the_least_recently_used_go_first(tmp_path: Path) -> None:
    cache = ShardCache(tmp_path, 1000)
    contents = [bytes([number]) * 300 for number in range(5)]
    names = [xxhash.xxh3_128_hexdigest(content) for content in contents]

    def ensure(number: int) -> bool:
        made = cache.ensure(names[number], 300, lambda: [contents[number]], "object")
        if (tmp_path / names[number]).exists():
            os.utime(tmp_path / names[number], (clock[0], clock[0]))
            clock[0] += 1
        assert held(tmp_path) <= 1000
        return made

    clock = [1000]
    assert all(ensure(number) for number in (0, 1, 2, 0, 3))
    assert set(copies(tmp_path)) == {names[0], names[2], names[3]}
    cache.invalidate(names[1])
    assert ensure(1)
    assert set(copies(tmp_path)) == {names[0], names[1], names[3]}
    assert not cache.ensure("00" * 16, 1001, lambda: [b""], "too large")


def read_at_random(url: str, cache: str, limit: str, seed: str, truth: str) -> None:
    expected = np.load(truth)
    array = Store(url, cache_dir=cache, cache_limit=limit).array("rows/data")
    rng = np.random.default_rng(int(seed))
    for _ in range(40):
        rows = rng.integers(0, 600, 20)
        assert np.array_equal(array.read_rows(rows), expected[rows])


def test_a_copy_that_is_finished_while_another_evicts_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = [bytes([number]) * 600 for number in range(2)]
    names = [xxhash.xxh3_128_hexdigest(content) for content in contents]
    reserved, listed = threading.Event(), threading.Event()

    def fetch() -> Iterator[bytes]:
        yield contents[0][:300]
        reserved.set()
        listed.wait(30)
        yield contents[0][300:]

    def list_and_wait(folder: int) -> list[str]:
        found = listdir(folder)
        if reserved.is_set():
            listed.set()
            first.join(0.5)  # it ends only if it may rename its copy now
        return found

    listdir = os.listdir
    first = threading.Thread(target=ShardCache(tmp_path, 1000).ensure, args=(names[0], 600, fetch, "first"))
    first.start()
    assert reserved.wait(30)
    monkeypatch.setattr("unistore.store.shard_cache.os.listdir", list_and_wait)
    assert not ShardCache(tmp_path, 1000).ensure(names[1], 600, lambda: [contents[1]], "second")
    first.join()
    assert copies(tmp_path) == {names[0]: contents[0]}


@pytest.mark.parametrize("limit", ["1GB", "30kB"])
def test_several_processes_share_a_cache_within_its_limit(
    proxy: Any, uploaded: str, tmp_path: Path, sources: Path, truth: Any, limit: str
) -> None:
    """With room each object is fetched once by all of them; without, they evict from under each other."""
    np.save(tmp_path / "truth.npy", truth(sources)["data"])
    cache = tmp_path / "cache"
    arguments = [uploaded, str(cache), limit]
    readers = [
        process_of(read_at_random, *arguments, str(seed), str(tmp_path / "truth.npy")) for seed in range(3)
    ]
    for reader in readers:
        reader.start()
    most = 0
    try:
        while any(reader.is_alive() for reader in readers):
            looks = [{path: size(path) for path in cache.glob("[0-9a-f]" * 32 + "*")} for _ in range(2)]
            if looks[0] == looks[1]:  # else it changed meanwhile, and the sum is of no moment
                most = max(most, sum(looks[0].values()))
            time.sleep(0.002)
    finally:
        for reader in readers:
            reader.kill()
            reader.join()
    assert [reader.exitcode for reader in readers] == [0] * 3
    if limit == "1GB":
        assert most > 50_000
        for number in range(5):
            assert proxy.count("GET", f"rows/data/c/{number}/") == 1
    else:
        assert 0 < most <= 30_000
    assert not list(cache.glob("*.part"))


def size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def test_a_copy_that_is_always_gone_is_read_around(
    uploaded: str, tmp_path: Path, sources: Path, truth: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process evicts it between the fetch and the opening, again and again."""
    ensure = ShardCache.ensure
    ensured: list[str] = []

    def evicted(self: ShardCache, checksum: str, *rest: Any) -> bool:
        made = ensure(self, checksum, *rest)
        if len(ensured) != 1:
            (self.folder / checksum).unlink()
        ensured.append(checksum)
        return made

    array = Store(uploaded, cache_dir=tmp_path).array("rows/data")
    monkeypatch.setattr(ShardCache, "ensure", evicted)
    assert np.array_equal(array.read_rows([3, 4]), truth(sources)["data"][[3, 4]])
    assert len(ensured) > 4


def test_one_fetches_while_others_wait(tmp_path: Path) -> None:
    content = b"y" * 5000
    name = xxhash.xxh3_128_hexdigest(content)
    fetches: list[int] = []

    def fetch() -> Iterator[bytes]:
        fetches.append(1)
        time.sleep(0.2)
        yield content

    found: list[bool] = []
    threads = [
        threading.Thread(
            target=lambda: found.append(ShardCache(tmp_path, 9000).ensure(name, 5000, fetch, "y"))
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 4
    assert len(fetches) == 1
    assert list(copies(tmp_path)) == [name]


def no_space(_: int) -> os.statvfs_result:
    return os.statvfs_result([0] * 10)


@pytest.mark.parametrize(("call", "fails"), [("fstatvfs", no_space), ("pwrite", full_disk)])
def test_a_full_disk_is_said_once_and_read_around(
    uploaded: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sources: Path,
    truth: Any,
    call: str,
    fails: Any,
) -> None:
    monkeypatch.setattr(os, call, fails)
    with pytest.warns(UserWarning, match="the disk is full, although cache_limit is not reached"):
        found = Store(uploaded, cache_dir=tmp_path / "cache").array("rows/data").read_rows([3, 500])
    assert np.array_equal(found, truth(sources)["data"][[3, 500]])
    assert not copies(tmp_path / "cache")


def test_a_replaced_store_finds_nothing_of_the_old_one(
    bucket: Any, uploaded: str, tmp_path: Path, make_sources: Any, truth: Any
) -> None:
    cache = tmp_path / "cache"
    before = Store(uploaded, cache_dir=cache).array("rows/data").read_rows(range(600))
    other = make_sources(tmp_path / "other", seed=1)
    unistore.convert(other, tmp_path / "other.zarr")
    upload(bucket, tmp_path / "other.zarr")
    found = Store(uploaded, cache_dir=cache).array("rows/data").read_rows(range(600))
    assert np.array_equal(found, truth(other)["data"])
    assert not np.array_equal(found, before)


def test_a_cache_folder_that_cannot_be_written_is_an_error(uploaded: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"cache_dir .*file: cannot be used: .* Fix: choose"):
        Store(uploaded, cache_dir=tmp_path / "file").array("rows/data").read_rows([0])


def test_warming_copies_what_a_split_reads(
    proxy: Any, bucket: Any, make_sources: Any, tmp_path: Path
) -> None:
    sources = make_sources(tmp_path / "sources", files=6)
    url = bucket.url("split.zarr")
    unistore.convert(sources, url, split="train=0.5,val=0.5", work=tmp_path)
    warmed = unistore.warm_cache(url, tmp_path / "whole")
    assert warmed.files == len(bucket.keys("split.zarr/")) - 3, "without root, manifest and times of sources"
    smaller = unistore.warm_cache(url, tmp_path / "cache", split="train")
    assert smaller.bytes < warmed.bytes
    with pytest.raises(InputError, match=r"no split 'trian'. Fix: use one of "):
        unistore.warm_cache(url, tmp_path / "cache", split="trian")
    with pytest.raises(InputError, match="raise cache_limit"):
        unistore.warm_cache(url, tmp_path / "small", cache_limit=1000)
    dataset = unistore.Dataset(url, split="train", cache_dir=tmp_path / "cache")
    proxy.seen.clear()
    for number in range(len(dataset)):
        dataset[number]
    assert proxy.seen == []
    bucket.put("split.zarr/rows/data/c/0/0", b"?")
    with pytest.raises(StoreError, match="rows/data/c/0/0 is missing or damaged"):
        unistore.warm_cache(url, tmp_path / "another")
