"""The cache: what was decoded once is found by every worker, and is the same."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

import unistore
from unistore.data.packed import Packed, offsets_from_lengths
from unistore.errors import InputError
from unistore.loader import Loader
from unistore.loader.cache import EVERYTHING, CacheFile, parse_size
from unistore.loader.cached import cached
from unistore.loader.fetch import BatchFetch

pytestmark = pytest.mark.usefixtures("nothing_left")


class Counted:
    """Counts reads in a file, so that workers can be seen; every kind of key."""

    def __init__(self, path, length=120, random_above=10**9):
        self.path = path
        self.length = length
        self.random_above = random_above

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        raise NotImplementedError

    def read_batch(self, indices, allocate=np.empty):
        return self.read_watched(indices, allocate)[0]

    def read_watched(self, indices, allocate=np.empty):
        index = np.array([at.index for at in indices])
        with Path(self.path).open("ab") as file:
            file.write(index.astype(np.int64).tobytes())
        drawn = index > self.random_above
        image = allocate((len(index), 5, 6, 3), np.dtype(np.uint8))
        image[:] = index[:, None, None, None] + np.arange(3)
        offsets = offsets_from_lengths(index % 4)
        points = allocate((int(offsets[-1]), 3), np.dtype(np.float32))
        points[:] = np.repeat(index, index % 4)[:, None]
        boxes = np.stack([index % 3 + 1, index % 2 + 1], 1)
        volumes = offsets_from_lengths(boxes.prod(1))
        volume = allocate((int(volumes[-1]),), np.dtype(np.int16))
        volume[:] = np.repeat(index, boxes.prod(1))
        return {
            "index": Packed(index),
            "image": Packed(image.transpose(0, 3, 1, 2)),
            "points": Packed(points, offsets),
            "volume": Packed(volume, volumes, "box", boxes),
            "name": Packed(np.array([f"sample {'x' * (i % 7)}{i}" for i in index])),
            "draw": Packed(np.array([at.epoch for at in indices]) * drawn),
        }, drawn

    def reads(self):
        return np.fromfile(self.path, np.int64)


def same(a, b):
    assert a.keys() == b.keys()
    for key in a:
        if torch.is_tensor(a[key]):
            assert torch.equal(a[key], b[key]), key
            assert a[key].stride() == b[key].stride(), key
        else:
            assert a[key] == b[key]


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_every_sample_is_decoded_once_and_comes_back_the_same(tmp_path, workers):
    dataset = Counted(tmp_path / "reads")
    plain = Counted(tmp_path / "plain")
    with (
        Loader(dataset, 8, shuffle=True, seed=1, num_workers=workers, cache="all") as loader,
        Loader(plain, 8, shuffle=True, seed=1, num_workers=0) as reference,
    ):
        for _ in range(3):
            for found, expected in zip(loader, reference, strict=True):
                same(found, expected)
        stats = loader.stats()
    assert np.array_equal(np.sort(dataset.reads()), np.arange(120))
    assert (stats["cache_hits"], stats["cache_misses"]) == (240, 120)


def test_it_admits_until_full_and_keeps_what_it_has(tmp_path):
    dataset = Counted(tmp_path / "reads")
    with Loader(dataset, 8, shuffle=True, seed=1, num_workers=2, cache=30_000) as loader:
        for _ in range(2):
            list(loader)
        first = loader.stats()
        for batch in loader:
            assert torch.equal(batch["image"][:, 0, 0, 0].long(), batch["index"] % 256)
        second = loader.stats()
    kept = first["cache_hits"]
    assert 10 < kept < 60
    assert second["cache_hits"] == 2 * kept


def test_what_was_drawn_at_random_is_not_kept(tmp_path):
    dataset = Counted(tmp_path / "reads", random_above=59)
    with Loader(dataset, 6, False, num_workers=1, cache="1MB") as loader:
        for epoch in range(3):
            for batch in loader:
                assert batch["draw"].tolist() == [epoch * (batch["index"][0].item() >= 60)] * 6
        assert loader.stats()["cache_hits"] == 120


def test_batches_of_cached_and_fresh_samples(tmp_path):
    dataset = Counted(tmp_path / "reads")
    file = CacheFile(samples=120, capacity=1 << 20)
    fetch = cached(BatchFetch(dataset), file.region(file.descriptor))
    fetch([3, 50, 7], 0, np.empty)
    mixed = fetch([7, 8, 3, 9, 50], 0, np.empty)
    plain = BatchFetch(dataset)([7, 8, 3, 9, 50], 0, np.empty)
    assert (fetch.hits, fetch.misses) == (3, 5)
    for key, packed in plain.items():
        assert np.array_equal(mixed[key].values, packed.values), key
        assert mixed[key].values.strides == packed.values.strides
        assert packed.offsets is None or np.array_equal(mixed[key].offsets, packed.offsets)
        assert packed.shapes is None or np.array_equal(mixed[key].shapes, packed.shapes)
        assert mixed[key].group == packed.group


@pytest.mark.parametrize("workers", [0, 2])
def test_plain_datasets_are_cached_sample_by_sample(data, tmp_path, workers):
    class Logged(data.Plain):
        def __getitem__(self, index):
            with (tmp_path / "reads").open("a") as file:
                file.write(f"{index}\n")
            return super().__getitem__(index)

    with Loader(Logged(50), 8, shuffle=True, num_workers=workers, cache="10MB") as loader:
        for _ in range(3):
            for batch in loader:
                assert torch.equal(batch["image"][:, 0, 0], batch["label"].float())
    reads = (tmp_path / "reads").read_text().split()
    assert sorted(map(int, reads)) == list(range(50))


def test_sizes():
    assert [parse_size(size) for size in ("4GB", "512 MiB", 17, "all")] == [
        4 * 10**9,
        512 << 20,
        17,
        EVERYTHING,
    ]
    with pytest.raises(InputError, match="cache: is 'much'"):
        parse_size("much")


def test_transforms_and_caches_do_not_mix(tmp_path):
    dataset = Counted(tmp_path / "reads")
    dataset.transform = lambda sample: sample
    with pytest.raises(InputError, match="transform"):
        Loader(dataset, 8, shuffle=True, cache="all", collate_fn=None)
    with pytest.raises(InputError, match="collate"):
        Loader(
            Counted(tmp_path / "reads"), 8, shuffle=True, cache="all", collate_fn=unistore.Collate("padded")
        )


def test_a_full_disk_ends_admission_and_nothing_else(tmp_path, monkeypatch):
    dataset = Counted(tmp_path / "reads")
    written = []
    pwrite = os.pwrite

    def failing(descriptor, buffer, place):
        if len(buffer) > 8:  # a sample, not its number
            written.append(place)
            if len(written) > 20:
                raise OSError(28, "No space left on device")
        return pwrite(descriptor, buffer, place)

    monkeypatch.setattr(os, "pwrite", failing)
    with Loader(dataset, 8, shuffle=True, num_workers=0, cache="all") as loader:
        for _ in range(3):
            seen = [index for batch in loader for index in batch["index"].tolist()]
            assert sorted(seen) == list(range(120))
        assert loader.stats()["cache_hits"] == 40
    assert len(written) == 21
