"""Dataset in torch's DataLoader: forked and sent, after the parent has read, equal to serial reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import unistore

STARTS = ["fork", "forkserver"]


def double(sample: dict[str, Any]) -> dict[str, Any]:
    """A transform that workers that are not forked can import."""
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
    serial = batches(segments)
    parallel = batches(segments, num_workers=2, multiprocessing_context=start)
    assert_equal(parallel, serial)
    assert serial[0]["offsets"][0] == 0


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
