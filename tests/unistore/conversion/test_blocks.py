"""Memory of rows goes from step to step, and never brings values along."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from unistore.conversion.blocks import BlockPool


@pytest.mark.parametrize(
    ("dtype", "fill"), [("float32", float("nan")), ("uint8", 0), ("int64", -1), ("bool", True)]
)
def test_a_block_is_full_of_fill_whether_its_memory_is_new_or_not(dtype, fill):
    blocks = BlockPool()
    first = blocks.acquire("t", "x", (5, 3), dtype, fill)
    np.testing.assert_array_equal(first, np.full((5, 3), fill, dtype))
    first[...] = 1 if fill == 0 else 0
    blocks.release("t", {"x": first})
    again = blocks.acquire("t", "x", (4, 3), dtype, fill)
    assert np.shares_memory(again, first)
    assert again.dtype == dtype
    np.testing.assert_array_equal(again, np.full((4, 3), fill, dtype))


def test_memory_is_not_shared_by_two_who_hold_it():
    blocks = BlockPool()
    first, second = (blocks.acquire("t", "x", (8,), "int32", 0) for _ in range(2))
    assert not np.shares_memory(first, second)
    blocks.release("t", {"x": first})
    blocks.release("t", {"x": second})
    third, fourth = (blocks.acquire("t", "x", (8,), "int32", 0) for _ in range(2))
    assert not np.shares_memory(third, fourth)


def test_small_memory_is_not_taken_for_a_large_block_nor_that_of_another_table():
    blocks = BlockPool()
    small = blocks.acquire("t", "x", (2,), "int32", 0)
    blocks.release("t", {"x": small})
    large = blocks.acquire("t", "x", (9,), "int32", 7)
    assert not np.shares_memory(small, large)
    assert large.tolist() == [7] * 9
    assert not np.shares_memory(large, blocks.acquire("u", "x", (2,), "int32", 0))
    blocks.release("t", {"x": large})
    assert not np.shares_memory(large, blocks.acquire("u", "x", (2,), "int32", 0))


def test_nothing_is_sent_along_to_another_process():
    blocks = BlockPool()
    blocks.release("", {"x": np.zeros(1 << 20)})
    assert len(pickle.dumps(blocks)) < 200


def test_no_rows():
    assert BlockPool().acquire("t", "x", (0, 3), "float64", 0).shape == (0, 3)
