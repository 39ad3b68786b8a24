"""Orders and counter-based draws: bijective, spread evenly, functions of their arguments alone."""

from __future__ import annotations

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from unistore.order.permutation import Permutation, generator, random_words


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


@pytest.mark.parametrize("seed", [2**63 + 1, 2**64 - 1, -1])
def test_large_seeds_are_not_rounded(seed: int) -> None:
    drawn = [generator(near, 0, 5).integers(0, 2**60, 4).tolist() for near in (seed, seed - 1)]
    assert drawn[0] != drawn[1]
