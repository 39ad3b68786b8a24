"""Read chunks of HDF5 datasets, with a check of every chunk's size."""

# The HDF5 library trusts the file: if a chunk is stored or decoded too short, the library reads beyond its
# buffer. So where there are filters, the library only returns the stored bytes, which `filters` decodes.
# Values that must be converted (text, variable length, numbers of odd widths) are decoded as a check, then
# again by the library. Where there are none, the library reads, after a check that every chunk is stored in
# full.

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import Any

import numpy as np

from unistore.converters.files.hdf5 import library as h5py
from unistore.converters.files.hdf5.filters import Filter, Filters, applied_filters, decode
from unistore.converters.files.paths import file_version
from unistore.system.types import AnyArray, Dtype, Shape, UInt8s

# How the elements of HDF5 datasets are stored, beside NumPy's dtypes.

# Bytes of a reference to the global heap, besides the address: length and index
_LENGTH_AND_INDEX = 8


def native(dtype: Dtype) -> Dtype:
    """Return the dtype in this machine's byte order, without h5py's metadata (enum names and the like)."""
    return np.dtype(dtype.type) if dtype.kind in "biufc" else dtype


def is_stored_as(element: h5py.h5t.TypeID, dtype: Dtype) -> bool:
    """Return whether elements are stored byte for byte as in the NumPy dtype."""
    if isinstance(element, h5py.h5t.TypeIntegerID | h5py.h5t.TypeFloatID):
        return bool(element.equal(_number_type(dtype)))
    return not dtype.hasobject and bool(element.equal(h5py.h5t.py_create(dtype, logical=True)))


@cache
def _number_type(dtype: Dtype) -> h5py.h5t.TypeID:
    return h5py.h5t.py_create(dtype)


def stored_size(dataset: h5py.Dataset) -> int:
    """Return the bytes that an element of a dataset takes in the file."""
    element = dataset.id.get_type()
    if not dataset.dtype.hasobject:
        size: int = element.get_size()
        return size
    address_size, _ = h5py.h5i.get_file_id(dataset.id).get_create_plist().get_sizes()
    return _size_in_file(element, address_size)


def _size_in_file(element: h5py.h5t.TypeID, address_size: int) -> int:
    """Return the size of an element, where HDF5 tells that in memory: variable length has pointers there."""
    if isinstance(element, h5py.h5t.TypeVlenID) or _is_variable_text(element):
        return _LENGTH_AND_INDEX + address_size
    size: int = element.get_size()
    if isinstance(element, h5py.h5t.TypeArrayID):
        count: int = math.prod(element.get_array_dims())
        return count * _size_in_file(element.get_super(), address_size)
    if isinstance(element, h5py.h5t.TypeCompoundID):
        for number in range(element.get_nmembers()):
            member = element.get_member_type(number)
            size += _size_in_file(member, address_size) - member.get_size()
    return size


def _is_variable_text(element: h5py.h5t.TypeID) -> bool:
    return isinstance(element, h5py.h5t.TypeStringID) and bool(element.is_variable_str())


# Bytes of decoded chunks that are cached for the next rows
_CACHE_BYTES = 8 << 20
# How HDF5 says that a chunk was never written
_NEVER_WRITTEN = ("chunk storage is not allocated", "chunk address isn't defined")
_MAX_REMEMBERED = 1000
# Datasets without filters whose chunks all have their full size: version of the file, and address in it
_checked_versions: set[tuple[int, ...]] = set()
# ``H5D_CHUNK_DONT_FILTER_PARTIAL_CHUNKS``: chunks that reach beyond the dataset have no filters
_EDGES_UNFILTERED = 2


class Chunks:
    """Chunks of one open dataset, whose methods raise `ValueError` or `OSError` if one is damaged."""

    def __init__(self, dataset: h5py.Dataset) -> None:
        self._creation = creation = creation_of(dataset)
        self._id = dataset.id
        self._shape: Shape = dataset.shape
        self._chunk: Shape = creation.get_chunk()
        self._stored_dtype: Dtype = dataset.id.dtype
        self._size = math.prod(self._chunk) * stored_size(dataset)
        self._filters = filters_of(creation)
        self._edges_unfiltered = bool(self._filters) and _leaves_edges_unfiltered(creation)
        self.dtype = native(self._stored_dtype)  # of the values, in native byte order
        # Whether `read` can be used: there are filters, and values are stored as NumPy has them.
        self.decodable = bool(self._filters) and is_stored_as(dataset.id.get_type(), self._stored_dtype)
        self._blocks: dict[Shape, AnyArray] = {}
        self._checked: set[Shape] = set()

    def read(self, lo: int, hi: int, out: AnyArray) -> None:
        blocks_of_next_rows: dict[Shape, AnyArray] = {}
        for origin in self._origins(lo, hi):
            block = self._blocks.get(origin)
            if block is None:
                block = self._block(origin)
            first = origin[0]
            last = first + self._chunk[0]
            start = max(lo, first)
            stop = min(hi, last)
            target = [slice(start - lo, stop - lo)]
            source = [slice(start - first, stop - first)]
            for begin, size, end in zip(origin[1:], self._chunk[1:], self._shape[1:], strict=True):
                target.append(slice(begin, min(begin + size, end)))
                source.append(slice(0, min(size, end - begin)))
            out[*target] = block[*source]
            if last > hi:
                blocks_of_next_rows[origin] = block
        fits = self._size * len(blocks_of_next_rows) <= _CACHE_BYTES
        self._blocks = blocks_of_next_rows if fits else {}

    def check(self, lo: int, hi: int) -> None:
        """Check the chunks of rows ``lo:hi`` before HDF5 reads them. With filters, they are decoded."""
        if not self._filters:
            self._check_sizes()
            return
        for origin in self._origins(lo, hi):
            if origin not in self._checked:
                self._decode(origin)
                self._checked.add(origin)

    def _check_sizes(self) -> None:
        """Check that every chunk of a dataset without filters is stored, in its full size."""
        status = os.fstat(h5py.h5i.get_file_id(self._id).get_vfd_handle())
        version = (*file_version(status), h5py.h5o.get_info(self._id).addr)
        if version in _checked_versions:
            return
        lengths = zip(self._shape, self._chunk, strict=True)
        expected = math.prod(-(-length // size) for length, size in lengths)
        if self._id.get_num_chunks() < expected and not has_fill_value(self._creation):
            raise ValueError("some of its chunks were never written")

        def of_wrong_size(info: h5py.h5d.StoreInfo) -> h5py.h5d.StoreInfo | None:
            return info if info.size != self._size else None

        info = self._id.chunk_iter(of_wrong_size)
        if info is not None:
            raise ValueError(
                f"chunk {tuple(info.chunk_offset)} has {info.size:,} bytes in the file, not {self._size:,}"
            )
        if len(_checked_versions) >= _MAX_REMEMBERED:
            _checked_versions.clear()
        _checked_versions.add(version)

    def _origins(self, lo: int, hi: int) -> Iterator[Shape]:
        step = self._chunk[0]
        other_origins = (
            range(0, end, size) for end, size in zip(self._shape[1:], self._chunk[1:], strict=True)
        )
        return product(range(lo // step * step, hi, step), *other_origins)

    def _block(self, origin: Shape) -> AnyArray:
        """Return the values of a chunk. Those of a chunk that was never written are the fill value."""
        data = self._decode(origin)
        if data is not None:
            return data.view(self._stored_dtype).reshape(self._chunk)
        fill = np.zeros((), self._stored_dtype)
        self._creation.get_fill_value(fill)
        return np.broadcast_to(fill, self._chunk)

    def _decode(self, origin: Shape) -> UInt8s | None:
        """Return the bytes of a chunk, or None if it was never written, and so has the fill value."""
        # get_chunk_info_by_coord reads the whole index, and is wrong if an axis but the first is unlimited.
        try:
            mask, stored = self._id.read_direct_chunk(origin)
        except (OSError, RuntimeError, MemoryError) as error:
            # If no chunk was written at all, HDF5 2.0 returns no size, and h5py uses an undefined one.
            if self._id.get_storage_size() and not any(reason in str(error) for reason in _NEVER_WRITTEN):
                raise
            if not has_fill_value(self._creation):
                raise ValueError(f"chunk {origin} was never written") from None
            return None
        try:
            return decode(stored, self._size, self._applied_filters(origin, mask))
        except ValueError as error:
            raise ValueError(f"chunk {origin} {error}") from error

    def _applied_filters(self, origin: Shape, mask: int) -> Filters:
        extents = zip(origin, self._chunk, self._shape, strict=True)
        if self._edges_unfiltered and any(start + size > end for start, size, end in extents):
            return ()
        return applied_filters(self._filters, mask)


def creation_of(dataset: h5py.Dataset) -> Any:
    """Creation properties of an open dataset, cached."""
    creation = dataset.__dict__.get("unistore_creation")
    if creation is None:
        creation = dataset.__dict__["unistore_creation"] = dataset.id.get_create_plist()
    return creation


def chunks_of(dataset: h5py.Dataset) -> Chunks:
    """Return the `Chunks` of an open dataset, cached."""
    chunks: Chunks | None = dataset.__dict__.get("unistore_chunks")
    if chunks is None:
        chunks = dataset.__dict__["unistore_chunks"] = Chunks(dataset)
    return chunks


def has_fill_value(creation: Any) -> bool:
    """Return whether chunks that were never written have a value that the writer chose."""
    if creation.get_fill_time() == h5py.h5d.FILL_TIME_NEVER:
        return False
    return bool(creation.fill_value_defined() == h5py.h5d.FILL_VALUE_USER_DEFINED)


def filters_of(creation: Any) -> Filters:
    """Filters of a dataset, in the order of writing."""
    filters = map(creation.get_filter, range(creation.get_nfilters()))
    return tuple(Filter(number, values) for number, _, values, _ in filters)


@cache
def _chunk_options() -> Any:
    """Return the library's function, for which h5py has no name."""
    function = ctypes.CDLL(h5py.h5p.__file__).H5Pget_chunk_opts
    function.argtypes = (ctypes.c_int64, ctypes.POINTER(ctypes.c_uint))
    return function


def _leaves_edges_unfiltered(creation: Any) -> bool:
    options = ctypes.c_uint()
    with h5py._objects.phil:
        status = _chunk_options()(creation.id, ctypes.byref(options))
    if status < 0:
        raise ValueError("the HDF5 library does not return the options of the chunks")
    return bool(options.value & _EDGES_UNFILTERED)
