"""Reading chunks of HDF5 datasets, with a check of every chunk's size.

The HDF5 library trusts the file: if a chunk is stored or decoded too short, the library reads beyond its
buffer. So the library only returns the stored bytes, and the rest is done here:

- No filters: HDF5 reads, after a check that every chunk is stored in its full size.
- Filters masked off: the stored bytes, which must be the full size, are copied.
- deflate or bzip2 (one of them, once), shuffle and fletcher32: decoded by ISA-L, bz2 and NumPy, up to the
  chunk's size. (HDF5's bzip2 filter hangs if the stored bytes are cut short.)
- All other filters (lzf, szip, n-bit, scale-offset, and every plugin): native code that may crash, hang, or
  leave bytes unwritten. It runs in a helper process (`decoder_process`).
- Values that must be converted (text, variable length, numbers of odd widths): chunks are decoded as above to
  check them, then again by the library.
"""

from __future__ import annotations

import bz2
import math
import os
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from itertools import product
from typing import Any

import h5py
import numpy as np
from isal import isal_zlib
from numpy.typing import NDArray

from unistore.converters.files.hdf5.decoder import Filter, decode_in_helper
from unistore.converters.files.paths import file_version

_CACHE_BYTES = 8 << 20
"""Bytes of decoded chunks that are cached for the next rows."""
_DEFLATE, _SHUFFLE, _FLETCHER, _BZIP2 = 1, 2, 3, 307
_DECOMPRESSED = {_DEFLATE, _BZIP2}
_FEW_CHUNKS = 16
"""Up to so many chunks are checked again rather than remembered."""
_MAX_REMEMBERED = 1000
_checked_versions: set[tuple[int, ...]] = set()
"""Datasets, see `_version`, without filters whose chunks all have their full size."""
_NEVER_WRITTEN = ("chunk storage is not allocated", "chunk address isn't defined")
"""How HDF5 says that a chunk was never written."""
_DEFLATE_ERROR: type[Exception] = isal_zlib.IsalError  # type: ignore[assignment]  # its stub says an instance
_MAX_DEFLATE_RATIO = 1032
"""Bytes that one byte of deflate can decode to at most (RFC 1951)."""
_HEAP_REFERENCE = 16
"""Bytes of a text of variable length in a chunk: length, address and index in the global heap."""

Bytes = NDArray[np.uint8]


def native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype in this machine's byte order, without h5py's metadata (enum names and the like)."""
    return np.dtype(dtype.type) if dtype.kind in "biufc" else dtype


def _matches_numpy(stored: Any, dtype: np.dtype[Any]) -> bool:
    """Whether elements are stored byte for byte as in the NumPy dtype."""
    if isinstance(stored, h5py.h5t.TypeIntegerID | h5py.h5t.TypeFloatID):
        return bool(stored.equal(_hdf5_number_type(dtype)))
    return not dtype.hasobject and bool(stored.equal(h5py.h5t.py_create(dtype, logical=True)))


@cache
def _hdf5_number_type(dtype: np.dtype[Any]) -> Any:
    return h5py.h5t.py_create(dtype)


class Chunks:
    """The chunks of one open dataset. Every method raises `ValueError` or `OSError` if one is damaged.

    Attributes
    ----------
    dtype
        Of the values, in native byte order.
    decodable
        Whether `read` can be used: there are filters, and values are stored as NumPy has them.
    """

    def __init__(self, dataset: h5py.Dataset) -> None:
        self._creation = creation = creation_of(dataset)
        self._id = dataset.id
        self._shape: tuple[int, ...] = dataset.shape
        self._chunk: tuple[int, ...] = creation.get_chunk()
        self._dtype: np.dtype[Any] = self._id.dtype
        stored = self._id.get_type()
        is_reference = isinstance(stored, h5py.h5t.TypeStringID) and stored.is_variable_str()
        self._size = math.prod(self._chunk) * (_HEAP_REFERENCE if is_reference else stored.get_size())
        self._filters = tuple(
            Filter(number, values)
            for number, _, values, _ in map(creation.get_filter, range(creation.get_nfilters()))
        )
        self.dtype = native(self._dtype)
        self.decodable = bool(self._filters) and _matches_numpy(stored, self._dtype)
        self._chunks_are_rows = self._chunk[1:] == self._shape[1:]
        self._cache: dict[tuple[int, ...], NDArray[Any]] = {}
        self._checked_origins: set[tuple[int, ...]] = set()
        self._sizes_checked = False

    def read(self, lo: int, hi: int, out: NDArray[Any]) -> None:
        """Read rows ``lo:hi`` into a C-contiguous array of the dataset's dtype in native byte order."""
        values = out.view(self._dtype) if out.dtype != self._dtype else out
        cache: dict[tuple[int, ...], NDArray[Any]] = {}
        for origin in self._origins(lo, hi):
            first, last = origin[0], origin[0] + self._chunk[0]
            if self._chunks_are_rows and first >= lo and last <= hi:
                self._decode(origin, values[first - lo : last - lo].reshape(-1))
                continue
            block = self._cache.get(origin)
            if block is None:
                block = np.empty(self._chunk, self._dtype)
                self._decode(origin, block.reshape(-1))
            here = tuple(
                slice(start, min(start + size, end))
                for start, size, end in zip(origin, self._chunk, self._shape, strict=True)
            )
            rows = slice(max(lo, first), min(hi, here[0].stop))
            values[rows.start - lo : rows.stop - lo, *here[1:]] = block[
                rows.start - first : rows.stop - first, *(slice(each.stop - each.start) for each in here[1:])
            ]
            if last > hi:
                cache[origin] = block
        self._cache = cache if self._size * len(cache) <= _CACHE_BYTES else {}
        if values is not out and self._dtype.str != out.dtype.str:
            out.byteswap(inplace=True)

    def check(self, lo: int, hi: int) -> None:
        """Check the chunks of rows ``lo:hi`` before HDF5 reads them; with filters, they are decoded."""
        if not self._filters:
            if not self._sizes_checked:
                self._check_sizes()
                self._sizes_checked = True
            return
        for origin in self._origins(lo, hi):
            if origin not in self._checked_origins:
                self._decode(origin, np.empty(self._size, np.uint8))
                self._checked_origins.add(origin)

    def _version(self) -> tuple[int, ...]:
        """Version of the file, and the dataset's address in it."""
        status = os.fstat(h5py.h5i.get_file_id(self._id).get_vfd_handle())
        return *file_version(status), h5py.h5o.get_info(self._id).addr

    def _check_sizes(self) -> None:
        """Check that every chunk of a dataset without filters is stored in its full size."""
        lengths = zip(self._shape, self._chunk, strict=True)
        few = math.prod(-(-length // size) for length, size in lengths) <= _FEW_CHUNKS
        version = () if few else self._version()
        if version in _checked_versions:
            return

        def of_wrong_size(info: h5py.h5d.StoreInfo) -> h5py.h5d.StoreInfo | None:
            return info if info.size != self._size else None

        info = self._id.chunk_iter(of_wrong_size)
        if info is not None:
            msg = f"chunk {tuple(info.chunk_offset)} is stored in {info.size} bytes, expected {self._size}"
            raise ValueError(msg)
        if version:
            if len(_checked_versions) >= _MAX_REMEMBERED:
                _checked_versions.clear()
            _checked_versions.add(version)

    def _origins(self, lo: int, hi: int) -> Iterator[tuple[int, ...]]:
        step = self._chunk[0]
        others = (range(0, end, size) for end, size in zip(self._shape[1:], self._chunk[1:], strict=True))
        return product(range(lo // step * step, hi, step), *others)

    def _decode(self, origin: tuple[int, ...], values: NDArray[Any]) -> None:
        """Decode the chunk at `origin` into `values`, (n,)."""
        # get_chunk_info_by_coord reads the whole index, and is wrong if an axis but the first is unlimited.
        try:
            mask, stored = self._id.read_direct_chunk(origin)
        except (OSError, RuntimeError, MemoryError) as error:
            # If no chunk was written at all, HDF5 2.0 returns no size, and h5py uses an undefined one.
            if self._id.get_storage_size() and not any(reason in str(error) for reason in _NEVER_WRITTEN):
                raise
            if self._creation.fill_value_defined() != h5py.h5d.FILL_VALUE_USER_DEFINED:
                msg = f"chunk {origin} was never written"
                raise ValueError(msg) from None
            fill = np.zeros((), self._dtype)
            self._creation.get_fill_value(fill)
            values[...] = fill if values.dtype == self._dtype else 0
            return
        filters, in_process = _applied_filters(self._filters, mask)
        target = values.view(np.uint8)
        try:
            if not filters:
                _check_size("is stored in", len(stored), self._size)
                target[...] = np.frombuffer(stored, np.uint8)
            elif in_process:
                _decode_in_process(stored, target, filters)
            else:
                decode_in_helper(stored, target.data, filters)
        except ValueError as error:
            msg = f"chunk {origin} {error}"
            raise ValueError(msg) from error


def creation_of(dataset: h5py.Dataset) -> Any:
    """Creation properties of an open dataset, cached."""
    found = dataset.__dict__.get("unistore_creation")
    if found is None:
        found = dataset.__dict__["unistore_creation"] = dataset.id.get_create_plist()
    return found


def chunks_of(dataset: h5py.Dataset) -> Chunks:
    """The `Chunks` of an open dataset, cached."""
    found: Chunks | None = dataset.__dict__.get("unistore_chunks")
    if found is None:
        found = dataset.__dict__["unistore_chunks"] = Chunks(dataset)
    return found


@lru_cache(maxsize=100)
def _applied_filters(filters: Sequence[Filter], mask: int) -> tuple[Sequence[Filter], bool]:
    """Filters that were applied to a chunk with this mask, and whether this process decodes all of them."""
    applied = tuple(each for bit, each in enumerate(filters) if not mask >> bit & 1)
    others = [each.number for each in applied if each.number not in (_SHUFFLE, _FLETCHER)]
    return applied, len(others) < 2 and _DECOMPRESSED.issuperset(others)


def _decode_in_process(stored: bytes, target: Bytes, filters: Sequence[Filter]) -> None:
    sizes = [target.size]
    for each in filters:
        sizes.append(sizes[-1] + 4 * (each.number == _FLETCHER))
    data: Bytes = np.frombuffer(stored, np.uint8)
    for position in range(len(filters) - 1, -1, -1):
        each = filters[position]
        if each.number in _DECOMPRESSED:
            data = np.frombuffer(_decompress(data, sizes[position], each.number), np.uint8)
        elif each.number == _FLETCHER:
            data = _without_checksum(data)
        elif position == 0 and data.size == target.size:
            _unshuffle(data, target, each.values)
            return
        else:
            data, shuffled = np.empty_like(data), data
            _unshuffle(shuffled, data, each.values)
    _check_size("decodes to", data.size, target.size)
    target[...] = data


def _check_size(what: str, found: int, expected: int) -> None:
    if found != expected:
        msg = f"{what} {found} bytes, expected {expected}"
        raise ValueError(msg)


def _decompress(data: Bytes, size: int, number: int) -> bytes:
    if number == _DEFLATE and size > _MAX_DEFLATE_RATIO * (data.size + 64):
        msg = f"is stored in {data.size} bytes, which cannot be {size} when decompressed"
        raise ValueError(msg)
    stream = isal_zlib.decompressobj() if number == _DEFLATE else bz2.BZ2Decompressor()
    try:
        found = stream.decompress(data.data, size + 1)
    except (_DEFLATE_ERROR, OSError) as error:
        msg = f"cannot be decompressed: {error}"
        raise ValueError(msg) from error
    if len(found) != size:
        more = "more than " if len(found) > size else ""
        msg = f"decompresses to {more}{min(len(found), size)} bytes, expected {size}"
        raise ValueError(msg)
    if not stream.eof:
        msg = "is truncated"
        raise ValueError(msg)
    return found


def _unshuffle(data: Bytes, out: Bytes, values: Sequence[int]) -> None:
    """Undo HDF5's shuffle, which stores the first bytes of all elements, then the second bytes, ….

    Bytes of an incomplete last element are not shuffled.
    """
    width = values[0] if values else 1
    if width < 1:
        msg = "is shuffled with an element size of 0"
        raise ValueError(msg)
    count = data.size // width
    if not count:
        out[...] = data
        return
    end = count * width
    elements = out[:end].reshape(count, width)
    for byte, column in enumerate(data[:end].reshape(width, count)):  # a quarter of the time of one transpose
        elements[:, byte] = column
    out[end:] = data[end:]


def _without_checksum(data: Bytes) -> Bytes:
    """Check the fletcher32 checksum and return the data (HDF5 1.6.2 wrote it in another byte order)."""
    if data.size < 4:
        msg = f"has {data.size} bytes, too few for a checksum"
        raise ValueError(msg)
    data, stored = data[:-4], data[-4:].tobytes()
    words = np.zeros(-(-data.size // 2), ">u2")
    words.view(np.uint8)[: data.size] = data
    numbers = words.astype(np.uint64)
    weights = np.arange(len(numbers), 0, -1, dtype=np.uint64) % np.uint64(65535)
    found = int(numbers.sum()) % 65535, int((numbers * weights).sum()) % 65535
    swapped = bytes((stored[1], stored[0], stored[3], stored[2]))
    for each in (stored, swapped):
        if found == (int.from_bytes(each[:2], "little") % 65535, int.from_bytes(each[2:], "little") % 65535):
            return data
    msg = "does not match its checksum"
    raise ValueError(msg)
