"""Decoding of HDF5 chunks: deflate or bzip2, shuffle and fletcher32 here, all other filters by the library.

HDF5's own bzip2 filter hangs if the stored bytes are cut short.
"""

from __future__ import annotations

import bz2
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from isal import isal_zlib
from numpy.typing import NDArray

from unistore.converters.files.hdf5 import library_filters
from unistore.converters.files.hdf5.library_filters import Filter

_DEFLATE, _SHUFFLE, _FLETCHER, _NBIT, _BZIP2 = 1, 2, 3, 5, 307
_DECOMPRESSORS: dict[int, Callable[[], Any]] = {
    _DEFLATE: isal_zlib.decompressobj,
    _BZIP2: bz2.BZ2Decompressor,
}
_DEFLATE_ERROR: type[Exception] = isal_zlib.IsalError  # type: ignore[assignment]  # its stub says an instance

_CHECKSUM_BYTES = 4
_MODULUS = np.uint64(65535)

Bytes = NDArray[np.uint8]


@lru_cache(maxsize=100)
def applied_filters(filters: tuple[Filter, ...], mask: int) -> tuple[Filter, ...]:
    """Return the filters that changed a chunk with this mask."""
    applied = []
    for position, one in enumerate(filters):
        is_masked = mask >> position & 1
        # n-bit changes nothing where elements have no unused bits, and returns a wrong size.
        changes_nothing = one.number == _NBIT and one.values[1:2] == (1,)
        if not is_masked and not changes_nothing:
            applied.append(one)
    return tuple(applied)


@lru_cache(maxsize=100)
def are_decoded_here(filters: tuple[Filter, ...]) -> bool:
    """Whether all filters are ours, with one compression at most, whose size is thus known."""
    numbers = [number for number, _ in filters]
    compressions = [number for number in numbers if number not in (_SHUFFLE, _FLETCHER)]
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
    checksums = sum(number == _FLETCHER for number, _ in filters)
    for number, values in reversed(filters):
        if number == _SHUFFLE:
            data = _unshuffled(data, values)
        elif number == _FLETCHER:
            data = _without_checksum(data)
            checksums -= 1
        else:
            data = _decompressed(data, size + _CHECKSUM_BYTES * checksums, number)
    if data.size != size:
        what = "decodes to" if filters else "is stored in"
        msg = f"{what} {data.size} bytes, expected {size}"
        raise ValueError(msg)
    return data


def _decompressed(data: Bytes, size: int, number: int) -> Bytes:
    stream = _DECOMPRESSORS[number]()
    try:
        values = stream.decompress(data.data, size + 1)
    except (_DEFLATE_ERROR, OSError) as error:
        msg = f"cannot be decompressed: {error}"
        raise ValueError(msg) from error
    if len(values) > size:
        msg = f"decompresses to more than {size} bytes"
        raise ValueError(msg)
    if len(values) < size:
        msg = f"decompresses to {len(values)} bytes, expected {size}"
        raise ValueError(msg)
    if not stream.eof:
        msg = "is truncated"
        raise ValueError(msg)
    return np.frombuffer(values, np.uint8)


def _unshuffled(data: Bytes, parameters: tuple[int, ...]) -> Bytes:
    """Undo HDF5's shuffle, which stores the first bytes of all elements, then the second bytes, ….

    Bytes of an incomplete last element are not shuffled.
    """
    width = parameters[0] if parameters else 1
    if width < 1:
        msg = "is shuffled with an element size of 0"
        raise ValueError(msg)
    count = data.size // width
    end = count * width
    values = data.copy()
    if count:
        elements = values[:end].reshape(count, width)
        # One transpose of all takes four times as long.
        for byte, column in enumerate(data[:end].reshape(width, count)):
            elements[:, byte] = column
    return values


def _without_checksum(data: Bytes) -> Bytes:
    """Check the fletcher32 checksum and return the data (HDF5 1.6.2 wrote it in another byte order)."""
    if data.size < _CHECKSUM_BYTES:
        msg = f"has {data.size} bytes, too few for a checksum"
        raise ValueError(msg)
    stored = data[-_CHECKSUM_BYTES:]
    data = data[:-_CHECKSUM_BYTES]
    words = np.zeros(-(-data.size // 2), ">u2")
    words.view(np.uint8)[: data.size] = data
    numbers = words.astype(np.uint64)
    weights = np.arange(len(numbers), 0, -1, dtype=np.uint64) % _MODULUS
    sums = [numbers.sum() % _MODULUS, (numbers * weights).sum() % _MODULUS]
    for order in (">u2", "<u2"):
        if (stored.view(order) % _MODULUS).tolist() == sums:
            return data
    msg = "does not match its checksum"
    raise ValueError(msg)
