"""A cache of decoded samples or chunks: a memory-mapped file that workers share, or a file on disk."""

# The sparse file begins with the number of allocated bytes and an index: the offset of each sample. A
# process allocates room for a sample under a lock. It writes the sample there, and then, without a lock, the
# offset into the index, so that samples in the index are complete even if a process is killed. A sample that
# two processes add at the same time is stored twice and found once. The file has no name: it ends with the
# last process that uses it. That of ``cache="disk"`` has one, see below

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import mmap
import os
import re
import struct
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import xxhash

from unistore.data.joined import join_batches
from unistore.data.packed import Allocate, Batch, Packed, offsets_from_lengths
from unistore.loader.fetch import BatchFetch, Fetch
from unistore.memory import reserve
from unistore.system import own_files
from unistore.system.arguments import wrong_argument
from unistore.system.caller import warn_caller
from unistore.system.own_files import NotOwnError, open_own_file, open_own_folder
from unistore.system.progress import COUNTS
from unistore.system.sizes import parse_bytes, size
from unistore.system.types import AnyArray, Int64s, Shape

ALIGNMENT = 64
SizeT = TypeVar("SizeT", int, Int64s)
_NUMBER = struct.Struct("=q")
# Bytes of the sparse file under ``cache="all"``: more than any disk that samples would be cached on.
UNLIMITED = 1 << 42


def parse_size(size: str | int) -> int:
    """Return a number of bytes, from ``"4GB"``, ``"512 MiB"``, ``"all"`` or a number."""
    return UNLIMITED if size == "all" else parse_bytes(size, "cache")


class CacheFile:
    """The cache file in the process of the loader. It pickles without its descriptor.

    Parameters
    ----------
    samples : int
        Number of samples of the dataset: length of the index.
    capacity : int
        Number of bytes for decoded samples. 0: the file is complete, and nothing is added.
    descriptor : int, optional
        Descriptor of a complete file. It is closed with this object. None: a new file.
    """

    def __init__(
        self,
        samples: int,  # samples of the dataset: length of the index
        capacity: int,  # bytes of decoded samples, 0 of a complete file, to which none is added
        descriptor: int | None = None,  # of a complete file, closed with this object; None: a new file
    ) -> None:
        self.samples = samples
        self.capacity = capacity
        self.descriptor = self._new_file() if descriptor is None else descriptor
        self._end = weakref.finalize(self, os.close, self.descriptor)

    def _new_file(self) -> int:
        try:
            with tempfile.TemporaryFile(prefix="unistore-cache-") as file:
                reserve(file.fileno(), self.start, self.start + self.capacity)
                return os.dup(file.fileno())
        except OSError as error:
            message = f"cannot be created in {tempfile.gettempdir()}: {error.strerror}"
            fix = "free space there, set TMPDIR to a folder with space, or remove cache"
            raise wrong_argument("cache", message, fix) from error

    def close(self) -> None:
        """Close the file. This also happens when the object is deleted, and at exit."""
        self._end()

    def __getstate__(self) -> dict[str, int]:
        return {"samples": self.samples, "capacity": self.capacity}

    @property
    def start(self) -> int:
        """Offset of the samples, after the header and the index, in whole pages."""
        return index_end(self.samples)

    def region(self, descriptor: int) -> CacheRegion:
        """Return the mapped file, for a process that reads and adds samples.

        The caller closes `descriptor`.
        """
        return CacheRegion(os.dup(descriptor), self.samples, self.capacity)


class CacheRegion:
    """The mapped cache, which finds and adds samples.

    Parameters
    ----------
    descriptor : int
        Descriptor of the file. It is closed with this object.
    samples : int
        Length of the index.
    capacity : int
        Number of bytes for samples.
    """

    def __init__(
        self,
        descriptor: int,  # descriptor of the file; closed with this object
        samples: int,  # length of the index
        capacity: int,  # bytes of the samples
    ) -> None:
        self._descriptor = descriptor
        self._map = mmap.mmap(descriptor, 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        self._bytes = memoryview(self._map)
        self._numbers: Int64s = np.frombuffer(self._map, np.int64, len(self._map) // 8)
        self._index = self._numbers[1 : 1 + samples]
        self._start = index_end(samples)
        self._capacity = capacity
        self.full = not capacity

    def __del__(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            os.close(self._descriptor)

    def find(self, samples: Any) -> Any:
        """Return the offset in the file of one sample, or of samples (n,), int64. 0: not cached."""
        return self._index[samples]

    def add(self, sample: int, parts: Sequence[bytes]) -> None:
        """Add a sample, with aligned buffers one after another. If it does not fit, nothing happens."""
        if self.full:
            return
        padded = b"".join(data.ljust(aligned(len(data)), b"\0") for data in parts)
        offset = self._allocate(len(padded))
        # the number after the data: what is in the index is complete
        is_added = offset > 0 and self._write(padded, offset) and self._write_number(1 + sample, offset)
        self.full = not is_added

    def _allocate(self, size: int) -> int:
        """Return the offset of room that is now this process's own, 0 if there is none."""
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX, 8)
        try:
            used = int(self._numbers[0])
            fits = used + size <= self._capacity
            return self._start + used if fits and self._write_number(0, used + size) else 0
        finally:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 8)

    def _write_number(self, number: int, value: int) -> bool:
        # Not through the map, where a full disk would raise SIGBUS
        return self._write(_NUMBER.pack(value), number * _NUMBER.size)

    def _write(self, data: bytes, offset: int) -> bool:
        try:
            return os.pwrite(self._descriptor, data, offset) == len(data)
        except OSError:
            return False

    def array(self, offset: int, shape: Shape, dtype: np.dtype[Any]) -> AnyArray:
        """Return a read-only array at an offset."""
        view: AnyArray = np.ndarray(shape, dtype, buffer=self._map, offset=offset)
        view.flags.writeable = False
        return view

    def view(self, offset: int, size: int) -> memoryview:
        """Return a read-only view of `size` bytes at an offset."""
        return self._bytes[offset : offset + size]

    def numbers(self, offsets: Int64s, count: int) -> Int64s:
        """Return the int64 numbers (n, count) at aligned offsets (n,)."""
        numbers: Int64s = self._numbers[offsets[:, None] // 8 + np.arange(count)]
        return numbers

    def copy(self, offsets: Int64s, sizes: Int64s, out: AnyArray) -> None:
        """Copy bytes at several offsets, one after another, into C-contiguous `out`."""
        if not out.nbytes:
            return
        target = out.reshape(-1).view(np.uint8).data
        place = 0
        for offset, nbytes in zip(offsets.tolist(), sizes.tolist(), strict=True):
            target[place : place + nbytes] = self._bytes[offset : offset + nbytes]
            place += nbytes


def index_end(samples: int) -> int:
    """Return the offset after header and index, in whole pages."""
    return aligned(8 * (1 + samples), mmap.ALLOCATIONGRANULARITY)


def aligned(size: SizeT, unit: int = ALIGNMENT) -> SizeT:
    """Return a size, or sizes (n,), rounded up to a multiple of `unit`."""
    return -(-size // unit) * unit


# Reading through the cache: chunks of stores, and samples of which nothing is random.

# Format of a sample in the cache: bytes of its forms; the forms of its keys, the same for most samples; the
# lengths of all axes in which samples differ; the values by key.

_LENGTH = struct.Struct("<q")


class _Form(NamedTuple):
    """Form of the values of one key."""

    key: str
    dtype: str
    row_shape: Shape
    axes: int  # axes before those of a row, whose lengths differ: 0 dense, 1 ragged, all of a box
    boxed: bool
    group: str


def dump_sample(batch: Batch, number: int) -> list[bytes]:
    """Return the buffers of a sample: size of its forms, forms, lengths, and values by key."""
    forms = []
    lengths: list[int] = []
    buffers = []
    for key, packed in batch.items():
        values = packed[number]
        boxed = packed.shapes is not None
        ragged_axes = 0 if packed.offsets is None else 1
        axes = values.ndim if boxed else ragged_axes
        lengths += values.shape[:axes]
        row_shape = values.shape[axes:]
        forms.append(_Form(key, values.dtype.str, row_shape, axes, boxed, packed.group))
        buffers.append(values.tobytes())
    described = json.dumps(forms).encode()
    length_bytes = np.array(lengths, np.int64).tobytes()
    return [_LENGTH.pack(len(described)), described, length_bytes, *buffers]


@lru_cache(64)
def _parse_forms(described: bytes) -> list[_Form]:
    fields = [_Form(*values) for values in json.loads(described)]
    return [form._replace(row_shape=tuple(form.row_shape)) for form in fields]


def load_samples(region: CacheRegion, offsets: Int64s, described: bytes, allocate: Allocate) -> Batch:
    """Read samples of the same forms, at their offsets (B,) in the cache, into a batch."""
    forms = _parse_forms(described)
    count = sum(form.axes for form in forms)
    first = offsets + ALIGNMENT + aligned(len(described))
    lengths = region.numbers(first, count)
    starts = first + aligned(8 * count)
    group_offsets: dict[str, Int64s] = {}
    axis = 0
    batch: Batch = {}
    for form in forms:
        shapes = lengths[:, axis : axis + form.axes].copy()
        axis += form.axes
        dtype = np.dtype(form.dtype)
        rows = shapes.prod(axis=1)
        sizes = rows * (math.prod(form.row_shape) * dtype.itemsize)
        if form.axes:
            offsets_of_group = group_offsets.setdefault(form.group, offsets_from_lengths(rows))
            out = allocate((int(offsets_of_group[-1]), *form.row_shape), dtype)
            batch[form.key] = Packed(out, offsets_of_group, form.group, shapes if form.boxed else None)
        else:
            out = allocate((len(offsets), *form.row_shape), dtype)
            batch[form.key] = Packed(out)
        region.copy(starts, sizes, out)
        starts = starts + aligned(sizes)
    return batch


def check_cache(dataset: Any, fetch: Fetch, cache: str | int) -> None:
    """Raise InputError if the dataset cannot be cached as the argument ``cache`` states."""
    if not (hasattr(dataset, "parts") and hasattr(dataset, "arrays")):
        message = f"works only with a unistore.Dataset, got {type(dataset).__name__}"
        fix = "remove cache; if you need a part of a unistore.Dataset, give subset=… to the Loader"
        raise wrong_argument("cache", message, fix)
    if cache == "disk":
        _check_disk_cache(dataset, fetch)
    else:
        parse_size(cache)


def cache_file(dataset: Any, fetch: Fetch, cache: str | int) -> CacheFile:
    """Create the cache file for chunks or samples of a dataset, or find the file on disk."""
    if cache == "disk":
        return disk_cache_file(dataset, fetch)
    entries = len(dataset)
    if not keeps_samples(dataset, fetch):
        entries = sum(array.chunk_count for array in dataset.arrays())
    return CacheFile(entries, parse_size(cache))


def cached(dataset: Any, fetch: Fetch, region: CacheRegion) -> Fetch:
    """Return a `Fetch` of the same batches that uses the cache."""
    if keeps_samples(dataset, fetch):
        return CachedBatches(fetch, region)
    # Decoded chunks are kept, from which random crops are drawn anew
    arrays = dataset.arrays()
    first = 0
    for array in arrays:
        array.share(_SharedChunks(region, first))
        first += array.chunk_count
    weakref.finalize(fetch, _stop_sharing, arrays)
    return fetch


# What comes after decoding is kept, too, where it is the same every time: points of a mask take twenty times
# as long from cached chunks as from cached samples, segments and volumes about twice as long.
def keeps_samples(dataset: Any, fetch: Fetch) -> bool:
    """Return whether the cache has whole samples, not chunks."""
    return isinstance(fetch, BatchFetch) and bool(dataset.repeats)


class CachedBatches:
    """Reads packed batches, with a cache of the samples.

    Parameters
    ----------
    fetch : Fetch
        Reads samples that are not cached.
    region : CacheRegion
        The cache.
    """

    packed = True

    def __init__(
        self,
        fetch: Fetch,  # reads samples that are not cached
        region: CacheRegion,
    ) -> None:
        self._fetch = fetch
        self._region = region

    def __call__(self, indices: Int64s, epoch: int, allocate: Allocate) -> Batch:
        offsets = self._region.find(indices)
        missing = np.flatnonzero(offsets == 0)
        COUNTS.update(cache_hits=len(offsets) - len(missing), cache_misses=len(missing))
        if len(missing) == len(offsets):
            return self._read(indices, epoch, allocate)
        of_forms: dict[bytes, list[int]] = {}
        for number, described in enumerate(self._described(offsets)):
            of_forms.setdefault(described, []).append(number)
        of_forms.pop(b"", None)
        if len(of_forms) == 1 and not len(missing):
            return load_samples(self._region, offsets, next(iter(of_forms)), allocate)
        positions = [np.array(numbers) for numbers in of_forms.values()]
        parts = [
            load_samples(self._region, offsets[numbers], described, np.empty)
            for described, numbers in zip(of_forms, positions, strict=True)
        ]
        if len(missing):
            parts.append(self._read(indices[missing], epoch, np.empty))
            positions.append(missing)
        return join_batches(parts, positions, allocate)

    def _described(self, offsets: Int64s) -> list[bytes]:
        """Return the forms of samples, b"" of those that are not cached."""
        # the header of the file stands at offset 0, where no sample is
        sizes = np.where(offsets > 0, self._region.numbers(offsets, 1)[:, 0], 0)
        places = zip(offsets.tolist(), sizes.tolist(), strict=True)
        return [bytes(self._region.view(offset + ALIGNMENT, size)) for offset, size in places]

    def _read(self, indices: Int64s, epoch: int, allocate: Allocate) -> Batch:
        batch: Batch = self._fetch(indices, epoch, allocate)
        for number, index in enumerate(indices.tolist()):
            if self._region.full:
                break
            self._region.add(index, dump_sample(batch, number))
        return batch


def _stop_sharing(arrays: Sequence[Any]) -> None:
    for array in arrays:
        array.share(None)


class _SharedChunks:
    def __init__(self, region: CacheRegion, first: int) -> None:
        self._region = region
        self._first = first

    @property
    def full(self) -> bool:
        return self._region.full

    def get(self, number: int, shape: Shape, dtype: np.dtype[Any]) -> AnyArray | None:
        offset = self._region.find(self._first + number)
        if not offset:
            COUNTS["cache_misses"] += 1
            return None
        COUNTS["cache_hits"] += 1
        return self._region.array(int(offset), shape, dtype)

    def add(self, number: int, chunk: AnyArray) -> None:
        if not self._region.full:
            self._region.add(self._first + number, [chunk.tobytes()])


# ``cache="disk"``: decoded samples of a dataset in one file of its `cache_dir`, for every later run.
#
# The file is that of the cache in memory, complete and followed by its xxh3-128. Its name is a digest of all
# that samples depend on. One process makes it while the others of the machine wait for its lock. It is
# renamed once all is on disk, so it is complete or absent, and never changes afterwards

_FORMAT = 2
_DIGEST_BYTES = 16
_SAMPLES_AT_ONCE = 64
_READ = 1 << 20  # Bytes that are read at a time
_OTHERS_WRITE = 0o022
_NAME = re.compile(r"samples-[0-9a-f]{32}")


def _check_disk_cache(dataset: Any, fetch: Fetch) -> None:
    if dataset.cache_options["cache_dir"] is None:
        message = "is 'disk', but the Dataset has no cache_dir"
        raise wrong_argument("cache", message, "open Dataset(…, cache_dir=FOLDER)")
    if not keeps_samples(dataset, fetch):
        kind = dataset.samples
        message = (
            f"is 'disk', but samples of {kind} share chunks or differ in each epoch, so they are not kept"
        )
        if dataset.repeats:
            message = "is 'disk', which works only without a transform and a collate_fn of your own"
        raise wrong_argument("cache", message, "give cache='all', which keeps decoded chunks in memory")


def disk_cache_file(dataset: Any, fetch: Fetch) -> CacheFile:
    """Open the file with the samples of a dataset. If there is none, or it is damaged, create it first."""
    path = Path(dataset.cache_options["cache_dir"])
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = open_own_folder(path, _OTHERS_WRITE)
        try:
            with _locked(f"{_name(dataset)}.lock", folder):
                return _open_or_make(dataset, fetch, folder)
        finally:
            os.close(folder)
    except (OSError, NotOwnError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        message = f"cannot be written to {path}: {reason}"
        fix = "free space there, or choose another cache_dir that belongs to you"
        raise wrong_argument("cache", message, fix) from error


def _name(dataset: Any) -> str:
    seals = [part.store.side_seals for part in dataset.parts]
    identity = [_FORMAT, dataset.digest, len(dataset), dataset.fields, dataset.names, seals]
    return f"samples-{xxhash.xxh3_128_hexdigest(json.dumps(identity, sort_keys=True).encode())}"


@contextmanager
def _locked(name: str, folder: int) -> Iterator[None]:
    descriptor = open_own_file(name, folder, os.O_CREAT)
    try:
        own_files.lock(descriptor)
        yield
    finally:
        own_files.close(descriptor)


def _open_or_make(dataset: Any, fetch: Fetch, folder: int) -> CacheFile:
    name = _name(dataset)
    descriptor = _open_complete(name, folder, len(dataset))
    if descriptor is None:
        limit = parse_bytes(dataset.cache_options["cache_limit"], "cache_limit")
        _make(dataset, fetch, name, folder, limit)
        _evict(name, folder, limit)
        descriptor = open_own_file(name, folder)
    return CacheFile(len(dataset), 0, descriptor)


def _open_complete(name: str, folder: int, samples: int) -> int | None:
    try:
        descriptor = open_own_file(name, folder)
    except FileNotFoundError:
        return None
    end = os.fstat(descriptor).st_size - _DIGEST_BYTES
    if end >= index_end(samples) and _digest(descriptor, end) == os.pread(descriptor, _DIGEST_BYTES, end):
        os.utime(descriptor)
        return descriptor
    os.close(descriptor)
    warn_caller(f"{name} in cache_dir is damaged and is written again")
    return None


def _digest(descriptor: int, end: int) -> bytes:
    # not through a map, where a failing disk would end the process
    digest = xxhash.xxh3_128()
    done = 0
    while block := os.pread(descriptor, min(_READ, end - done), done):
        digest.update(block)
        done += len(block)
    return digest.digest()


def _make(dataset: Any, fetch: Fetch, name: str, folder: int, limit: int) -> None:
    part = f"{name}.part"
    descriptor = open_own_file(part, folder, os.O_CREAT | os.O_TRUNC)
    try:
        with os.fdopen(descriptor, "wb") as file:
            offsets = np.zeros(1 + len(dataset), np.int64)
            file.seek(index_end(len(dataset)))
            for first in range(0, len(dataset), _SAMPLES_AT_ONCE):
                index = np.arange(first, min(first + _SAMPLES_AT_ONCE, len(dataset)))
                batch = fetch(index, 0, np.empty)
                for number, sample in enumerate(index.tolist()):
                    offsets[1 + sample] = file.tell()
                    for values in dump_sample(batch, number):
                        file.write(values.ljust(aligned(len(values)), b"\0"))
                if file.tell() > limit:
                    fitting = f"only {sample + 1:,} of {len(dataset):,} samples fit"
                    message = f"{fitting} into cache_limit, which is {size(limit)}"
                    raise wrong_argument("cache", message, "give a larger cache_limit, or cache='all'")
            end = file.tell()
            offsets[0] = end - index_end(len(dataset))
            file.seek(0)
            file.write(offsets.tobytes())
            file.seek(end)
            file.flush()
            os.ftruncate(descriptor, end)
            file.write(_digest(descriptor, end))
            file.flush()
            os.fsync(descriptor)
        os.replace(part, name, src_dir_fd=folder, dst_dir_fd=folder)
        os.fsync(folder)
    except BaseException:
        os.unlink(part, dir_fd=folder)
        raise


def _evict(name: str, folder: int, limit: int) -> None:
    # Files of other samples, the least recently used first. Who has one open goes on reading it
    others = filter(_NAME.fullmatch, os.listdir(folder))
    states = {other: os.stat(other, dir_fd=folder) for other in others}
    total = sum(state.st_size for state in states.values())
    for other in sorted(states, key=lambda other: states[other].st_mtime):
        if total > limit and other != name:
            os.unlink(other, dir_fd=folder)
            total -= states[other].st_size
