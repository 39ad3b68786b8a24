"""The compiled kernel: in every process however it starts, never outside of its buffers, and not needed."""

from __future__ import annotations

import _ctypes
import multiprocessing
from pathlib import Path

import numpy as np
import pytest

from tests.support.kernel import needs_kernel
from unistore.data.kinds.sparse_points import find_points
from unistore.system import kernel as module
from unistore.system.kernel import kernel

BITS = np.packbits(np.arange(2 * 3 * 70).reshape(2, 3, 70) % 5 == 0, axis=-1, bitorder="little")
COUNT = int(np.bitwise_count(BITS).sum())


def points() -> list[list[int]]:
    out = np.empty((COUNT, 3), np.int32)
    find_points(BITS, None, out)
    return out.tolist()  # type: ignore[no-any-return]


def loaded(_: int) -> tuple[bool, list[list[int]]]:
    return kernel() is not None, points()


@needs_kernel
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_every_start_method_loads_the_kernel(method: str) -> None:
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert pool.map_async(loaded, [0]).get(60) == [(True, points())]


@needs_kernel
@pytest.mark.parametrize(
    ("ranks", "count"),
    [
        ([0, 1, COUNT - 1], 3),
        ([4, 4, 5], 3),
        ([5, 4], 1),
        ([-1, 0], 0),
        ([COUNT - 1, COUNT], 1),
        ([2**63 - 1], 0),
        ([], 0),
    ],
)
def test_find_points_stops_at_ranks_that_the_mask_does_not_have(ranks: list[int], count: int) -> None:
    library = kernel()
    assert library is not None
    out = np.full((len(ranks) + 1, 3), -9, np.int32)
    numbers = np.array(ranks, np.int64)
    written = library.unistore_find_points(
        BITS.ctypes.data, *BITS.shape, numbers.ctypes.data, len(ranks), out.ctypes.data
    )
    assert written == count
    expected = np.array(points())[numbers[:count]]
    assert np.array_equal(out[:count], expected.reshape(-1, 3))
    assert (out[count:] == -9).all()


@needs_kernel
@pytest.mark.parametrize("shape", [(2**31, 1, 1), (1, 2**31, 1), (1, 1, 2**28), (-1, 1, 1), (0, 3, 9)])
def test_find_points_returns_0_for_shapes_beyond_int32(shape: tuple[int, int, int]) -> None:
    library = kernel()
    assert library is not None
    assert library.unistore_find_points(BITS.ctypes.data, *shape, None, 0, None) == 0


@pytest.mark.parametrize("reason", ["environment", "absent", "no library", "another version"])
def test_python_finds_the_same_points_without_the_kernel(
    reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = np.argwhere(np.unpackbits(BITS, axis=-1, bitorder="little"))
    path = tmp_path / "kernel.so"
    if reason == "environment":
        monkeypatch.setenv("UNISTORE_KERNEL", "0")
    else:
        monkeypatch.setattr(module, "PATH", path)
    if reason == "no library":
        path.write_bytes(b"not a library")
    if reason == "another version":
        path.symlink_to(_ctypes.__file__)
    kernel.cache_clear()
    try:
        assert kernel() is None
        assert points() == expected.tolist()
    finally:
        kernel.cache_clear()
