"""Starts the producer of batches: worker processes with shared slabs, or a thread with private ones."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from unistore.loader.cache import CacheFile
from unistore.loader.cached import cache_file, cached
from unistore.loader.fetch import choose_fetch
from unistore.loader.options import Placement
from unistore.loader.production import Producer
from unistore.loader.thread import ReadingThread
from unistore.memory.slabs import SlabRing
from unistore.system.machine import available_memory

HELD_BATCHES = 4
"""Batches that the consumer may hold before further ones are copied."""
MEMORY_DIVISOR = 4
"""Slabs take at most a quarter of the available memory."""


def make_producer(
    *,
    dataset: Any,
    collate: Callable[[Any], Any] | None,
    worker_init_fn: Callable[[int], object] | None,
    seed: int,
    workers: int,
    placement: Placement,
    round_robin: bool,
    cache: int | None,
) -> Producer:
    """Start a producer.

    Parameters
    ----------
    dataset, collate, worker_init_fn, seed
        Arguments of the Loader.
    workers
        Processes; 0: a thread.
    placement
        Start method and prefetching.
    round_robin
        Whether workers take batches in turn.
    cache
        Capacity of the cache in bytes; None: no cache.
    """
    fetch = choose_fetch(dataset, collate, seed)
    file = None if cache is None else cache_file(dataset, fetch, cache)
    ring = SlabRing(
        in_flight=placement.prefetch * max(1, workers),
        held=HELD_BATCHES,
        budget=available_memory() // MEMORY_DIVISOR,
        least=max(1, workers),
    )
    if workers == 0:
        if file is not None:
            fetch = cached(dataset, fetch, file.region(file.descriptor))
        return _with_cache(file, ReadingThread(fetch, dataset, ring))
    # needs sockets that carry descriptors, and poll: not on every platform
    from unistore.loader.worker import WorkerConfig
    from unistore.loader.worker_pool import WorkerPool

    config = WorkerConfig(
        workers=workers,
        seed=seed,
        dataset=dataset,
        collate=collate,
        worker_init_fn=worker_init_fn,
        cache=file,
    )
    return _with_cache(file, WorkerPool(config, placement.start_method, ring, round_robin=round_robin))


def _with_cache(file: CacheFile | None, producer: Producer) -> Producer:
    """Close the cache file together with the producer."""
    if file is not None:
        weakref.finalize(producer, file.close)
    return producer
