"""Make the producer of a Loader: in this process or with workers, its memory, and its cache."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from unistore.loader.cache import cache_file, cached
from unistore.loader.fetch import InProcess
from unistore.loader.iteration import Producer
from unistore.loader.options import LoaderOptions
from unistore.memory import SlabRing
from unistore.system.machine import available_memory

# Batches that the consumer may hold before further ones are copied.
HELD_BATCHES = 4
# Slabs take at most a quarter of the available memory.
MEMORY_DIVISOR = 4


def make_producer(
    options: LoaderOptions,
    dataset: Any,
    *,
    workers: int,
    start_method: str,
    worker_init_fn: Callable[[int], object] | None,
    round_robin: bool,
) -> Producer:
    """Return what makes the batches of a Loader. Workers are started.

    Parameters
    ----------
    options : LoaderOptions
        The options of the Loader.
    dataset
        The dataset that batches are read from.
    workers : int
        Number of worker processes. 0: batches are made in this process.
    start_method, worker_init_fn
        How workers are started, and what each of them calls first.
    round_robin : bool
        Whether workers get batches in turn; see `WorkerPool`.
    """
    fetch = options.fetch(dataset)
    file = None if options.cache is None else cache_file(dataset, fetch, options.cache)
    ring = SlabRing(
        in_flight=options.ahead * workers,
        held=HELD_BATCHES,
        budget=available_memory() // MEMORY_DIVISOR,
        least=max(1, workers),
        shared=workers > 0,
    )
    producer: Producer
    if workers > 0:
        # needs sockets that carry descriptors, and poll: not on every platform
        from unistore.loader.worker_pool import BatchConfig, WorkerPool

        config = BatchConfig(
            workers=workers,
            seed=options.seed,
            dataset=dataset,
            collate=options.collate_fn,
            worker_init_fn=worker_init_fn,
            cache=file,
            single=options.is_single,
        )
        producer = WorkerPool(config, start_method, ring, round_robin=round_robin)
    else:
        if file is not None:
            fetch = cached(dataset, fetch, file.region(file.descriptor))
        producer = InProcess(fetch, dataset, ring)
    if file is not None:
        weakref.finalize(producer, file.close)
    return producer
