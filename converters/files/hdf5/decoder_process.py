"""Helper process that decodes HDF5 chunks: ``python -m unistore.converters.files.hdf5.decoder_process``.

A request on standard input is a line of JSON, ``{"bytes": n, "stored": m, "filters": [[id, [values]], …]}``,
and the m stored bytes. The answer on standard output is n as 8 bytes and the n decoded bytes; or minus the
length of an error message, and the message.

The filters run inside the HDF5 library, in a dataset in memory, between two filters of our own. The first one
of the pipeline runs last when a chunk is read, and checks how many bytes the others produced. The last one
runs first, and adds padding behind the stored bytes. Each chunk is decoded twice, with new memory and the
padding filled with different bytes. If the results differ, a filter left bytes unwritten or read beyond the
stored bytes.
"""

from __future__ import annotations

import ctypes
import resource
import struct
from collections.abc import Callable
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, BinaryIO

import h5py
import hdf5plugin  # noqa: F401  registers the codecs with the HDF5 library
import numpy as np
from numpy.typing import NDArray

from unistore.converters.files.hdf5.helper_process import serve

_CHECK = 0x7F00
_PAD = 0x7F01
_PLACEHOLDER = 0x7F02
"""Ids of placeholder filters, one for each filter: when a dataset is created, real filters would change their
parameters."""
_PLACEHOLDER_NAME = b"standin\0"
_M_PERTURB = -6
_FILLS = (0x55, 0xAA)
_PADDING = 1 << 16
"""Bytes added behind the stored ones, besides as many as the decoded chunk has."""
_HEADROOM = 1 << 30
"""Bytes that a filter may allocate besides eight times the chunk."""

_FILTER = ctypes.CFUNCTYPE(
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
        ("id", ctypes.c_int),
        ("encoder_present", ctypes.c_uint),
        ("decoder_present", ctypes.c_uint),
        ("name", ctypes.c_char_p),
        ("can_apply", ctypes.c_void_p),
        ("set_local", ctypes.c_void_p),
        ("filter", _FILTER),
    ]


class _Library:
    """The HDF5 library with our two filters; ``expected`` and ``found`` are sizes of a decoded chunk."""

    def __init__(self) -> None:
        self.expected = self.found = self.fill = 0
        library = ctypes.CDLL(h5py.h5z.__file__)
        self._register = library.H5Zregister
        self._resize = library.H5resize_memory
        self._resize.argtypes, self._resize.restype = (ctypes.c_void_p, ctypes.c_size_t), ctypes.c_void_p
        self._registered: list[Any] = []
        self._add(_CHECK, self._check_size)
        self._add(_PAD, self._pad)

    def _add(self, number: int, function: Callable[..., int]) -> None:
        definition = _FilterClass(1, number, 1, 1, _PLACEHOLDER_NAME[:-1], None, None, _FILTER(function))
        self._registered.append(definition)
        if self._register(ctypes.byref(definition)) < 0:
            msg = "the HDF5 library refuses a filter"
            raise RuntimeError(msg)

    def _check_size(self, flags: int, count: int, values: int, size: int, capacity: int, buffer: int) -> int:
        self.found = size
        return size if size == self.expected else 0

    def _pad(self, flags: int, count: int, values: int, size: int, capacity: int, buffer: int) -> int:
        padding = self.expected + _PADDING
        pointer = ctypes.c_void_p.from_address(buffer)
        resized = self._resize(pointer.value, size + padding)
        if not resized:
            return 0
        pointer.value = resized
        ctypes.memset(resized + size, self.fill, padding)
        return size

    @lru_cache(maxsize=4)  # noqa: B019  one library lives as long as the process
    def dataset(self, size: int, filters: tuple[tuple[int, tuple[int, ...]], ...]) -> h5py.h5d.DatasetID:
        """A dataset in memory with one chunk of `size` bytes and these filters."""
        creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        creation.set_chunk((size,))
        creation.set_filter(_CHECK, 0, ())
        for position, (_, values) in enumerate(filters):
            if position + 2 >= len(self._registered):
                self._add(_PLACEHOLDER + position, lambda *_: 0)
            creation.set_filter(_PLACEHOLDER + position, 0, values)
        creation.set_filter(_PAD, 0, ())
        with h5py.File("chunk", "w", driver="core", backing_store=False, libver=("earliest", "v108")) as file:
            space = h5py.h5s.create_simple((size,))
            h5py.h5d.create(file.id, b"chunk", h5py.h5t.STD_U8LE, space, creation)
            file.flush()
            image = file.id.get_file_image()
        for position, (number, values) in enumerate(filters):
            rest = struct.pack("<HHH", len(_PLACEHOLDER_NAME), 0, len(values)) + _PLACEHOLDER_NAME
            image = image.replace(
                struct.pack("<H", _PLACEHOLDER + position) + rest, struct.pack("<H", number) + rest
            )
        access = h5py.h5p.create(h5py.h5p.DATASET_ACCESS)
        access.set_chunk_cache(0, 0, 0.0)
        return h5py.h5d.open(h5py.h5f.open_file_image(image, h5py.h5f.ACC_RDWR), b"chunk", access)

    def decode(self, stored: bytes, size: int, filters: tuple[tuple[int, tuple[int, ...]], ...]) -> Any:
        """Decoded bytes, (size,) u1; raises ValueError if the chunk cannot be decoded."""
        dataset = self.dataset(size, filters)
        dataset.write_direct_chunk((0,), stored)
        decoded: list[NDArray[np.uint8]] = []
        for fill in _FILLS:
            values = np.zeros(size, np.uint8)
            self.expected, self.found, self.fill = size, size, fill
            try:
                with _allocations_filled(fill):
                    dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, values)
            except (OSError, RuntimeError) as error:
                if self.found != size:
                    msg = f"decodes to {self.found} bytes, expected {size}"
                    raise ValueError(msg) from error
                msg = f"cannot be decoded: {error}"
                raise ValueError(msg) from error
            decoded.append(values)
        if not np.array_equal(decoded[0], decoded[1]):
            msg = "does not determine all of its bytes: its filter needs more than is stored"
            raise ValueError(msg)
        return decoded[0]


@contextmanager
def _allocations_filled(value: int) -> Any:
    """Fill allocated memory with a byte value, if the C library can."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", lambda *_: 0)
    mallopt(_M_PERTURB, value)
    try:
        yield
    finally:
        mallopt(_M_PERTURB, 0)


def _limit_memory(size: int) -> None:
    """Limit the memory of the process to what decoding a chunk of `size` bytes may take."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + _HEADROOM + 8 * size
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _answer(library: _Library, request: dict[str, Any], requests: BinaryIO) -> tuple[bytes, bytes]:
    stored, size = requests.read(request["stored"]), request["bytes"]
    filters = tuple((number, tuple(values)) for number, values in request["filters"])
    try:
        _limit_memory(size)
        return struct.pack("<q", size), library.decode(stored, size, filters).data
    except (ValueError, MemoryError, OSError, RuntimeError) as error:
        message = (str(error) or type(error).__name__).encode()[:1000]
        return struct.pack("<q", -len(message)), message


if __name__ == "__main__":
    serve(partial(_answer, _Library()))
