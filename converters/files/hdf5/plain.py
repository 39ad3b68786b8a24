"""Small HDF5 files of the simplest form, read whole, at a fraction of the time that the HDF5 library takes.

Groups that hold each other and datasets once, without any link; numbers in the forms of NumPy, one after the
other; attributes of such numbers. The library reads all other files, those that another process has open for
writing among them, and says what is wrong. Groups and datasets have what this package uses of h5py's.
"""

from __future__ import annotations

import fcntl
import math
import os
import stat
import struct
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from unistore.converters.files.hdf5.structure import (
    ATTRIBUTE,
    DATASPACE,
    DATATYPE,
    FAILURES,
    HEAD_BYTES,
    LAYOUT,
    SYMBOL_TABLE,
    Node,
    attribute_parts,
    parse,
    require,
)

__all__ = ["PlainDataset", "PlainGroup", "open_plain"]


def _described(dtype: str) -> bytes:
    """The message that h5py writes for a dtype."""
    encoded: bytes = h5py.h5t.py_create(np.dtype(dtype), logical=True).encode()
    return encoded[2:]


_NUMBERS = {
    _described(f"{order}{kind}"): np.dtype(f"{order}{kind}")
    for order in "<>"
    for kind in ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8")
}
_LENGTHS = {each[0]: len(each) for each in _NUMBERS}
"""Bytes of a message by its first one: integers, floats."""
_BOOL = _described("|b1")
_CONTIGUOUS = b"\3\1"


class _Object:
    """A group or dataset: the path of its file, its own inside, and its attributes as they are stored."""

    __slots__ = ("attributes", "name", "path")

    def __init__(self, path: Path, name: str, attributes: dict[str, NDArray[Any]]) -> None:
        self.path, self.name, self.attributes = path, name, attributes

    @property
    def attrs(self) -> dict[str, Any]:
        """Attributes as h5py returns them."""
        return {name: value[()] for name, value in self.attributes.items()}


class PlainDataset(_Object):
    """A dataset with all its values."""

    __slots__ = ("dtype", "ndim", "shape", "values")
    chunks = None
    is_virtual = False

    def __init__(
        self, path: Path, name: str, attributes: dict[str, NDArray[Any]], values: NDArray[Any]
    ) -> None:
        super().__init__(path, name, attributes)
        self.values, self.shape, self.ndim, self.dtype = values, values.shape, values.ndim, values.dtype

    def __getitem__(self, key: Any) -> Any:
        return self.values.copy()[key]


class PlainGroup(_Object):
    """A group, the root among them."""

    __slots__ = ("_members",)

    def __init__(
        self, path: Path, name: str, attributes: dict[str, NDArray[Any]], members: dict[str, _Object]
    ) -> None:
        super().__init__(path, name, attributes)
        self._members = members

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __contains__(self, path: str) -> bool:
        return self.get(path) is not None

    def __getitem__(self, path: str) -> Any:
        found = self.get(path)
        if found is None:
            raise KeyError(path)
        return found

    def get(self, path: str) -> Any:
        """A member, or one below it; None if there is none."""
        found: Any = self
        for name in path.split("/"):
            if name:
                found = found._members.get(name) if isinstance(found, PlainGroup) else None
        return found


def open_plain(path: Path) -> PlainGroup | None:
    """The root group of a file; None if the HDF5 library is to read it, or to say what is wrong with it."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_size > HEAD_BYTES:
            return None
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # a writer holds the lock
        data = os.pread(file, HEAD_BYTES + 1, 0)
        require(len(data) == status.st_size)
        return _group(path, "/", data, parse(data))
    except FAILURES:
        return None
    finally:
        os.close(file)


def _group(path: Path, name: str, data: bytes, node: Node) -> PlainGroup:
    messages, attributes = _messages(node)
    require(messages.keys() == {SYMBOL_TABLE} and all(a < b for a, b in pairwise(node.members)))
    members: dict[str, _Object] = {}
    for raw, member in node.members.items():
        require(raw not in (b"", b".") and b"/" not in raw)
        key = raw.decode()
        is_group = any(kind == SYMBOL_TABLE for kind, _ in member.messages)
        make = _group if is_group else _dataset
        members[key] = make(path, f"{name.rstrip('/')}/{key}", data, member)
    return PlainGroup(path, name, attributes, members)


def _dataset(path: Path, name: str, data: bytes, node: Node) -> PlainDataset:
    messages, attributes = _messages(node)
    require(messages.keys() == {DATASPACE, DATATYPE, LAYOUT})
    shape, dtype, layout = _shape(messages[DATASPACE]), _number(messages[DATATYPE]), messages[LAYOUT]
    require(layout.startswith(_CONTIGUOUS))
    address, size = struct.unpack_from("<QQ", layout, 2)
    count = math.prod(shape)
    require(count and size == count * dtype.itemsize and address + size <= len(data))
    return PlainDataset(path, name, attributes, np.frombuffer(data, dtype, count, address).reshape(shape))


def _messages(node: Node) -> tuple[dict[int, bytes], dict[str, NDArray[Any]]]:
    """Messages by kind, of which each is there once, and the attributes by name."""
    found: dict[int, bytes] = {}
    attributes: dict[bytes, NDArray[Any]] = {}
    for kind, data in node.messages:
        if kind == ATTRIBUTE:
            name, value = _attribute(data)
            require(name and name not in attributes)
            attributes[name] = value
        else:
            require(kind not in found)
            found[kind] = data
    return found, {name.decode(): attributes[name] for name in sorted(attributes)}


def _attribute(data: bytes) -> tuple[bytes, NDArray[Any]]:
    name, described, space, stored = attribute_parts(data)
    shape = _shape(space)
    count = math.prod(shape)
    require(name.endswith(b"\0") and count)
    if described == _BOOL:
        values = np.frombuffer(stored, np.uint8, count)
        require(values.max() <= 1)
        values = values.view(bool)
    else:
        values = np.frombuffer(stored, _number(described), count)
    return name.partition(b"\0")[0], values.reshape(shape)


@lru_cache(256)
def _number(described: bytes) -> np.dtype[Any]:
    dtype = _NUMBERS.get(described[: _LENGTHS.get(described[0], 0)])
    require(dtype is not None)
    return dtype  # type: ignore[return-value]


@lru_cache(256)
def _shape(space: bytes) -> tuple[int, ...]:
    version, axes, flags = space[:3]
    require(version == 1 and axes <= 32 and flags in (0, 1))
    return struct.unpack_from(f"<{axes}Q", space, 8)
