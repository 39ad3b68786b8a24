"""Orders and counter-based draws: bijective, spread evenly, functions of their arguments alone."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from unistore.order import permutation as randomness
from unistore.order.permutation import Permutation, generator, random_words, subset


@given(length=st.integers(0, 5000), seed=st.integers(-(2**70), 2**70), epoch=st.integers(0, 10**6))
@settings(max_examples=60)
def test_a_permutation_is_a_bijection(length: int, seed: int, epoch: int) -> None:
    found = Permutation(length, seed, epoch)(np.arange(length))
    assert np.array_equal(np.sort(found), np.arange(length))


def test_permutations_are_those_of_earlier_versions() -> None:
    """Saved states go on in the same order."""
    found = [Permutation(length, 3, epoch)(np.arange(length)) for length in range(40) for epoch in range(8)]
    assert xxhash.xxh3_64_hexdigest(np.concatenate(found).astype("<i8").tobytes()) == "4e9bc9d58991effd"


def test_words_depend_on_seed_epoch_and_index_alone() -> None:
    index, epoch = np.array([3, 9, 3]), np.array([0, 0, 1])
    drawn = random_words(5, epoch, index, 4)
    assert np.array_equal(random_words(5, epoch[1:2], index[1:2], 4)[0], drawn[1])
    assert np.array_equal(random_words(5, epoch, index, 2), drawn[:, :2])
    assert len(np.unique(drawn)) == drawn.size
    assert not np.array_equal(random_words(6, epoch, index, 4), drawn)


@given(total=st.integers(0, 400), data=st.data(), seed=st.integers(0, 2**64 - 1))
@settings(max_examples=100)
def test_a_subset_is_ascending_and_of_its_size(total: int, data: st.DataObject, seed: int) -> None:
    count = data.draw(st.integers(0, total))
    found = subset(total, count, generator(seed, 0, 0))
    assert len(found) == count
    assert (np.diff(found) > 0).all()
    assert count == 0 or (found[0] >= 0 and found[-1] < total)


@pytest.mark.parametrize("seed", [2**63 + 1, 2**64 - 1, -1])
def test_large_seeds_are_not_rounded(seed: int) -> None:
    drawn = [generator(near, 0, 5).integers(0, 2**60, 4).tolist() for near in (seed, seed - 1)]
    assert drawn[0] != drawn[1]


@pytest.mark.parametrize("count", [2, 3])
def test_every_subset_is_equally_likely(count: int) -> None:
    draws = 5_000
    rng = generator(1, 2, 3)
    seen = Counter(tuple(subset(5, count, rng).tolist()) for _ in range(draws))
    assert set(seen) == set(itertools.combinations(range(5), count))
    expected = draws / 10
    assert sum((n - expected) ** 2 / expected for n in seen.values()) < 45  # 9 degrees of freedom


def test_a_subset_is_the_same_whether_draws_are_marked_or_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    for total, count in ((1, 1), (9, 4), (5_000, 40), (70_000, 9_000)):
        found = []
        for ratio in (0, 10**9):
            monkeypatch.setattr(randomness, "_MASK_RATIO", ratio)
            found.append(subset(total, count, generator(1, 2, 3)))
        np.testing.assert_array_equal(*found)
        assert found[0].dtype == found[1].dtype == np.int64


def test_subsets_are_those_of_earlier_versions() -> None:
    assert subset(1000, 4, generator(1, 2, 3)).tolist() == [148, 378, 410, 891]
    assert subset(10, 7, generator(1, 2, 3)).tolist() == [0, 1, 2, 5, 6, 7, 9]
