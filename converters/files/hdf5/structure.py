"""Check of the structure of an HDF5 file, before the HDF5 library follows it.

A cyclic list hangs the library; a cyclic tree or a damaged header can crash the process. So the structure is
parsed here first, from the superblock on, if it has the forms that h5py writes by default (HDF5 File Format
Specification 3.0: superblock version 0, object headers version 1, groups as symbol tables). Every address
must lie in the file, the levels of every tree must decrease, every list must end. A file with other forms may
be sound: `trial_process` opens it. What was parsed of a small file is enough to read it: see `plain`.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

UNDEFINED = 0xFFFF_FFFF_FFFF_FFFF
HEAD_BYTES = 64 << 10
"""Bytes read at once: small files as a whole."""
_MAX_READ = 1 << 24
"""Limit on the bytes of a header, node or heap."""
_SUPERBLOCK = b"\x89HDF\r\n\x1a\n\0\0\0\0\0\x08\x08\0"
_CONSTANT_OR_NOT_SHARED = 0x05
_NIL, DATASPACE, DATATYPE, _OLD_FILL, FILL, LAYOUT, _FILTERS, ATTRIBUTE = 0, 1, 3, 4, 5, 8, 11, 12
_COMMENT, _OLD_TIME, _CONTINUATION, SYMBOL_TABLE, TIME, _REFERENCES = 13, 14, 16, 17, 18, 22
_HARMLESS = {DATASPACE, _OLD_FILL, FILL, _FILTERS, _COMMENT, _OLD_TIME, TIME, _REFERENCES}
"""Kinds of messages that contain no address."""
_INTEGER, _FLOAT, _TEXT, _ENUM, _VARIABLE = 0, 1, 3, 8, 9
_COMPACT, _CONTIGUOUS, _CHUNKED = 0, 1, 2
_GROUP_TREE, _CHUNK_TREE = 0, 1
_NO_CACHE, _CACHED_TABLE = 0, 1
_NO_MORE_FREE = (1, UNDEFINED)

_ENTRY = struct.Struct("<QQII16s")
_HEADER = struct.Struct("<BBHII")
_MESSAGE = struct.Struct("<HHB")
_TREE = struct.Struct("<4sBBHQQ")
_HEAP = struct.Struct("<4sB3xQQQ")
_COLLECTION = struct.Struct("<4sB3xQ")
_PAIR = struct.Struct("<QQ")
_Entry = tuple[int, int, int, int, bytes]
"""Offset of the name, address of the header, and what is cached of it."""
_OBJECT = struct.Struct("<HH4xQ")
_REFERENCE = struct.Struct("<IQI")


class NotSimpleError(Exception):
    """The structure is damaged, or not of the forms that are checked here."""


@dataclass(slots=True)
class Node:
    """An object: kind and data of the messages in its header, and the members if it is a group."""

    messages: list[tuple[int, bytes]] = field(default_factory=list)
    members: dict[bytes, Node] = field(default_factory=dict)


FAILURES = (NotSimpleError, OSError, struct.error, ValueError, IndexError, OverflowError, RecursionError)
"""What parsing raises where a file is damaged, or not simple."""


def parse(file: int, size: int, head: bytes) -> tuple[Node, list[tuple[int, int]]]:
    """Check everything that the library would follow.

    Parameters
    ----------
    file, size, head
        Descriptor of the open file, its bytes, and the first of them, at most `HEAD_BYTES`.

    Returns
    -------
    Node, list of (int, int)
        If `head` is the whole file: the root group, and the ranges of bytes that decide what it is.

    Raises
    ------
    NotSimpleError, OSError, struct.error, ValueError, IndexError
        See `FAILURES`: if something is not of the simple kinds, or not sound.
    """
    check = _StructureCheck(file, size, head)
    return check.run(), check.ranges


def require(condition: object) -> None:
    """Raise `NotSimpleError` unless a condition holds."""
    if not condition:
        raise NotSimpleError


class _StructureCheck:
    def __init__(self, file: int, size: int, head: bytes) -> None:
        self._file, self._size, self._head = file, size, head
        self._whole = len(head) == size
        self.ranges: list[tuple[int, int]] = []
        """What was read, if the head is the whole file."""
        self._visited: set[int] = set()
        """Addresses of headers, nodes and heaps: each may be referred to once."""
        self._collections: dict[int, dict[int, int]] = {}

    def run(self) -> Node:
        head = self._read(0, 96)
        require(head.startswith(_SUPERBLOCK))
        base, _, _, driver = struct.unpack_from("<4Q", head, 24)
        require(base == 0 and driver == UNDEFINED)
        root = Node()
        todo = [(root, _ENTRY.unpack_from(head, 56))]
        while todo:
            node, entry = todo.pop()
            for name, member in self._check_object(node, *entry[1:]):
                below = Node()
                if self._whole:
                    require(name not in node.members)
                    node.members[name] = below
                todo.append((below, member))
        return root

    def _read(self, address: int, size: int) -> bytes:
        end = address + size
        if self._whole:
            self.ranges.append((address, end))
        if end <= len(self._head):
            return self._head[address:end]
        require(end <= self._size and size <= _MAX_READ)
        data = os.pread(self._file, size, address)
        require(len(data) == size)
        return data

    def _visit(self, address: int) -> None:
        require(address not in self._visited)
        self._visited.add(address)

    def _check_object(
        self, node: Node, address: int, cached: int, _: int, scratch: bytes
    ) -> list[tuple[bytes, _Entry]]:
        """Check an object header; returns names and entries of the members if it is a group."""
        self._visit(address)
        require(cached in (_NO_CACHE, _CACHED_TABLE))
        table = None
        for kind, data in self._messages(address):
            if kind == DATATYPE:
                require(_is_number_or_text(data))
            elif kind == LAYOUT:
                self._check_layout(data)
            elif kind == ATTRIBUTE:
                self._check_attribute(data)
            elif kind == SYMBOL_TABLE:
                require(table is None)
                table = data[:16]
            elif kind not in _HARMLESS:
                raise NotSimpleError
            node.messages.append((kind, data))
        require(cached == _NO_CACHE or scratch == table)
        return [] if table is None else self._members(*_PAIR.unpack(table))

    def _messages(self, address: int) -> Iterator[tuple[int, bytes]]:
        """Kind and data of the messages of an object header."""
        version, _, count, _, size = _HEADER.unpack(self._read(address, _HEADER.size))
        require(version == 1)
        blocks = [(address + 16, size)]
        for start, length in blocks:
            data, at = self._read(start, length), 0
            while at < length:
                kind, size, flags = _MESSAGE.unpack_from(data, at)
                at += 8
                if at + size > length or flags & ~_CONSTANT_OR_NOT_SHARED:
                    raise NotSimpleError
                count -= 1
                if kind == _CONTINUATION:
                    blocks.append(_PAIR.unpack_from(data, at))
                    require(blocks[-1][1])
                    self._visit(blocks[-1][0])
                elif kind != _NIL:
                    yield kind, data[at : at + size]
                at += size
        require(count == 0)

    def _check_layout(self, data: bytes) -> None:
        version, form = data[:2]
        require(version == 3 and form in (_COMPACT, _CONTIGUOUS, _CHUNKED))
        if form == _CHUNKED:
            axes, address = struct.unpack_from("<BQ", data, 2)
            if address != UNDEFINED:
                self._tree(address, _CHUNK_TREE, 8 + 8 * axes)

    def _check_attribute(self, data: bytes) -> None:
        _, described, _, values = attribute_parts(data)
        if not _is_number_or_text(described):
            require(described[0] & 15 == _VARIABLE and described[8] & 15 in (_INTEGER, _TEXT))
            for length, address, number in _REFERENCE.iter_unpack(values[: len(values) & ~15]):
                if address not in (0, UNDEFINED):
                    require(length <= self._collection(address).get(number, -1))

    def _collection(self, address: int) -> dict[int, int]:
        """Sizes of the objects of a global heap collection, by object number."""
        if address in self._collections:
            return self._collections[address]
        signature, version, size = _COLLECTION.unpack(self._read(address, _COLLECTION.size))
        require(signature == b"GCOL" and version == 1)
        data, at, found = self._read(address, size), _COLLECTION.size, dict[int, int]()
        while at + _OBJECT.size <= size:
            number, _, length = _OBJECT.unpack_from(data, at)
            require(number not in found and (number or length >= _OBJECT.size))
            found[number] = length
            at += _OBJECT.size + -(-length // 8) * 8 if number else length
            require(at <= size)
        self._collections[address] = found
        return found

    def _members(self, tree: int, heap: int) -> list[tuple[bytes, _Entry]]:
        names, found = self._heap(heap), list[tuple[bytes, _Entry]]()
        require(names.startswith(b"\0"))  # the key before the first
        for address, last in self._tree(tree, _GROUP_TREE, 8):
            signature, version, count = struct.unpack("<4sBxH", self._read(address, 8))
            require(signature == b"SNOD" and version == 1)
            for entry in _ENTRY.iter_unpack(self._read(address + 8, count * _ENTRY.size)):
                end = names.find(0, entry[0])
                require(end >= 0)
                found.append((names[entry[0] : end], entry))
            require(found and found[-1][1][0] == int.from_bytes(last, "little"))
        return found

    def _heap(self, address: int) -> bytes:
        self._visit(address)
        signature, version, size, free, start = _HEAP.unpack(self._read(address, _HEAP.size))
        require(signature == b"HEAP" and version == 0)
        data, seen = self._read(start, size), set[int]()
        while free not in _NO_MORE_FREE:
            require(free not in seen and free + _PAIR.size <= size)
            seen.add(free)
            at = free
            free, length = _PAIR.unpack_from(data, at)
            require(length >= _PAIR.size and at + length <= size)
        return data

    def _tree(self, address: int, kind: int, key: int) -> list[tuple[int, bytes]]:
        """Check a B-tree level by level; returns the addresses in its leaves, and the key after each."""
        nodes, level = [address], None
        while True:
            children, levels, before = list[tuple[int, bytes]](), set[int](), bytes(key)
            for position, node in enumerate(nodes):
                self._visit(node)
                signature, found, height, count, left, right = _TREE.unpack(self._read(node, _TREE.size))
                require(signature == b"TREE" and found == kind)
                require(left == (nodes[position - 1] if position else UNDEFINED))
                require(right == (nodes[position + 1] if position + 1 < len(nodes) else UNDEFINED))
                levels.add(height)
                if height or kind == _GROUP_TREE:
                    data = self._read(node + _TREE.size, key + count * (8 + key))
                    require(kind == _CHUNK_TREE or data[:key] == before)
                    children += struct.iter_unpack(f"<Q{key}s", data[key:])
                    before = data[-key:]
            require(len(levels) == 1)
            (height,) = levels
            require(level is None or height == level - 1)
            if not height:
                for child, _ in children:
                    self._visit(child)
                return children
            nodes, level = [child for child, _ in children], height


def attribute_parts(data: bytes) -> tuple[bytes, bytes, bytes, bytes]:
    """Name, datatype, dataspace and values in the message of an attribute."""
    version, flags, name, datatype, space = struct.unpack_from("<BBHHH", data)
    require(version in (1, 3) and flags == 0)
    at, width = (8, 8) if version == 1 else (9, 1)
    of_type = at + -(-name // width) * width
    of_space = of_type + -(-datatype // width) * width
    values = of_space + -(-space // width) * width
    return data[at : at + name], data[of_type:][:datatype], data[of_space:][:space], data[values:]


def _is_number_or_text(datatype: bytes) -> bool:
    kind = datatype[0] & 15
    return kind in (_INTEGER, _FLOAT, _TEXT) or (kind == _ENUM and datatype[8] & 15 == _INTEGER)
