"""The cache: what was decoded once is found by every worker, and what is drawn from it is the same."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

import unistore
from tests.support.store_files import flip
from unistore.data.kinds import sparse_points
from unistore.errors import InputError, SampleError
from unistore.loader import Loader

pytestmark = pytest.mark.usefixtures("nothing_left")


def same(a, b):
    assert a.keys() == b.keys()
    for key in a:
        if torch.is_tensor(a[key]):
            assert torch.equal(a[key], b[key]), key
            assert not a[key].numel() or a[key].stride() == b[key].stride(), key
        else:
            assert a[key] == b[key]


@pytest.fixture(autouse=True)
def no_cache_of_each_process(monkeypatch):
    monkeypatch.setattr("unistore.zarr3.cache.CHUNKS.limit", 0)


@pytest.fixture
def rows(make_store):
    """120 rows of 2,400 bytes, a chunk each, which say what they are."""
    values = np.arange(120)[:, None] * 1000 + np.arange(300)
    chunks = {"rows/data": (1, 300)}
    return make_store("rows", {"rows/data": values, "sources/path": ["a.h5"]}, count=120, chunks=chunks)


KINDS = ("rows", "segments", "random points", "random patches", "masks", "volumes")


@pytest.fixture(params=KINDS)
def dataset(request, rows, make_cloud, make_scans):
    if request.param == "rows":
        return lambda: unistore.Dataset(rows)
    if "patches" in request.param:
        path = make_scans([(12, 14, 16)] * 6).path
        return lambda: unistore.Dataset(path, unistore.Patches(6))
    if request.param == "volumes":
        path = make_scans([(5, 6, 7), (4, 6, 3), (5, 6, 7), (2, 2, 2)]).path
        return lambda: unistore.Dataset(path, unistore.Volumes())
    if request.param == "masks":
        path = make_scans(sparse="mask").path
        return lambda: unistore.Dataset(path, unistore.SparsePoints(max_points=9))
    path = make_cloud().path
    most = 40 if "random" in request.param else None
    return lambda: unistore.Dataset(path, unistore.Segments(max_points=most))


@pytest.mark.parametrize(
    ("dataset", "workers"),
    [*((kind, 0) for kind in KINDS), ("rows", 1), ("random patches", 1), ("segments", 2), ("volumes", 2)],
    indirect=["dataset"],
)
def test_batches_are_the_same_and_chunks_are_decoded_once(dataset, workers):
    with (
        Loader(dataset(), 3, shuffle=True, seed=1, num_workers=workers, cache="all") as loader,
        Loader(dataset(), 3, shuffle=True, seed=1, num_workers=0) as reference,
    ):
        decoded = []
        for _ in range(4):
            for found, expected in zip(loader, reference, strict=True):
                same(found, expected)
            decoded.append(loader.stats()["cache_misses"])
        chunks = sum(array.chunk_count for array in dataset().arrays())
        assert decoded[0] > 0
        assert decoded[-1] <= max(1, workers) * chunks  # two workers may decode one at the same time
        if workers < 2:
            again = loader.stats()["cache_misses"]
            for _ in range(2):
                list(loader)
            # a random crop may reach a chunk that none has reached
            assert loader.stats()["cache_misses"] == again or "random" in repr(loader.dataset.samples)


def test_points_of_a_mask_are_found_once(make_scans, monkeypatch):
    dataset = unistore.Dataset(make_scans(sparse="mask").path, unistore.SparsePoints(max_points=9))
    searched = []
    find = sparse_points.find_points

    def searching(bits, ranks, out):
        assert ranks is None
        searched.append(len(out))
        find(bits, ranks, out)

    monkeypatch.setattr(sparse_points, "find_points", searching)
    with Loader(dataset, 2, shuffle=True, num_workers=0, cache="all") as loader:
        for _ in range(3):
            list(loader)
    assert len(searched) == len(dataset)
    assert max(searched) > 9


def test_a_full_cache_admits_no_more_samples_and_keeps_the_ones_it_has(rows):
    with Loader(unistore.Dataset(rows), 8, shuffle=True, seed=1, num_workers=0, cache=30_000) as loader:
        hits = []
        for _ in range(3):
            for batch in loader:
                assert torch.equal(batch["data"][:, 0], batch["index"] * 1000)
            hits.append(loader.stats()["cache_hits"])
    kept = hits[1] - hits[0]
    assert 5 < kept < 30
    assert hits[2] - hits[1] == kept


def test_a_damaged_chunk_is_an_error_each_time(rows):
    shard = min(path for path in (rows / "rows/data/c").rglob("0") if path.is_file())
    flip(shard, 10)
    with Loader(unistore.Dataset(rows), 4, num_workers=1, cache="all") as loader:
        for _ in range(2):
            with pytest.raises(SampleError, match="chunk"):
                list(loader)


@pytest.mark.parametrize(("most", "capacity"), [(None, 7000), (40, 4 * 4096)])
def test_a_cache_for_a_part_serves_that_part(make_cloud, most, capacity):
    dataset = unistore.Dataset(make_cloud().path, unistore.Segments(max_points=most))
    with (
        Loader(dataset, 3, shuffle=True, num_workers=0, cache=capacity) as loader,
        Loader(dataset, 3, shuffle=True, num_workers=0) as reference,
    ):
        for _ in range(3):
            for found, expected in zip(loader, reference, strict=True):
                same(found, expected)
        stats = loader.stats()
    assert stats["cache_hits"] > 0
    assert stats["cache_misses"] > len(dataset)


def test_a_part_of_a_dataset_is_cached_by_subset_and_not_by_torch(rows):
    dataset = unistore.Dataset(rows)
    with pytest.raises(InputError, match=r"got Subset.*subset=… to the Loader"):
        Loader(torch.utils.data.Subset(dataset, range(10)), 4, cache="all")
    with Loader(dataset, 4, num_workers=0, subset=range(10), cache="all") as loader:
        for _ in range(2):
            assert torch.cat([batch["index"] for batch in loader]).tolist() == [*range(10)]
        assert loader.stats()["cache_hits"] == 10


def test_a_full_disk_ends_admission_and_nothing_else(rows, monkeypatch):
    written = []
    pwrite = os.pwrite

    def failing(descriptor, buffer, place):
        if len(buffer) > 8:  # a chunk, not its number
            written.append(place)
            if len(written) > 20:
                raise OSError(28, "No space left on device")
        return pwrite(descriptor, buffer, place)

    monkeypatch.setattr(os, "pwrite", failing)
    with Loader(unistore.Dataset(rows), 8, shuffle=True, num_workers=0, cache="all") as loader:
        for _ in range(3):
            seen = [index for batch in loader for index in batch["index"].tolist()]
            assert sorted(seen) == list(range(120))
        assert loader.stats()["cache_hits"] == 40
    assert len(written) == 21
