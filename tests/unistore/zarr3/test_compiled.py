"""Ranges and boxes read by the kernel: the bytes and the errors of the Python path, which is its oracle."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
from google_crc32c import _crc32c
from numcodecs import blosc

from tests.support.kernel import needs_kernel
from unistore.errors import StoreError
from unistore.zarr3 import LocalStorage, StoredArray, compiled
from unistore.zarr3.cache import CHUNKS

pytestmark = needs_kernel
ROWS = 1000
Outcome = tuple[str, bool]
STEP = 64


@pytest.fixture
def outcomes(monkeypatch: pytest.MonkeyPatch) -> list[Outcome]:
    """Calls of the kernel from now on, as if all were in the page cache, and whether they read."""
    call = compiled._call
    seen: list[Outcome] = []

    def watched(function: str, *arguments: Any) -> bool:
        read = call(function, *arguments)
        seen.append((function.removeprefix("unistore_read_"), read))
        return read

    monkeypatch.setattr(compiled, "_call", watched)
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
        patch.setattr(compiled, "kernel", lambda: None)
        return read(array, lo, hi)


def numbers(dtype: str = "i4", row: tuple[int, ...] = (3,)) -> Any:
    return np.random.default_rng(1).integers(1, 99, (ROWS, *row)).astype(dtype)


@pytest.mark.parametrize("codec", ["fast", "balanced", "small", "none", "zstd"])
@pytest.mark.parametrize(("dtype", "row"), [("i4", (3,)), ("u1", ()), ("f8", (2, 2)), ("i2", (70,))])
def test_compiled_ranges_equal_numpy_and_the_python_path(
    tmp_path: Path, write: Any, outcomes: list[Outcome], dtype: str, row: tuple[int, ...], codec: str
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
    assert outcomes == ([] if codec == "zstd" else 5 * [("ranges", True)])


@pytest.mark.parametrize(
    ("lo", "hi", "calls"),
    [
        ([0], [ROWS], [("ranges", True)]),
        ([STEP], [2 * STEP], [("ranges", True)]),
        ([999, 0], [1000, 200], [("ranges", True)]),
        ([5, 5, 5], [205, 205, 205], [("ranges", True)]),
        ([0, 9], [ROWS, 9], [("ranges", True)]),
        ([0], [STEP - 1], [("boxes", True)]),  # less than a chunk, which the cache of the process may have
        ([300], [500], [("ranges", False), ("boxes", True)]),  # a chunk that is absent
    ],
)
def test_the_kernel_reads_the_ranges_it_supports(
    tmp_path: Path, write: Any, outcomes: list[Outcome], lo: list[int], hi: list[int], calls: list[Outcome]
) -> None:
    values = numbers()
    if lo == [300]:
        values[5 * STEP : 6 * STEP] = 0
    array = write(tmp_path, values, (STEP, 3), (256, 3))
    expected = np.concatenate([values[low:high] for low, high in zip(lo, hi, strict=True)])
    assert read(array, lo, hi) == expected.tobytes()
    assert outcomes == calls


@pytest.mark.parametrize("codec", ["fast", "none"])
@pytest.mark.parametrize("dtype", ["u1", "i2", "f8"])
@pytest.mark.parametrize(
    "chunk", [(1, 8, 8, 8), (1, 4, 16, 20), (2, 3, 5, 7), (1, 1, 16, 20), (3, 16, 16, 20)]
)
def test_compiled_boxes_equal_numpy(
    tmp_path: Path, write: Any, outcomes: list[Outcome], dtype: str, chunk: tuple[int, ...], codec: str
) -> None:
    shape = (3, 16, 16, 20)
    values = np.random.default_rng(2).integers(0, 9, shape).astype(dtype)
    values[1] = 0  # chunks that are absent
    array = write(tmp_path, values, chunk, tuple(-(-16 // extent) * extent for extent in chunk), codec)
    rng = np.random.default_rng(3)
    for _ in range(20):
        lo = rng.integers(0, shape)
        hi = rng.integers(lo + 1, np.array(shape) + 1)
        box = tuple(map(slice, lo, hi))
        assert array.read_box(lo, hi).tobytes() == values[box].tobytes()
    assert array.read().tobytes() == values.tobytes()
    assert set(outcomes) == {("boxes", True)}


def test_no_more_files_are_open_than_storages_keep(
    tmp_path: Path, write: Any, outcomes: list[Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "MAX_OPEN_FILES", 2)
    array = write(tmp_path, numbers(), (STEP, 3), (128, 3))
    assert read(array, [0], [ROWS]) == numbers().tobytes()
    assert read(array, [0], [200]) == numbers()[:200].tobytes()
    assert outcomes == [("ranges", True)]


def hide_extension(patch: pytest.MonkeyPatch) -> None:
    patch.delattr(google_crc32c, "_crc32c")
    patch.setitem(sys.modules, "google_crc32c._crc32c", None)


# Other shared libraries stand for releases that export other functions
HIDING: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "blosc's library": lambda patch: patch.setattr(blosc, "__file__", "absent.so"),
    "blosc's function": lambda patch: patch.setattr(blosc, "__file__", _crc32c.__file__),
    "crc32c's library": lambda patch: patch.setattr(_crc32c, "__file__", "absent.so"),
    "crc32c's function": lambda patch: patch.setattr(_crc32c, "__file__", blosc.__file__),
    "crc32c's extension": hide_extension,
}


@pytest.mark.parametrize("codec", ["fast", "none"])
@pytest.mark.parametrize("hidden", HIDING)
def test_python_reads_if_libraries_hide_their_functions(
    tmp_path: Path,
    write: Any,
    outcomes: list[Outcome],
    monkeypatch: pytest.MonkeyPatch,
    hidden: str,
    codec: str,
) -> None:
    array = write(tmp_path, numbers(), (STEP, 3), (256, 3), codec)
    compiled.compiled_functions.cache_clear()
    HIDING[hidden](monkeypatch)
    try:
        assert compiled.compiled_functions() is None
        assert read(array, [0], [ROWS]) == numbers().tobytes()
        assert array.read_box([70, 1], [900, 3]).tobytes() == numbers()[70:900, 1:].tobytes()
    finally:
        monkeypatch.undo()
        compiled.compiled_functions.cache_clear()
    assert outcomes == []


@pytest.mark.parametrize("codec", ["fast", "none"])
@pytest.mark.parametrize("damage", ["frame", "index", "cut off", "removed", "link", "unreadable"])
def test_compiled_reads_of_damage_give_the_errors_of_the_python_path(
    tmp_path: Path, write: Any, outcomes: list[Outcome], damage: str, codec: str
) -> None:
    shard = tmp_path / "a" / "c" / "1" / "0"
    write(tmp_path, numbers(), (STEP, 3), (256, 3), codec)
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
    assert ("ranges", True) not in outcomes
    assert ("boxes", True) not in outcomes
    assert str(message).startswith(("CorruptionError", "NotRegularError", "StoreError")), message
    assert message == read_by_python(array, [0], [ROWS])


def test_threads_read_equal_values_through_the_kernel(
    tmp_path: Path, write: Any, outcomes: list[Outcome]
) -> None:
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
    assert outcomes == 200 * [("ranges", True)]
