"""Dataset in torch's DataLoader: every start method, after the parent has read, equal to serial reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import unistore
from tests.spikes import stored_spikes
from unistore.schemas.trajectory.fields import CHANNEL

STARTS = ["fork", "forkserver", "spawn"]


def double(sample: dict[str, Any]) -> dict[str, Any]:
    """A transform that spawned workers can import."""
    return {**sample, "xyz": sample["xyz"] * 2}


def batches(dataset: unistore.Dataset, epoch: int = 0, **options: Any) -> list[dict[str, Any]]:
    order = unistore.Shuffle(dataset, seed=5)
    order.set_epoch(epoch)
    options = {
        "collate_fn": unistore.collate,
        **options,
    }
    return [clone(batch) for batch in DataLoader(dataset, 3, sampler=order, **options)]


def clone(value: Any) -> Any:
    """A copy out of shared memory, so that descriptors are given back."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    return {key: clone(part) for key, part in value.items()} if isinstance(value, dict) else value


def assert_equal(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert list(one) == list(other)
        for key, value in one.items():
            same = torch.equal(value, other[key]) if isinstance(value, torch.Tensor) else value == other[key]
            assert same, key


@pytest.fixture
def segments(make_cloud: Callable[..., Any]) -> unistore.Dataset:
    path = make_cloud((700, 3, 40, 5, 600, 0, 55, 1)).path
    return unistore.Dataset(path, unistore.Segments(max_points=50, voxel=500), seed=2)


@pytest.mark.parametrize("start", STARTS)
def test_workers_equal_serial_after_the_parent_has_read(segments: unistore.Dataset, start: str) -> None:
    serial, count = batches(segments), 1 if start == "spawn" else 2
    parallel = batches(segments, num_workers=count, multiprocessing_context=start)
    assert_equal(parallel, serial)
    assert serial[0]["offsets"][0] == 0


class Together:
    """Samples of several datasets, told by dataset and index, so that one worker reads them all."""

    def __init__(self, *datasets: unistore.Dataset) -> None:
        self.datasets = datasets

    def __getitems__(self, indices: list[tuple[int, int]]) -> Any:
        ((number, *_), *_) = indices
        return self.datasets[number].__getitems__([index for _, index in indices])


@pytest.fixture
def families(make_store: Any, make_scans: Any) -> Together:
    """Datasets of the other families."""
    rng = np.random.default_rng(0)
    image = rng.integers(0, 255, (8, 12, 14, 3)).astype(np.uint8)
    kinds: dict[str, Any] = {
        "rows": (None, {"rows/data": rng.random((8, 3))}),
        "spike": (
            unistore.Clips(2, crop=6, voxel_bins=3),
            {
                **stored_spikes(rng.integers(0, 2, (8, 9, 12, 14)).astype(np.uint8)),
                "sources/path": list("abcdefgh"),
                "frames/spike_extent": np.tile(np.array([12, 14], np.int32), (8, 1)),
                "frames/image_extent": np.tile(np.array([12, 14], np.int32), (8, 1)),
                "frames/blur": image,
                "sequences/offsets": np.array([0, 8]),
                "sequences/name": ["a"],
            },
        ),
        "trajectory": (
            unistore.Transitions(),
            {
                "steps/observation/left": image,
                "steps/action": rng.random((8, 2)),
                "steps/next_valid": np.arange(8) != 7,
                "steps/terminated": np.zeros(8, bool),
                "episodes/offsets": np.array([0, 8]),
            },
        ),
    }
    datasets = [unistore.Dataset(make_scans().path, unistore.SparsePoints(max_points=20))]
    for family, (kind, arrays) in kinds.items():
        axes = {"steps/observation/left": ("step", "y", "x", CHANNEL)}
        path = make_store(family, arrays, count=1 if family == "trajectory" else 8, axes=axes)
        datasets.append(unistore.Dataset(path, kind))
    return Together(*datasets)


@pytest.mark.parametrize("start", STARTS[:2])
def test_every_family_inherited_and_pickled(families: Together, start: str) -> None:
    order = [
        [(number, index) for index in unistore.Shuffle(dataset, seed=5)]
        for number, dataset in enumerate(families.datasets)
    ]
    wanted = [part[lo : lo + 3] for part in order for lo in range(0, len(part), 3)]
    assert {number for ((number, _), *_) in wanted} == {0, 1, 2, 3}
    options: dict[str, Any] = {"batch_sampler": wanted, "collate_fn": unistore.collate}
    serial = [clone(batch) for batch in DataLoader(families, **options)]  # type: ignore[arg-type]
    options |= {"num_workers": 1, "multiprocessing_context": start}
    assert_equal([clone(batch) for batch in DataLoader(families, **options)], serial)  # type: ignore[arg-type]


def test_persistent_workers_see_each_epoch(segments: unistore.Dataset) -> None:
    order = unistore.Shuffle(segments, seed=5)
    loader = DataLoader(
        segments,
        3,
        sampler=order,
        num_workers=2,
        persistent_workers=True,
        collate_fn=unistore.collate,
        multiprocessing_context="fork",
    )
    for epoch in range(3):
        order.set_epoch(epoch)
        assert_equal([clone(batch) for batch in loader], batches(segments, epoch))


@pytest.mark.parametrize("start", STARTS[:2])
def test_transforms_and_other_collations(segments: unistore.Dataset, start: str) -> None:
    changed = unistore.Dataset(segments.path, segments.samples, ["xyz", "source"], transform=double)
    for collate in (unistore.collate, unistore.Collate("padded")):
        serial = batches(changed, collate_fn=collate)
        count = 2 if start == "fork" else 1
        workers = batches(changed, collate_fn=collate, num_workers=count, multiprocessing_context=start)
        assert_equal(workers, serial)


def test_workers_read_into_shared_memory(segments: unistore.Dataset) -> None:
    loader = DataLoader(segments, 3, num_workers=1, collate_fn=_shared_keys, multiprocessing_context="fork")
    shared = next(iter(loader))
    assert shared == {"index", "xyz", "origin", "classification", "intensity", "rgb", "point_voxel"} | {
        "voxel_coords",
        "voxel_counts",
    }


def _shared_keys(samples: Any) -> set[str]:
    return {
        key for key, value in unistore.collate(samples).items() if "offsets" not in key and value.is_shared()
    }


def test_errors_reach_the_parent_whole(make_cloud: Callable[..., Any]) -> None:
    cloud = make_cloud()
    dataset = unistore.Dataset(cloud.path)
    assert len(dataset) == 4
    for shard in (cloud.path / "points" / "xyz" / "c").rglob("*"):
        if shard.is_file():
            shard.write_bytes(shard.read_bytes()[:-200])
    loader = DataLoader(
        dataset, 2, num_workers=1, collate_fn=unistore.collate, multiprocessing_context="fork"
    )
    with pytest.raises(unistore.CorruptionError, match="points/xyz"):
        list(loader)
