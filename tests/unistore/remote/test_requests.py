"""Requests to an object store: of openings, batches and epochs, by one process and by several.

What `benchmarks/RESULTS.md` states. A worker gets its dataset by pickle.
"""

from __future__ import annotations

import pickle
import shutil
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

import unistore
from unistore.remote.storage import ObjectStorage, coalesce
from unistore.store.names import MANIFEST, ROOT

RANKS, WORKERS = 2, 2
PROCESSES = RANKS * (1 + WORKERS)
DOCUMENTS = ("rows/data/zarr.json", "rows/label/zarr.json", "splits/zarr.json")


def asked(proxy: Any) -> Counter[str]:
    """How often each object was asked for since the last call."""
    with proxy.lock:
        found = Counter(seen.path.partition("store.zarr/")[2] for seen in proxy.seen)
        proxy.seen.clear()
    return found


def epoch(dataset: unistore.Dataset) -> None:
    for lo in range(0, 600, 50):
        dataset.read_batch(range(lo, lo + 50))


def total_of(dataset: unistore.Dataset, proxy: Any) -> int:
    epoch(dataset)
    return asked(proxy).total()


@pytest.fixture
def objects(local: Path) -> set[str]:
    """What samples are read from: 10 shards of two columns."""
    shards = {path.relative_to(local).as_posix() for path in local.glob("rows/*/c/**/*") if path.is_file()}
    assert len(shards) == 10
    return shards


def test_one_process_reads_each_chunk_with_few_requests(proxy: Any, uploaded: str) -> None:
    dataset = unistore.Dataset(uploaded)
    assert asked(proxy) == {ROOT: 1}, "which repeats all documents"
    dataset.read_batch(range(50))
    both = {"rows/data/c/0/0": 2, "rows/label/c/0": 2}  # the index of a shard, and its chunks
    assert asked(proxy) == both | {ROOT: 2}, "whether it stands"
    assert 30 < total_of(dataset, proxy) < 52, "of 12 batches"
    assert total_of(dataset, proxy) <= 14, "chunks that a batch takes in parts are kept, whole ones are not"
    pickle.loads(pickle.dumps(dataset)).read_batch(range(50))
    assert asked(proxy) == both | {ROOT: 1 + 2}, "each worker for itself"


def test_with_copies_one_process_fetches_each_object_once(
    proxy: Any, uploaded: str, objects: set[str], tmp_path: Path
) -> None:
    dataset = unistore.Dataset(uploaded, cache_dir=tmp_path / "cache")
    assert asked(proxy) == {ROOT: 1}
    epoch(dataset)
    assert asked(proxy) == {MANIFEST: 1, **dict.fromkeys(objects, 1)}
    copies = [path for path in (tmp_path / "cache").glob("[0-9a-f]" * 32 + "*") if path.is_file()]
    assert copies
    assert all(xxhash.xxh3_128_hexdigest(path.read_bytes()) == path.name for path in copies)
    assert total_of(dataset, proxy) == 0
    assert total_of(unistore.Dataset(uploaded, cache_dir=tmp_path / "cache"), proxy) == 1, "the root"


def test_with_copies_several_processes_fetch_each_object_once(
    proxy: Any, uploaded: str, objects: set[str], tmp_path: Path
) -> None:
    """All at once: one of them fetches, the others wait for it."""
    with ThreadPoolExecutor(PROCESSES) as pool:
        opened = pool.map(
            lambda _: unistore.Dataset(uploaded, cache_dir=tmp_path / "cache"), range(PROCESSES)
        )
        list(pool.map(epoch, opened))
    assert asked(proxy) == {ROOT: PROCESSES, MANIFEST: 1, **dict.fromkeys(objects, 1)}


def test_verifying_and_exporting_read_each_object_once(
    proxy: Any, uploaded: str, objects: set[str], sources: Path, tmp_path: Path
) -> None:
    once = dict.fromkeys(objects, 1)
    documents = dict.fromkeys(DOCUMENTS, 1)
    assert unistore.verify(uploaded).ok
    assert (once | documents).items() <= asked(proxy).items()
    assert unistore.verify(uploaded, against=sources).ok
    assert (once | documents).items() <= asked(proxy).items()
    unistore.export(uploaded, tmp_path / "exported")
    assert once.items() <= asked(proxy).items()


def test_large_objects_arrive_in_parts(uploaded: str, bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unistore.remote.storage.PART", 5000)
    truth = bucket.objects("deep/store.zarr")
    sizes = {key: len(content) for key, content in truth.items()}
    contents = ObjectStorage(uploaded).read_objects(sizes)
    read = {}
    for number, key in enumerate(sizes):
        content = next(contents)
        read[key] = next(content) if number % 2 else b"".join(content)  # the rest is not wanted
    assert max(sizes.values()) > 10000
    assert all(truth[key].startswith(raw) for key, raw in read.items())
    assert all(len(read[key]) == sizes[key] for key in list(sizes)[::2])


def test_damage_is_told_as_for_a_folder(
    uploaded: str, bucket: Any, local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unistore.remote.storage.PART", 5000)
    damaged = shutil.copytree(local, tmp_path / "store.zarr")
    changes = {
        "rows/data/c/0/0": lambda raw: raw[:9000] + b"?" + raw[9001:],
        "rows/data/c/1/0": lambda raw: raw[:-1],
        "rows/data/c/2/0": lambda raw: raw + b"?",
        "rows/label/c/0": lambda raw: b"",
    }
    for key, change in changes.items():
        content = change((damaged / key).read_bytes())
        (damaged / key).write_bytes(content)
        bucket.put(f"deep/store.zarr/{key}", content)
    (damaged / "rows/data/c/3/0").unlink()
    bucket.delete("deep/store.zarr/rows/data/c/3/0")
    problems = unistore.verify(damaged).problems
    assert len(problems) == 5
    assert unistore.verify(uploaded).problems == problems


def test_a_store_larger_than_the_scratch_folder_is_verified_and_exported(
    uploaded: str, sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=60_000)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    assert unistore.verify(uploaded, against=sources).ok
    unistore.export(uploaded, tmp_path / "exported")
    assert (tmp_path / "exported").exists()


def test_a_full_shuffle_without_copies_is_warned_about(
    proxy: Any, uploaded: str, local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unistore.order.shuffle_choice.MANY_REQUESTS", 1000)
    far = unistore.Dataset(uploaded)
    with pytest.warns(UserWarning, match="about 1,200 requests per epoch"):
        unistore.Shuffle(far, shuffle="full")
    for dataset in (unistore.Dataset(local), unistore.Dataset(uploaded, cache_dir=tmp_path / "cache")):
        assert dataset.shuffled_requests == 0
        unistore.Shuffle(dataset, shuffle="full")


RANGES = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 400), st.integers(1, 60)), max_size=40)


@settings(max_examples=200)
@given(ranges=RANGES, gap=st.integers(0, 50), limit=st.integers(1, 200))
def test_coalesced_requests_cover_each_range_once_within_gap_and_limit(
    ranges: list[tuple[str, int, int]], gap: int, limit: int
) -> None:
    keys, offsets, sizes = ([each[part] for each in ranges] for part in range(3))
    requests = coalesce(keys, offsets, sizes, gap=gap, limit=limit)  # type: ignore[arg-type]
    members = [at for request in requests for at in request.members]
    assert sorted(members) == list(range(len(ranges))), "each range once"
    for request in requests:
        inside = [ranges[at] for at in request.members]
        assert {key for key, _, _ in inside} == {request.key}
        assert request.start == min(low for _, low, _ in inside)
        assert request.stop == max(low + size for _, low, size in inside)
        assert request.stop - request.start <= limit or len(inside) == 1
        wanted = {byte for _, low, size in inside for byte in range(low, low + size)}
        wasted = [byte for byte in range(request.start, request.stop) if byte not in wanted]
        assert len(wasted) <= gap * (len(inside) - 1)
    assert [min(request.members) for request in requests] == sorted(min(r.members) for r in requests)


@settings(max_examples=60)
@given(ranges=RANGES)
def test_ranges_come_in_the_order_asked_for(ranges: list[tuple[str, int, int]]) -> None:
    content = {key: bytes((number * 7 + ord(key)) % 251 for number in range(500)) for key in "abc"}
    storage = ObjectStorage("s3://bucket/prefix")
    asked: list[str] = []

    def get_range(key: str, start: int, size: int) -> bytes:
        asked.append(key)
        return content[key][start : start + size]

    storage.get_range = get_range  # type: ignore[method-assign]
    keys, offsets, sizes = ([each[part] for each in ranges] for part in range(3))
    found = list(storage.read_many(keys, offsets, sizes))  # type: ignore[arg-type]
    assert found == [content[key][low : low + size] for key, low, size in ranges]
    assert len(asked) == len({key for key, _, _ in ranges}), "all of one object lie close together"


def test_neighbours_share_a_request_up_to_the_limit() -> None:
    kib = 1 << 10
    keys = ["a"] * 6
    offsets = [0, 64 * kib, 512 * kib, 600 * kib, 4 << 20, 4200 * kib]
    found = coalesce(keys, offsets, [64 * kib] * 6)
    assert [request.members for request in found] == [[0, 1], [2, 3], [4, 5]]
    alone = coalesce(keys, offsets, [64 * kib] * 6, gap=0, limit=64 * kib)
    assert len(alone) == 6
