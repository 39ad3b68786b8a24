"""Block shuffles of stores in a bucket: blocks are read whole, by few requests, and kept until delivered."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import unistore
from tests.unistore.remote.conftest import new_bucket, upload
from unistore.errors import SampleError
from unistore.loader.ordering import reading_ahead, sequence_for
from unistore.report.epochs import epoch_costs
from unistore.store.reader import Store

CLOUDS = 90


@pytest.fixture(scope="module")
def clouds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of clouds of 20 to 199 points."""
    folder = tmp_path_factory.mktemp("clouds")
    rng = np.random.default_rng(0)
    for number in range(CLOUDS):
        points = int(rng.integers(20, 200))
        with h5py.File(folder / f"{number:03}.h5", "w") as file:
            for axis in "xyz":
                file[axis] = rng.normal(0, 5, points)
            file["classification"] = rng.integers(0, 5, points).astype("i4")
    store = tmp_path_factory.mktemp("stores") / "store.zarr"
    unistore.convert(folder, store, "point_cloud", progress=False)
    return store


@pytest.fixture(scope="module")
def shared(boto: Any, clouds: Path) -> str:
    return upload(new_bucket(boto), clouds)


@pytest.fixture
def far(proxy: Any, shared: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The same store in a bucket, with blocks of about ten clouds; not to be changed."""
    monkeypatch.setattr("unistore.data.ahead.BLOCK_BYTES", 16 << 10)
    return shared


def blocks_read(dataset: Any, subset: Any = None, seed: int = 0) -> tuple[Any, Any]:
    """What a Loader reads, and its order."""
    sequence = sequence_for(
        dataset, "blocks", seed=seed, batch_size=8, subset=subset, weights=None, samples_per_epoch=None
    )
    return reading_ahead(dataset, sequence), sequence


def nbytes(proxy: Any) -> int:
    """Bytes of points that were asked for since the last call."""
    total = 0
    for seen in proxy.seen:
        if "/points/" in seen.path and "/c/" in seen.path and seen.range:
            low, _, high = seen.range.removeprefix("bytes=").partition("-")
            total += int(high) + 1 - int(low) if low else int(high)
    proxy.seen.clear()
    return total


def check_epoch(reads: Any, sequence: Any, near: unistore.Dataset, epoch: int = 0) -> None:
    for lo in range(0, len(sequence), 8):
        index = sequence.indices(epoch, lo, min(lo + 8, len(sequence)))
        pairs = np.stack([index, np.full_like(index, epoch)], axis=1)
        batch = reads.read_batch(pairs)
        expected = near.read_batch(pairs)
        assert batch.keys() == expected.keys()
        for key, packed in expected.items():
            np.testing.assert_array_equal(batch[key].values, packed.values)
            if packed.offsets is not None:
                np.testing.assert_array_equal(batch[key].offsets, packed.offsets)


def test_each_byte_is_fetched_once_and_by_few_requests(proxy: Any, far: str, clouds: Path) -> None:
    dataset = unistore.Dataset(far)
    reads, sequence = blocks_read(dataset)
    blocks = len(sequence.offsets) - 1
    assert 6 < blocks < 20
    check_epoch(reads, sequence, unistore.Dataset(clouds))
    nbytes(proxy)
    check_epoch(reads, sequence, unistore.Dataset(clouds), epoch=1)
    requests = len(proxy.seen)
    stored = sum(path.stat().st_size for path in clouds.glob("points/*/c/**/*") if path.is_file())
    assert nbytes(proxy) <= 1.2 * stored
    assert requests <= 4 * blocks


@pytest.mark.parametrize(
    ("kept", "subset", "samples"),
    [
        (256 << 20, np.arange(5, 80, 3), None),
        (20 << 10, None, None),
        (256 << 20, None, unistore.Segments(exactly=64)),
    ],
    ids=["a subset", "no room", "random points"],
)
def test_samples_are_those_of_a_folder(
    far: str, clouds: Path, kept: int, subset: Any, samples: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unistore.data.ahead.KEPT_BYTES", kept)
    reads, sequence = blocks_read(unistore.Dataset(far, samples), subset)
    check_epoch(reads, sequence, unistore.Dataset(clouds, samples))
    copied = pickle.loads(pickle.dumps(reads))
    check_epoch(copied, sequence, unistore.Dataset(clouds, samples), epoch=1)


def test_damage_is_told_of_its_own_sample_alone(bucket: Any, clouds: Path) -> None:
    far = upload(bucket, clouds)
    store = Store(clouds)
    array = store.array("points/xyz")
    chunk = int(store.array("segments/offsets").read()[45]) // array.chunk_shape[0]
    located = array.reader.locate([chunk])
    key = f"deep/store.zarr/{located.keys[0]}"
    content = bytearray(bucket.get(key))
    content[located.offsets[0] + 3] ^= 1
    bucket.put(key, bytes(content))
    loader = unistore.Loader(unistore.Dataset(far), 1, shuffle="blocks", num_workers=0)
    delivered: list[int] = []
    with pytest.raises(SampleError) as raised:
        delivered += (int(batch["index"][0]) for batch in loader)
    assert raised.value.sample in (44, 45, 46)
    single = unistore.Dataset(far)
    for index in delivered:
        assert len(single[index]["xyz"])


@pytest.mark.parametrize(("order", "copies"), [("full", False), ("blocks", False), ("full", True)])
def test_doctor_counts_the_requests_of_an_epoch(
    proxy: Any, far: str, tmp_path: Path, order: str, copies: bool
) -> None:
    label = "full, cache_dir" if copies else order
    predicted = {cost.order: cost for cost in epoch_costs(unistore.Dataset(far), 8)}[label]
    proxy.seen.clear()
    options = {"cache_dir": tmp_path} if copies else {}
    loader = unistore.Loader(unistore.Dataset(far, **options), 8, shuffle=order, seed=0, num_workers=0)
    for _ in loader:
        pass
    requests = len(proxy.seen)
    assert abs(predicted.requests - requests) <= max(2, 0.03 * requests), requests
    kept = sum(path.stat().st_size for path in tmp_path.glob("[0-9a-f]" * 32))
    assert predicted.bytes == pytest.approx(kept if copies else nbytes(proxy), rel=0.15)


def test_counted_requests_of_an_epoch_are_repeatable_and_can_be_sampled(proxy: Any, far: str) -> None:
    dataset = unistore.Dataset(far)
    costs = epoch_costs(dataset, 8)
    assert epoch_costs(dataset, 8) == costs
    proxy.seen.clear()
    part = {cost.order: cost for cost in epoch_costs(dataset, 8, most_samples=8)}
    assert nbytes(proxy) < max(cost.bytes for cost in costs) / 2  # no chunk of points is read
    for cost in costs:
        assert part[cost.order].requests == pytest.approx(cost.requests, rel=0.5)
        assert part[cost.order].bytes == pytest.approx(cost.bytes, rel=0.5)
