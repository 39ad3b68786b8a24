"""Chunks of HDF5 datasets: no byte is used before the size of its chunk is known to be right.

The HDF5 library trusts the file: where a chunk is stored, or decoded, shorter than it should be, the library
reads on in its memory. So it only hands out the stored bytes (never more than the
file has), and the rest is done here:

- No filters: once the index says that every chunk is stored in as many bytes as it has, HDF5 reads.
- Filters that are masked off: a chunk is stored in as many bytes as it has, and copied.
- deflate or bzip2 (one of them, once), shuffle and fletcher32: decoded by ISA-L, bz2 and NumPy, bounded by
  the chunk's size. (The filter of bzip2 never ends where the stored bytes are cut short.)
- All other filters (lzf, szip, n-bit, scale-offset, and every plugin): the decoder is native code that may
  crash, never end, or claim bytes that it did not write. A process apart runs it (`child`), checks
  the decoded size, and compares two decodings; this process takes exactly the chunk's bytes from a pipe.
- Values that must be converted (text, variable length, numbers of odd widths): chunks are decoded as above to
  check them, then once more by the library.
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

from unistore.converters.files.hdf5.decoder import Filter, decode_apart

__all__ = ["Chunks", "chunks_of", "creation_of", "native"]

_KEPT = 8 << 20
"""Bytes of decoded chunks that are kept for the rows that follow, as HDF5 does."""
_DEFLATE, _SHUFFLE, _FLETCHER, _BZIP2 = 1, 2, 3, 307
_DECOMPRESSED = {_DEFLATE, _BZIP2}
_FEW = 16
"""Chunks whose sizes are looked at sooner than it is known whether they were before."""
_REMEMBERED = 1000
_right: set[tuple[int, ...]] = set()
"""Datasets of many chunks without filters that all have their size, by version of the file."""
_ABSENT = ("chunk storage is not allocated", "chunk address isn't defined")
"""How HDF5 says that a chunk was never written."""
_DEFLATE_ERROR: type[Exception] = isal_zlib.IsalError  # type: ignore[assignment]  # its stub says an instance
_EXPANSION = 1032
"""Bytes that deflate makes of one at most."""

Bytes = NDArray[np.uint8]


def native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype in this machine's byte order, without h5py's metadata (enum names and the like)."""
    return np.dtype(dtype.type) if dtype.kind in "biufc" else dtype


def _is_numpy(stored: Any, dtype: np.dtype[Any]) -> bool:
    """Whether stored elements are, byte for byte, those of the dtype that h5py gives them."""
    if isinstance(stored, h5py.h5t.TypeIntegerID | h5py.h5t.TypeFloatID):
        return bool(stored.equal(_number(dtype)))
    return not dtype.hasobject and bool(stored.equal(h5py.h5t.py_create(dtype, logical=True)))


@cache
def _number(dtype: np.dtype[Any]) -> Any:
    return h5py.h5t.py_create(dtype)


class Chunks:
    """The chunks of one open dataset. Every method raises `ValueError` or `OSError` where one is damaged.

    Attributes
    ----------
    dtype
        What h5py gives, in native byte order.
    plain
        Whether chunks are decoded here to the values that h5py gives, but for the order of their bytes.
    """

    def __init__(self, dataset: h5py.Dataset) -> None:
        self._creation = creation = creation_of(dataset)
        self._id = dataset.id
        self._shape: tuple[int, ...] = dataset.shape
        self._chunk: tuple[int, ...] = creation.get_chunk()
        self._dtype: np.dtype[Any] = self._id.dtype
        stored = self._id.get_type()
        self._size = math.prod(self._chunk) * stored.get_size()
        self._filters = tuple(
            Filter(number, values)
            for number, _, values, _ in map(creation.get_filter, range(creation.get_nfilters()))
        )
        self.dtype = native(self._dtype)
        self.plain = bool(self._filters) and _is_numpy(stored, self._dtype)
        self._rows = self._chunk[1:] == self._shape[1:]
        self._kept: dict[tuple[int, ...], NDArray[Any]] = {}
        self._checked: set[tuple[int, ...]] = set()
        self._sizes_checked = False

    def read(self, lo: int, hi: int, out: NDArray[Any]) -> None:
        """Read rows ``lo:hi`` into a C-contiguous array of the dataset's dtype in native byte order."""
        values = out.view(self._dtype) if out.dtype != self._dtype else out
        kept: dict[tuple[int, ...], NDArray[Any]] = {}
        for origin in self._origins(lo, hi):
            first, last = origin[0], origin[0] + self._chunk[0]
            if self._rows and first >= lo and last <= hi:
                self._decode(origin, values[first - lo : last - lo].reshape(-1))
                continue
            block = self._kept.get(origin)
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
                kept[origin] = block
        self._kept = kept if self._size * len(kept) <= _KEPT else {}
        if values is not out and self._dtype.str != out.dtype.str:
            out.byteswap(inplace=True)

    def check(self, lo: int, hi: int) -> None:
        """See that HDF5 can be trusted with rows ``lo:hi``: their chunks are decoded if there are filters."""
        if not self._filters:
            if not self._sizes_checked:
                self._check_sizes()
                self._sizes_checked = True
            return
        for origin in self._origins(lo, hi):
            if origin not in self._checked:
                self._decode(origin, np.empty(self._size, np.uint8))
                self._checked.add(origin)

    def _version(self) -> tuple[int, ...]:
        """Device, inode, size and times of the file, and the dataset's address in it."""
        file = os.fstat(h5py.h5i.get_file_id(self._id).get_vfd_handle())
        address = h5py.h5o.get_info(self._id).addr
        return file.st_dev, file.st_ino, file.st_size, file.st_mtime_ns, file.st_ctime_ns, address

    def _check_sizes(self) -> None:
        """See that every chunk of a dataset without filters has its size: of many, once for each version."""
        lengths = zip(self._shape, self._chunk, strict=True)
        few = math.prod(-(-length // size) for length, size in lengths) <= _FEW
        version = () if few else self._version()
        if version in _right:
            return

        def wrong(info: h5py.h5d.StoreInfo) -> h5py.h5d.StoreInfo | None:
            return info if info.size != self._size else None

        info = self._id.chunk_iter(wrong)
        if info is not None:
            msg = f"chunk {tuple(info.chunk_offset)} is stored in {info.size} bytes, expected {self._size}"
            raise ValueError(msg)
        if version:
            if len(_right) >= _REMEMBERED:
                _right.clear()
            _right.add(version)

    def _origins(self, lo: int, hi: int) -> Iterator[tuple[int, ...]]:
        step = self._chunk[0]
        others = (range(0, end, size) for end, size in zip(self._shape[1:], self._chunk[1:], strict=True))
        return product(range(lo // step * step, hi, step), *others)

    def _decode(self, origin: tuple[int, ...], values: NDArray[Any]) -> None:
        """Fill `values`, (n,), with a chunk's."""
        # get_chunk_info_by_coord walks the whole index, and errs where an axis but the first is unlimited.
        try:
            mask, stored = self._id.read_direct_chunk(origin)
        except (OSError, RuntimeError, MemoryError) as error:
            # Where no chunk was written at all, HDF5 2.0 tells no size, and h5py takes any for it.
            if self._id.get_storage_size() and not any(reason in str(error) for reason in _ABSENT):
                raise
            values[...] = self._fill_value(origin) if values.dtype == self._dtype else 0
            return
        try:
            self._decode_stored(mask, stored, values.view(np.uint8))
        except ValueError as error:
            msg = f"chunk {origin} {error}"
            raise ValueError(msg) from error

    def _fill_value(self, origin: tuple[int, ...]) -> NDArray[Any]:
        if self._creation.fill_value_defined() != h5py.h5d.FILL_VALUE_USER_DEFINED:
            msg = f"chunk {origin} was never written"
            raise ValueError(msg)
        value = np.zeros((), self._dtype)
        self._creation.get_fill_value(value)
        return value

    def _decode_stored(self, mask: int, stored: bytes, target: Bytes) -> None:
        filters, here = _applied(self._filters, mask)
        if not filters:
            if len(stored) != self._size:
                msg = f"is stored in {len(stored)} bytes, expected {self._size}"
                raise ValueError(msg)
            target[...] = np.frombuffer(stored, np.uint8)
        elif here:
            _decode_here(stored, target, filters)
        else:
            decode_apart(stored, target.data, filters)


def creation_of(dataset: h5py.Dataset) -> Any:
    """Creation properties of a dataset, asked for once as long as it is open."""
    found = dataset.__dict__.get("unistore_creation")
    if found is None:
        found = dataset.__dict__["unistore_creation"] = dataset.id.get_create_plist()
    return found


def chunks_of(dataset: h5py.Dataset) -> Chunks:
    """The chunks of a dataset, the same object as long as it is open."""
    found: Chunks | None = dataset.__dict__.get("unistore_chunks")
    if found is None:
        found = dataset.__dict__["unistore_chunks"] = Chunks(dataset)
    return found


@lru_cache(maxsize=100)
def _applied(filters: Sequence[Filter], mask: int) -> tuple[Sequence[Filter], bool]:
    """Filters that a chunk's mask leaves on, and whether all of them are decoded in this process."""
    applied = tuple(each for bit, each in enumerate(filters) if not mask >> bit & 1)
    others = [each.number for each in applied if each.number not in (_SHUFFLE, _FLETCHER)]
    return applied, len(others) < 2 and _DECOMPRESSED.issuperset(others)


def _decode_here(stored: bytes, target: Bytes, filters: Sequence[Filter]) -> None:
    sizes = [target.size]
    for each in filters:
        sizes.append(sizes[-1] + 4 * (each.number == _FLETCHER))
    data: Bytes = np.frombuffer(stored, np.uint8)
    for place in range(len(filters) - 1, -1, -1):
        each = filters[place]
        if each.number in _DECOMPRESSED:
            data = np.frombuffer(_decompress(data, sizes[place], each.number), np.uint8)
        elif each.number == _FLETCHER:
            data = _without_checksum(data)
        elif place == 0 and data.size == target.size:
            _unshuffle(data, target, each.values)
            return
        else:
            data, shuffled = np.empty_like(data), data
            _unshuffle(shuffled, data, each.values)
    if data.size != target.size:
        msg = f"decodes to {data.size} bytes, expected {target.size}"
        raise ValueError(msg)
    target[...] = data


def _decompress(data: Bytes, size: int, number: int) -> bytes:
    if number == _DEFLATE and size > _EXPANSION * (data.size + 64):
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
        msg = "is cut short"
        raise ValueError(msg)
    return found


def _unshuffle(data: Bytes, out: Bytes, values: Sequence[int]) -> None:
    """Undo HDF5's shuffle: first bytes of all elements, then their second bytes, …; a rest stays as it is."""
    width = values[0] if values else 1
    if width < 1:
        msg = "is shuffled by no width"
        raise ValueError(msg)
    count = data.size // width
    if not count:
        out[...] = data
        return
    columns, elements = (
        data[: count * width].reshape(width, count),
        out[: count * width].reshape(count, width),
    )
    for byte in range(width):
        elements[:, byte] = columns[byte]
    out[count * width :] = data[count * width :]


def _without_checksum(data: Bytes) -> Bytes:
    """Data without its fletcher32 checksum, which must match (HDF5 1.6.2 wrote it in another byte order)."""
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
