"""Count requests and bytes of an epoch of a store in an object store, without fetching chunks."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np

from unistore.errors import UnistoreError
from unistore.remote.storage import PART, ObjectStorage, coalesce
from unistore.store.manifest import MANIFEST_LIMIT, parse_manifest
from unistore.store.names import MANIFEST
from unistore.store.reader import Store
from unistore.zarr3.array import read_metadata
from unistore.zarr3.codecs import encoder
from unistore.zarr3.gather import forget_chunks

if TYPE_CHECKING:
    from unistore.data.dataset import Dataset

# Of an order that are counted. The rest of a longer epoch is taken to be alike
MOST_SAMPLES = 200_000
MOST_BYTES = 4 << 30  # of decoded chunks
_ORDERS: tuple[Literal["full", "blocks"], ...] = ("full", "blocks")


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochCost:
    """Requests and bytes of a first epoch in one process, including opening the store.

    Attributes
    ----------
    order : str
        ``"full"``, ``"blocks"``, or ``"full, cache_dir"``.
    requests : int
        Number of requests.
    bytes : int
        Number of bytes.
    """

    order: str
    requests: int
    bytes: int


def epoch_costs(
    dataset: Dataset, batch_size: int, *, most_samples: int = MOST_SAMPLES, most_bytes: int = MOST_BYTES
) -> list[EpochCost]:
    """Count the requests of an epoch in each order.

    The counts depend only on the store, not on the speed of the machine. There are no counts for a store
    in a folder, or for a version of several parts.
    """
    storage = dataset.read_parts[0].store.storage
    if len(dataset.read_parts) > 1 or not isinstance(storage, ObjectStorage):
        return []
    entries = parse_manifest(storage.get(MANIFEST, MANIFEST_LIMIT), dataset.read_parts[0].path)
    shards = {entry.key: entry.bytes for entry in entries if "/c/" in entry.key}
    costs: list[EpochCost] = []
    try:
        for order in _ORDERS:
            counting = CountingStorage(storage.location)
            share = _read_epoch(dataset, counting, order, batch_size, most_samples, most_bytes)
            arrays = {key.partition("/c/")[0] for key in counting.shards}
            sizes = [size for key, size in shards.items() if key.partition("/c/")[0] in arrays]
            if order == "blocks" and share < 1:  # more blocks are open than were delivered
                share = min(1, counting.chunk_bytes / sum(sizes))
            unreached = len(sizes) - len(counting.shards)  # of which the index was not read, either
            requests = counting.requests + unreached + round(counting.chunk_requests / share)
            whole = sum(shards[key] for key in counting.shards - counting.chunk_shards)
            nbytes = whole + round(counting.chunk_bytes / share)
            costs.append(EpochCost(order=order, requests=requests, bytes=nbytes))
    except UnistoreError:  # zeros are no samples of this kind
        return costs
    parts = sum(-(-size // PART) for size in sizes)
    copied = counting.documents_read + 1 + parts
    return [*costs, EpochCost(order="full, cache_dir", requests=copied, bytes=sum(sizes))]


class CountingStorage(ObjectStorage):
    """Counts requests for chunks, and returns zeros for chunks whose values do not determine further reads.

    Attributes
    ----------
    reads : callable
        Called with the path of an array; returns whether its chunks are really read. By default all are.
    chunk_requests, chunk_bytes : int
        Number and size of the requests that were not made.
    chunk_shards : set of str
        Keys of the shards of these chunks.
    decoded : int
        Size of these chunks after decoding, in bytes.
    """

    reads: Callable[[str], bool] = staticmethod(lambda _: True)
    chunk_requests = chunk_bytes = decoded = 0

    @cached_property
    def chunk_shards(self) -> set[str]:
        return set()

    @cached_property
    def _zeros(self) -> dict[str, tuple[bytes, int]]:
        return {}  # by array: a stored chunk of zeros, and its decoded bytes

    def read_many(self, keys: Sequence[str], offsets: Sequence[int], sizes: Sequence[int]) -> Iterator[bytes]:
        array, is_chunk, _ = keys[0].partition("/c/") if keys else ("", "", "")
        if not is_chunk or self.reads(array):
            return super().read_many(keys, offsets, sizes)
        if not self.is_confirmed:
            self.confirm()
        requests = coalesce(keys, offsets, sizes)
        self.chunk_requests += len(requests)
        self.chunk_bytes += sum(request.stop - request.start for request in requests)
        self.chunk_shards.update(keys)
        zeros, decoded = self._zeros.get(array) or self._chunk_of_zeros(array)
        self.decoded += len(keys) * decoded
        return itertools.repeat(zeros, len(keys))

    def _chunk_of_zeros(self, array: str) -> tuple[bytes, int]:
        metadata = read_metadata(self, array)
        chunk = np.zeros(metadata.chunk_shape, metadata.dtype)
        stored = b"".join(bytes(part) for part in encoder(metadata.compressor)(chunk))
        return self._zeros.setdefault(array, (stored, chunk.nbytes))


def _read_epoch(
    dataset: Dataset,
    storage: CountingStorage,
    order: Literal["full", "blocks"],
    batch_size: int,
    most_samples: int,
    most_bytes: int,
) -> float:
    """Read an epoch from a counting storage, and return the share that was read."""
    from unistore.loader.loader import Loader

    part = dataset.read_parts[0]
    store = Store(part.path, storage=storage)
    storage.reads = lambda array: store.specs.of(array).bounds_values
    counted = type(dataset)(part.path, part.kind)
    counted.parts = (counted.parts[0]._replace(store=store),)
    samples = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of many requests
        loader = Loader(counted, batch_size, shuffle=order, seed=0, num_workers=0)
    with loader:
        for batch in loader:
            samples += len(batch["index"])
            if samples >= most_samples or storage.decoded >= most_bytes:
                break
    forget_chunks()
    return samples / len(counted)
