"""unistore's own ways: Dataset under torch's DataLoader, and Loader."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.ways import Feed, Way, endless

DRAWS = 10_000_000
"""Samples of an epoch, drawn with replacement: no round meets its end."""


def keep_no_chunks() -> None:
    """Read without caches of decoded chunks in this process: these small stores would fit into them."""
    from unistore.zarr3 import gather as pool
    from unistore.zarr3.cache import CHUNKS

    CHUNKS.limit = pool.POOL_BYTES = 0


def open_dataset(store: Path, samples: Any, fields: Any) -> Any:
    """Open a Dataset that keeps no decoded chunks."""
    import unistore

    keep_no_chunks()
    return unistore.Dataset(store, samples, fields)


def dataloader_feed(store: Path, batch: int, workers: int, samples: Any, fields: Any) -> Feed:
    """`unistore.Dataset` under torch's DataLoader."""
    from torch.utils.data import DataLoader, RandomSampler

    import unistore

    dataset = open_dataset(store, samples, fields)
    loader = DataLoader(
        dataset,
        batch_size=batch,
        sampler=RandomSampler(dataset, replacement=True, num_samples=DRAWS),
        num_workers=workers,
        collate_fn=unistore.collate,
    )
    return Feed(endless(loader), ahead=2 * workers)


def loader_feed(
    store: Path, batch: int, workers: int, samples: Any, fields: Any, options: Mapping[str, Any] | None = None
) -> Feed:
    """`unistore.Loader` over a store."""
    return feed_of(open_dataset(store, samples, fields), batch, workers, options)


def feed_of(dataset: Any, batch: int, workers: int, options: Mapping[str, Any] | None = None) -> Feed:
    """`unistore.Loader` over any dataset."""
    import numpy as np

    import unistore

    loader = unistore.Loader(
        dataset,
        batch,
        shuffle=True,
        weights=np.ones(len(dataset)),
        samples_per_epoch=DRAWS,
        num_workers=workers,
        **(options or {}),
    )
    passes = 5 * len(dataset) // batch if options and options.get("cache") else 2
    return Feed(endless(loader), ahead=4 * max(1, workers), warm_up=passes, close=loader.close)


def our_ways(
    store: Path,
    batch: int,
    samples: Any,
    fields: Any = None,
    label: str = "",
    workers: tuple[int, ...] = (0, 1, 2),
    cache: str | None = None,
) -> list[Way]:
    """Every way of reading a store's samples.

    Parameters
    ----------
    store, samples, fields
        Of the Dataset.
    batch
        Samples of a batch.
    label
        Follows the names.
    workers
        Of the Loader; where 0 is among them, Dataset under DataLoader takes part too.
    cache
        Of the Loader.
    """
    common = {"store": store, "batch": batch, "samples": samples, "fields": fields}
    loader = {"options": {"cache": cache}} if cache else {}
    return [
        Way(
            name=f"{name}{label}",
            setting=f"{count} worker{'s' * (count != 1)}",
            kind="unistore",
            make=make,
            arguments={**common, **more, "workers": count},
            files=(store,),
        )
        for name, make, counts, more in (
            ("Dataset under DataLoader", dataloader_feed, (0, 2) if 0 in workers else (), {}),
            ("Loader", loader_feed, workers, loader),
        )
        for count in counts
    ]
