"""Decoding of HDF5 chunks: deflate or bzip2, shuffle and fletcher32 here, all other filters by the library.

HDF5's own bzip2 filter hangs if the stored bytes are cut short.
"""

from __future__ import annotations

import bz2
from functools import lru_cache

import numpy as np
from isal import isal_zlib
from numpy.typing import NDArray

from unistore.converters.files.hdf5 import library_filters
from unistore.converters.files.hdf5.library_filters import Filter

_DEFLATE, _SHUFFLE, _FLETCHER, _NBIT, _BZIP2 = 1, 2, 3, 5, 307
_DECOMPRESSORS = {_DEFLATE: isal_zlib.decompressobj, _BZIP2: bz2.BZ2Decompressor}
_DEFLATE_ERROR: type[Exception] = isal_zlib.IsalError  # type: ignore[assignment]  # its stub says an instance

Bytes = NDArray[np.uint8]


@lru_cache(maxsize=100)
def applied_filters(filters: tuple[Filter, ...], mask: int) -> tuple[Filter, ...]:
    """Return the filters that changed a chunk with this mask."""
    applied = (each for bit, each in enumerate(filters) if not mask >> bit & 1)
    # n-bit changes nothing where elements have no unused bits, and returns a wrong size.
    return tuple(each for each in applied if each.number != _NBIT or each.values[1:2] != (1,))


@lru_cache(maxsize=100)
def are_decoded_here(filters: tuple[Filter, ...]) -> bool:
    """Whether all filters are ours, with one compression at most, whose size is thus known."""
    compressions = [each.number for each in filters if each.number not in (_SHUFFLE, _FLETCHER)]
    return len(compressions) <= 1 and _DECOMPRESSORS.keys() >= set(compressions)


def decode(stored: bytes, size: int, filters: tuple[Filter, ...]) -> Bytes:
    """Return the `size` bytes that a stored chunk decodes to; filters are in the order of writing.

    Raises
    ------
    ValueError
        If the chunk cannot be decoded, or not to exactly these bytes.
    """
    if not are_decoded_here(filters):
        return library_filters.decode(stored, size, filters)
    data = np.frombuffer(stored, np.uint8)
    for position in reversed(range(len(filters))):
        number, values = filters[position]
        if number == _SHUFFLE:
            data = _unshuffled(data, values[0] if values else 1)
        elif number == _FLETCHER:
            data = _without_checksum(data)
        else:
            checksums = sum(each.number == _FLETCHER for each in filters[:position])
            data = _decompressed(data, size + 4 * checksums, number)
    if data.size != size:
        msg = f"{'decodes to' if filters else 'is stored in'} {data.size} bytes, expected {size}"
        raise ValueError(msg)
    return data


def _decompressed(data: Bytes, size: int, number: int) -> Bytes:
    stream = _DECOMPRESSORS[number]()
    try:
        values = stream.decompress(data.data, size + 1)
    except (_DEFLATE_ERROR, OSError) as error:
        msg = f"cannot be decompressed: {error}"
        raise ValueError(msg) from error
    if len(values) != size:
        more = "more than " if len(values) > size else ""
        msg = f"decompresses to {more}{min(len(values), size)} bytes, expected {size}"
        raise ValueError(msg)
    if not stream.eof:
        msg = "is truncated"
        raise ValueError(msg)
    return np.frombuffer(values, np.uint8)


def _unshuffled(data: Bytes, width: int) -> Bytes:
    """Undo HDF5's shuffle, which stores the first bytes of all elements, then the second bytes, ….

    Bytes of an incomplete last element are not shuffled.
    """
    if width < 1:
        msg = "is shuffled with an element size of 0"
        raise ValueError(msg)
    count = data.size // width
    end = count * width
    values = data.copy()
    if count:
        elements = values[:end].reshape(count, width)
        for byte, column in enumerate(data[:end].reshape(width, count)):  # a quarter of one transpose's time
            elements[:, byte] = column
    return values


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
    sums = int(numbers.sum()) % 65535, int((numbers * weights).sum()) % 65535
    swapped = bytes((stored[1], stored[0], stored[3], stored[2]))
    for checksum in (stored, swapped):
        if sums == (int.from_bytes(checksum[:2]) % 65535, int.from_bytes(checksum[2:]) % 65535):
            return data
    msg = "does not match its checksum"
    raise ValueError(msg)
