"""A cache of decoded samples: one memory-mapped file that all processes of a machine share.

The file is sparse. It begins with the number of allocated bytes and an index: the offset of each sample.
A process allocates a region for itself under a lock and appends samples to it. It writes the offset of a
sample into the index, without a lock, after the sample itself, so that samples in the index are complete
even if a process is killed. A sample that two processes add at the same time is stored twice and found once.
Samples are added until the file is full and never removed.

Loaders of one user on a machine share the file by its name, see `unistore.loader.cache`.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import struct
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from unistore.data.kinds.joined import join_parts, layout_of
from unistore.data.packed import Allocate, Batch, Packed
from unistore.errors import InputError, Problem
from unistore.loader.fetch import BatchFetch, Fetch
from unistore.memory.segments import reserve
from unistore.system import own_files as file_locks
from unistore.system.own_files import NotOwnError, open_own_file, open_own_folder
from unistore.system.sizes import parse_bytes

# Named files that processes of one user share; a file is removed with its last user.
#
# They are in a private folder below the one for temporary files, and are opened and removed under the lock
# of that folder. A process that uses a file holds a shared lock on it, which ends with the process, even if
# it is killed. So a file that can be locked exclusively is unused, and the next process that comes removes
# it.

_LOCK = "lock"


def join(
    name: str,  # digest of the contents: equal names share a file
    size: int,  # bytes of the file, sparse and zero at first
    header: int,  # bytes at its beginning that are allocated on the disk at once
) -> int:
    """Open the file of a name, or create it. `leave` closes the returned descriptor."""
    with lock_folder() as folder:
        _remove_stale(folder)
        try:
            descriptor = _open(name, folder)
        except FileNotFoundError:
            descriptor = _open(name, folder, os.O_CREAT | os.O_EXCL)
            try:
                reserve(descriptor, header, size)
            except OSError:
                os.unlink(name, dir_fd=folder)
                os.close(descriptor)
                raise
        if os.fstat(descriptor).st_size != size:
            os.close(descriptor)
            raise _cache_error(_path() / name, f"is not a cache of {size:,} bytes")
        file_locks.lock(descriptor, shared=True)
    return descriptor


def leave(name: str, descriptor: int) -> None:
    """Close a file of `join`, and remove it if it is unused."""
    with suppress(InputError, OSError), lock_folder() as folder:
        file_locks.unlock(descriptor)
        _remove_unused(name, folder)
    os.close(descriptor)


def _path() -> Path:
    return Path(tempfile.gettempdir()) / f"unistore-cache-{os.geteuid()}"


@contextmanager
def lock_folder() -> Iterator[int]:
    """Hold the folder's lock, exclusive among processes and threads; yields the folder's descriptor."""
    path = _path()
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    try:
        folder = open_own_folder(path, 0o077)
    except NotOwnError as error:
        raise _cache_error(path, str(error)) from error
    try:
        lock = _open(_LOCK, folder, os.O_CREAT)
        try:
            file_locks.lock(lock)
            yield folder
        finally:
            file_locks.close(lock)
    finally:
        os.close(folder)


def _open(name: str, folder: int, flags: int = 0) -> int:
    try:
        return open_own_file(name, folder, flags)
    except NotOwnError as error:
        raise _cache_error(_path() / name, str(error)) from error


def _remove_stale(folder: int) -> None:
    """Remove files that killed processes left behind."""
    for name in os.listdir(folder):
        if name != _LOCK:
            with suppress(InputError, FileNotFoundError):
                _remove_unused(name, folder)


def _remove_unused(name: str, folder: int) -> None:
    descriptor = _open(name, folder)
    try:
        if file_locks.lock(descriptor, wait=False):
            os.unlink(name, dir_fd=folder)
    finally:
        os.close(descriptor)


def _cache_error(path: Path, reason: str) -> InputError:
    cure = "remove it, or set TMPDIR to a folder of your own"
    return InputError(Problem("cache", f"{path} {reason}", cure, "option"))


ALIGNMENT = 64
_NUMBER = struct.Struct("=q")
UNLIMITED = 1 << 42
"""Bytes of the sparse file under ``cache="all"``: more than any disk that samples would be cached on."""
REGIONS = 256
MAX_REGION = 64 << 20
"""A process allocates 1/256 of the capacity at a time, at most 64 MiB; more for a larger sample."""


def parse_size(size: str | int) -> int:
    """Bytes from ``"4GB"``, ``"512 MiB"``, ``"all"`` or a number of bytes."""
    return UNLIMITED if size == "all" else parse_bytes(size, "cache")


class CacheFile:
    """The cache file in the process of the loader. It is pickled without its descriptor."""

    def __init__(
        self,
        samples: int,  # samples of the dataset: length of the index
        capacity: int,  # bytes of decoded samples
        name: str,  # name under which loaders share it
        # bytes of samples with fixed offsets (`CacheRegion.add_at`); None: samples are appended
        extent: int | None = None,
    ) -> None:
        self.samples = samples
        self.capacity = capacity
        size = self.start + (capacity if extent is None else extent)
        try:
            self.descriptor = join(name, size, self.start)
        except OSError as error:
            message = f"cannot be made in {tempfile.gettempdir()} ({error.strerror})"
            cure = "free space there, set TMPDIR to a folder with room, or leave cache out"
            raise InputError(Problem("cache", message, cure, "option")) from error
        self._end = weakref.finalize(self, _leave, name, self.descriptor, os.getpid())

    def close(self) -> None:
        """Close the file. Also done when this object is deleted, and at exit."""
        self._end()

    def __getstate__(self) -> dict[str, int]:
        return {"samples": self.samples, "capacity": self.capacity}

    @property
    def start(self) -> int:
        """Offset of the samples: the header, number of allocated bytes and index, in whole pages."""
        return aligned(8 * (1 + self.samples), mmap.ALLOCATIONGRANULARITY)

    def region(self, descriptor: int) -> CacheRegion:
        """The mapped file, for a process that reads and adds samples; the caller closes `descriptor`."""
        return CacheRegion(os.dup(descriptor), self.samples, self.start, self.capacity)


def _leave(name: str, descriptor: int, owner: int) -> None:
    if os.getpid() == owner:  # not in a forked child
        leave(name, descriptor)


class CacheRegion:
    """The mapped cache: finds and adds samples."""

    def __init__(
        self,
        descriptor: int,  # descriptor of the file; closed with this object
        samples: int,  # length of the index
        # offset and bytes of the samples
        start: int,
        capacity: int,
    ) -> None:
        self._descriptor = descriptor
        self._map = mmap.mmap(descriptor, 0, flags=mmap.MAP_SHARED)
        header: NDArray[np.int64] = np.frombuffer(self._map, np.int64, 1 + samples)
        self._allocated = header[:1]
        self._index = header[1:]
        self.start = start
        self._capacity = capacity
        self._next = self._end = 0
        self.full = False

    def __del__(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            os.close(self._descriptor)

    def find(self, samples: NDArray[np.int64] | slice) -> NDArray[np.int64]:
        """Offsets of samples in the file, (n,) int64; 0: not cached."""
        return self._index[samples]

    def add(self, sample: int, parts: Sequence[Any]) -> None:
        """Add a sample, its buffers aligned one after the other; does nothing if it does not fit."""
        padded = b"".join(data.ljust(aligned(len(data)), b"\0") for data in map(bytes, parts))
        self._add(sample, padded, len(padded), None)

    def add_at(self, sample: int, data: Any, offset: int) -> None:
        """Add a sample at an offset from `start`; it takes whole pages."""
        self._add(sample, data, aligned(len(data), mmap.PAGESIZE), self.start + offset)

    def _add(self, sample: int, data: Any, size: int, offset: int | None) -> None:
        if not self.full and self._has_room(size):
            offset = self._next if offset is None else offset
            if self._write(data, offset) and self._write_number(1 + sample, offset):
                self._next += size
                return
        self.full = True

    def _has_room(self, size: int) -> bool:
        """Whether `size` bytes fit; allocates a new region if necessary."""
        if self._next + size <= self._end:
            return True
        try:
            with lock_folder():
                end = self.start + int(self._allocated[0])
                if end != self._end:  # other processes have allocated what follows
                    self._next = end
                left = self.start + self._capacity - end
                missing = size - (end - self._next)
                growth = min(left, max(missing, min(self._capacity // REGIONS, MAX_REGION)))
                if growth < missing:
                    return False
                self._end = end + growth
                return self._write_number(0, self._end - self.start)
        except (InputError, OSError):  # the folder for temporary files was removed
            return False

    def _write_number(self, number: int, value: int) -> bool:
        """Write a number of the header; not through the map, where a full disk would raise SIGBUS."""
        return self._write(_NUMBER.pack(value), number * _NUMBER.size)

    def _write(self, data: bytes, offset: int) -> bool:
        """Write data; returns whether the disk had room."""
        try:
            return os.pwrite(self._descriptor, data, offset) == len(data)
        except OSError:
            return False

    def array(self, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Read-only array at an offset."""
        view: NDArray[Any] = np.ndarray(shape, dtype, buffer=self._map, offset=offset)
        view.flags.writeable = False
        return view

    def view(self, offset: int, size: int) -> memoryview:
        """Read-only view of `size` bytes at an offset."""
        return memoryview(self._map)[offset : offset + size].toreadonly()


def aligned(size: int, unit: int = ALIGNMENT) -> int:
    """Return the size rounded up to a multiple of a unit."""
    return -(-size // unit) * unit


# Format of a sample in the cache: a description, and one buffer for each key.

_LENGTH = struct.Struct("<Q")


def dump_sample(batch: Batch, number: int) -> list[bytes]:
    """Return the buffers of a sample: length of its description, description, and values by key."""
    descriptions = []
    buffers = []
    for key, packed in batch.items():
        if packed.offsets is None:
            values = packed.values[number, ...]
        else:
            values = packed.values[packed.offsets[number] : packed.offsets[number + 1]]
        box = None if packed.shapes is None else packed.shapes[number].tolist()
        is_ragged = packed.offsets is not None
        descriptions.append((key, values.dtype.str, values.shape, is_ragged, packed.group, box))
        buffers.append(values.tobytes())
    description = json.dumps(descriptions).encode()
    return [_LENGTH.pack(len(description)), description, *buffers]


def load_sample(region: CacheRegion, offset: int) -> Batch:
    """Return the batch of one sample: views of the cache."""
    (size,) = _LENGTH.unpack(region.view(offset, _LENGTH.size))
    description = bytes(region.view(offset + ALIGNMENT, size))
    offset += ALIGNMENT + aligned(size)
    batch: Batch = {}
    for key, dtype, shape, offsets, group, shapes in _parse_description(description):
        values = region.array(offset, shape, dtype)
        offset += aligned(values.nbytes)
        batch[key] = Packed(values, offsets, group, shapes)
    return batch


@lru_cache(4096)
def _parse_description(description: bytes) -> list[tuple[Any, ...]]:
    """Return name, dtype and shape of the values of each key, and the other fields of its `Packed`."""
    keys = []
    for key, dtype, stored, is_ragged, group, box in json.loads(description):
        shape = stored if is_ragged else [1, *stored]
        offsets = np.array([0, shape[0]]) if is_ragged else None
        shapes = None if box is None else np.array([box])
        keys.append((key, np.dtype(dtype), tuple(shape), offsets, group, shapes))
    return keys


_VERSION = 4
"""Version of the layout of chunks in the file; part of its name."""


def check_cacheable(dataset: Any) -> None:
    """Raise an InputError if a dataset has no chunks to cache."""
    if hasattr(dataset, "parts") and hasattr(dataset, "arrays"):
        return
    message = f"keeps what a unistore.Dataset decodes, and this dataset is a {type(dataset).__name__}"
    cure = "leave cache out, or convert the files; a part of a unistore.Dataset is subset=… of the Loader"
    raise InputError(Problem("cache", message, cure, "option"))


def cache_file(dataset: Any, fetch: Fetch, capacity: int) -> CacheFile:
    """Make or open the cache file of a dataset's chunks or samples.

    Loaders share one by its name, which stands for the stores that the dataset was opened from, by the same
    paths in the same folder, for the capacity, and, where samples are kept, for which they are.
    """
    stores = [(part.store.path, part.store.attributes["seal"]) for part in dataset.parts]
    identity = [_VERSION, str(Path.cwd()), stores, capacity]
    if _keeps_samples(dataset, fetch):
        identity += [dataset.digest, dataset.fields, dataset.names]
        return CacheFile(len(dataset), capacity, _digest(identity))
    counts, offsets = _layout(dataset.arrays())
    return CacheFile(counts[-1], capacity, _digest(identity), offsets[-1])


def _digest(identity: Any) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(identity, sort_keys=True).encode())


def _layout(arrays: Sequence[Any]) -> tuple[list[int], list[int]]:
    """First chunk number and first byte of each array, which starts on a page; last, the totals.

    The chunks of an array are contiguous; if they are of whole rows, so are the rows.
    """
    counts = [0]
    offsets = [0]
    for array in arrays:
        counts.append(counts[-1] + array.chunk_count)
        nbytes = array.chunk_count * array.metadata.chunk_bytes
        offsets.append(offsets[-1] + -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE)
    return counts, offsets


def cached(dataset: Any, fetch: Fetch, region: CacheRegion) -> Fetch:
    """Return a `Fetch` of the same batches that reads through the cache."""
    if _keeps_samples(dataset, fetch):
        return CachedBatches(fetch, region)
    return CachedChunks(fetch, dataset, region)


def _keeps_samples(dataset: Any, fetch: Fetch) -> bool:
    return isinstance(fetch, BatchFetch) and bool(dataset.repeats)


class CachedBatches:
    """A cache of the samples of a dataset that reads packed batches."""

    packed = on_any_thread = True

    def __init__(
        self,
        fetch: Fetch,  # reads samples that are not cached
        region: CacheRegion,
    ) -> None:
        self._fetch = fetch
        self._region = region
        self.hits = self.misses = 0

    def __call__(self, indices: NDArray[np.int64], epoch: int, allocate: Allocate) -> Batch:
        """See `Fetch`."""
        offsets = self._region.find(indices)
        missing = np.flatnonzero(offsets == 0)
        kept = np.flatnonzero(offsets)
        self.hits += len(kept)
        self.misses += len(missing)
        if not len(kept):
            return self._read(indices, epoch, allocate)
        parts = [load_sample(self._region, offset) for offset in offsets[kept].tolist()]
        positions = [kept[number : number + 1] for number in range(len(kept))]
        if len(missing):
            parts.append(self._read(indices[missing], epoch, np.empty))
            positions.append(missing)
        group_offsets: dict[str, NDArray[np.int64]] = {}
        return {
            key: join_parts(
                layout_of(first), [part[key] for part in parts], positions, group_offsets, allocate
            )
            for key, first in parts[0].items()
        }

    def _read(self, indices: NDArray[np.int64], epoch: int, allocate: Allocate) -> Batch:
        batch: Batch = self._fetch(indices, epoch, allocate)
        for number, index in enumerate(indices.tolist()):
            if self._region.full:
                break
            self._region.add(index, dump_sample(batch, number))
        return batch


class CachedChunks:
    """A cache of the decoded chunks that a dataset reads; random crops are drawn anew from them."""

    def __init__(
        self,
        fetch: Fetch,  # reads batches of `dataset`
        dataset: Any,  # its arrays read through the cache from now on
        region: CacheRegion,
    ) -> None:
        self._fetch = fetch
        self.packed = fetch.packed
        self.on_any_thread = fetch.on_any_thread
        arrays = dataset.arrays()
        starts = zip(arrays, *_layout(arrays), strict=False)
        self._chunks = [_ArrayChunks(region, array, first, offset) for array, first, offset in starts]
        for array, chunks in zip(arrays, self._chunks, strict=True):
            array.share(chunks)
        weakref.finalize(self, _stop_sharing, arrays)

    @property
    def hits(self) -> int:
        """Reads of chunks, rows and ranges that the cache had."""
        return sum(chunks.hits for chunks in self._chunks)

    @property
    def misses(self) -> int:
        """Chunks that were decoded."""
        return sum(chunks.misses for chunks in self._chunks)

    def __call__(self, indices: NDArray[np.int64], epoch: int, allocate: Allocate) -> Any:
        """See `Fetch`."""
        return self._fetch(indices, epoch, allocate)


def _stop_sharing(arrays: Sequence[Any]) -> None:
    for array in arrays:
        array.share(None)


class _ArrayChunks:
    """The chunks of one array: numbers from `first` on, bytes from `offset` on. See `SharedChunks`."""

    def __init__(self, region: CacheRegion, array: Any, first: int, offset: int) -> None:
        self._region = region
        self._first = first
        self._offset = offset
        count = array.chunk_count
        nbytes = array.metadata.chunk_bytes
        self.chunks = region.array(region.start + offset, (count, nbytes), np.dtype(np.uint8))
        self.there = region.find(slice(first, first + count))
        self.hits = self.misses = 0

    def add(self, number: int, chunk: NDArray[Any]) -> None:
        self.misses += 1
        data = np.ascontiguousarray(chunk).reshape(-1).view(np.uint8)
        self._region.add_at(self._first + number, data, self._offset + number * len(data))
