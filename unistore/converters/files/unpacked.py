"""Streams of compressed bytes of which no more is decoded at a time than is asked for."""

from __future__ import annotations

import bz2
import lzma
import zipfile
import zlib
from collections.abc import Callable
from functools import partial
from io import SEEK_SET, RawIOBase
from typing import IO, Any

from isal import isal_zlib

_BLOCK = 1 << 16  # compressed bytes that are read at a time
_SKIPPED = 1 << 20  # decoded bytes that are skipped at a time
_LEAST_DICTIONARY = 1 << 12  # of LZMA


class Unpacked(RawIOBase):
    """The bytes that a compressed stream in a file decodes to, from its first byte at `start` on.

    Reading goes on where the reading before ended, or begins again. A stream that ends too early raises
    `EOFError`, one whose first `size` bytes have another CRC-32 than `crc` a `zipfile.BadZipFile`.
    """

    def __init__(
        self,
        file: IO[bytes],
        start: int,
        decompressor: Callable[[], Any],
        size: int = 0,
        crc: int | None = None,
    ) -> None:
        self._file = file
        self._start = start
        self._decompressor = decompressor
        self._size = size
        self._expected_crc = crc
        self._begin()

    def _begin(self) -> None:
        self._unpacker = self._decompressor()
        self._packed = b""
        self._next = self._start  # next byte of the file
        self._position = 0
        self._crc = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = SEEK_SET, /) -> int:
        """Decode up to a byte, counted from the first."""
        assert whence == SEEK_SET
        if offset < self._position:
            self._begin()
        skipped = memoryview(bytearray(min(_SKIPPED, offset - self._position)))
        while self._position < offset and self.readinto(skipped[: offset - self._position]):
            pass
        return self._position

    def readinto(self, target: Any, /) -> int:
        """Decode the next bytes, at most as many as there is room for. 0: the stream has ended."""
        content: bytes = b""
        while not content and not self._unpacker.eof:
            is_end = False
            if not self._packed and getattr(self._unpacker, "needs_input", True):
                self._file.seek(self._next)
                self._packed = self._file.read(_BLOCK)
                self._next += len(self._packed)
                is_end = not self._packed
            content = self._unpacker.decompress(self._packed, len(target))
            # What bz2 has not decoded it keeps itself
            self._packed = getattr(self._unpacker, "unconsumed_tail", b"")
            if is_end and not content and not self._unpacker.eof:
                raise EOFError("its compressed bytes are cut off")
        target[: len(content)] = content
        self._position += len(content)
        if self._expected_crc is not None:
            self._crc = zlib.crc32(content, self._crc)
            if self._position == self._size and self._crc != self._expected_crc:
                raise zipfile.BadZipFile(f"its CRC-32 is {self._crc:#010x}, not {self._expected_crc:#010x}")
        return len(content)


def inflated(file: IO[bytes], start: int) -> Unpacked:
    """Open a stream of zlib in a file."""
    return Unpacked(file, start, isal_zlib.decompressobj)


def decoded_bzip2(file: IO[bytes], start: int) -> Unpacked:
    """Open a stream of bzip2 in a file. zipfile decodes a kilobyte of it at once, which may be gigabytes."""
    return Unpacked(file, start, bz2.BZ2Decompressor)


def decoded_lzma(file: IO[bytes], start: int, size: int, crc: int) -> Unpacked:
    """Open a member of a ZIP archive in LZMA, of `size` bytes. zipfile decodes all of it at once."""
    # PKWARE APPNOTE 5.8.8: two bytes of version, two with the length of the properties, and these
    file.seek(start)
    head = file.read(9)
    if len(head) < 9 or head[2:4] != b"\5\0" or head[4] >= 9 * 5 * 5:
        raise zipfile.BadZipFile("its LZMA properties are invalid")
    rest, lc = divmod(head[4], 9)
    pb, lp = divmod(rest, 5)
    # No match lies further back than the member is long, so that a dictionary of gigabytes is not needed
    dictionary = min(int.from_bytes(head[5:9], "little"), max(size, _LEAST_DICTIONARY))
    form = {"id": lzma.FILTER_LZMA1, "dict_size": max(dictionary, _LEAST_DICTIONARY)}
    filters = [{**form, "lc": lc, "lp": lp, "pb": pb}]
    decompressor = partial(lzma.LZMADecompressor, lzma.FORMAT_RAW, filters=filters)
    return Unpacked(file, start + len(head), decompressor, size, crc)
