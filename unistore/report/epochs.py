"""Requests and bytes of an epoch of a store in a bucket, counted where its chunks would be fetched."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np

from unistore.errors import UnistoreError
from unistore.remote.client import PART, ObjectStorage, coalesce
from unistore.store.manifest import MANIFEST_LIMIT, parse_manifest
from unistore.store.names import MANIFEST
from unistore.system.hints import AnyArray
from unistore.zarr3.array import StoredArray
from unistore.zarr3.chunks import ChunkLocations
from unistore.zarr3.gather import forget_chunks

if TYPE_CHECKING:
    from unistore.data.dataset import Dataset

SECONDS = 3.0  # of counting an order. The rest of a longer epoch is taken to be alike
_ORDERS: tuple[Literal["full", "blocks"], ...] = ("full", "blocks")


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochCost:
    """Requests and bytes of a first epoch in one process, with opening the store."""

    order: str  # "full", "blocks", or "full, cache_dir"
    requests: int
    bytes: int


def epoch_costs(dataset: Dataset, batch_size: int) -> list[EpochCost]:
    """Count the requests of an epoch in each order. None of a folder, and of a version of several parts."""
    storage = dataset.runs[0].store.storage
    if len(dataset.runs) > 1 or not isinstance(storage, ObjectStorage):
        return []
    entries = parse_manifest(storage.get(MANIFEST, MANIFEST_LIMIT), dataset.runs[0].path)
    shards = {entry.key: entry.bytes for entry in entries if "/c/" in entry.key}
    costs: list[EpochCost] = []
    try:
        for order in _ORDERS:
            epoch = _CountedEpoch(dataset)
            share = epoch.read(order, batch_size)
            arrays = {key.partition("/c/")[0] for key in epoch.storage.shards}
            sizes = [size for key, size in shards.items() if key.partition("/c/")[0] in arrays]
            if order == "blocks" and share < 1:  # more blocks are open than were delivered
                share = min(1, epoch.bytes / sum(sizes))
            unreached = len(sizes) - len(epoch.storage.shards)  # of which the index was not read, either
            requests = epoch.storage.requests + unreached + round(epoch.requests / share)
            whole = sum(shards[key] for key in epoch.storage.shards - epoch.shards)
            costs.append(EpochCost(order=order, requests=requests, bytes=whole + round(epoch.bytes / share)))
    except UnistoreError:  # zeros are no samples of this kind
        return costs
    parts = sum(-(-size // PART) for size in sizes)
    copied = epoch.storage.documents_read + 1 + parts
    return [*costs, EpochCost(order="full, cache_dir", requests=copied, bytes=sum(sizes))]


class _CountedEpoch:
    """Reads an epoch of a fresh dataset, with zeros for values that do not say what else is read."""

    def __init__(self, dataset: Dataset) -> None:
        part = dataset.runs[0]
        self._dataset = type(dataset)(part.path, part.kind)
        self._store = self._dataset.runs[0].store
        assert isinstance(self._store.storage, ObjectStorage)
        self.storage = self._store.storage
        self.requests = 0  # for chunks that were not fetched
        self.bytes = 0
        self.shards: set[str] = set()  # of those chunks
        self._open = self._store.array
        self._store.array = self._counted  # type: ignore[method-assign]
        for path in self._store.opened:
            self._counted(path)

    def _counted(self, path: str) -> StoredArray:
        array = self._open(path)
        if not self._store.specs.of(path).bounds_values:
            array.reader._decode_stored = partial(self._count, array)  # type: ignore[method-assign]
        return array

    def _count(
        self, array: StoredArray, located: ChunkLocations, targets: Sequence[AnyArray | None]
    ) -> Iterator[AnyArray]:
        # Counts what a read would fetch, and gives zeros
        if not self.storage.is_confirmed:
            self.storage.confirm()
        requests = coalesce(located.keys, located.offsets, located.sizes)
        self.requests += len(requests)
        self.bytes += sum(request.stop - request.start for request in requests)
        self.shards.update(located.keys)
        for target in targets:
            chunk = np.empty(array.chunk_shape, array.dtype) if target is None else target
            chunk[...] = 0
            yield chunk

    def read(self, order: Literal["full", "blocks"], batch_size: int) -> float:
        """Read an epoch in an order, and return the share that was read in time."""
        from unistore.loader.loader import Loader

        samples = 0
        began = time.monotonic()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of many requests
            loader = Loader(self._dataset, batch_size, shuffle=order, seed=0, num_workers=0)
        with loader:
            for batch in loader:
                samples += len(batch["index"])
                if time.monotonic() - began > SECONDS:
                    break
        forget_chunks()
        return samples / len(self._dataset)
