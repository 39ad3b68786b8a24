"""Streams of compressed bytes of which no more is decoded at a time than is asked for."""

from __future__ import annotations

import bz2
from collections.abc import Callable
from io import SEEK_SET, RawIOBase
from typing import IO, Any

from isal import isal_zlib

_BLOCK = 1 << 16  # compressed bytes that are read at a time
_SKIPPED = 1 << 20  # decoded bytes that are skipped at a time


class Unpacked(RawIOBase):
    """The bytes that a compressed stream in a file decodes to, from its first byte at `start` on.

    Reading goes on where the reading before ended, or begins again. A stream that ends too early raises
    `EOFError`.
    """

    def __init__(self, file: IO[bytes], start: int, decompressor: Callable[[], Any]) -> None:
        self._file = file
        self._start = start
        self._decompressor = decompressor
        self._begin()

    def _begin(self) -> None:
        self._unpacker = self._decompressor()
        self._packed = b""
        self._next = self._start  # next byte of the file
        self._position = 0

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
                raise EOFError("ends inside its compressed bytes")
        target[: len(content)] = content
        self._position += len(content)
        return len(content)


def inflated(file: IO[bytes], start: int) -> Unpacked:
    """Open a stream of zlib in a file."""
    return Unpacked(file, start, isal_zlib.decompressobj)


def decoded_bzip2(file: IO[bytes], start: int) -> Unpacked:
    """Open a stream of bzip2 in a file. zipfile decodes a kilobyte of it at once, which may be gigabytes."""
    return Unpacked(file, start, bz2.BZ2Decompressor)
