"""Rows of many chunks: what is delivered, how often chunks are decoded, and what is kept of them."""

from __future__ import annotations

import multiprocessing
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.store_files import flip
from unistore.errors import CorruptionError
from unistore.zarr3 import StoredArray, gather
from unistore.zarr3.chunks import ChunkReader

CHUNK = 16 * 12
"""Bytes of a chunk of `VALUES`."""
VALUES = np.arange(3200 * 3, dtype="f4").reshape(3200, 3)
VALUES[160:176] = 0  # a chunk that is absent, and reads as fill


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of the chunks that were read into pools."""
    seen: list[int] = []
    decode = ChunkReader.decode

    def watched(self: Any, located: Any, targets: Any) -> Any:
        if all(target is not None for target in targets):
            seen.extend(located.numbers)
        return decode(self, located, targets)

    monkeypatch.setattr(ChunkReader, "decode", watched)
    return seen


@pytest.fixture
def small_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for 64 chunks of `VALUES`, which has 200."""
    monkeypatch.setattr(gather, "POOL_BYTES", 64 * CHUNK)


@pytest.fixture
def array(tmp_path: Path, write: Any) -> StoredArray:
    made: StoredArray = write(tmp_path, VALUES, (16, 3), (320, 3))
    return made


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_rows_are_those_of_numpy(tmp_path_factory: Any, write: Any, data: st.DataObject) -> None:
    rows = data.draw(st.integers(17, 700))
    columns = data.draw(st.sampled_from([(), (1,), (3,), (2, 2)]))
    dtype = data.draw(st.sampled_from(["u1", "<i2", "<f4", "<f8"]))
    values = np.random.default_rng(rows).integers(0, 200, (rows, *columns)).astype(dtype)
    array = write(tmp_path_factory.mktemp("a"), values, (16, *columns), (160, *columns))
    kept = gather.POOL_BYTES
    gather.POOL_BYTES = 64 * 16 * max(1, int(np.prod(columns))) * np.dtype(dtype).itemsize
    try:
        for _ in range(data.draw(st.integers(1, 4))):
            wanted = np.array(data.draw(st.lists(st.integers(0, rows - 1), max_size=300)), np.int64)
            np.testing.assert_array_equal(array.read_rows(wanted), values[wanted])
    finally:
        gather.POOL_BYTES = kept


def test_chunks_stay_until_others_need_their_room(
    array: StoredArray, read: list[int], small_pools: None
) -> None:
    first = np.arange(0, 64 * 16, 16)
    for _ in range(3):
        np.testing.assert_array_equal(array.read_rows(first), VALUES[first])
    assert read == [chunk for chunk in range(64) if chunk != 10]
    read.clear()
    both = np.concatenate([first[40:], [100 * 16]])  # takes the room of the oldest chunk
    np.testing.assert_array_equal(array.read_rows(both), VALUES[both])
    np.testing.assert_array_equal(array.read_rows(first[1:]), VALUES[first[1:]])
    assert read == [100]
    array.read_rows(first)
    assert read == [100, 0]


def test_a_damaged_chunk_is_named_and_others_are_read(
    tmp_path: Path, array: StoredArray, small_pools: None
) -> None:
    path = next(file for file in sorted((tmp_path / "a").rglob("0")) if file.is_file())
    flip(path, 5)
    good = np.arange(320, 3200, 16)
    for _ in range(2):
        with pytest.raises(CorruptionError, match="array 'a': shard"):
            array.read_rows(np.arange(0, 3200, 16))
        np.testing.assert_array_equal(array.read_rows(good), VALUES[good])


def test_threads_and_children_read_the_same(array: StoredArray, small_pools: None) -> None:
    wrong: list[int] = []

    def work(seed: int) -> None:
        random = np.random.default_rng(seed)
        for _ in range(50):
            rows = random.integers(0, 3200, 100)
            if not np.array_equal(array.read_rows(rows), VALUES[rows]):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=_child, args=(array, seed)) for seed in range(3)]
    for child in children:
        child.start()
    for each in [*threads, *children]:
        each.join()
    assert not wrong
    assert [child.exitcode for child in children] == [0, 0, 0]


def _child(array: StoredArray, seed: int) -> None:
    rows = np.random.default_rng(seed).integers(0, 3200, 500)
    assert np.array_equal(array.read_rows(rows), VALUES[rows])
