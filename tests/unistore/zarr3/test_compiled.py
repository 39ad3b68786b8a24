"""Ranges of rows by the kernel: the bytes and the errors of the Python path, which is its oracle."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.kernels import needs_kernel
from unistore.errors import StoreError
from unistore.zarr3 import LocalStorage, StoredArray, codecs, gather
from unistore.zarr3.cache import CHUNKS

pytestmark = needs_kernel
ROWS = 1000
STEP = 64


@pytest.fixture
def outcomes(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the kernel read, of each read from now on, as from the page cache."""
    compiled = gather._gather_compiled
    seen: list[bool] = []

    def watched(*arguments: Any) -> bool:
        seen.append(compiled(*arguments))
        return seen[-1]

    monkeypatch.setattr(gather, "_gather_compiled", watched)
    monkeypatch.setattr(LocalStorage, "reads_disk", False)
    CHUNKS.renew()
    return seen


def read(array: StoredArray, lo: Any, hi: Any) -> bytes | str:
    try:
        return array.read_ranges(lo, hi).tobytes()
    except StoreError as error:
        return f"{type(error).__name__}: {error}"


def read_by_python(array: StoredArray, lo: Any, hi: Any) -> bytes | str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gather, "kernel", lambda: None)
        return read(array, lo, hi)


def numbers(dtype: str = "i4", row: tuple[int, ...] = (3,)) -> Any:
    return np.random.default_rng(1).integers(1, 99, (ROWS, *row)).astype(dtype)


@pytest.mark.parametrize("codec", ["fast", "balanced", "small", "none", "zstd"])
@pytest.mark.parametrize(("dtype", "row"), [("i4", (3,)), ("u1", ()), ("f8", (2, 2)), ("i2", (70,))])
def test_ranges(
    tmp_path: Path, write: Any, outcomes: list[bool], dtype: str, row: tuple[int, ...], codec: str
) -> None:
    values = numbers(dtype, row)
    array = write(tmp_path, values, (STEP, *row), (256, *row), codec)
    rng = np.random.default_rng(5)
    for _ in range(5):
        lo = rng.integers(0, ROWS, 9)
        hi = np.minimum(lo + rng.integers(0, 400, 9), ROWS)
        lo[4] = 0
        hi[4] = ROWS
        expected = np.concatenate([values[low:high] for low, high in zip(lo, hi, strict=True)])
        assert read(array, lo, hi) == expected.tobytes()
        assert read_by_python(array, lo, hi) == expected.tobytes()
    assert outcomes == 5 * [codec not in ("none", "zstd"), False]


@pytest.mark.parametrize(
    ("lo", "hi", "is_compiled"),
    [
        ([0], [ROWS], True),
        ([STEP], [2 * STEP], True),
        ([999, 0], [1000, 200], True),
        ([5, 5, 5], [205, 205, 205], True),
        ([0, 9], [ROWS, 9], True),
        ([0], [STEP - 1], False),  # less than a chunk, which the cache of the process may have
        ([300], [500], False),  # a chunk that is absent
    ],
)
def test_what_it_reads(
    tmp_path: Path, write: Any, outcomes: list[bool], lo: list[int], hi: list[int], is_compiled: bool
) -> None:
    values = numbers()
    if lo == [300]:
        values[5 * STEP : 6 * STEP] = 0
    array = write(tmp_path, values, (STEP, 3), (256, 3))
    expected = np.concatenate([values[low:high] for low, high in zip(lo, hi, strict=True)])
    assert read(array, lo, hi) == expected.tobytes()
    assert outcomes == [is_compiled]


def test_chunks_of_parts_of_rows_are_read_by_python(tmp_path: Path, write: Any, outcomes: list[bool]) -> None:
    values = numbers()
    array = write(tmp_path, values, (STEP, 2), (256, 4))
    assert read(array, [3], [900]) == values[3:900].tobytes()
    assert outcomes == [False]


def test_libraries_that_hide_their_functions(
    tmp_path: Path, write: Any, outcomes: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codecs.blosc, "__file__", str(tmp_path / "absent.so"))
    codecs.compiled_functions.cache_clear()
    try:
        assert read(write(tmp_path, numbers(), (STEP, 3), (256, 3)), [0], [ROWS]) == numbers().tobytes()
    finally:
        codecs.compiled_functions.cache_clear()
    assert outcomes == [False]


@pytest.mark.parametrize("damage", ["frame", "index", "cut off", "removed", "link", "unreadable"])
def test_damage(tmp_path: Path, write: Any, outcomes: list[bool], damage: str) -> None:
    shard = tmp_path / "a" / "c" / "1" / "0"
    write(tmp_path, numbers(), (STEP, 3), (256, 3))
    whole = shard.read_bytes()
    array = StoredArray.open(LocalStorage(tmp_path), "a")
    if damage == "cut off":
        array.read_ranges([256], [300])
        shard.write_bytes(whole[:100])
    elif damage == "removed":
        shard.unlink()
    elif damage == "link":
        shard.rename(tmp_path / "moved")
        shard.symlink_to(tmp_path / "moved")
    elif damage == "unreadable":
        shard.unlink()
        shard.mkdir()
    else:
        position = 50 if damage == "frame" else len(whole) - 20
        shard.write_bytes(whole[:position] + bytes([whole[position] ^ 255]) + whole[position + 1 :])
    outcomes.clear()
    message = read(array, [0], [ROWS])
    assert outcomes == [False]
    assert str(message).startswith(("CorruptionError", "NotRegularError", "StoreError")), message
    assert message == read_by_python(array, [0], [ROWS])


def test_threads(tmp_path: Path, write: Any, outcomes: list[bool]) -> None:
    values = numbers()
    array = write(tmp_path, values, (STEP, 3), (256, 3))
    wrong = []

    def check(start: int) -> None:
        for _ in range(50):
            if read(array, [start], [900]) != values[start:900].tobytes():
                wrong.append(start)

    threads = [threading.Thread(target=check, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
    assert outcomes == 200 * [True]
