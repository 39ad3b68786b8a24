"""Sequences in torch's own DataLoader deliver what Loader delivers."""

from __future__ import annotations

import numpy as np
import pytest
from torch.utils.data import DataLoader

import unistore
from unistore.loader import Loader
from unistore.order.sampler import SequenceSampler
from unistore.order.sequences import InOrder, Shuffled
from unistore.order.shuffles import BlockShuffle


@pytest.fixture
def dataset(make_store):
    return unistore.Dataset(make_store("rows", {"rows/data": np.arange(203)}, count=203))


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("world", [1, 3])
def test_same_batches_as_the_loader(dataset, world, drop_last):
    for sequence in (Shuffled(203, 4), BlockShuffle(dataset.block_offsets(), 4), InOrder(203)):
        for rank in range(world):
            options = {"rank": rank, "world_size": world, "drop_last": drop_last}
            sampler = SequenceSampler(sequence, 10, **options)
            theirs = DataLoader(dataset, 10, sampler=sampler, collate_fn=unistore.collate)
            with Loader(dataset, 10, sampler=sequence, num_workers=0, **options) as ours:
                for epoch in range(2):
                    sampler.set_epoch(epoch)
                    expected = [batch["data"].tolist() for batch in theirs]
                    assert [batch["data"].tolist() for batch in ours] == expected
                    assert len(sampler) == sum(map(len, expected))
