"""Reading: bounds, output arrays, duplicates, how often chunks are decoded, and what is kept of them."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unistore.errors import CorruptionError
from unistore.zarr3 import LocalStorage, StoredArray, compiled
from unistore.zarr3 import chunks as chunks_module
from unistore.zarr3.cache import CHUNKS, ChunkCache
from unistore.zarr3.chunks import ChunkReader


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of the chunks that were decoded."""
    seen: list[int] = []
    decode = ChunkReader.decode

    def watched(self: Any, located: Any, targets: Any, **fresh: bool) -> Any:
        seen.extend(located.numbers)
        return decode(self, located, targets, **fresh)

    monkeypatch.setattr(ChunkReader, "decode", watched)
    monkeypatch.setattr(compiled, "kernel", lambda: None)
    CHUNKS.renew()
    return seen


VOLUMES = np.arange(5 * 8 * 12, dtype="f4").reshape(5, 8, 12)


def volumes(write: Any, root: Path) -> StoredArray:
    array: StoredArray = write(root, VOLUMES, (1, 4, 4), (2, 8, 16))
    return array


@pytest.mark.parametrize(
    ("lo", "hi"),
    [
        ([-1, 0, 0], [1, 1, 1]),
        ([0, 0, 0], [6, 1, 1]),
        ([2, 0, 0], [1, 1, 1]),
        ([0, 0], [1, 1]),
        ([0, 0, 0], [1, 1]),
    ],
)
def test_a_box_outside_of_the_array_is_an_error(tmp_path: Path, write: Any, lo: Any, hi: Any) -> None:
    with pytest.raises(IndexError, match=r"array 'a': the box from .* is not inside its shape \(5, 8, 12\)"):
        volumes(write, tmp_path).read_box(lo, hi)


def test_rows_and_ranges_outside_of_the_array_are_an_error(tmp_path: Path, write: Any) -> None:
    array = volumes(write, tmp_path)
    for rows, wrong in [([0, 5], 5), ([-1], -1), ([4, 99, 3], 99)]:
        with pytest.raises(IndexError, match=f"array 'a': there is no row {wrong}"):
            array.read_rows(rows)
    for rows in ([[0, 1]], [0.5], [True]):
        with pytest.raises(IndexError, match="rows must be integers on one axis"):
            array.read_rows(rows)
    with pytest.raises(IndexError, match="the range 3 to 2"):
        array.read_ranges([0, 3], [1, 2])
    with pytest.raises(IndexError, match="the range 0 to 6"):
        array.read_ranges([0], [6])
    with pytest.raises(IndexError, match="the range -1 to 2"):
        array.read_ranges([-1], [2])
    with pytest.raises(IndexError, match="1 starts of ranges, but 2 ends"):
        array.read_ranges([0], [1, 2])


def test_an_output_array_that_does_not_fit_is_an_error(tmp_path: Path, write: Any) -> None:
    array = volumes(write, tmp_path)
    locked = np.empty((1, 8, 12), "f4")
    locked.flags.writeable = False
    for out in (
        np.empty((2, 8, 12), "f4"),
        np.empty((1, 8, 12), "f8"),
        np.empty((1, 8, 24), "f4")[..., ::2],
        np.empty((1, 8, 12), ">f4"),
        locked,
    ):
        with pytest.raises(ValueError, match="out must be writeable, C-contiguous, float32"):
            array.read_rows([0], out)


def test_rows_that_are_chunks_are_decoded_once(tmp_path: Path, write: Any, decoded: list[int]) -> None:
    values = np.arange(40 * 6, dtype="i4").reshape(40, 6)
    values[7] = 0
    array = write(tmp_path, values, (1, 6), (8, 12))
    rows = np.array([39, 3, 3, 0, 39, 7, 12, 7, 3])
    np.testing.assert_array_equal(array.read_rows(rows), values[rows])
    assert decoded == [2 * 0, 2 * 3, 2 * 12, 2 * 39]  # shards of (8, 2) chunks; row 7 is empty
    assert not CHUNKS.nbytes


def test_kept_keys_of_shards_are_bounded(tmp_path: Path, write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks_module, "_MAX_CACHED_KEYS", 4)
    array = write(tmp_path, np.arange(100), (5,), (10,))
    for row in [3, 99, *range(0, 100, 7), 3]:
        assert array.read_rows([row]) == [row]
        assert 0 < len(array.reader._keys) <= 4
    np.testing.assert_array_equal(array.read(), np.arange(100))


def test_chunks_of_a_batch_are_decoded_once(tmp_path: Path, write: Any, decoded: list[int]) -> None:
    array = write(tmp_path, np.arange(1000), (10,), (100,))
    rows = np.random.default_rng(0).integers(0, 1000, 5000)
    np.testing.assert_array_equal(array.read_rows(rows), rows)
    assert len(decoded) == len(set(decoded)) == 100
    starts = np.random.default_rng(0).integers(0, 800, 50)
    CHUNKS.renew()
    decoded.clear()
    found = array.read_ranges(starts, starts + 200)
    np.testing.assert_array_equal(found, np.concatenate([np.arange(a, a + 200) for a in starts]))
    assert len(decoded) == len(set(decoded))


@pytest.mark.parametrize("chunk", [(8, 3), (1, 3), (8, 2)])
def test_shared_chunks_are_used_and_the_others_read(
    tmp_path: Path, write: Any, chunk: tuple[int, int]
) -> None:
    values = np.arange(60 * 3, dtype="f8").reshape(60, 3)
    array = write(tmp_path, values, chunk, (32, 4 if chunk[1] == 2 else 3))

    class Chunks(dict[int, Any]):
        hits = 0

        def get(self, number: int, shape: Any, dtype: Any) -> Any:  # type: ignore[override]
            self.hits += number in self
            return super().get(number)

        def add(self, number: int, chunk: Any) -> None:
            if number % 3 != 1:
                self[number] = chunk.copy().reshape(array.chunk_shape)

    array.share(shared := Chunks())
    rng = np.random.default_rng(0)
    for _ in range(20):
        rows = rng.integers(0, 60, 9)
        np.testing.assert_array_equal(array.read_rows(rows), values[rows])
        lo, hi = np.sort(rng.integers(0, 61, (2, 4)), axis=0)
        expected = np.concatenate([values[a:b] for a, b in zip(lo, hi, strict=True)])
        np.testing.assert_array_equal(array.read_ranges(lo, hi), expected)
        np.testing.assert_array_equal(array.read_box([lo[0], 1], [hi[0], 3]), values[lo[0] : hi[0], 1:3])
    assert 0 < len(shared) < array.chunk_count
    assert shared.hits


def test_an_array_pickles_small_and_opens_no_file(tmp_path: Path, write: Any) -> None:
    array = volumes(write, tmp_path)
    stored = pickle.dumps(array)
    assert len(stored) < 300 + len(str(tmp_path))
    again = pickle.loads(stored)
    assert not again.storage._files.open.cache_info().currsize
    np.testing.assert_array_equal(again.read_rows([4, 1]), VOLUMES[[4, 1]])
    assert pickle.loads(pickle.dumps(array.storage)).size("a/zarr.json")


def test_the_chunk_cache_is_bounded() -> None:
    chunks = ChunkCache(limit=1000)
    assert chunks.keeps(125)
    assert not chunks.keeps(126)
    for number in range(50):
        chunks.put(number, np.zeros(100, "u1"))
        chunks.put(number, np.zeros(90, "u1"))
        assert chunks.nbytes <= 1000
        chunks.get(0)
    assert chunks.get(0) is not None, "recently used"
    assert chunks.get(1) is None
    chunks.renew()
    assert chunks.nbytes == 0


def test_indexes_are_bounded_in_memory_and_read_the_right_values(
    tmp_path: Path, write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = np.arange(200)
    write(tmp_path, values, (2,), (10,))
    monkeypatch.setattr(chunks_module, "INDEX_BYTES", 3 * (5 * 16 + 4 + 400))
    array = StoredArray.open(LocalStorage(tmp_path), "a")
    for row in np.random.default_rng(0).integers(0, 200, 100).tolist():
        assert array.read(row, row + 1) == row
        assert len(array.reader._indexes) <= 3


class Distant(LocalStorage):
    """A storage with high latency, which counts what it is asked for."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.asked: list[list[str]] = []

    def read_ends(self, keys: Sequence[str], size: int) -> Iterator[tuple[int, bytes] | None]:
        self.asked.append(list(keys))
        for key in keys:
            path = Path(self.path(key))
            whole = path.read_bytes() if path.exists() else None
            yield None if whole is None else (len(whole), whole[-size:])


def test_indexes_of_a_distant_storage_are_read_together(
    tmp_path: Path, write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError

    volumes(write, tmp_path)
    storage = Distant(tmp_path)
    array = StoredArray.open(storage, "a")
    monkeypatch.setattr(ChunkReader, "_load_index", never)
    for _ in range(2):
        assert array.read_box([0, 0, 0], [5, 8, 12]).tolist() == VOLUMES.tolist()
    assert storage.asked == [["a/c/0/0/0", "a/c/1/0/0", "a/c/2/0/0"]]
    (tmp_path / "a/c/1/0/0").unlink()
    with pytest.raises(CorruptionError, match=r"a/c/1/0/0 .* is missing"):
        StoredArray.open(storage, "a").read_box([0, 0, 0], [5, 8, 12])


@pytest.mark.parametrize(
    ("dtype", "chunk"), [("u1", 8), ("i2", 4), ("f4", 2), ("u1", 2), ("?", 4), ("f8", 1)]
)
def test_boxes_with_rows_as_small_as_a_number_equal_numpy(
    tmp_path: Path, write: Any, dtype: str, chunk: int
) -> None:
    rng = np.random.default_rng(0)
    values = rng.integers(0, 200, (7, 10, 33)).astype(dtype)
    array = write(tmp_path, values, (2, 4, chunk), (4, 8, 40))
    for _ in range(20):
        lo = rng.integers(0, values.shape)
        hi = rng.integers(lo, values.shape) + 1
        expected = values[tuple(map(slice, lo, hi))]
        np.testing.assert_array_equal(array.read_box(lo, hi), expected)
    rows = rng.integers(0, 7, 5)
    np.testing.assert_array_equal(array.read_rows(rows), values[rows])
