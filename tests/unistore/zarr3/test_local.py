"""Local storage: few open files, whole reads, threads, and systems without ``pread``."""

from __future__ import annotations

import contextlib
import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unistore.errors import CorruptionError, StoreError
from unistore.zarr3 import LocalStorage, StoredArray, storage


def open_files(root: Path) -> int:
    """Descriptors of this process that lie under `root`."""
    if not Path("/proc/self/fd").exists():
        pytest.skip("needs /proc to count open files")
    links = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the descriptor of this very listing is gone by now
            links.append(descriptor.readlink())
    return sum(link.is_relative_to(root) for link in links)


def test_open_files_are_bounded(tmp_path: Path, write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "MAX_OPEN_FILES", 5)
    values = np.arange(40 * 4).reshape(40, 4)
    array = write(tmp_path, values, (1, 4), (1, 4))
    assert open_files(tmp_path) == 0
    rows = np.random.default_rng(0).permutation(40)
    np.testing.assert_array_equal(array.read_rows(rows), values[rows])
    assert 0 < open_files(tmp_path) <= 5
    del array
    gc.collect()
    assert open_files(tmp_path) == 0


def test_local_storage_reads_files_and_parts_and_names_missing_ones(tmp_path: Path) -> None:
    (tmp_path / "g").mkdir()
    (tmp_path / "g" / "x").write_bytes(bytes(range(100)))
    local = LocalStorage(tmp_path)
    assert local.get("g/x") == bytes(range(100))
    assert local.size("g/x") == 100
    assert local.size("g/y") is None
    assert local.size("g/x/y") is None
    assert list(local.read_many(["g/x"], [90], [10])) == [bytes(range(90, 100))]
    with pytest.raises(StoreError, match="g/y: no such file"):
        local.get("g/y")
    with pytest.raises(StoreError, match="g: is a folder, but a store has only regular files"):
        local.get("g")
    with pytest.raises(CorruptionError, match="g/x: has 100 bytes, too few for 10 bytes from 95"):
        list(local.read_many(["g/x"], [95], [10]))


def test_read_errors_name_the_file(tmp_path: Path, write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(fd: int, size: int, offset: int) -> bytes:
        raise OSError(5, "Input/output error")

    array = write(tmp_path, np.arange(60).reshape(10, 6), (1, 6), (5, 6))
    array.read_rows([0])
    monkeypatch.setattr(storage.os, "pread", fail)
    array.storage._files.open.cache_clear()
    with pytest.raises(
        StoreError, match=r"array 'a': shard a/c/0/0 .*a/c/0/0: cannot be read: Input/output error"
    ):
        array.read_rows([0])


def read_by_threads(array: StoredArray, values: Any) -> None:
    """Read the same array by rows and boxes from eight threads at once."""
    start = threading.Barrier(8)

    def read(seed: int) -> None:
        rng = np.random.default_rng(seed)
        start.wait()
        for _ in range(30):
            rows = rng.integers(0, len(values), 16)
            np.testing.assert_array_equal(array.read_rows(rows), values[rows])
            lo = rng.integers(0, len(values))
            np.testing.assert_array_equal(array.read_box([lo, 7], [len(values), 90]), values[lo:, 7:90])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(read, range(8)))


@pytest.mark.parametrize("chunk", [(1, 300), (4, 100)])
def test_threads_share_an_array(
    tmp_path: Path, write: Any, monkeypatch: pytest.MonkeyPatch, chunk: tuple[int, int]
) -> None:
    monkeypatch.setattr(storage, "MAX_OPEN_FILES", 2)
    values = np.random.default_rng(0).integers(0, 9, (64, 300))
    read_by_threads(write(tmp_path, values, chunk, (16, 300)), values)
