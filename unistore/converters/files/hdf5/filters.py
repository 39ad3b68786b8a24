"""Decode HDF5 chunks: deflate, bzip2, blosc, zstd, shuffle and fletcher32 here, others by the library."""

# HDF5's own bzip2 filter hangs if the stored bytes are cut short.

from __future__ import annotations

import bz2
import ctypes
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from isal import isal_zlib
from numcodecs import blosc, zstd  # type: ignore[attr-defined]

from unistore.converters.files.hdf5 import library as h5py
from unistore.system.frames import BLOSC_HEADER, BLOSC_VERSION, zstd_size
from unistore.system.machine import data_memory
from unistore.system.types import UInt8s

_DEFLATE = 1
_SHUFFLE = 2
_FLETCHER = 3
_NBIT = 5
_BZIP2 = 307
_BLOSC = 32001
_ZSTD = 32015
blosc.use_threads = False  # its threads do not survive a fork
_STREAMS: dict[int, Callable[[], Any]] = {
    _DEFLATE: isal_zlib.decompressobj,
    _BZIP2: bz2.BZ2Decompressor,
}
_COMPRESSIONS = frozenset((*_STREAMS, _BLOSC, _ZSTD))
# Compressors of blosc in numcodecs, all but snappy, by their number in a dataset's parameters
_BLOSC_COMPRESSORS = frozenset((0, 1, 2, 4, 5))
_BLOSC_COMPRESSOR = 6  # its place among the parameters
_DEFLATE_ERROR: type[Exception] = isal_zlib.IsalError  # type: ignore[assignment]  # its stub says an instance

_CHECKSUM_BYTES = 4
_MODULUS = np.uint64(65535)


class Filter(NamedTuple):
    """One filter of a dataset: its registered number and its parameters."""

    number: int
    values: tuple[int, ...]


# Filters of a dataset, in the order of writing
Filters: TypeAlias = tuple[Filter, ...]


@lru_cache(maxsize=100)
def applied_filters(filters: Filters, mask: int) -> Filters:
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
def are_decoded_here(filters: Filters) -> bool:
    """Return whether all filters are ours, with one compression at most, whose size is thus known."""
    compressions = [one for one in filters if one.number not in (_SHUFFLE, _FLETCHER)]
    return len(compressions) <= 1 and all(map(_is_compression_of_ours, compressions))


def _is_compression_of_ours(one: Filter) -> bool:
    if one.number != _BLOSC:
        return one.number in _COMPRESSIONS
    # The filter compresses with blosclz if its parameters name no compressor
    return len(one.values) <= _BLOSC_COMPRESSOR or one.values[_BLOSC_COMPRESSOR] in _BLOSC_COMPRESSORS


def missing_filter(filters: Filters) -> int | None:
    """Return the number of the first filter that can be undone neither here nor by HDF5, or None."""
    if are_decoded_here(filters):
        return None
    return next((one.number for one in filters if not h5py.h5z.filter_avail(one.number)), None)


def decode(stored: bytes, size: int, filters: Filters) -> UInt8s:
    """Decode a stored chunk.

    Parameters
    ----------
    stored : bytes
        The chunk.
    size : int
        Number of bytes that it decodes to.
    filters : Filters
        Its filters, in the order of writing.

    Raises
    ------
    ValueError
        If the chunk cannot be decoded.
    """
    if not are_decoded_here(filters):
        with _one_at_a_time:
            return _decoded_by_library(stored, size, filters)
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
        raise ValueError(f"{'decodes to' if filters else 'has'} {data.size:,} bytes, not {size:,}")
    return data


def _decompressed(data: UInt8s, size: int, number: int) -> UInt8s:
    if number in (_BLOSC, _ZSTD):
        return _frame_decompressed(data, size, number)
    stream = _STREAMS[number]()
    try:
        values = stream.decompress(data.data, size + 1)
    except (_DEFLATE_ERROR, OSError) as error:
        raise ValueError(f"cannot be decompressed: {error}") from error
    if len(values) > size:
        raise ValueError(f"decompresses to more than {size:,} bytes")
    if len(values) < size:
        raise ValueError(f"decompresses to {len(values):,} bytes, not {size:,}")
    if not stream.eof:
        raise ValueError("is truncated")
    return np.frombuffer(values, np.uint8)


def _frame_decompressed(data: UInt8s, size: int, number: int) -> UInt8s:
    """Decode a frame of blosc or zstd. Their decoders trust the sizes in its header, so these are checked."""
    frame = data.tobytes()
    decompress = zstd.decompress
    if number == _BLOSC:
        decompress = blosc.decompress
        if len(frame) < BLOSC_HEADER.size:
            raise ValueError(f"has {len(frame)} bytes, fewer than the {BLOSC_HEADER.size} of a blosc header")
        version, _, _, _, decoded, block, encoded = BLOSC_HEADER.unpack_from(frame)
        if (version, decoded, encoded) != (BLOSC_VERSION, size, len(frame)) or not 0 < block <= size:
            stated = f"version {version}, {decoded:,} bytes compressed to {encoded:,}, blocks of {block:,}"
            actual = f"{len(frame):,} compressed bytes, which should give {size:,}"
            raise ValueError(f"has {actual}, but its blosc header states {stated}")
    elif (decoded := zstd_size(frame)) != size:
        raise ValueError(f"states {decoded} bytes in its zstd header, not {size:,}")
    values = np.empty(size, np.uint8)
    try:
        decompress(frame, values)
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"cannot be decompressed: {error}") from error
    return values


def _unshuffled(data: UInt8s, parameters: tuple[int, ...]) -> UInt8s:
    """Undo HDF5's shuffle, which stores the first bytes of all elements, then the second bytes, …."""
    # Bytes of an incomplete last element are not shuffled.
    width = parameters[0] if parameters else 1
    if width < 1:
        raise ValueError("is shuffled with an element size of 0")
    count = data.size // width
    end = count * width
    values = data.copy()
    if count:
        elements = values[:end].reshape(count, width)
        # One transpose of all takes four times as long.
        for byte, column in enumerate(data[:end].reshape(width, count)):
            elements[:, byte] = column
    return values


def _without_checksum(data: UInt8s) -> UInt8s:
    """Check the fletcher32 checksum and return the data (HDF5 1.6.2 wrote it in another byte order)."""
    if data.size < _CHECKSUM_BYTES:
        raise ValueError(f"has {data.size} bytes, too few to contain a checksum")
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
    raise ValueError("does not match its checksum")


# Decoding by the filters of the library and its plugins. The library trusts them: it reads beyond what they
# return, and they read beyond what is stored. So a chunk is decoded in a dataset in memory, between two
# filters of our own. The last filter of a dataset runs first when a chunk is read: ours adds padding behind
# the stored bytes. The first filter runs last: ours checks how many bytes the others returned. Each chunk is
# decoded twice, with new memory and the padding filled with different bytes. If the results differ, the file
# does not hold all of its bytes.

# Numbers of our filters, from the range for private use
_CHECK = 0xFF00
_PAD = 0xFF01
_PLACEHOLDER = 3
_PLACEHOLDER_NAME = b"fletcher32\0"
_PLACEHOLDER_NAME_BYTES = 16
# Bytes added behind the stored ones, besides as many as the decoded chunk has
_PADDING = 1 << 16
_M_PERTURB = -6
_FILLS = (0x55, 0xAA)
# Bytes that filters may allocate besides eight times the chunk: damaged ones ask for any amount
_HEADROOM = 256 << 20
# Number and size of the freed blocks that the C library keeps aside, which ``M_PERTURB`` does not fill
_CACHED_BLOCKS = 8
_CACHED_BYTES = 2048

_Function = ctypes.CFUNCTYPE(
    ctypes.c_size_t,
    ctypes.c_uint,
    ctypes.c_size_t,
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_void_p,
    ctypes.c_void_p,
)


class _FilterClass(ctypes.Structure):
    """``H5Z_class2_t``."""

    _fields_ = [
        ("version", ctypes.c_int),
        ("number", ctypes.c_int),
        ("has_encoder", ctypes.c_uint),
        ("has_decoder", ctypes.c_uint),
        ("name", ctypes.c_char_p),
        ("can_apply", ctypes.c_void_p),
        ("set_local", ctypes.c_void_p),
        ("function", _Function),
    ]


class _Reading:
    """What our filters must do in the only read that is made."""

    expected = 0  # bytes of the decoded chunk
    returned = 0  # bytes that the filters returned
    fill = 0  # value of the bytes that are not stored


_reading = _Reading()
_one_at_a_time = threading.Lock()


def _decoded_by_library(stored: bytes, size: int, filters: Filters) -> UInt8s:
    """As `decode`. One at a time, as limits of memory hold for the process, and HDF5 opens one such file."""
    image = _file_image(size, filters)
    access = h5py.h5p.create(h5py.h5p.DATASET_ACCESS)
    access.set_chunk_cache(0, 0, 0.0)
    with h5py.File(h5py.h5f.open_file_image(image, h5py.h5f.ACC_RDWR)) as file:
        dataset = h5py.h5d.open(file.id, b"chunk", access)
        dataset.write_direct_chunk((0,), stored)
        values, again = (_read(dataset, size, fill) for fill in _FILLS)
    if not np.array_equal(values, again):
        raise ValueError("is too short: its filter reads beyond the stored bytes")
    return values


def _read(dataset: h5py.h5d.DatasetID, size: int, fill: int) -> UInt8s:
    values = np.zeros(size, np.uint8)
    _reading.expected = _reading.returned = size
    _reading.fill = fill
    try:
        with _guarded_memory(size, fill):
            dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, values)
    except (OSError, RuntimeError) as error:
        if _reading.returned != size:
            raise ValueError(f"decodes to {_reading.returned:,} bytes, not {size:,}") from error
        raise ValueError(f"cannot be decoded: {error}") from error
    finally:
        _reading.expected = 0
    return values


@contextmanager
def _guarded_memory(size: int, fill: int) -> Iterator[None]:
    """Fill allocated memory with a byte value, and limit it for a chunk of `size` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    held = data_memory()
    limit = soft if held is None else held + _HEADROOM + 8 * size
    is_lower = held is not None and (soft == resource.RLIM_INFINITY or limit < soft)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", lambda *_: 0)  # other C libraries have none
    resource.setrlimit(resource.RLIMIT_DATA, (limit if is_lower else soft, hard))
    mallopt(_M_PERTURB, fill)
    try:
        yield
    finally:
        mallopt(_M_PERTURB, 0)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


@lru_cache(maxsize=16)
def _file_image(size: int, filters: Filters) -> bytes:
    """Return an HDF5 file with a dataset of one chunk of bytes that has these filters between ours."""
    # When a dataset is created, filters change their parameters. So it is created with a filter that does
    # not, and the numbers of the filters are put into the bytes of the file.
    _library()
    creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    creation.set_chunk((size,))
    creation.set_filter(_CHECK, 0, ())
    for _, values in filters:
        creation.set_filter(_PLACEHOLDER, 0, values)
    creation.set_filter(_PAD, 0, ())
    with h5py.File("chunk", "w", driver="core", backing_store=False, libver=("earliest", "v108")) as file:
        space = h5py.h5s.create_simple((size,))
        h5py.h5d.create(file.id, b"chunk", h5py.h5t.STD_U8LE, space, creation)
        file.flush()
        image = bytearray(file.id.get_file_image())
    name = 0
    for number, values in filters:
        name = image.index(_PLACEHOLDER_NAME, name)
        image[name - 8 : name - 6] = number.to_bytes(2, "little")
        name += _PLACEHOLDER_NAME_BYTES + 4 * len(values)
    return bytes(image)


@cache
def _library() -> Any:
    """Return the HDF5 library that h5py uses, with our filters."""
    library = ctypes.CDLL(h5py.h5z.__file__)
    for function in (library.H5allocate_memory, library.H5resize_memory):
        function.restype = ctypes.c_void_p
    library.H5allocate_memory.argtypes = (ctypes.c_size_t, ctypes.c_bool)
    library.H5resize_memory.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    library.H5free_memory.argtypes = (ctypes.c_void_p,)
    for definition in _DEFINITIONS:
        if library.H5Zregister(ctypes.byref(definition)) < 0:
            raise RuntimeError("the HDF5 library does not accept a filter")
    return library


def _check_size(_flags: int, _count: int, _values: int, size: int, _capacity: int, _buffer: int) -> int:
    _reading.returned = size
    return size if size == _reading.expected else 0


def _pad(_flags: int, _count: int, _values: int, size: int, _capacity: int, buffer: int) -> int:
    if not _reading.expected:
        return 0
    library = _library()
    padding = _reading.expected + _PADDING
    pointer = ctypes.c_void_p.from_address(buffer)
    resized = library.H5resize_memory(pointer.value, size + padding)
    if not resized:
        return 0
    pointer.value = resized
    ctypes.memset(resized + size, _reading.fill, padding)
    # Last, as Python may free blocks of its own at any line above.
    if _reading.expected <= _CACHED_BYTES:
        blocks = [library.H5allocate_memory(_reading.expected, False) for _ in range(_CACHED_BLOCKS)]
        for block in blocks:
            ctypes.memset(block, _reading.fill, _reading.expected)
            library.H5free_memory(block)
    return size


_DEFINITIONS = (
    _FilterClass(1, _CHECK, 1, 1, b"check", None, None, _Function(_check_size)),
    _FilterClass(1, _PAD, 1, 1, b"pad", None, None, _Function(_pad)),
)
