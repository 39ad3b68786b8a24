"""Check of the structure of an HDF5 file, before the HDF5 library follows it.

A cyclic list hangs the library; a cyclic tree or a damaged header can crash the process. So the structure is
parsed here first, from the superblock on, if it has the forms that h5py writes by default (HDF5 File Format
Specification 3.0: superblock version 0, object headers version 1, groups as symbol tables). Every address
must lie in the file, the levels of every tree must decrease, every list must end. A file with other forms may
be sound: `trial_process` opens it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator

__all__ = ["is_simple_and_sound"]

_UNDEFINED = 0xFFFF_FFFF_FFFF_FFFF
_HEAD_BYTES = 64 << 10
"""Bytes read at once: small files as a whole."""
_MAX_READ = 1 << 24
"""Limit on the bytes of a header, node or heap."""
_SUPERBLOCK = b"\x89HDF\r\n\x1a\n\0\0\0\0\0\x08\x08\0"
_CONSTANT_OR_NOT_SHARED = 0x05
_NIL, _DATASPACE, _DATATYPE, _OLD_FILL, _FILL, _LAYOUT, _FILTERS, _ATTRIBUTE = 0, 1, 3, 4, 5, 8, 11, 12
_COMMENT, _OLD_TIME, _CONTINUATION, _SYMBOL_TABLE, _TIME, _REFERENCES = 13, 14, 16, 17, 18, 22
_HARMLESS = {_NIL, _DATASPACE, _OLD_FILL, _FILL, _FILTERS, _COMMENT, _OLD_TIME, _TIME, _REFERENCES}
_INTEGER, _FLOAT, _TEXT, _ENUM, _VARIABLE = 0, 1, 3, 8, 9
_COMPACT, _CONTIGUOUS, _CHUNKED = 0, 1, 2
_GROUP_TREE, _CHUNK_TREE = 0, 1
_NO_CACHE, _CACHED_TABLE = 0, 1
_NO_MORE_FREE = (1, _UNDEFINED)

_ENTRY = struct.Struct("<QQII16s")
_HEADER = struct.Struct("<BBHII")
_MESSAGE = struct.Struct("<HHB")
_TREE = struct.Struct("<4sBBHQQ")
_HEAP = struct.Struct("<4sB3xQQQ")
_COLLECTION = struct.Struct("<4sB3xQ")
_PAIR = struct.Struct("<QQ")
_OBJECT = struct.Struct("<HH4xQ")
_REFERENCE = struct.Struct("<IQI")


class _NotSimpleError(Exception):
    """The structure is damaged, or not of the forms that are checked here."""


def is_simple_and_sound(file: int, size: int) -> bool:
    """Whether everything that the library would follow is of the simple kinds, and sound.

    Parameters
    ----------
    file
        Descriptor of the open file.
    size
        Bytes of the file.
    """
    try:
        _StructureCheck(file, size).run()
    except (_NotSimpleError, OSError, struct.error, ValueError, IndexError):
        return False
    return True


def _require(condition: object) -> None:
    if not condition:
        raise _NotSimpleError


class _StructureCheck:
    def __init__(self, file: int, size: int) -> None:
        self._file, self._size = file, size
        self._head = os.pread(file, min(size, _HEAD_BYTES), 0)
        self._visited: set[int] = set()
        """Addresses of headers, nodes and heaps: each may be referred to once."""
        self._collections: dict[int, dict[int, int]] = {}

    def run(self) -> None:
        """Raise `_NotSimpleError` unless everything below the root group is simple and sound."""
        head = self._read(0, 96)
        _require(head.startswith(_SUPERBLOCK))
        base, _, _, driver = struct.unpack_from("<4Q", head, 24)
        _require(base == 0 and driver == _UNDEFINED)
        _, *root = _ENTRY.unpack_from(head, 56)
        todo = [tuple(root)]
        while todo:
            todo += self._check_object(*todo.pop())

    def _read(self, address: int, size: int) -> bytes:
        end = address + size
        if end <= len(self._head):
            return self._head[address:end]
        _require(end <= self._size and size <= _MAX_READ)
        data = os.pread(self._file, size, address)
        _require(len(data) == size)
        return data

    def _visit(self, address: int) -> None:
        _require(address not in self._visited)
        self._visited.add(address)

    def _check_object(
        self, address: int, cached: int, _: int, scratch: bytes
    ) -> list[tuple[int, int, int, bytes]]:
        """Check an object header; returns the members if it is a group."""
        self._visit(address)
        _require(cached in (_NO_CACHE, _CACHED_TABLE))
        table = None
        for kind, data in self._messages(address):
            if kind == _DATATYPE:
                _require(_is_number_or_text(data))
            elif kind == _LAYOUT:
                self._check_layout(data)
            elif kind == _ATTRIBUTE:
                self._check_attribute(data)
            elif kind == _SYMBOL_TABLE:
                _require(table is None)
                table = data[:16]
            else:
                raise _NotSimpleError
        _require(cached == _NO_CACHE or scratch == table)
        return [] if table is None else self._members(*_PAIR.unpack(table))

    def _messages(self, address: int) -> Iterator[tuple[int, bytes]]:
        """Kind and data of the messages of an object header, without those that contain no address."""
        version, _, count, _, size = _HEADER.unpack(self._read(address, _HEADER.size))
        _require(version == 1)
        blocks = [(address + 16, size)]
        for start, length in blocks:
            data, at = self._read(start, length), 0
            while at < length:
                kind, size, flags = _MESSAGE.unpack_from(data, at)
                at += 8
                if at + size > length or flags & ~_CONSTANT_OR_NOT_SHARED:
                    raise _NotSimpleError
                count -= 1
                if kind == _CONTINUATION:
                    blocks.append(_PAIR.unpack_from(data, at))
                    self._visit(blocks[-1][0])
                elif kind not in _HARMLESS:
                    yield kind, data[at : at + size]
                at += size
        _require(count == 0)

    def _check_layout(self, data: bytes) -> None:
        version, form = data[:2]
        _require(version == 3 and form in (_COMPACT, _CONTIGUOUS, _CHUNKED))
        if form == _CHUNKED:
            axes, address = struct.unpack_from("<BQ", data, 2)
            if address != _UNDEFINED:
                self._tree(address, _CHUNK_TREE, 8 + 8 * axes)

    def _check_attribute(self, data: bytes) -> None:
        version, flags, name, datatype, space = struct.unpack_from("<BBHHH", data)
        _require(version in (1, 3) and flags == 0)
        at, width = (8, 8) if version == 1 else (9, 1)
        at += -(-name // width) * width
        described = data[at : at + datatype]
        at += -(-datatype // width) * width + -(-space // width) * width
        if not _is_number_or_text(described):
            _require(described[0] & 15 == _VARIABLE and described[8] & 15 in (_INTEGER, _TEXT))
            values = data[at:]
            for length, address, number in _REFERENCE.iter_unpack(values[: len(values) & ~15]):
                if address not in (0, _UNDEFINED):
                    _require(length <= self._collection(address).get(number, -1))

    def _collection(self, address: int) -> dict[int, int]:
        """Sizes of the objects of a global heap collection, by object number."""
        if address in self._collections:
            return self._collections[address]
        signature, version, size = _COLLECTION.unpack(self._read(address, _COLLECTION.size))
        _require(signature == b"GCOL" and version == 1)
        data, at, found = self._read(address, size), _COLLECTION.size, dict[int, int]()
        while at + _OBJECT.size <= size:
            number, _, length = _OBJECT.unpack_from(data, at)
            _require(number not in found and (number or length >= _OBJECT.size))
            found[number] = length
            at += _OBJECT.size + -(-length // 8) * 8 if number else length
            _require(at <= size)
        self._collections[address] = found
        return found

    def _members(self, tree: int, heap: int) -> list[tuple[int, int, int, bytes]]:
        names, found = self._heap(heap), []
        for address in self._tree(tree, _GROUP_TREE, 8):
            signature, version, count = struct.unpack("<4sBxH", self._read(address, 8))
            _require(signature == b"SNOD" and version == 1)
            for name, *entry in _ENTRY.iter_unpack(self._read(address + 8, count * _ENTRY.size)):
                _require(name < len(names) and names.find(0, name) >= 0)
                found.append((entry[0], entry[1], entry[2], entry[3]))
        return found

    def _heap(self, address: int) -> bytes:
        self._visit(address)
        signature, version, size, free, start = _HEAP.unpack(self._read(address, _HEAP.size))
        _require(signature == b"HEAP" and version == 0)
        data, seen = self._read(start, size), set[int]()
        while free not in _NO_MORE_FREE:
            _require(free not in seen and free + _PAIR.size <= size)
            seen.add(free)
            at = free
            free, length = _PAIR.unpack_from(data, at)
            _require(length >= _PAIR.size and at + length <= size)
        return data

    def _tree(self, address: int, kind: int, key: int) -> list[int]:
        """Check a B-tree level by level; returns the addresses in its leaves."""
        nodes, level = [address], None
        while True:
            children, levels = list[int](), set[int]()
            for position, node in enumerate(nodes):
                self._visit(node)
                signature, found, height, count, left, right = _TREE.unpack(self._read(node, _TREE.size))
                _require(signature == b"TREE" and found == kind)
                _require(left == (nodes[position - 1] if position else _UNDEFINED))
                _require(right == (nodes[position + 1] if position + 1 < len(nodes) else _UNDEFINED))
                levels.add(height)
                if height or kind == _GROUP_TREE:
                    data = self._read(node + _TREE.size, count * (key + 8) + key)
                    children += (
                        address for (address,) in struct.iter_unpack(f"<{key}xQ", data[: count * (key + 8)])
                    )
            _require(len(levels) == 1)
            (height,) = levels
            _require(level is None or height == level - 1)
            if not height:
                for child in children:
                    self._visit(child)
                return children
            nodes, level = children, height


def _is_number_or_text(datatype: bytes) -> bool:
    kind = datatype[0] & 15
    return kind in (_INTEGER, _FLOAT, _TEXT) or (kind == _ENUM and datatype[8] & 15 == _INTEGER)
