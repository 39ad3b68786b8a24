"""Collation: packed, list and padded; of batches as read, of lists of samples, and after transforms."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, default_collate

import unistore
from unistore.errors import InputError

LENGTHS = (5, 2, 1, 9, 4, 3)


@pytest.fixture
def dataset(make_cloud: Callable[..., Any]) -> unistore.Dataset:
    return unistore.Dataset(make_cloud(LENGTHS).path, unistore.Segments(voxel=500))


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    return type(a) is type(b) and len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))


def test_packed_joins_ragged_keys_with_offsets(dataset: unistore.Dataset) -> None:
    batch = unistore.collate(dataset.__getitems__([3, 0, 1]))
    assert batch["offsets"].tolist() == [0, 4, 9, 11]
    assert batch["xyz"].shape == (11, 3)
    assert batch["rgb"].shape == (11, 3)
    assert batch["origin"].shape == (3, 3)
    assert batch["index"].tolist() == [3, 0, 1]
    assert len(batch["voxel_coords"]) == len(batch["voxel_counts"]) == batch["voxel_offsets"][-1]
    assert torch.equal(batch["xyz"][4:9], dataset[0]["xyz"])


def test_list_keeps_ragged_keys_apart(dataset: unistore.Dataset) -> None:
    batch = unistore.collate(dataset.__getitems__([3, 0]), ragged="list")
    assert [len(xyz) for xyz in batch["xyz"]] == [4, 5]
    assert batch["origin"].shape == (2, 3)
    assert "offsets" not in batch


def test_padded_fills_ragged_keys_to_the_longest_with_lengths(dataset: unistore.Dataset) -> None:
    batch = unistore.Collate("padded")(dataset.__getitems__([1, 0]))
    assert batch["xyz"].shape == (2, 5, 3)
    assert batch["lengths"].tolist() == [2, 5]
    assert torch.equal(batch["xyz"][0, :2], dataset[1]["xyz"])
    assert batch["xyz"][0, 2:].count_nonzero() == 0
    assert batch["voxel_lengths"].tolist() == [len(dataset[i]["voxel_coords"]) for i in (1, 0)]


@pytest.mark.parametrize("as_read", [True, False])
def test_batch_first_puts_the_sample_number_before_coordinates(
    dataset: unistore.Dataset, as_read: bool
) -> None:
    indices = [3, 0, 1]
    samples = dataset.__getitems__(indices) if as_read else [dataset[i] for i in indices]
    batch = unistore.Collate(coords="batch-first")(samples)
    expected = [[at, *row] for at, i in enumerate(indices) for row in dataset[i]["voxel_coords"].tolist()]
    assert batch["voxel_coords"].dtype == torch.int32
    assert batch["voxel_coords"].tolist() == expected
    assert equal(batch["xyz"], unistore.collate(samples)["xyz"])


def test_coordinates_need_a_packed_batch_that_has_some(dataset: unistore.Dataset) -> None:
    with pytest.raises(InputError, match=r"coords: works only with packed batches, got ragged='list'"):
        unistore.Collate("list", coords="batch-first")
    with pytest.raises(InputError, match="coords"):
        unistore.Collate(coords="xyz")  # type: ignore[arg-type]
    plain = unistore.Dataset(dataset.path, fields=["xyz"])
    with pytest.raises(ValueError, match="no coords or voxel_coords, but index, xyz"):
        unistore.Collate(coords="batch-first")(plain.__getitems__([0]))


@pytest.mark.parametrize("ragged", ["packed", "list", "padded"])
@pytest.mark.parametrize("indices", [[0, 3, 1], [2], [1, 1]])
def test_lists_of_samples_are_collated_like_batches_as_read(
    dataset: unistore.Dataset, ragged: Any, indices: list[int]
) -> None:
    as_read = unistore.collate(dataset.__getitems__(indices), ragged=ragged)
    by_one = unistore.collate([dataset[i] for i in indices], ragged=ragged)
    assert as_read.keys() == by_one.keys()
    assert all(equal(as_read[key], by_one[key]) for key in as_read)


@pytest.mark.parametrize("ragged", ["packed", "list", "padded"])
def test_transformed_samples_stay_ragged(make_cloud: Callable[..., Any], ragged: Any) -> None:
    path = make_cloud(LENGTHS).path
    plain = unistore.Dataset(path)
    moved = unistore.Dataset(
        path, transform=lambda sample: {key: sample[key] * 2 for key in ("xyz", "classification", "origin")}
    )
    for indices in ([0, 2], [1], [1, 1]):
        expected = unistore.collate(plain.__getitems__(indices), ragged=ragged)
        found = unistore.collate(moved.__getitems__(indices), ragged=ragged)
        assert found.keys() == expected.keys() - {"index", "intensity", "rgb"}
        for key in ("xyz", "classification", "origin"):
            doubled = [x * 2 for x in expected[key]] if isinstance(expected[key], list) else expected[key] * 2
            assert equal(found[key], doubled)


def test_ragged_keys_of_a_transform_need_groups(make_cloud: Callable[..., Any]) -> None:
    path = make_cloud(LENGTHS).path
    dataset = unistore.Dataset(
        path, transform=lambda sample: {"points": sample["xyz"], "n": len(sample["xyz"])}
    )
    samples = dataset.__getitems__([0, 1])
    with pytest.raises(ValueError, match=r"points has different shapes in one batch: \(2, 3\), \(5, 3\)"):
        unistore.collate(samples)
    batch = unistore.Collate(groups={"points": ""})(samples)
    assert batch["offsets"].tolist() == [0, 5, 7]
    assert batch["n"].tolist() == [5, 2]


def test_samples_with_contradicting_lengths_or_keys_are_an_error(make_cloud: Callable[..., Any]) -> None:
    path = make_cloud(LENGTHS).path
    halved = unistore.Dataset(path, transform=lambda sample: {**sample, "xyz": sample["xyz"][::2]})
    with pytest.raises(ValueError, match="keys of one group have different lengths: offsets"):
        unistore.collate(halved.__getitems__([0, 1]))
    with pytest.raises(ValueError, match="different keys: only some have b"):
        unistore.collate([{"a": 1}, {"a": 1, "b": 2}])
    with pytest.raises(InputError, match="ragged: must be"):
        unistore.Collate("flat")  # type: ignore[arg-type]


def test_samples_survive_pickling_copying_and_torch(make_cloud: Callable[..., Any]) -> None:
    dataset = unistore.Dataset(make_cloud(LENGTHS).path, fields=["xyz", "rgb", "origin"])
    samples = [dataset[0], dataset[1]]  # no uint16: torch 2.13 cannot unpickle such tensors
    expected = unistore.collate(samples)
    for again in (pickle.loads(pickle.dumps(samples)), copy.copy(samples), [copy.copy(s) for s in samples]):
        assert unistore.collate(again).keys() == expected.keys()
    dense = default_collate([{"origin": sample["origin"]} for sample in samples])
    assert torch.equal(dense["origin"], expected["origin"])
    collate = pickle.loads(pickle.dumps(unistore.Collate("padded", {"a": ""})))
    assert collate == unistore.Collate("padded", {"a": ""})


@pytest.mark.timeout(120)
@pytest.mark.parametrize("workers", [0, 1])
def test_a_data_loader_without_collate_fn_packs_ragged_keys(
    make_cloud: Callable[..., Any], workers: int
) -> None:
    dataset = unistore.Dataset(make_cloud(LENGTHS).path, fields=["xyz", "origin"])
    assert len(dataset[0]["xyz"]) != len(dataset[1]["xyz"])
    stock = list(DataLoader(dataset, batch_size=3, num_workers=workers))
    ours = list(DataLoader(dataset, batch_size=3, collate_fn=unistore.collate))
    lengths = [len(dataset[index]["xyz"]) for index in range(3)]
    assert stock[0]["offsets"].tolist() == np.cumsum([0, *lengths]).tolist()
    for batch, expected in zip(stock, ours, strict=True):
        assert batch.keys() == expected.keys()
        assert all(equal(batch[key], expected[key]) for key in batch)
    pair = default_collate([(dataset[0], 1), (dataset[1], 2)])
    assert torch.equal(pair[0]["xyz"], torch.cat([dataset[0]["xyz"], dataset[1]["xyz"]]))
    assert pair[1].tolist() == [1, 2]


def test_empty_segments_are_collated_without_rows(make_cloud: Callable[..., Any]) -> None:
    dataset = unistore.Dataset(make_cloud((0, 3, 1, 0, 0, 0)).path)
    batch = unistore.collate(dataset.__getitems__([2, 0]))
    assert batch["offsets"].tolist() == [0, 0, 0]
    assert batch["xyz"].shape == (0, 3)
    padded = unistore.collate(dataset.__getitems__([1, 0]), ragged="padded")
    assert padded["lengths"].tolist() == [3, 0]
    assert np.array_equal(padded["xyz"][1].numpy(), np.zeros((3, 3)))


def collate_fn(batch: list[Any]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """As trainings on many point-cloud files have it."""
    xyz, labels = zip(*batch, strict=True)
    return list(xyz), list(labels)


def as_pair(sample: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return sample["xyz"], sample["classification"]


@pytest.mark.parametrize("workers", [0, 1])
def test_as_tuple_of_lists_equals_a_collate_fn_of_torch(make_cloud: Any, workers: int) -> None:
    path = make_cloud(LENGTHS).path
    pairs = unistore.Dataset(path, transform=as_pair)
    expected = list(DataLoader(pairs, batch_size=3, collate_fn=collate_fn))
    of_dicts = unistore.Collate(ragged="list", as_tuple=("xyz", "classification"))
    for dataset, collate in (
        (unistore.Dataset(path), of_dicts),
        (pairs, of_dicts),
        (pairs, unistore.Collate(ragged="list")),
    ):
        with unistore.Loader(
            dataset, batch_size=3, shuffle=False, num_workers=workers, collate_fn=collate
        ) as loader:
            assert equal(list(map(tuple, loader)), expected)


def test_tuple_samples_are_collated_with_groups_and_as_tuple(dataset: unistore.Dataset) -> None:
    pairs = [as_pair(dataset[at]) for at in (0, 1)]
    grouped = unistore.Collate(groups={"xyz": "", "label": ""}, as_tuple=("xyz", "label"))
    xyz, label, offsets = grouped(pairs)
    assert torch.equal(xyz, torch.cat([pair[0] for pair in pairs]))
    assert torch.equal(label, torch.cat([pair[1] for pair in pairs]))
    assert offsets.tolist() == [0, 5, 7]
    numbers = unistore.collate([(torch.ones(2), 1), (torch.zeros(2), 2)])
    assert equal(numbers, (torch.tensor([[1.0, 1.0], [0.0, 0.0]]), torch.tensor([1, 2])))
    with pytest.raises(ValueError, match="some samples are tuples of 1 items, but 2"):
        grouped([pairs[0], pairs[1][:1]])
    with pytest.raises(ValueError, match=r"as_tuple: the batch has no label. Fix: use keys of index"):
        grouped(dataset.__getitems__([0]))
    with pytest.raises(InputError, match="as_tuple: must be a name, or several"):
        unistore.Collate(as_tuple=(1, 2))  # type: ignore[arg-type]
