"""Starting what makes batches: worker processes over shared slabs, or a thread over private ones."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from unistore.loader.cache import CacheFile
from unistore.loader.cached import cache_file, cached
from unistore.loader.fetch import Fetch, choose_fetch
from unistore.loader.machine import available_memory
from unistore.loader.options import Placement
from unistore.loader.production import Producer
from unistore.loader.thread import ReadingThread
from unistore.memory.slabs import SlabRing

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
    file = None
    if cache is not None:
        file = cache_file(dataset, collate, cache)
    ring = SlabRing(
        in_flight=placement.prefetch * max(1, workers),
        held=HELD,
        budget=available_memory() // MEMORY_SHARE,
        least=max(1, workers),
    )
    if workers == 0:
        return _keeping(file, ReadingThread(_own_fetch(dataset, collate, file), dataset, ring))
    # sockets, descriptors that travel, polling: not on every platform, and not needed for a thread
    from unistore.loader.crew import Crew
    from unistore.loader.worker import WorkerConfig

    config = WorkerConfig(
        workers=workers,
        seed=seed,
        dataset=dataset,
        collate=collate,
        worker_init_fn=worker_init_fn,
        cache=file,
    )
    return _keeping(file, Crew(config, placement.start_method, ring, in_turn=in_turn))


def _keeping(file: CacheFile | None, producer: Producer) -> Producer:
    """A producer that keeps its cache for as long as it lives."""
    if file is not None:
        weakref.finalize(producer, file.close)
    return producer


def _own_fetch(dataset: Any, collate: Callable[[Any], Any] | None, file: CacheFile | None) -> Fetch:
    """Fetch of this process, with its cache."""
    if file is None:
        return choose_fetch(dataset, collate)
    return cached(dataset, collate, file.region(file.descriptor))
