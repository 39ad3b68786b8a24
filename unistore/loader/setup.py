"""Starts the producer of batches: worker processes with shared slabs, or a thread with private ones."""

from __future__ import annotations

import weakref
from dataclasses import replace

from unistore.loader.cached import cache_file, cached
from unistore.loader.fetch import choose_fetch
from unistore.loader.options import Placement
from unistore.loader.production import BatchConfig, Producer
from unistore.loader.thread import ReadingThread
from unistore.memory.slabs import SlabRing
from unistore.system.machine import available_memory

HELD_BATCHES = 4
"""Batches that the consumer may hold before further ones are copied."""
MEMORY_DIVISOR = 4
"""Slabs take at most a quarter of the available memory."""


def make_producer(
    config: BatchConfig, placement: Placement, *, cache: int | None, round_robin: bool
) -> Producer:
    """Start a producer.

    Parameters
    ----------
    config
        What batches are made of.
    placement
        Start method and prefetching.
    cache
        Capacity of the cache in bytes; None: no cache.
    round_robin
        Whether workers take batches in turn.
    """
    dataset = config.dataset
    fetch = choose_fetch(dataset, config.collate, config.seed)
    file = None if cache is None else cache_file(dataset, fetch, cache)
    ring = SlabRing(
        in_flight=placement.prefetch * max(1, config.workers),
        held=HELD_BATCHES,
        budget=available_memory() // MEMORY_DIVISOR,
        least=max(1, config.workers),
        shared=config.workers > 0,
    )
    producer: Producer
    if config.workers > 0:
        # needs sockets that carry descriptors, and poll: not on every platform
        from unistore.loader.worker_pool import WorkerPool

        shared = replace(config, cache=file)
        producer = WorkerPool(shared, placement.start_method, ring, round_robin=round_robin)
    else:
        if file is not None:
            fetch = cached(dataset, fetch, file.region(file.descriptor))
        producer = ReadingThread(fetch, dataset, ring)
    if file is not None:
        weakref.finalize(producer, file.close)
    return producer
