"""Map-style datasets under torch's DataLoader, and arrays in tensorstore's hands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.ways import Feed, endless

DRAWS = 10_000_000
"""Samples of an epoch, drawn with replacement: no round meets its end."""


def map_feed(
    dataset: tuple[Callable[..., Any], tuple[Any, ...]],
    batch: int,
    workers: int,
    collate: Callable[[Any], Any] | None = None,
    method: str | None = None,
) -> Feed:
    """A map-style dataset, made here of its class and arguments, drawn at random."""
    from torch.utils.data import DataLoader, RandomSampler

    made = dataset[0](*dataset[1])
    loader = DataLoader(
        made,
        batch_size=batch,
        sampler=RandomSampler(made, replacement=True, num_samples=DRAWS),
        num_workers=workers,
        collate_fn=collate,
        multiprocessing_context=method if workers else None,
    )
    return Feed(endless(loader), ahead=2 * workers)


def write_tensorstore(
    folder: Path, values: NDArray[Any], chunk: tuple[int, ...], chunks_per_shard: int
) -> None:
    """Write a sharded Zarr v3 array with blosc-lz4 chunks; shards group chunks of axis 0."""
    import tensorstore

    shard = (chunk[0] * chunks_per_shard, *values.shape[1:])
    shard = tuple(-(-extent // step) * step for extent, step in zip(shard, chunk, strict=True))
    blosc = {
        "cname": "lz4",
        "clevel": 5,
        "shuffle": "shuffle" if values.dtype.itemsize > 1 else "noshuffle",
        "typesize": values.dtype.itemsize,
    }
    inner = [{"name": "bytes"}, {"name": "blosc", "configuration": blosc}]
    sharding = {"chunk_shape": list(chunk), "codecs": inner}
    spec = {
        "driver": "zarr3",
        "kvstore": {"driver": "file", "path": str(folder)},
        "metadata": {
            "shape": list(values.shape),
            "data_type": values.dtype.name,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(shard)}},
            "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
        },
        "create": True,
        "delete_existing": True,
    }
    array = tensorstore.open(spec).result()
    for lo in range(0, len(values), shard[0]):
        block = np.ascontiguousarray(values[lo : lo + shard[0]])
        array[lo : lo + len(block)].write(block).result()


def open_tensorstore(folder: Path) -> Any:
    """Open an array for reading."""
    import tensorstore

    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(folder)}}
    return tensorstore.open(spec, open=True, read=True, recheck_cached_data="open").result()
