"""Sizes of the pages of Parquet files, by their headers: what a reader holds of a column."""

# https://parquet.apache.org/docs/file-format: a header is a struct of Thrift's compact protocol, of which
# field 2 is the size of the page as it is encoded, and field 3 as it is stored behind the header. The header
# of a data page is field 5, or 8 of its second version, and there field 1 is the number of values; that of a
# dictionary is field 7.

from __future__ import annotations

from typing import IO, Any, NamedTuple

_HEAD = 1 << 16  # bytes of a header that are looked at
_UNCOMPRESSED = (2,)
_STORED = (3,)
_VALUES = ((5, 1), (8, 1))
_OF_DICTIONARY = (7, 1)
_STOP, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 0, 7, 8, 9, 10, 11, 12


class Pages(NamedTuple):
    """The largest pages of a column of a row group."""

    size: int  # bytes of any page, stored or as it is encoded
    values: int  # of a page of data: a few bytes may hold any number of equal ones
    dictionary: int  # bytes of the dictionary, of which any value may be the longest entry


def largest_pages(file: IO[bytes], column: Any) -> Pages:
    """Return the largest pages of a column of a row group.

    A damaged header raises `ValueError`.
    """
    start = column.data_page_offset
    if column.has_dictionary_page and 0 < column.dictionary_page_offset < start:
        start = column.dictionary_page_offset
    stop = start + column.total_compressed_size
    largest = Pages(0, 0, 0)
    while start < stop:
        file.seek(start)
        header = _Struct(file.read(_HEAD))
        numbers = header.numbers()
        size, stored = numbers.get(_UNCOMPRESSED, -1), numbers.get(_STORED, -1)
        if size < 0 or stored < 0:
            raise ValueError(f"there is no page at byte {start:,}")
        values = max(numbers.get(field, 0) for field in _VALUES)
        page = Pages(max(size, stored), values, size if _OF_DICTIONARY in numbers else 0)
        largest = Pages(*map(max, largest, page))
        start += header.position + stored
    return largest


class _Struct:
    """Bytes that begin with a struct."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.position = 0

    def numbers(self, within: tuple[int, ...] = ()) -> dict[tuple[int, ...], int]:
        """Read the struct, and return its whole numbers by field, those of structs in it by both fields."""
        numbers: dict[tuple[int, ...], int] = {}
        number = 0
        while True:
            head = self._byte()
            kind = head & 15
            if kind == _STOP:
                return numbers
            number = number + (head >> 4) if head >> 4 else self._zigzag()
            if 4 <= kind <= 6:
                numbers[*within, number] = self._zigzag()
            elif kind == _STRUCT:
                numbers |= self.numbers((*within, number))
            else:
                self._skip(kind)

    def _skip(self, kind: int) -> None:
        if 4 <= kind <= 6:
            self._varint()
        elif kind == _BINARY:
            length = self._varint()
            self.position += length
        elif kind == _STRUCT:
            self.numbers()
        elif kind in (_LIST, _SET):
            head = self._byte()
            count = head >> 4 if head >> 4 < 15 else self._varint()
            for _ in range(count):
                self._skip(head & 15)
        elif kind == _MAP:
            raise ValueError("the header of a page contains a map, which is not allowed")
        elif kind == _DOUBLE:
            self.position += 8
        elif kind == 3:
            self.position += 1

    def _byte(self) -> int:
        if self.position >= len(self._content):
            raise ValueError("it ends inside the header of a page")
        self.position += 1
        return self._content[self.position - 1]

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def _zigzag(self) -> int:
        value = self._varint()
        return value >> 1 ^ -(value & 1)
