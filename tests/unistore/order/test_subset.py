"""Subsets: ascending, uniform, and the same from the kernel, from numpy, and from plain Python."""

from __future__ import annotations

import ctypes
import itertools
import random
from collections import Counter

import numpy as np
import pytest

from unistore.order import subset as subset_module
from unistore.order.subset import MASK_RATIO, subset
from unistore.system.kernel import kernel

_U64 = (1 << 64) - 1
needs_kernel = pytest.mark.skipif(kernel() is None, reason="the kernel was not built")


def documented(total: int, count: int, word: int) -> list[int]:
    """Draw as docs/explanation/order.md has it, in integers of any size."""
    smaller = min(count, total - count)
    drawn: set[int] = set()
    while len(drawn) < smaller:
        word = (word + 0x9E3779B97F4A7C15) & _U64
        z = word
        z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & _U64
        z = ((z ^ z >> 27) * 0x94D049BB133111EB) & _U64
        drawn.add((z ^ z >> 31) * total >> 64)
    return sorted(drawn) if smaller == count else [row for row in range(total) if row not in drawn]


@pytest.fixture(params=["kernel", "numpy"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "numpy":
        monkeypatch.setattr(subset_module, "kernel", lambda: None)
    elif kernel() is None:
        pytest.skip("the kernel was not built")
    return str(request.param)


@pytest.mark.parametrize("mask_ratio", [0, MASK_RATIO, 10**6])
def test_subsets_are_those_of_the_guide(way: str, mask_ratio: int) -> None:
    cases = random.Random(4)
    for _ in range(1_000):
        total = cases.choice([1, 2, 63, 64, 65, 127, 128, cases.randrange(1, 600)])
        count = cases.randint(0, total)
        word = cases.choice([0, _U64, cases.getrandbits(64)])
        found = subset(total, count, word, mask_ratio)
        assert found.dtype == np.int64
        assert found.tolist() == documented(total, count, word), (way, total, count, word)


def test_large_subsets_are_those_of_the_guide(way: str) -> None:
    for total, count in ((160_000, 100_000), (160_000, 20), (70_000, 9_000)):
        assert subset(total, count, 11).tolist() == documented(total, count, 11), way


@pytest.mark.parametrize("total", [(1 << 31) + 1, (1 << 32) + 1, (1 << 45) + 7, (1 << 63) - 1])
def test_subsets_of_more_than_32_bits_are_those_of_the_guide(way: str, total: int) -> None:
    found = subset(total, 500, 3)
    assert found.tolist() == documented(total, 500, 3), way
    assert found[-1] > total // 2  # 500 draws below the middle do not happen


def test_a_subset_of_none_or_all_is_exact(way: str) -> None:
    assert subset(0, 0, 1).tolist() == subset(7, 0, 1).tolist() == [], way
    assert subset(1, 1, 1).tolist() == [0]
    assert subset(130, 130, 1).tolist() == list(range(130))


@pytest.mark.parametrize(("total", "count"), [(3, 4), (-1, 0), (3, -1), (1 << 63, 1)])
def test_a_subset_larger_than_its_population_is_an_error(total: int, count: int) -> None:
    with pytest.raises(ValueError, match=f"cannot take {count} of {total}"):
        subset(total, count, 1)


@pytest.mark.parametrize("count", [2, 3])
def test_every_subset_is_equally_likely(count: int) -> None:
    draws = 5_000
    words = np.random.default_rng(1).integers(0, 1 << 64, draws, dtype=np.uint64).tolist()
    seen = Counter(tuple(subset(5, count, word).tolist()) for word in words)
    assert set(seen) == set(itertools.combinations(range(5), count))
    expected = draws / 10
    assert sum((n - expected) ** 2 / expected for n in seen.values()) < 30  # 9 degrees of freedom


@pytest.mark.parametrize(("total", "count"), [(1_000, 300), (1_000, 700), (1_000, 5)])
def test_rows_are_equally_likely_with_neighbouring_words(total: int, count: int) -> None:
    draws = 4_000
    seen = np.zeros(total)
    for word in range(draws):
        seen[subset(total, count, word)] += 1
    share = count / total
    # without replacement, the sum has total - 1 degrees of freedom once the variance is that of one row
    chi_square = ((seen - draws * share) ** 2).sum() / (draws * share * (1 - share)) * (total - 1) / total
    assert abs(chi_square - (total - 1)) < 5 * np.sqrt(2 * (total - 1))


def test_subsets_are_those_of_earlier_versions() -> None:
    assert subset(1000, 4, 5).tolist() == [99, 232, 386, 752]
    assert subset(10, 7, 5).tolist() == [0, 1, 4, 5, 6, 8, 9]


@needs_kernel
@pytest.mark.parametrize(
    ("total", "count", "words"),
    [
        (100, 40, 1),
        (100, 40, -1),
        (100, 101, 2),
        (-1, 0, 2),
        (100, -1, 2),
        (2**63 - 1, 5, 2),
        (-(2**63), 3, 2),
    ],
)
def test_the_kernel_writes_nothing_where_counts_do_not_fit(total: int, count: int, words: int) -> None:
    library = kernel()
    assert library is not None
    bits, out = np.full(4, 7, np.uint64), np.full(200, -5, np.int64)
    taken = library.unistore_draw_subset(1, total, count, bits.ctypes.data, words, out.ctypes.data)
    assert taken == 1
    assert (bits == 7).all()
    assert (out == -5).all()


@needs_kernel
@pytest.mark.parametrize("total", [1, 64, 100, 128, 129])
def test_the_kernel_keeps_to_its_buffers(total: int) -> None:
    library = kernel()
    assert library is not None
    words = -(-total // 64)
    for count in range(total + 1):
        bits, out = np.full(words + 2, _U64, np.uint64), np.full(count + 2, -5, np.int64)
        begin = out.ctypes.data + out.itemsize
        word = ctypes.c_uint64(count)
        assert library.unistore_draw_subset(word, total, count, bits[1:].ctypes.data, words, begin) == 0
        assert bits[0] == bits[-1] == _U64
        assert out[0] == out[-1] == -5
        assert out[1:-1].tolist() == documented(total, count, count)
