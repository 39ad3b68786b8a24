"""Starting what makes batches: worker processes over shared slabs, or a thread over private ones."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from unistore.loader.cache import CacheLayout
from unistore.loader.cached import cached
from unistore.loader.fetch import Fetch, choose_fetch
from unistore.loader.machine import available_memory
from unistore.loader.options import Placement
from unistore.loader.production import Producer
from unistore.loader.slabs import SlabRing
from unistore.loader.thread import ReadingThread

__all__ = ["make_producer"]

HELD = 4
"""Batches that the consumer may hold before further ones are copied."""
MEMORY_SHARE = 4
"""Slabs take at most one part in so many of the memory that is available."""


def make_producer(
    *,
    dataset: Any,
    collate: Callable[[Any], Any] | None,
    worker_init_fn: Callable[[int], object] | None,
    seed: int,
    workers: int,
    placement: Placement,
    in_turn: bool,
    cache: int | None,
) -> Producer:
    """Start a producer.

    Parameters
    ----------
    dataset, collate, worker_init_fn, seed
        The user's.
    workers
        Processes; 0: a thread.
    placement
        Start method and prefetching.
    in_turn
        Whether workers take batches in turn.
    cache
        Bytes of decoded samples to keep; None: none.
    """
    layout = None
    if cache is not None:
        layout = CacheLayout(samples=len(dataset), capacity=cache, regions=max(1, workers))
    ring = SlabRing(
        shared=workers > 0,
        in_flight=placement.prefetch * max(1, workers),
        held=HELD,
        budget=available_memory() // MEMORY_SHARE,
        first=max(1, workers),
    )
    if workers == 0:
        return ReadingThread(_own_fetch(dataset, collate, layout), dataset, ring)
    # sockets, descriptors that travel, polling: not on every platform, and not needed for a thread
    from unistore.loader.crew import Crew
    from unistore.loader.worker import Orders

    orders = Orders(
        workers=workers,
        seed=seed,
        dataset=dataset,
        collate=collate,
        worker_init_fn=worker_init_fn,
        cache=layout,
    )
    return Crew(orders, placement.start_method, ring, in_turn=in_turn)


def _own_fetch(dataset: Any, collate: Callable[[Any], Any] | None, layout: CacheLayout | None) -> Fetch:
    """Fetch of this process, with its cache."""
    fetch = choose_fetch(dataset, collate)
    if layout is None:
        return fetch
    descriptor = layout.create()
    try:
        return cached(fetch, layout.region(0, descriptor))
    finally:
        os.close(descriptor)
