"""Sequences of an epoch: pure functions of (seed, epoch), any stretch on its own, every sample once."""

from __future__ import annotations

import json
import tracemalloc
from itertools import product

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from unistore.order.sequences import (
    BlockShuffle,
    InOrder,
    RankShare,
    Repeated,
    Shuffled,
    Subset,
    Weighted,
    uniform_blocks,
)

RAGGED = np.cumsum([0, 3, 0, 50, 7, 1, 20, 119])


def sequences():
    return [
        InOrder(200),
        Shuffled(200, 3),
        BlockShuffle(uniform_blocks(200, 7), 3, group=4, lanes=3, deal=5),
        BlockShuffle(RAGGED, 3, group=2, lanes=2, deal=8),
        Subset(Shuffled(200, 3), np.random.default_rng(0).permutation(1000)[:200]),
        Weighted(np.arange(200.0), seed=3),
        Weighted([1, 2, 0, 1], offsets=[0, 10, 150, 160, 200], seed=3),
    ]


@pytest.mark.parametrize("number", range(7))
def test_any_part_of_a_sequence_equals_that_part_of_the_whole(number):
    sequence = sequences()[number]
    rng = np.random.default_rng(number)
    for epoch in (0, 1, 5):
        whole = sequence.indices(epoch, 0, len(sequence))
        assert whole.dtype == np.int64
        for _ in range(30):
            start, stop = np.sort(rng.integers(0, len(sequence) + 1, 2)).tolist()
            again = sequences()[number]
            assert np.array_equal(again.indices(epoch, start, stop), whole[start:stop])
    assert json.loads(json.dumps(sequence.describe())) == sequences()[number].describe()


@pytest.mark.parametrize("number", range(5))
def test_every_sample_once_an_epoch(number):
    sequence = sequences()[number]
    whole = [sequence.indices(epoch, 0, 200) for epoch in range(3)]
    assert all(len(np.unique(order)) == 200 for order in whole)
    assert all(np.array_equal(np.sort(order), np.sort(whole[0])) for order in whole)
    if number > 0:
        assert not np.array_equal(whole[0], whole[1])


@pytest.mark.parametrize(
    ("digest", "order"),
    [
        ("743df94ee4c78a2a", Shuffled(1, 5)),
        ("7e8095743d9945d7", Shuffled(2, -1)),
        ("60deb17c2f54363d", Shuffled(10_000, 2**40)),
        ("671f4615b28328c8", Shuffled(9_901)),
        ("92e4dce896f0b6df", BlockShuffle(RAGGED, 3, group=2, lanes=2, deal=8)),
        ("e14f9ae6b22f3176", BlockShuffle(uniform_blocks(5_003, 7), 3)),
        ("a8ee557dd87fcdb5", BlockShuffle.within(RAGGED, 4, 1, deal=16)),
        ("d531bca2f807a6fd", BlockShuffle.within(uniform_blocks(9_000, 40), 64, 1)),
        ("90a22ab249f617ff", BlockShuffle.within(uniform_blocks(9_000, 32), 65, 1)),
        ("aaadd923fa0bb382", Weighted([1, 0, 3], offsets=[0, 10, 10, 1000], length=3_000, seed=1)),
    ],
)
def test_orders_equal_those_of_earlier_versions(digest, order):
    """A saved state goes on where the run stopped only if its order stays as it was."""
    indices = [order.indices(epoch, 0, len(order)) for epoch in (0, 1, 1 << 33)]
    assert xxhash.xxh3_64_hexdigest(np.concatenate(indices).astype("<i8").tobytes()) == digest


@pytest.mark.parametrize("length", [0, 1, 7, 24, 25, 97])
def test_ranks_share_every_position_once(length):
    for world, start, batch in product((1, 2, 3, 5), (0, 5), (1, 2, 4)):
        given = {"length": length, "start": start, "batch_size": batch, "world_size": world}
        shares = [RankShare(rank=rank, drop_last=False, **given) for rank in range(world)]
        covered = [p for share in shares for step in range(share.steps) for p in range(*share.span(step))]
        assert sorted(covered) == list(range(min(start, length), length))
        assert max(share.steps for share in shares) - min(share.steps for share in shares) <= 1
        equal = [RankShare(rank=rank, drop_last=True, **given) for rank in range(world)]
        assert len({share.steps for share in equal}) == 1
        spans = [share.span(step) for share in equal for step in range(share.steps)]
        assert all(stop - first == batch for first, stop in spans)
        covered = sorted(p for span in spans for p in range(*span))
        assert covered == list(range(start, start + len(covered)))
        assert length - start - len(covered) < batch * world


@pytest.mark.parametrize(("first", "stop"), [(0, 0), (0, 43), (40, 50), (42, 130), (86, 87), (99, 100)])
def test_any_part_of_a_repeated_sequence_equals_the_repeated_whole(first: int, stop: int) -> None:
    once = Shuffled(43, 1).indices(2, 0, 43)
    found = Repeated(Shuffled(43, 1), 200).indices(2, first, stop)
    assert found.tolist() == np.resize(once, 200)[first:stop].tolist()
    assert found.dtype == np.int64


@settings(max_examples=60)
@given(
    sizes=st.lists(st.integers(0, 30), max_size=40),
    group=st.integers(1, 6),
    lanes=st.integers(1, 5),
    deal=st.integers(1, 20),
    epoch=st.integers(0, 3),
)
def test_block_shuffle_is_a_permutation_of_closed_groups(sizes, group, lanes, deal, epoch):
    offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
    order = BlockShuffle(offsets, 7, group=group, lanes=lanes, deal=deal)
    found = order.indices(epoch, 0, len(order))
    assert np.array_equal(np.sort(found), np.arange(offsets[-1]))
    blocks = np.searchsorted(offsets, found, side="right")
    # closed: while a set of groups is open, no block of another set occurs
    first_seen = list(dict.fromkeys(blocks.tolist()))
    last = {block: int(np.flatnonzero(blocks == block)[-1]) for block in first_seen}
    first = {block: int(np.flatnonzero(blocks == block)[0]) for block in first_seen}
    for block in first_seen:
        assert sum(first[other] <= last[block] and last[other] >= first[block] for other in first_seen) <= (
            group * lanes
        )


def test_workers_that_take_batches_in_turn_never_share_blocks():
    offsets = uniform_blocks(64 * 64, 64)
    order = BlockShuffle(offsets, 1, group=4, lanes=4, deal=16)
    blocks = order.indices(0, 0, len(order)) // 64
    turns = blocks.reshape(-1, 16)
    for workers in (2, 4):
        seen = [set(turns[worker::workers].ravel().tolist()) for worker in range(workers)]
        assert all(seen[a].isdisjoint(seen[b]) for a in range(workers) for b in range(a))


def test_arrangement_of_a_saved_order_is_taken_over():
    offsets = uniform_blocks(1000, 10)
    saved = BlockShuffle(offsets, 1, group=3, lanes=5, deal=7)
    other = BlockShuffle(offsets, 1, deal=64)
    assert other.arranged(saved.describe()).describe() == saved.describe()
    assert BlockShuffle(offsets, 2).arranged(saved.describe()).describe() != saved.describe()


def test_weighted_draws_follow_the_weights():
    weights = np.array([0, 1, 2, 0, 5.0])
    drawn = Weighted(weights, length=80_000, seed=1).indices(0, 0, 80_000)
    assert np.allclose(np.bincount(drawn, minlength=5) / 80_000, weights / 8, atol=0.01)
    runs = Weighted([3, 1], offsets=[0, 10, 1000], length=80_000, seed=1).indices(2, 0, 80_000)
    assert np.mean(runs < 10) == pytest.approx(0.75, abs=0.01)
    assert np.allclose(np.bincount(runs[runs < 10]) / 60_000, 0.1, atol=0.01)
    assert runs.max() == 999


def test_runs_without_samples_are_never_drawn():
    offsets = [0, 3, 3, 6, 6, 7]
    drawn = Weighted([3, 5, 3, 9, 1], offsets, length=4000, seed=1).indices(0, 0, 4000)
    same = Weighted([3, 0, 3, 0, 1], offsets, length=4000, seed=1)
    assert np.array_equal(drawn, same.indices(0, 0, 4000))
    assert np.bincount(drawn).tolist() == pytest.approx([4000 / 7] * 7, rel=0.2)


def test_weights_are_summed_in_double_precision():
    """In single precision 2**24 + 1 is 2**24: all samples but the first would never be drawn."""
    weights = np.ones(1 << 21)
    weights[0] = 1 << 24
    drawn = Weighted(weights, length=2000, seed=1).indices(0, 0, 2000)
    assert np.mean(drawn > 0) == pytest.approx(1 / 9, abs=0.03)
    heavier = Weighted([2**24 + 1, 1]).describe()
    assert heavier != Weighted([2**24, 1]).describe()


@pytest.mark.parametrize("weights", [[], [-1.0, 2], [0.0, 0], [np.nan, 1], [np.inf]])
def test_weights_that_cannot_be_drawn_from_are_an_error(weights):
    with pytest.raises(ValueError, match="weights"):
        Weighted(weights)


def test_weights_of_another_number_than_runs_are_an_error():
    with pytest.raises(ValueError, match="2 numbers, one for each run of samples, got 3"):
        Weighted([1, 2, 3], offsets=[0, 5, 10])


def test_blocks_that_do_not_ascend_are_an_error():
    with pytest.raises(ValueError, match="ascend from 0"):
        BlockShuffle(np.array([0, 5, 3]))
    with pytest.raises(ValueError, match="lanes and deal must be at least 1, got 16, 0, 64"):
        BlockShuffle(uniform_blocks(10, 3), lanes=0)


@pytest.mark.parametrize("kind", ["shuffled", "blocks"])
def test_an_order_of_a_hundred_million_samples_takes_no_table(kind):
    """A table of all indices would take 800 MB, and one of half of them 400 MB."""
    tracemalloc.start()
    if kind == "shuffled":
        order: Shuffled | BlockShuffle = Shuffled(100_000_000, 1)
    else:
        order = BlockShuffle.within(uniform_blocks(100_000_000, 256), 100_000, 1)
    for epoch in range(3):
        found = order.indices(epoch, 50_000_000, 50_004_096)
        assert len(np.unique(found)) == 4096
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100e6
