"""Loader over sealed stores: the same samples as plain arrays hold, by every way of reading."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import unistore
from tests.support.store_files import flip
from unistore.data import blocks
from unistore.loader import Loader, SampleError


@pytest.fixture
def rows(make_store):
    rng = np.random.default_rng(0)
    data = rng.integers(0, 1000, (300, 6, 5)).astype(np.int32)
    path = make_store(
        "rows",
        {
            "rows/data": data,
            "rows/label": np.arange(300),
            "rows/source": np.zeros(300, np.int64),
            "sources/path": ["a.h5"],
        },
        count=300,
        splits={"train": range(0, 300, 2), "val": range(1, 300, 2)},
    )
    return path, data


@pytest.mark.parametrize(
    ("workers", "shuffle", "cache"),
    [(0, "blocks", None), (2, True, None), (2, "blocks", "10MB"), (0, False, "10MB")],
)
def test_every_row_is_delivered_once_an_epoch(rows, nothing_left, workers, shuffle, cache):
    path, data = rows
    dataset = unistore.Dataset(path, split="train")
    with Loader(dataset, 16, shuffle, num_workers=workers, cache=cache) as loader:
        for _ in range(3):
            seen = []
            for batch in loader:
                assert torch.equal(batch["data"], torch.from_numpy(data[batch["label"].numpy()]))
                assert torch.equal(batch["label"], batch["index"] * 2)
                seen += batch["label"].tolist()
            assert sorted(seen) == list(range(0, 300, 2))


def test_a_state_of_another_split_or_seed_is_an_error(rows):
    path, _ = rows
    train = unistore.Dataset(path, split="train")
    state = Loader(train, 16, shuffle=True, num_workers=0).state_dict()
    Loader(
        unistore.Dataset(path, split="train", fields=["label"]), 8, shuffle=True, num_workers=0
    ).load_state_dict(state)
    for other in (unistore.Dataset(path, split="val"), unistore.Dataset(path, split="train", seed=1)):
        with pytest.raises(unistore.LoaderError, match="other samples"):
            Loader(other, 16, shuffle=True, num_workers=0).load_state_dict(state)


def test_a_damaged_chunk_is_an_error_with_its_sample(rows, nothing_left):
    path, _ = rows
    chunk = max((p for p in (path / "rows" / "data" / "c").rglob("*") if p.is_file()), key=str)
    flip(chunk, 40, 255)
    with Loader(unistore.Dataset(path), 16, False, num_workers=1) as loader:
        with pytest.raises(SampleError, match="sample ") as caught:
            list(loader)
        assert isinstance(caught.value.__cause__, unistore.CorruptionError)
        assert caught.value.sample is not None
        del caught


@pytest.fixture(scope="module")
def small_rows(tmp_path_factory):
    """A store of rows of 64 bytes, more than the decoded chunks that may be kept."""
    folder = tmp_path_factory.mktemp("small")
    rows = np.zeros((150_000, 16), np.int32)
    rows[:, 0] = np.arange(len(rows))
    np.save(folder / "rows.npy", rows)
    unistore.convert(folder / "rows.npy", folder / "rows.zarr", "rows", codec="none")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "POOL_BYTES", 8 << 20)
        yield unistore.Dataset(folder / "rows.zarr")


@pytest.mark.parametrize("make", [lambda data: Loader(data, 100, shuffle=True), unistore.Shuffle])
def test_the_warning_of_a_shuffle_in_blocks_names_a_line_outside_of_unistore(small_rows, make):
    with pytest.warns(UserWarning, match='shuffle="full" for a full shuffle') as warned:
        make(small_rows)
    assert [warning.filename for warning in warned] == [__file__]


def test_small_rows_are_shuffled_in_blocks(small_rows, nothing_left):
    assert small_rows.shuffles_in_blocks
    with pytest.warns(UserWarning, match='shuffle="full" for a full shuffle'):
        loader = Loader(small_rows, 100, shuffle=True, seed=3, num_workers=2)
    kind = {
        shuffle: Loader(small_rows, 100, shuffle, seed=3).sequence.describe()
        for shuffle in ("blocks", "full")
    }
    assert loader.sequence.describe() == kind["blocks"]
    assert kind["full"] == {"kind": "shuffled", "length": len(small_rows), "seed": 3}
    with loader:
        iteration = iter(loader)
        first = np.concatenate([next(iteration)["data"][:, 0].numpy() for _ in range(300)])
        saved = loader.state_dict()
    expected = loader.sequence.indices(0, 0, 60_000)
    np.testing.assert_array_equal(first, expected[:30_000])
    with Loader(small_rows, 250, "blocks", seed=3, num_workers=0) as other:
        other.load_state_dict(saved)
        iteration = iter(other)
        following = np.concatenate([next(iteration)["data"][:, 0].numpy() for _ in range(120)])
    np.testing.assert_array_equal(following, expected[30_000:])
