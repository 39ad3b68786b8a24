"""Chooses the shuffle: full, or of blocks if a full one would decode too much."""

from __future__ import annotations

import warnings
from collections.abc import Sized
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from unistore.errors import InputError, Problem
from unistore.order.blocks import GROUP, LANES, BlockShuffle, uniform_blocks
from unistore.order.sequences import EpochSequence, Shuffled, Subset

ShuffleKind = Literal[True, "full", "blocks", "sources"]
NAMED = ("full", "blocks", "sources")
"""Kinds that a user names."""

DEFAULT_BLOCK = 256
"""Samples per block for a dataset without ``block_offsets``."""


def shuffled(
    data: Sized, kind: ShuffleKind, *, seed: int, batch_size: int, chosen: NDArray[np.int64] | None = None
) -> EpochSequence:
    """Every sample once per epoch, in random order.

    Parameters
    ----------
    data
        A dataset. Its ``block_offsets``, if any, give the samples that share chunks; ``shuffles_in_blocks``
        whether a full shuffle would decode many times what it delivers.
    kind
        ``"full"``, ``"blocks"``, or True: blocks if ``shuffles_in_blocks``, with a warning, else full.
        ``"sources"``: one source file after the other, in random order, the samples of each shuffled.
    seed
        Seed of the orders.
    batch_size
        Turn length of a block shuffle.
    chosen
        Indices of the samples to use; None: all.

    Raises
    ------
    InputError
        If a shuffle of blocks or sources is given a subset that is not ascending, or the dataset has no
        sources.
    """
    ascending = chosen is None or not np.any(np.diff(chosen) < 0)
    if kind is True and ascending and getattr(data, "shuffles_in_blocks", False):
        kind = "blocks"
        warnings.warn(
            "shuffle=True shuffles blocks of samples here, as a full shuffle would decode many samples for "
            'each that it delivers: shuffle="blocks" says so too, shuffle="full" insists on a full one',
            stacklevel=4,
        )
    if kind in (True, "full"):
        sequence: EpochSequence = Shuffled(len(data) if chosen is None else len(chosen), seed)
        return sequence if chosen is None else Subset(sequence, chosen)
    if not ascending:
        message = f"{kind!r} needs the subset in ascending order, so that neighbours stay together"
        raise InputError(Problem("shuffle", message, kind="option"))
    offsets = _blocks(data) if kind == "blocks" else _sources(data)
    if chosen is not None:
        offsets = np.searchsorted(chosen, offsets).astype(np.int64)
    if kind == "blocks":
        open_blocks = getattr(data, "open_blocks", GROUP * LANES)
        sequence = BlockShuffle.within(offsets, open_blocks, seed, deal=batch_size)
    else:
        sequence = BlockShuffle(offsets, seed, group=1, lanes=1, deal=batch_size)
    return sequence if chosen is None else Subset(sequence, chosen)


def _sources(data: Sized) -> NDArray[np.int64]:
    """Offsets of the samples of each source."""
    if not hasattr(data, "source_offsets"):
        message = f"'sources' needs a dataset with source_offsets(), got {type(data).__name__}"
        raise InputError(Problem("shuffle", message, kind="option"))
    return np.asarray(data.source_offsets(), np.int64)


def _blocks(data: Sized) -> NDArray[np.int64]:
    """Offsets of the samples of each block."""
    declared = getattr(data, "block_offsets", None)
    if declared is None:
        return uniform_blocks(len(data), DEFAULT_BLOCK)
    return np.asarray(declared() if callable(declared) else declared, np.int64)
