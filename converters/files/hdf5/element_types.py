"""How the elements of HDF5 datasets are stored, beside NumPy's dtypes."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import h5py
import numpy as np

_LENGTH_AND_INDEX = 8
"""Bytes of a reference to the global heap, besides the address: length and index."""


def native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype in this machine's byte order, without h5py's metadata (enum names and the like)."""
    return np.dtype(dtype.type) if dtype.kind in "biufc" else dtype


def is_stored_as(element: h5py.h5t.TypeID, dtype: np.dtype[Any]) -> bool:
    """Whether elements are stored byte for byte as in the NumPy dtype."""
    if isinstance(element, h5py.h5t.TypeIntegerID | h5py.h5t.TypeFloatID):
        return bool(element.equal(_number_type(dtype)))
    return not dtype.hasobject and bool(element.equal(h5py.h5t.py_create(dtype, logical=True)))


@cache
def _number_type(dtype: np.dtype[Any]) -> h5py.h5t.TypeID:
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
