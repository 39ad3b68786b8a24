"""Which shuffle samples get: a full one, or one of blocks where a full one would decode too much."""

from __future__ import annotations

import warnings
from collections.abc import Sized
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from unistore.errors import InputError, Problem
from unistore.order.blocks import GROUP, LANES, BlockShuffle, uniform_blocks
from unistore.order.sequences import EpochSequence, Shuffled, Subset

__all__ = ["ShuffleKind", "shuffled"]

ShuffleKind = Literal[True, "full", "blocks", "sources"]

PLAIN_BLOCK = 256
"""Samples of a block where a dataset cannot tell which samples share chunks."""


def shuffled(
    data: Sized, kind: ShuffleKind, *, seed: int, batch_size: int, chosen: NDArray[np.int64] | None = None
) -> EpochSequence:
    """Every sample once an epoch, in random order.

    Parameters
    ----------
    data
        A dataset. One that has ``block_offsets`` tells which samples share chunks, and ``shuffles_in_blocks``
        whether a full shuffle would decode many times what it delivers.
    kind
        ``"full"``, ``"blocks"``, or True: blocks where the dataset says so, with a warning. ``"sources"``:
        one source file after the other, in random order, the samples of each shuffled.
    seed
        Another seed is another sequence of orders.
    batch_size
        Samples that come from the same few chunks in turn: one batch.
    chosen
        Indices of the samples to use; None: all.

    Raises
    ------
    InputError
        Blocks or sources of a subset that is not in ascending order, or of a dataset that tells no sources.
    """
    ascending = chosen is None or not np.any(np.diff(chosen) < 0)
    blocks = kind == "blocks"
    if kind is True and ascending and getattr(data, "shuffles_in_blocks", False):
        blocks = True
        warnings.warn(
            "shuffle=True shuffles blocks of samples here, as a full shuffle would decode many samples for "
            'each that it delivers: shuffle="blocks" says so too, shuffle="full" insists on a full one',
            stacklevel=4,
        )
    if (blocks or kind == "sources") and not ascending:
        message = f"{kind!r} needs the subset in ascending order, so that neighbours stay together"
        raise InputError(Problem("shuffle", message, kind="option"))
    if kind == "sources":
        sequence: EpochSequence = BlockShuffle(
            _sources(data, chosen), seed, group=1, lanes=1, deal=batch_size
        )
    elif blocks:
        together = getattr(data, "open_blocks", GROUP * LANES)
        sequence = BlockShuffle.within(_blocks(data, chosen), together, seed, deal=batch_size)
    else:
        sequence = Shuffled(len(data) if chosen is None else len(chosen), seed)
    return sequence if chosen is None else Subset(sequence, chosen)


def _sources(data: Sized, chosen: NDArray[np.int64] | None) -> NDArray[np.int64]:
    """Offsets of the samples of each source."""
    if not hasattr(data, "source_offsets"):
        message = f"'sources' needs a dataset with source_offsets(), got {type(data).__name__}"
        raise InputError(Problem("shuffle", message, kind="option"))
    offsets = np.asarray(data.source_offsets(), np.int64)
    return offsets if chosen is None else np.searchsorted(chosen, offsets).astype(np.int64)


def _blocks(data: Sized, chosen: NDArray[np.int64] | None) -> NDArray[np.int64]:
    """Offsets of blocks of samples that share chunks, over the dataset or over a subset of it."""
    given = getattr(data, "block_offsets", None)
    if given is None:
        offsets = uniform_blocks(len(data), PLAIN_BLOCK)
    else:
        offsets = np.asarray(given() if callable(given) else given, np.int64)
    return offsets if chosen is None else np.searchsorted(chosen, offsets).astype(np.int64)
