"""Rows of chunks that are stored as they are: read alone, and never before their chunk was checked."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unistore.errors import CorruptionError
from unistore.zarr3 import StoredArray, gather
from unistore.zarr3.storage import LocalStorage

VALUES = np.arange(1, 3200 * 3 + 1, dtype="f4").reshape(3200, 3)
CHUNK = 16 * 12


@pytest.fixture
def array(tmp_path: Path, write: Any, monkeypatch: pytest.MonkeyPatch) -> StoredArray:
    """200 chunks of 16 rows, ten shards; pools have room for 64."""
    monkeypatch.setattr(gather, "POOL_BYTES", 64 * CHUNK)
    made: StoredArray = write(tmp_path, VALUES, (16, 3), (320, 3), "none")
    return made


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of every range that is read."""
    seen: list[int] = []
    read_many = LocalStorage.read_many

    def watched(self: Any, keys: Any, offsets: Any, lengths: Any) -> Any:
        seen.extend(lengths)
        return read_many(self, keys, offsets, lengths)

    monkeypatch.setattr(LocalStorage, "read_many", watched)
    return seen


def one_of_each_chunk(seed: int) -> Any:
    rng = np.random.default_rng(seed)
    return rng.permutation(200) * 16 + rng.integers(0, 16, 200)


def change(tmp_path: Path, offset: int) -> None:
    """Change a byte of the second shard in place."""
    with (tmp_path / "a/c/1/0").open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))
        os.utime(file.fileno(), ns=(1, 1))  # a clock may be too coarse for two changes


def test_rows_are_read_without_their_chunk_once_it_was_checked(array: StoredArray, sizes: list[int]) -> None:
    for seed in range(3):
        sizes.clear()
        rows = one_of_each_chunk(seed)
        np.testing.assert_array_equal(array.read_rows(rows), VALUES[rows])
        assert sizes.count(12) == 200
        assert sizes.count(CHUNK + 4) == (200 if seed == 0 else 0)


@pytest.mark.parametrize("offset", [0, CHUNK - 1, CHUNK, 7 * (CHUNK + 4) + 30])
def test_a_change_is_found_before_and_after_the_first_read(
    array: StoredArray, tmp_path: Path, offset: int
) -> None:
    rows = one_of_each_chunk(0)
    array.read_rows(rows)
    change(tmp_path, offset)
    for found in (array, StoredArray.open(array.storage, "a")):
        for _ in range(2):
            with pytest.raises(CorruptionError, match=f"chunk \\({20 + offset // (CHUNK + 4)}, 0\\)"):
                found.read_rows(rows)
    change(tmp_path, offset)
    np.testing.assert_array_equal(array.read_rows(rows), VALUES[rows])


def test_rows_of_shared_arrays_are_kept_as_chunks(array: StoredArray, sizes: list[int]) -> None:
    class Chunks(dict[int, Any]):
        def get(self, number: int, shape: Any, dtype: Any) -> Any:  # type: ignore[override]
            return super().get(number)

        def add(self, number: int, chunk: Any) -> None:
            self[number] = chunk.copy()

    array.share(shared := Chunks())
    rows = one_of_each_chunk(0)
    np.testing.assert_array_equal(array.read_rows(rows), VALUES[rows])
    assert len(shared) == array.chunk_count
    assert 12 not in sizes
