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

import unistore
from unistore.remote.client import ObjectStorage
from unistore.store.names import MANIFEST, ROOT

RANKS, WORKERS = 2, 2
PROCESSES = RANKS * (1 + WORKERS)
DOCUMENTS = ("rows/data/zarr.json", "rows/label/zarr.json")


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
    """What samples are read from: 10 shards of two columns, their documents, and that of the splits."""
    shards = {path.relative_to(local).as_posix() for path in local.glob("rows/*/c/**/*") if path.is_file()}
    assert len(shards) == 10
    return shards | {*DOCUMENTS} | {"splits/zarr.json"}


def test_one_process(proxy: Any, uploaded: str) -> None:
    dataset = unistore.Dataset(uploaded)
    assert asked(proxy) == {ROOT: 1, "splits/zarr.json": 1}
    dataset.read_batch(range(50))
    both = {"rows/data/c/0/0": 2, "rows/label/c/0": 2}  # the index of a shard, and its chunks
    assert asked(proxy) == both | dict.fromkeys(DOCUMENTS, 1)
    assert 30 < total_of(dataset, proxy) < 42, "of 12 batches"
    assert total_of(dataset, proxy) <= 14, "chunks that a batch takes in parts are kept, whole ones are not"
    pickle.loads(pickle.dumps(dataset)).read_batch(range(50))
    assert asked(proxy) == both | dict.fromkeys((ROOT, *DOCUMENTS), 1), "each worker for itself"


def test_one_process_with_copies(proxy: Any, uploaded: str, objects: set[str], tmp_path: Path) -> None:
    dataset = unistore.Dataset(uploaded, cache_dir=tmp_path / "cache")
    assert asked(proxy) == {ROOT: 1, MANIFEST: 1, "splits/zarr.json": 1}
    epoch(dataset)
    assert asked(proxy) == dict.fromkeys(objects - {"splits/zarr.json"}, 1)
    assert total_of(dataset, proxy) == 0
    assert total_of(unistore.Dataset(uploaded, cache_dir=tmp_path / "cache"), proxy) == 1, "the root"


def test_several_processes_with_copies(proxy: Any, uploaded: str, objects: set[str], tmp_path: Path) -> None:
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
    assert unistore.verify(uploaded).ok
    assert once.items() <= asked(proxy).items()
    assert unistore.verify(uploaded, against=sources).ok
    assert once.items() <= asked(proxy).items()
    unistore.export(uploaded, tmp_path / "exported")
    assert once.items() <= asked(proxy).items()


def test_large_objects_arrive_in_parts(uploaded: str, bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unistore.remote.client.PART", 5000)
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
    monkeypatch.setattr("unistore.remote.client.PART", 5000)
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


def test_stores_larger_than_the_scratch_folder(
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
    monkeypatch.setattr("unistore.order.shuffles.MANY_REQUESTS", 1000)
    far = unistore.Dataset(uploaded)
    with pytest.warns(UserWarning, match="about 1,200 requests an epoch: give the dataset a cache_dir"):
        unistore.Shuffle(far, shuffle="full")
    for dataset in (unistore.Dataset(local), unistore.Dataset(uploaded, cache_dir=tmp_path / "cache")):
        assert dataset.shuffled_requests == 0
        unistore.Shuffle(dataset, shuffle="full")
