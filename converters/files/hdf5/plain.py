"""Small HDF5 files of the simplest form, read whole, at a fraction of the time that the HDF5 library takes.

Groups that hold each other and datasets once, without any link; numbers in the forms of NumPy, one after the
other; attributes of such numbers. The library reads all other files, those that another process has open for
writing among them, and says what is wrong. Groups and datasets have what this package uses of h5py's.
"""

from __future__ import annotations

import fcntl
import math
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import h5py
import numpy as np
from numpy.typing import NDArray

from unistore.converters.files.hdf5.structure import (
    ATTRIBUTE,
    DATASPACE,
    DATATYPE,
    FAILURES,
    FILL,
    HEAD_BYTES,
    LAYOUT,
    SYMBOL_TABLE,
    TIME,
    UNDEFINED,
    Node,
    attribute_parts,
    parse,
    require,
)


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
_DEFAULT_FILL = b"\2\2\2\1\0\0\0\0"
_RANKS_AND_FLAGS = b"\4\0\x10\0\0\0\0\0"
"""Of the superblock, as h5py writes them."""
_A_TIME = b"\1\0\0\0\0\0\0\0"
_GAP = 64
"""Bytes between two ranges that are compared as one."""
_MOST_KNOWN = 64


@dataclass(slots=True, eq=False)
class _Object:
    """A group or dataset: its path in the file, its attributes as they are stored, the file and its bytes."""

    name: str
    attributes: dict[str, NDArray[Any]]
    path: Path
    data: bytes

    @property
    def attrs(self) -> dict[str, Any]:
        """Attributes as h5py returns them."""
        return {name: value[()] for name, value in self.attributes.items()}


@dataclass(slots=True, eq=False)
class PlainDataset(_Object):
    """A dataset; its values begin at `offset` of its file."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int
    chunks: ClassVar[None] = None
    is_virtual: ClassVar[bool] = False

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def values(self) -> NDArray[Any]:
        """All its values, read-only."""
        return np.frombuffer(self.data, self.dtype, math.prod(self.shape), self.offset).reshape(self.shape)

    def __getitem__(self, key: Any) -> Any:
        return self.values.copy()[key]

    def of(self, path: Path, data: bytes) -> PlainDataset:
        """The same dataset of a file that is alike but for values."""
        return PlainDataset(self.name, self.attributes, path, data, self.dtype, self.shape, self.offset)


@dataclass(slots=True, eq=False)
class PlainGroup(_Object):
    """A group, the root among them."""

    members: dict[str, PlainGroup | PlainDataset]

    def __iter__(self) -> Iterator[str]:
        return iter(self.members)

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
                found = found.members.get(name) if isinstance(found, PlainGroup) else None
        return found

    def of(self, path: Path, data: bytes) -> PlainGroup:
        """The same group of a file that is alike but for values."""
        members = {name: member.of(path, data) for name, member in self.members.items()}
        return PlainGroup(self.name, self.attributes, path, data, members)


def read_plain(file: int, size: int, path: Path) -> PlainGroup | None:
    """The root group of a file, if it can be read without the HDF5 library.

    Raises
    ------
    Exception
        One of `FAILURES`: if its structure is not simple, or not sound.
    """
    data = os.pread(file, min(size, HEAD_BYTES), 0)
    if len(data) < size or not _no_writer_has(file):
        parse(file, size, data)
        return None
    return _root(file, path, data)


def _no_writer_has(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


class _Known(NamedTuple):
    """A file that was parsed: what decides its structure, and its root group."""

    ranges: list[slice]
    decisive: list[bytes]
    root: PlainGroup


_known: dict[int, _Known] = {}
"""By size: many files are written alike, and differ in values alone."""


def _root(file: int, path: Path, data: bytes) -> PlainGroup | None:
    """The root group of a whole file; parsed unless one before had the same bytes wherever parsing looks."""
    known = _known.get(len(data))
    if known is not None and [data[each] for each in known.ranges] == known.decisive:
        return known.root.of(path, data)
    node, read = parse(file, len(data), data)
    try:
        require(data[16:24] == _RANKS_AND_FLAGS)
        require(struct.unpack_from("<QQ", data, 32) == (UNDEFINED, len(data)))
        root = _group("/", path, data, node)
    except FAILURES:
        return None
    ranges: list[slice] = []
    for lo, hi in sorted(read):
        if ranges and lo <= ranges[-1].stop + _GAP:
            ranges[-1] = slice(ranges[-1].start, max(hi, ranges[-1].stop))
        else:
            ranges.append(slice(lo, hi))
    if len(_known) >= _MOST_KNOWN:
        _known.clear()
    _known[len(data)] = _Known(ranges, [data[each] for each in ranges], root)
    return root


def _group(name: str, path: Path, data: bytes, node: Node) -> PlainGroup:
    messages, attributes = _messages(node)
    require(messages.keys() == {SYMBOL_TABLE} and all(a < b for a, b in pairwise(node.members)))
    members: dict[str, PlainGroup | PlainDataset] = {}
    for raw, member in node.members.items():
        require(raw not in (b"", b".") and b"/" not in raw)
        key = raw.decode()
        is_group = any(kind == SYMBOL_TABLE for kind, _ in member.messages)
        make = _group if is_group else _dataset
        members[key] = make(f"{name.rstrip('/')}/{key}", path, data, member)
    return PlainGroup(name, attributes, path, data, members)


def _dataset(name: str, path: Path, data: bytes, node: Node) -> PlainDataset:
    messages, attributes = _messages(node)
    time = messages.pop(TIME, _A_TIME)
    require(len(time) == len(_A_TIME) and time[0] == _A_TIME[0])
    require(messages.keys() == {DATASPACE, DATATYPE, FILL, LAYOUT} and messages[FILL] == _DEFAULT_FILL)
    shape, dtype, layout = _shape(messages[DATASPACE]), _number(messages[DATATYPE]), messages[LAYOUT]
    require(layout.startswith(_CONTIGUOUS))
    address, stored = struct.unpack_from("<QQ", layout, 2)
    count = math.prod(shape)
    require(count and stored == count * dtype.itemsize and address + stored <= len(data))
    return PlainDataset(name, attributes, path, data, dtype, shape, address)


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
    require(name.find(b"\0") == len(name) - 1 and count)
    if described == _BOOL:
        values = np.frombuffer(stored, np.uint8, count)
        require(values.max() <= 1)
        values = values.view(bool)
    else:
        values = np.frombuffer(stored, _number(described), count)
    return name[:-1], values.reshape(shape)


@lru_cache(256)
def _number(described: bytes) -> np.dtype[Any]:
    dtype = _NUMBERS.get(described[: _LENGTHS.get(described[0], 0)])
    require(dtype is not None)
    return dtype  # type: ignore[return-value]


@lru_cache(256)
def _shape(space: bytes) -> tuple[int, ...]:
    version, axes, has_limits = space[:3]
    require(version == 1 and axes <= 32 and has_limits in (0, 1))
    shape = struct.unpack_from(f"<{axes}Q", space, 8)
    require(not has_limits or struct.unpack_from(f"<{axes}Q", space, 8 + 8 * axes) == shape)
    return shape
