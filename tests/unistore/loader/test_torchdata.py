"""Our Dataset, collation and samplers in torchdata's StatefulDataLoader: it resumes with what is left."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torchdata.stateful_dataloader import StatefulDataLoader

import unistore
from unistore.order.sampler import SequenceSampler
from unistore.order.sequences import BlockShuffle, Shuffled, Weighted

# what torchdata 0.11 tells torch about itself, torch 2.13 no longer wants to hear
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")

BATCH, EPOCH, SEED = 8, 3, 5


@pytest.fixture
def store(make_store):
    count = 150
    lengths = np.arange(count) % 6 + 3
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    xyz = np.random.default_rng(0).normal(size=(int(offsets[-1]), 3)).astype(np.float32)
    arrays = {
        "points/xyz": xyz,
        "segments/offsets": offsets,
        "segments/origin": np.zeros((count, 3)),
        "segments/source": np.zeros(count, np.int32),
        "segments/number": np.arange(count),
        "sources/path": ["a.h5"],
    }
    path = make_store("point_cloud", arrays, count=count, table="segments")
    return unistore.Dataset(path, unistore.Segments(max_points=4), fields=["xyz"], seed=SEED)


def sampler_of(kind, dataset):
    if kind == "Shuffle":
        return unistore.Shuffle(dataset, SEED)
    weights = np.arange(len(dataset))
    sequence = {
        "full": Shuffled(len(dataset), SEED),
        "blocks": BlockShuffle(dataset.block_offsets(), SEED, deal=BATCH),
        "weighted": Weighted(weights, seed=SEED),
    }[kind.removeprefix("rank of ")]
    if kind.startswith("rank of "):
        return SequenceSampler(sequence, BATCH, rank=1, world_size=2)
    return SequenceSampler(sequence, BATCH)


def loader_of(kind, dataset, workers):
    """Loader at the epoch, as a script makes it anew after an interruption."""
    sampler = sampler_of(kind, dataset)
    sampler.set_epoch(EPOCH)
    return sampler, StatefulDataLoader(
        dataset, BATCH, sampler=sampler, collate_fn=unistore.collate, num_workers=workers
    )


def serial(kind, dataset, epoch):
    """Samples of an epoch, read one at a time in the order of the sampler."""
    sampler = sampler_of(kind, dataset)
    sampler.set_epoch(epoch)
    return [dataset[at] for at in sampler]


def same(batches, samples):
    """Whether batches hold these samples, in their order, nothing more."""
    indices = [index for batch in batches for index in batch["index"].tolist()]
    points = [batch["xyz"] for batch in batches]
    return indices == [int(sample["index"]) for sample in samples] and torch.equal(
        torch.cat(points), torch.cat([sample["xyz"] for sample in samples])
    )


@pytest.mark.parametrize(
    ("workers", "kind"),
    [
        *((0, kind) for kind in ("full", "weighted", "rank of blocks")),
        (2, "Shuffle"),
    ],
)
def test_a_resumed_stateful_loader_delivers_the_rest_and_then_the_next_epoch(store, kind, workers):
    expected = serial(kind, store, EPOCH)
    for stop in (1, 5)[workers // 2 :]:
        _, loader = loader_of(kind, store, workers)
        batches = iter(loader)
        assert same([next(batches) for _ in range(stop)], expected[: stop * BATCH])
        state = loader.state_dict()
        del batches, loader
        sampler, again = loader_of(kind, store, workers)
        again.load_state_dict(state)
        assert same(list(again), expected[stop * BATCH :])
        sampler.set_epoch(EPOCH + 1)
        assert same(list(again), serial(kind, store, EPOCH + 1))
