"""Chooses the shuffle: full, or of blocks if a full one would decode too much."""

from __future__ import annotations

from collections.abc import Sized
from typing import Literal

import numpy as np

from unistore.order.sequences import (
    GROUP,
    LANES,
    BlockShuffle,
    EpochSequence,
    Shuffled,
    Subset,
    uniform_blocks,
)
from unistore.system.arguments import wrong_argument
from unistore.system.caller import warn_caller
from unistore.system.types import Int64s

# Kinds that a user names.
ShuffleKind = Literal[True, "full", "blocks", "sources"]
NAMED = ("full", "blocks", "sources")

# Requests of an epoch to a bucket from which a full shuffle is warned about.
MANY_REQUESTS = 2000

# Samples per block for a dataset without ``block_offsets``.
DEFAULT_BLOCK = 256


def shuffled(
    data: Sized,
    kind: ShuffleKind,
    *,
    seed: int,
    batch_size: int,
    chosen: Int64s | None = None,
) -> EpochSequence:
    """Return an order with every sample once per epoch, shuffled.

    Parameters
    ----------
    data : Sized
        A dataset. Its ``block_offsets``, if any, state which samples share chunks, and
        ``shuffles_in_blocks`` whether a full shuffle would decode too much.
    kind : {True, "full", "blocks", "sources"}
        ``"full"``, ``"blocks"``; True: blocks if ``shuffles_in_blocks``, with a warning, otherwise full.
        ``"sources"``: one source file after another, in random order, the samples of each shuffled.
    seed : int
        Seed of the orders.
    batch_size : int
        Number of samples per turn of a block shuffle.
    chosen : int64 array of shape (n,), optional
        Indices of the samples to use; ascending for blocks and sources. None: all samples.

    Raises
    ------
    InputError
        If `chosen` does not ascend, or the dataset has no sources.
    """
    ascending = chosen is None or not np.any(np.diff(chosen) < 0)
    if kind is True and ascending and getattr(data, "shuffles_in_blocks", False):
        kind = "blocks"
        warn_caller(
            "shuffle=True shuffles blocks of samples here, because a full shuffle would decode many samples "
            'for each one that it delivers. To silence this, give shuffle="blocks", or shuffle="full" for a '
            "full shuffle"
        )
    if kind in (True, "full"):
        requests = getattr(data, "shuffled_requests", 0)
        if requests >= MANY_REQUESTS:
            warn_caller(
                f"a full shuffle of this store in a bucket makes about {requests:,} requests per epoch. "
                "Give the dataset a cache_dir, which keeps a copy of each object"
            )
        sequence: EpochSequence = Shuffled(len(data) if chosen is None else len(chosen), seed)
        return sequence if chosen is None else Subset(sequence, chosen)
    if not ascending:
        message = f"{kind!r} needs a subset in ascending order, so that neighbours stay together"
        raise wrong_argument("shuffle", message, "sort the subset")
    offsets = _blocks(data) if kind == "blocks" else _sources(data)
    if chosen is not None:
        offsets = np.searchsorted(chosen, offsets).astype(np.int64)
    if kind == "blocks":
        open_blocks = getattr(data, "open_blocks", GROUP * LANES)
        is_remote = getattr(data, "is_remote", False)
        sequence = BlockShuffle.within(offsets, open_blocks, seed, deal=batch_size, are_read_whole=is_remote)
    else:
        sequence = BlockShuffle(offsets, seed, group=1, lanes=1, deal=batch_size)
    return sequence if chosen is None else Subset(sequence, chosen)


def _sources(data: Sized) -> Int64s:
    if not hasattr(data, "source_offsets"):
        message = f"'sources' needs a dataset with source_offsets(), got {type(data).__name__}"
        raise wrong_argument("shuffle", message)
    return np.asarray(data.source_offsets(), np.int64)


def _blocks(data: Sized) -> Int64s:
    declared = getattr(data, "block_offsets", None)
    if declared is None:
        return uniform_blocks(len(data), DEFAULT_BLOCK)
    return np.asarray(declared() if callable(declared) else declared, np.int64)
