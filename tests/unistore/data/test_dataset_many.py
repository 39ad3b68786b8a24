"""Several stores as one Dataset: against the samples of each store opened alone, and plain numpy."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import unistore
from unistore.errors import InputError
from unistore.order.permutation import EpochIndex
from unistore.order.sequences import Weighted


@pytest.fixture
def make_rows(make_store: Any) -> Callable[..., Path]:
    def make(count: int, first: int = 0, **arrays: Any) -> Path:
        value = np.arange(first, first + count)
        path: Path = make_store(
            "rows",
            {
                "rows/data": np.repeat(value[:, None], 12, axis=1).reshape(-1, 3, 4).astype(np.float32),
                "rows/value": value,
                "sources/path": [f"file{first}.h5"],
                "sources/rows/offsets": np.array([0, len(value)]),
                **arrays,
            },
            count=count,
            splits={"train": range(0, count, 2), "val": range(1, count, 2)},
        )
        root = path / "zarr.json"
        document = json.loads(root.read_text())
        document["attributes"]["unistore"]["seal"]["digest"] = f"{count:016x}{first:016x}"
        root.write_text(json.dumps(document))
        return path

    return make


def test_samples_of_several_stores_have_one_index(make_rows: Callable[..., Path]) -> None:
    paths = [make_rows(5), make_rows(1, 5), make_rows(20, 6)]
    dataset = unistore.Dataset(paths)
    assert len(dataset) == 26
    assert dataset.store_offsets.tolist() == [0, 5, 6, 26]
    assert [int(dataset[i]["value"]) for i in range(26)] == list(range(26))
    assert dataset[-1]["index"] == 25
    wanted = [25, 0, 5, 4, 5, -1, 6, 13]
    batch = dataset.read_batch(wanted)
    places = np.array(wanted) % 26
    assert np.array_equal(batch["index"].values, places)
    assert np.array_equal(batch["value"].values, places)
    assert np.array_equal(batch["data"].values, np.broadcast_to(places[:, None, None], (8, 3, 4)))
    assert batch["data"].offsets is None
    assert len(dataset.read_batch([])["data"]) == 0
    with pytest.raises(IndexError, match=r"0 to 25"):
        dataset[26]
    assert repr(dataset).startswith("Dataset(['")
    assert "26 samples of data, value)" in repr(dataset)
    with pytest.raises(AttributeError, match="reads 3 stores"):
        dataset.store  # noqa: B018
    again = pickle.loads(pickle.dumps(dataset))
    assert len(again) == 26


def test_sources_begin_with_their_store(make_rows: Callable[..., Path], tmp_path: Path) -> None:
    paths = [make_rows(5), make_rows(4, 10)]
    dataset = unistore.Dataset(paths, fields=["value", "source"])
    assert dataset.__getitems__([0, 8, 4])[1]["source"] == f"{paths[1].name}/file10.h5"
    assert dataset.read_batch([0, 4])["source"].values.tolist() == [f"{paths[0].name}/file0.h5"] * 2
    assert [dataset.source_of(i) for i in (4, 5, -1)] == [
        f"{paths[0].name}/file0.h5",
        f"{paths[1].name}/file10.h5",
        f"{paths[1].name}/file10.h5",
    ]
    same = [tmp_path / name / "same.zarr" for name in ("x", "y")]
    for path, other in zip(paths, same, strict=True):
        other.parent.mkdir()
        path.rename(other)
    moved = unistore.Dataset(same)
    assert [part.name for part in moved.parts] == ["x/same.zarr", "y/same.zarr"]


def test_ragged_samples_come_in_the_order_asked_for(make_cloud: Callable[..., Any]) -> None:
    clouds = [make_cloud((50, 0, 900, 7, 300, 23)), make_cloud((5, 40, 3, 0, 600, 1))]
    kind = unistore.Segments(voxel=500, coordinates="absolute")
    dataset = unistore.Dataset([cloud.path for cloud in clouds], kind)
    alone = [unistore.Dataset(cloud.path, kind) for cloud in clouds]
    assert dataset.store_offsets.tolist() == [0, 4, 8]
    wanted = [7, 0, 4, 2, 6, 6, 1]
    batch = dataset.read_batch(wanted)
    for place, index in enumerate(wanted):
        sample = alone[index // 4][index % 4]
        assert sample.keys() == batch.keys()
        for key in sample.keys() - {"index"}:
            assert np.array_equal(batch[key][place], sample[key].numpy()), key
    assert batch["xyz"].offsets is batch["rgb"].offsets
    assert batch["voxel_coords"].group == "voxel"
    expected = np.concatenate([clouds[i // 4].absolute(i % 4) for i in wanted])
    assert np.array_equal(batch["xyz"].values, expected)
    packed = unistore.collate(dataset.__getitems__(wanted))
    assert packed["offsets"].tolist() == batch["xyz"].offsets.tolist()
    assert packed["voxel_offsets"].tolist() == batch["voxel_coords"].offsets.tolist()


def test_a_batch_is_copied_once(make_rows: Callable[..., Path]) -> None:
    """Everything handed out lies in memory that was allocated for it, and nothing else is allocated."""
    dataset = unistore.Dataset([make_rows(30), make_rows(30, 30)])
    for wanted in ([3, 40, 2], [1, 2], [50, 51, 31]):
        given = []

        def allocate(shape: tuple[int, ...], dtype: np.dtype[Any], given: list[Any] = given) -> Any:
            given.append(np.empty(shape, dtype))
            return given[-1]

        batch = dataset.read_batch(wanted, allocate)
        assert sum(part.nbytes for part in given) == sum(packed.values.nbytes for packed in batch.values())
        for packed in batch.values():
            assert any(np.shares_memory(packed.values, part) for part in given)


def test_volumes_of_one_extent_are_dense_and_others_boxes(make_scans: Callable[..., Any]) -> None:
    same = [make_scans([(8, 9, 10)] * 2), make_scans([(8, 9, 10)])]
    dense = unistore.Dataset([scans.path for scans in same])
    batch = dense.read_batch([2, 0])
    assert batch["image"].values.shape == (2, 8, 9, 10)
    assert np.array_equal(batch["image"].values[0], same[1].volumes[0])

    scans = [make_scans([(8, 9, 10)] * 2), make_scans([(7, 6, 5)] * 2), make_scans()]
    mixed = unistore.Dataset([each.path for each in scans], fields=["image", "low", "name"])
    everything = [volume for each in scans for volume in each.volumes]
    names = [f"case{i}" for each in scans for i in range(len(each.volumes))]
    for wanted in ([0, 1], [2, 3], [3, 0, 6, 1], list(range(7))):
        batch = mixed.read_batch(wanted)
        assert batch["image"].shapes is not None
        assert batch["image"].shapes.tolist() == [list(everything[i].shape) for i in wanted]
        for place, index in enumerate(wanted):
            assert np.array_equal(batch["image"][place], everything[index])
            inside = (everything[index] >= 0) & (everything[index] <= 300)
            assert np.array_equal(batch["low"][place], inside)
        assert batch["image"].offsets is batch["low"].offsets
        assert batch["name"].values.tolist() == [names[i] for i in wanted]
    padded = unistore.Collate("padded")(mixed.__getitems__([0, 2]))
    assert padded["image"].shape == (2, 8, 9, 10)


def test_every_store_has_draws_of_its_own(make_scans: Callable[..., Any]) -> None:
    scans = make_scans([(30, 30, 30)] * 4)
    dataset = unistore.Dataset([scans.path, scans.path], unistore.Patches(5), fields=["corner"], seed=3)
    corners = dataset.read_batch([EpochIndex(i, 1) for i in range(8)])["corner"].values
    assert (corners[:4] != corners[4:]).any()
    longer = unistore.Dataset([scans.path] * 3, unistore.Patches(5), fields=["corner"], seed=3)
    assert np.array_equal(longer.read_batch([EpochIndex(i, 1) for i in range(8)])["corner"].values, corners)
    assert (longer.read_batch([EpochIndex(i, 2) for i in range(8)])["corner"].values != corners).any()


def test_fields_that_differ_are_named(make_rows: Callable[..., Path]) -> None:
    paths = [make_rows(5), make_rows(4, **{"rows/extra": np.arange(4)}), make_rows(3)]
    with pytest.raises(InputError) as caught:
        unistore.Dataset(paths)
    message = str(caught.value)
    assert f"field 'extra': is in {paths[1].name}, but not in {paths[0].name}, {paths[2].name}" in message
    assert "fields=['data', 'value']" in message
    assert len(unistore.Dataset(paths, fields=["data", "value"])) == 12
    with pytest.raises(InputError) as caught:
        unistore.Dataset(paths, fields=["extra"])
    assert [problem.location for problem in caught.value.problems] == [str(paths[0]), str(paths[2])]


def test_stores_of_different_kinds_are_refused(
    make_rows: Callable[..., Path], make_cloud: Callable[..., Any], make_store: Any
) -> None:
    paths = [make_rows(5), make_cloud().path]
    with pytest.raises(
        InputError, match=r"Segments.* of a point_cloud store, but the samples of .*Rows\(\) of a rows"
    ):
        unistore.Dataset(paths)
    with pytest.raises(InputError, match="the list is empty"):
        unistore.Dataset([])
    arrays = {"rows/data": np.zeros((3, 3, 4), np.float32)}
    without, further = (make_store("rows", arrays, count=3) for _ in range(2))
    message = "there is no split 'train', because"
    with pytest.raises(InputError, match=f"(?s){without}: {message}.*{further}: {message}"):
        unistore.Dataset([paths[0], without, further], split="train")


def test_a_weight_of_a_store_without_samples_is_an_error(
    make_rows: Callable[..., Path], make_store: Any
) -> None:
    alone = make_store(
        "rows",
        {"rows/data": np.zeros((1, 3, 4), np.float32), "rows/value": np.zeros(1, np.int64)},
        count=1,
        splits={"train": [0], "val": []},
    )
    paths = [make_rows(5), alone]
    with pytest.raises(InputError, match="has no samples, but its weight is 2"):
        len(unistore.Dataset(paths, split="val", weights=[1, 2]))
    assert len(unistore.Dataset(paths, split="val", weights=[1, 0])) == 2
    assert len(unistore.Dataset(paths, split="val")) == 2


@pytest.fixture
def weighted(make_rows: Callable[..., Path]) -> unistore.Dataset:
    return unistore.Dataset([make_rows(10), make_rows(1000, 10), make_rows(50, 1010)], weights=[3, 1, 0])


def test_weights_are_shares_of_an_epoch(weighted: unistore.Dataset) -> None:
    order = unistore.Shuffle(weighted, seed=4)
    assert len(order) == len(weighted) == 1060
    order.set_epoch(2)
    drawn = np.array([at.index for at in order])
    assert {at.epoch for at in order} == {2}
    assert drawn.max() < 1010
    # 1060 draws with p = 3/4: standard deviation 14
    assert abs((drawn < 10).sum() - 795) < 5 * 14
    assert set(drawn[drawn < 10].tolist()) == set(range(10))
    order.set_epoch(3)
    assert [at.index for at in order] != drawn.tolist()
    assert len(list(unistore.Shuffle(weighted, samples_per_epoch=77))) == 77
    with pytest.raises(ValueError, match="works only with a dataset that has weights"):
        unistore.Shuffle(10, samples_per_epoch=77)


def test_weights_of_stores_apply_to_a_subset(weighted: unistore.Dataset) -> None:
    subset = np.array([1009, 500, 3, 12])
    with unistore.Loader(
        weighted, 100, shuffle=True, subset=subset, samples_per_epoch=2000, num_workers=0
    ) as loader:
        values = torch.cat([batch["value"] for batch in loader])
    assert set(values.tolist()) == set(subset.tolist())
    assert abs((values == 3).sum() - 1500) < 5 * 20


def test_a_state_resumes_and_rejects_other_stores_or_weights(weighted: unistore.Dataset) -> None:
    paths = [part.store.path for part in weighted.parts]

    def loader(stores: Any = paths, weights: Any = (3, 1, 0), workers: int = 0) -> unistore.Loader:
        return unistore.Loader(
            unistore.Dataset(stores, weights=weights), 16, shuffle=True, seed=4, num_workers=workers
        )

    with loader() as whole:
        expected = [batch["value"].tolist() for batch in whole]
    with loader() as first:
        run = iter(first)
        begun = [next(run)["value"].tolist() for _ in range(7)]
        state = first.state_dict()
    with loader(workers=2) as second:
        second.load_state_dict(state)
        assert begun + [batch["value"].tolist() for batch in second] == expected
    with pytest.raises(unistore.LoaderError, match="weights was"):
        loader(weights=(2, 1, 0)).load_state_dict(state)
    with pytest.raises(unistore.LoaderError, match="other samples"):
        loader([paths[1], paths[0], paths[2]]).load_state_dict(state)


def test_blocks_never_span_stores(make_rows: Callable[..., Path]) -> None:
    dataset = unistore.Dataset([make_rows(70), make_rows(33, 70), make_rows(5, 103)])
    blocks = dataset.block_offsets()
    assert np.all(np.diff(blocks) > 0)
    assert {0, 70, 103, 108} <= set(blocks.tolist())
    with unistore.Loader(dataset, 8, "blocks", num_workers=0) as loader:
        assert sorted(torch.cat([batch["value"] for batch in loader]).tolist()) == list(range(108))


def gathered(loader: Any) -> list[dict[str, Any]]:
    return [{key: value.clone() for key, value in batch.items()} for batch in loader]


def assert_same(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one)


def test_workers_read_what_the_parent_reads(make_cloud: Callable[..., Any]) -> None:
    start, workers = "forkserver", 2
    clouds = [make_cloud((50, 0, 900, 7, 300, 23)), make_cloud((5, 40, 3, 0, 600, 1))]
    paths = [cloud.path for cloud in clouds]
    dataset = unistore.Dataset(paths, unistore.Segments(max_points=40), weights=[1, 2])
    options: dict[str, Any] = {"batch_size": 3, "collate_fn": unistore.collate}
    order = unistore.Shuffle(dataset, seed=1)
    order.set_epoch(1)
    expected = gathered(DataLoader(dataset, sampler=order, **options))
    torches = DataLoader(
        dataset, sampler=order, num_workers=workers, multiprocessing_context=start, **options
    )
    assert_same(gathered(torches), expected)
    with unistore.Loader(
        dataset, 3, shuffle=True, seed=1, num_workers=workers, multiprocessing_context=start
    ) as loader:
        gathered(loader)
        assert_same(gathered(loader), expected)


def test_an_attribute_weights_of_a_foreign_dataset_is_ignored() -> None:
    class Plain:
        weights = torch.ones(3)

        def __len__(self) -> int:
            return 10

        def __getitem__(self, index: int) -> int:
            return index

    assert sorted(at.index for at in unistore.Shuffle(Plain())) == list(range(10))
    with unistore.Loader(Plain(), 5, shuffle=True, num_workers=0) as loader:
        assert not isinstance(loader.sequence, Weighted)
        assert sorted(torch.cat(list(loader)).tolist()) == list(range(10))
