"""Dataset: indices, fields, splits, sources, transforms, pickling; rows as the plainest samples."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import unistore
from tests.support.store_files import flip
from unistore.errors import CorruptionError, InputError
from unistore.order.permutation import EpochIndex

DATA = np.random.default_rng(0).random((50, 3, 4)).astype(np.float32)
LABEL = np.arange(50, dtype=np.int64) * 3


@pytest.fixture
def rows(make_store: Any) -> Path:
    return make_store(
        "rows",
        {
            "rows/data": DATA,
            "rows/label": LABEL,
            "rows/group/flag": LABEL % 2 == 0,
            "rows/index": LABEL + 1,
            "sources/path": ["a.npz", "empty.npz", "b.npz"],
            "sources/rows/offsets": np.array([0, 20, 20, 50]),
        },
        count=50,
        splits={"train": range(30), "val": range(30, 45), "test": range(45, 50)},
    )


def test_a_sample_is_a_row_of_every_array(rows: Path) -> None:
    dataset = unistore.Dataset(rows)
    sample = dataset[7]
    assert list(sample) == ["index", "data", "group/flag", "rows.index", "label"]
    assert all(isinstance(value, torch.Tensor) for value in sample.values())
    assert np.array_equal(sample["data"].numpy(), DATA[7])
    assert (sample["label"], sample["rows.index"], sample["index"]) == (21, 22, 7)
    assert sample["group/flag"].dtype == torch.bool


def test_negative_indices_count_from_the_end_and_others_raise_index_error(rows: Path) -> None:
    dataset = unistore.Dataset(rows)
    assert len(dataset) == 50
    assert dataset[-1]["index"] == 49
    assert dataset[np.int64(-50)]["label"] == 0
    for wrong in (50, -51):
        with pytest.raises(IndexError, match=rf"no sample {wrong}: .* 50 samples: 0 to 49, or -50 to -1"):
            dataset[wrong]
    with pytest.raises(IndexError, match="sample 99: "):
        dataset.__getitems__([1, 99])
    with pytest.raises(TypeError):
        dataset["label"]
    with pytest.raises(IndexError, match="float64"):
        dataset.read_batch(np.array([0.5]))


def test_batches_equal_single_samples(rows: Path) -> None:
    dataset = unistore.Dataset(rows)
    wanted = [5, -1, 5, 0, 33]
    samples = dataset.__getitems__(wanted)
    assert len(samples) == 5
    for sample, index in zip(samples, wanted, strict=True):
        single = dataset[index]
        assert all(torch.equal(sample[key], single[key]) for key in single)
    for indices in (np.array(wanted), np.array([[i, 3] for i in wanted]), [EpochIndex(i, 3) for i in wanted]):
        batch = dataset.read_batch(indices)
        assert np.array_equal(batch["label"].values, LABEL[wanted])
        assert batch["data"].offsets is None
    assert len(dataset.read_batch([])["data"]) == 0


def test_fields_select_and_unknown_ones_are_listed(rows: Path) -> None:
    sample = unistore.Dataset(rows, fields=("label", "source"))[25]
    assert list(sample) == ["index", "label", "source"]
    assert sample["source"] == "b.npz"
    assert unistore.Dataset(rows, fields=["index"])[3].keys() == {"index"}
    told = r"fields: the samples have no 'colour'.*data.*optional ones, epoch, source"
    with pytest.raises(InputError, match=rf"^{re.escape(str(rows))}: {told}"):
        unistore.Dataset(rows, fields=["label", "colour"])


def test_split_selects_samples_and_an_unknown_split_is_an_error(rows: Path) -> None:
    assert len(unistore.Dataset(rows, split="train")) == 30
    val = unistore.Dataset(rows, split="val")
    assert [int(val[i]["label"]) for i in (0, -1)] == [90, 132]
    assert val[3]["index"] == 3
    assert len(unistore.Dataset(rows, split=("val", "test"))) == 20
    with pytest.raises(InputError, match=r"no split 'dev'. Fix: use one of 'train', 'val', 'test'"):
        unistore.Dataset(rows, split="dev")


@pytest.mark.parametrize(
    ("split", "shares"),
    [
        ("test", "train=0.8,test=0.2"),
        ("train", "train=0.8,val=0.2"),
        (("val", "test"), "train=0.8,val=0.1,test=0.1"),
    ],
)
def test_a_store_without_splits_names_the_split_that_was_asked_for(
    tmp_path: Path, split: Any, shares: str
) -> None:
    source, store = tmp_path / "a.npy", tmp_path / "a.zarr"
    np.save(source, np.zeros((200, 3)))
    unistore.convert(source, store)
    with pytest.raises(InputError, match=r"there is no split .*, because this store has no splits") as raised:
        len(unistore.Dataset(store, split=split))
    (problem,) = raised.value.problems
    assert f"convert all sources again with --overwrite --split {shares}, or " in str(problem.fix)
    assert f'open source files with convert={{"split": "{shares}"}}' in str(problem.fix)
    unistore.convert(source, store, overwrite=True, split=shares, split_by="row")
    assert 0 < len(unistore.Dataset(store, split=split)) < 200


def test_transform_is_the_last_step(rows: Path) -> None:
    def double(sample: dict[str, Any]) -> dict[str, Any]:
        return {"twice": sample["label"] * 2, "index": sample["index"]}

    dataset = unistore.Dataset(rows, transform=double)
    assert dataset[4] == {"twice": 24, "index": 4}
    batch = unistore.collate(dataset.__getitems__([4, 5]))
    assert batch["twice"].tolist() == [24, 30]
    assert "label" in dataset.read_batch([4])


def test_a_dataset_pickles_small_and_opens_no_file_until_it_reads(rows: Path) -> None:
    def handles() -> set[str]:
        found = set()
        for link in Path("/proc/self/fd").iterdir():
            try:
                found.add(str(link.readlink()))
            except OSError:
                continue  # the descriptor of the listing itself
        return {name for name in found if str(rows) in name}

    dataset = unistore.Dataset(rows, split="train")
    assert handles() == set()
    dataset[3]
    dataset.set_epoch(4)
    frozen = pickle.dumps(dataset)
    assert len(frozen) < 800 + len(str(rows))
    thawed = pickle.loads(frozen)
    assert (len(thawed), thawed.epoch, repr(thawed)) == (30, 4, repr(dataset))
    assert torch.equal(thawed[5]["data"], dataset[5]["data"])


def test_volumes_and_patches_read_stores_of_an_unknown_family(make_store: Any) -> None:
    voxels = np.random.default_rng(0).integers(-1000, 1000, (2, 8, 8, 8)).astype(np.int16)
    path = make_store(
        "nifti",
        {"volumes/image": voxels, "volumes/extent": np.full((2, 3), 8, np.int32), "volumes/name": ["a", "b"]},
        count=2,
        table="volumes",
        rules={"volumes/extent": {"limits": [{"array": "volumes/image", "axes": [1, 2, 3], "scale": 1}]}},
    )
    volumes = unistore.Dataset(path, unistore.Volumes())
    assert np.array_equal(volumes[1]["image"].numpy(), voxels[1])
    patch = unistore.Dataset(path, unistore.Patches(4))[0]
    z, y, x = patch["corner"].tolist()
    assert np.array_equal(patch["image"].numpy(), voxels[0, z : z + 4, y : y + 4, x : x + 4])


def test_rows_of_the_main_table_of_any_store(make_store: Any) -> None:
    force = np.arange(36.0).reshape(12, 3)
    path = make_store(
        "arm",
        {
            "steps/force": force,
            "episodes/offsets": np.array([0, 5, 5, 12]),
            "sources/path": ["one.h5", "two.h5"],
            "sources/steps/offsets": np.array([0, 5, 12]),
        },
        count=3,
        table="episodes",
        main_table="steps",
        splits={"train": [0, 1], "val": [2]},
        rules={"episodes/offsets": {"offsets_of": "steps/force"}},
    )
    steps = unistore.Dataset(path, unistore.Rows(), fields=["force", "source"])
    assert [steps[index]["source"] for index in (4, 5)] == ["one.h5", "two.h5"]
    assert steps.read_batch(range(12))["force"].values.tolist() == force.tolist()
    held_out = unistore.Dataset(path, unistore.Rows(), split="val")
    assert held_out.read_batch(range(7))["force"].values.tolist() == force[5:].tolist()


def test_rows_with_a_split_that_does_not_divide_rows_is_an_error(make_cloud: Callable[..., Any]) -> None:
    cloud = make_cloud((5, 3, 9, 2), splits={"train": [0], "val": [1]})
    dataset = unistore.Dataset(cloud.path, unistore.Rows(), split="val")
    with pytest.raises(InputError, match="Rows cannot select a split"):
        len(dataset)


def test_threads_read_the_values_of_one_thread(make_cloud: Callable[..., Any]) -> None:
    dataset = unistore.Dataset(make_cloud().path, unistore.Segments(max_points=40))
    wanted = [[at % 4, (at + 1) % 4] for at in range(40)]
    serial = [dataset.read_batch(indices)["xyz"].values for indices in wanted]
    with ThreadPoolExecutor(4) as threads:
        parallel = [batch["xyz"].values for batch in threads.map(dataset.read_batch, wanted)]
    assert all(np.array_equal(one, other) for one, other in zip(serial, parallel, strict=True))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_damaged_chunk_is_an_error_of_a_torch_data_loader(rows: Path, workers: int) -> None:
    dataset = unistore.Dataset(rows)
    shard = next(path for path in (rows / "rows" / "data" / "c").rglob("*") if path.is_file())
    flip(shard, 40, 0x10)
    loader = DataLoader(
        dataset,
        2,
        num_workers=workers,
        collate_fn=unistore.collate,
        multiprocessing_context="fork" if workers else None,
    )
    with pytest.raises(CorruptionError, match="rows/data"):
        list(loader)


@pytest.mark.parametrize("stores", [1, 2])
def test_shuffle_sources_delivers_one_source_after_another(make_cloud: Any, stores: int) -> None:
    paths = [make_cloud((3, 4, 5, 6, 2, 7, 8, 9, 3, 1)).path for _ in range(stores)]
    dataset = unistore.Dataset(paths if stores > 1 else paths[0], fields=["source"])
    assert dataset.source_offsets().tolist() == list(range(0, 8 * stores + 1, 4))
    loader = unistore.Loader(dataset, batch_size=1, shuffle="sources", seed=3, num_workers=0)
    orders, firsts = set(), set()
    for _ in range(6):
        seen = [(batch["source"][0], int(batch["index"])) for batch in loader]
        names = [name for name, _ in seen]
        assert sorted(index for _, index in seen) == list(range(8 * stores))
        assert sum(a != b for a, b in pairwise(names)) == 2 * stores - 1
        orders.add(tuple(index for _, index in seen))
        firsts.add(names[0])
    assert len(orders) == 6
    assert len(firsts) > 1
    shuffled = list(unistore.Shuffle(dataset, seed=3, shuffle="sources"))
    assert len({at.index // 4 for at in shuffled[:4]}) == 1
    loader = unistore.Loader(dataset, shuffle="sources", subset=[0, 2, 5, 6], num_workers=0, batch_size=2)
    assert {tuple(sorted(batch["index"].tolist())) for batch in loader} == {(0, 2), (5, 6)}
    with pytest.raises(InputError, match=r"needs a dataset with source_offsets\(\), got list"):
        unistore.Loader([1, 2, 3], shuffle="sources", num_workers=0)


def test_label_counts_and_class_weights_equal_numpy(make_cloud: Any) -> None:
    dataset = unistore.Dataset(make_cloud().path, names={"classification": "label"})
    labels = np.concatenate([dataset[at]["label"].numpy() for at in range(len(dataset))])
    values, counts = np.unique(labels, return_counts=True)
    assert dataset.label_counts("classification") == dict(zip(values.tolist(), counts.tolist(), strict=True))
    weights = dataset.class_weights("classification", classes=25)
    assert (weights.shape, weights.dtype) == ((25,), torch.float32)
    assert np.allclose(weights[values].numpy(), len(labels) / (len(values) * counts))
    assert not weights[20:].any()
    kept = labels[labels != 0]
    rest = dataset.class_weights("classification", unlabelled=0)
    assert rest[0] == 0
    assert rest[1] == pytest.approx(len(kept) / (19 * (kept == 1).sum()))
    part = np.concatenate([dataset[at]["label"].numpy() for at in (2, 0)])
    values, counts = np.unique(part, return_counts=True)
    for subset in ([2, 0], np.isin(np.arange(len(dataset)), [0, 2])):
        found = dataset.label_counts("classification", subset=subset)
        assert found == dict(zip(values.tolist(), counts.tolist(), strict=True))
        some = dataset.class_weights("classification", classes=25, subset=subset)
        assert np.allclose(some[values].numpy(), len(part) / (len(values) * counts))
    twice = dataset.label_counts("classification", subset=[2, 2, 0, 0])
    assert twice == {label: 2 * count for label, count in found.items()}
    for ask, said in (
        (lambda: dataset.label_counts("classification", subset=[99]), "subset: contains 99 to 99"),
        (lambda: dataset.label_counts("classification", split="dev"), "no split 'dev'"),
        (
            lambda: dataset.label_counts("classification", split="dev", subset=[0]),
            "give only subset or only split",
        ),
        (
            lambda: dataset.class_weights("classification", classes=19),
            "contains the labels 19, but 19 classes .* classes=20",
        ),
        (lambda: dataset.label_counts("xyz"), "'xyz' is float32, but labels must be integers"),
        (lambda: dataset.label_counts("height"), "the Dataset does not read 'height'"),
    ):
        with pytest.raises(InputError, match=said):
            ask()


@pytest.mark.parametrize("rows", [(65_535, 1, 3, 9), (65_530, 100, 20), (65_536, 65_536, 5), (140_000, 4)])
def test_source_starts_of_more_rows_than_one_read_equal_the_sums(
    rows: tuple[int, ...], tmp_path: Path
) -> None:
    for number, count in enumerate(rows):
        np.save(tmp_path / f"x_{number}.npy", np.zeros(count, np.uint8))
    unistore.convert(tmp_path, tmp_path.with_suffix(".zarr"), "rows")
    (part,) = unistore.Dataset(tmp_path.with_suffix(".zarr")).parts
    assert part.source_starts().tolist() == [0, *np.cumsum(rows)[:-1].tolist()]


def test_sources_are_named_without_their_store_unless_there_are_several(
    make_scans: Callable[..., Any],
) -> None:
    first, second = make_scans().path, make_scans().path
    assert unistore.Dataset(first).source_of(2) == "case2"
    both = unistore.Dataset([first, second])
    assert both.source_of(2) == f"{first.name}/case2"
    assert both.source_of(4) == f"{second.name}/case1"
