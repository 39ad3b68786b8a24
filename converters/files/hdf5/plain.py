"""Whether an HDF5 file's structure is so plain that the HDF5 library cannot be led astray by it.

The library follows what a file says: a list that leads back to itself hangs it, a tree that is its own branch
and many a damaged header end the process. So the structure is read here first, by reference, from the
superblock on, in the forms that h5py writes unless asked for others (HDF5 File Format Specification 3.0:
superblock version 0, object headers version 1, groups as symbol tables). Every address must lie in the file,
every tree must get lower with each step, every list must end. What is not of these forms is not plain, which
says nothing against it: see `trial`.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator

__all__ = ["is_plain"]

_NOWHERE = 0xFFFF_FFFF_FFFF_FFFF
_BEGINNING = 64 << 10
"""Bytes that are read at once: all of most small files."""
_LONGEST = 1 << 24
"""Bytes of a header, node or heap."""
_SUPERBLOCK = b"\x89HDF\r\n\x1a\n\0\0\0\0\0\x08\x08\0"
_CONSTANT_OR_NOT_SHARED = 0x05
_NIL, _DATASPACE, _DATATYPE, _OLD_FILL, _FILL, _LAYOUT, _FILTERS, _ATTRIBUTE = 0, 1, 3, 4, 5, 8, 11, 12
_COMMENT, _OLD_TIME, _CONTINUATION, _SYMBOL_TABLE, _TIME, _REFERENCES = 13, 14, 16, 17, 18, 22
_HARMLESS = {_NIL, _DATASPACE, _OLD_FILL, _FILL, _FILTERS, _COMMENT, _OLD_TIME, _TIME, _REFERENCES}
_INTEGER, _FLOAT, _TEXT, _ENUM, _VARIABLE = 0, 1, 3, 8, 9
_COMPACT, _CONTIGUOUS, _CHUNKED = 0, 1, 2
_GROUP_TREE, _CHUNK_TREE = 0, 1
_NO_CACHE, _CACHED_TABLE = 0, 1
_LAST_FREE = (1, _NOWHERE)

_ENTRY = struct.Struct("<QQII16s")
_HEADER = struct.Struct("<BBHII")
_MESSAGE = struct.Struct("<HHB")
_TREE = struct.Struct("<4sBBHQQ")
_HEAP = struct.Struct("<4sB3xQQQ")
_COLLECTION = struct.Struct("<4sB3xQ")
_PAIR = struct.Struct("<QQ")
_OBJECT = struct.Struct("<HH4xQ")
_REFERENCE = struct.Struct("<IQI")


class _OtherError(Exception):
    """Something else than the plain forms."""


def is_plain(file: int, size: int) -> bool:
    """Whether every structure of a file that the library would follow is of the plain forms, and sound.

    Parameters
    ----------
    file
        Descriptor of the open file.
    size
        Bytes of the file.
    """
    try:
        _Look(file, size).follow()
    except (_OtherError, OSError, struct.error, ValueError, IndexError):
        return False
    return True


def _demand(condition: object) -> None:
    if not condition:
        raise _OtherError


class _Look:
    def __init__(self, file: int, size: int) -> None:
        self._file, self._size = file, size
        self._beginning = os.pread(file, min(size, _BEGINNING), 0)
        self._seen: set[int] = set()
        """Addresses of headers, nodes and heaps: each has one place in a plain file."""
        self._collections: dict[int, dict[int, int]] = {}

    def follow(self) -> None:
        """Raise unless everything below the root group is plain."""
        head = self._at(0, 96)
        _demand(head.startswith(_SUPERBLOCK))
        base, _, _, driver = struct.unpack_from("<4Q", head, 24)
        _demand(base == 0 and driver == _NOWHERE)
        _, *root = _ENTRY.unpack_from(head, 56)
        todo = [tuple(root)]
        while todo:
            todo += self._object(*todo.pop())

    def _at(self, address: int, size: int) -> bytes:
        end = address + size
        if end <= len(self._beginning):
            return self._beginning[address:end]
        _demand(end <= self._size and size <= _LONGEST)
        data = os.pread(self._file, size, address)
        _demand(len(data) == size)
        return data

    def _once(self, address: int) -> None:
        if address in self._seen:
            raise _OtherError
        self._seen.add(address)

    def _object(self, address: int, cached: int, _: int, scratch: bytes) -> list[tuple[int, int, int, bytes]]:
        """Look at an object header; gives the members of a group."""
        self._once(address)
        _demand(cached in (_NO_CACHE, _CACHED_TABLE))
        table = None
        for kind, data in self._messages(address):
            if kind == _DATATYPE:
                _demand(_is_number_or_text(data))
            elif kind == _LAYOUT:
                self._layout(data)
            elif kind == _ATTRIBUTE:
                self._attribute(data)
            elif kind == _SYMBOL_TABLE:
                _demand(table is None)
                table = data[:16]
            else:
                raise _OtherError
        _demand(cached == _NO_CACHE or scratch == table)
        return [] if table is None else self._members(*_PAIR.unpack(table))

    def _messages(self, address: int) -> Iterator[tuple[int, bytes]]:
        """Messages of an object header, but for those that lead nowhere."""
        version, _, count, _, size = _HEADER.unpack(self._at(address, _HEADER.size))
        _demand(version == 1)
        blocks = [(address + 16, size)]
        for start, length in blocks:
            data, at = self._at(start, length), 0
            while at < length:
                kind, size, flags = _MESSAGE.unpack_from(data, at)
                at += 8
                if at + size > length or flags & ~_CONSTANT_OR_NOT_SHARED:
                    raise _OtherError
                count -= 1
                if kind == _CONTINUATION:
                    blocks.append(_PAIR.unpack_from(data, at))
                    self._once(blocks[-1][0])
                elif kind not in _HARMLESS:
                    yield kind, data[at : at + size]
                at += size
        _demand(count == 0)

    def _layout(self, data: bytes) -> None:
        version, form = data[:2]
        _demand(version == 3 and form in (_COMPACT, _CONTIGUOUS, _CHUNKED))
        if form == _CHUNKED:
            axes, address = struct.unpack_from("<BQ", data, 2)
            if address != _NOWHERE:
                self._tree(address, _CHUNK_TREE, 8 + 8 * axes)

    def _attribute(self, data: bytes) -> None:
        version, flags, name, datatype, space = struct.unpack_from("<BBHHH", data)
        _demand(version in (1, 3) and flags == 0)
        at, width = (8, 8) if version == 1 else (9, 1)
        at += -(-name // width) * width
        described = data[at : at + datatype]
        at += -(-datatype // width) * width + -(-space // width) * width
        if not _is_number_or_text(described):
            _demand(described[0] & 15 == _VARIABLE and described[8] & 15 in (_INTEGER, _TEXT))
            values = data[at:]
            for length, address, number in _REFERENCE.iter_unpack(values[: len(values) & ~15]):
                if address not in (0, _NOWHERE):
                    _demand(length <= self._collection(address).get(number, -1))

    def _collection(self, address: int) -> dict[int, int]:
        """Sizes of the objects of a global heap collection, by their numbers."""
        if address in self._collections:
            return self._collections[address]
        mark, version, size = _COLLECTION.unpack(self._at(address, _COLLECTION.size))
        _demand(mark == b"GCOL" and version == 1)
        data, at, found = self._at(address, size), _COLLECTION.size, dict[int, int]()
        while at + _OBJECT.size <= size:
            number, _, length = _OBJECT.unpack_from(data, at)
            _demand(number not in found and (number or length >= _OBJECT.size))
            found[number] = length
            at += _OBJECT.size + -(-length // 8) * 8 if number else length
            _demand(at <= size)
        self._collections[address] = found
        return found

    def _members(self, tree: int, heap: int) -> list[tuple[int, int, int, bytes]]:
        names, found = self._heap(heap), []
        for address in self._tree(tree, _GROUP_TREE, 8):
            mark, version, count = struct.unpack("<4sBxH", self._at(address, 8))
            _demand(mark == b"SNOD" and version == 1)
            for name, *entry in _ENTRY.iter_unpack(self._at(address + 8, count * _ENTRY.size)):
                _demand(name < len(names) and names.find(0, name) >= 0)
                found.append((entry[0], entry[1], entry[2], entry[3]))
        return found

    def _heap(self, address: int) -> bytes:
        self._once(address)
        mark, version, size, free, start = _HEAP.unpack(self._at(address, _HEAP.size))
        _demand(mark == b"HEAP" and version == 0)
        data, seen = self._at(start, size), set[int]()
        while free not in _LAST_FREE:
            _demand(free not in seen and free + _PAIR.size <= size)
            seen.add(free)
            at = free
            free, length = _PAIR.unpack_from(data, at)
            _demand(length >= _PAIR.size and at + length <= size)
        return data

    def _tree(self, address: int, kind: int, key: int) -> list[int]:
        """Look at a B-tree, level by level; gives what its leaves lead to."""
        nodes, level = [address], None
        while True:
            children, levels = list[int](), set[int]()
            for place, node in enumerate(nodes):
                self._once(node)
                mark, found, height, count, left, right = _TREE.unpack(self._at(node, _TREE.size))
                _demand(mark == b"TREE" and found == kind)
                _demand(left == (nodes[place - 1] if place else _NOWHERE))
                _demand(right == (nodes[place + 1] if place + 1 < len(nodes) else _NOWHERE))
                levels.add(height)
                if height or kind == _GROUP_TREE:
                    data = self._at(node + _TREE.size, count * (key + 8) + key)
                    children += (
                        address for (address,) in struct.iter_unpack(f"<{key}xQ", data[: count * (key + 8)])
                    )
            _demand(len(levels) == 1)
            (height,) = levels
            _demand(level is None or height == level - 1)
            if not height:
                for child in children:
                    self._once(child)
                return children
            nodes, level = children, height


def _is_number_or_text(datatype: bytes) -> bool:
    kind = datatype[0] & 15
    return kind in (_INTEGER, _FLOAT, _TEXT) or (kind == _ENUM and datatype[8] & 15 == _INTEGER)
