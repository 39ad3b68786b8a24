"""Make the function that decodes one chunk: every check first, then straight into the output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.zarr3.blosc import HEADER_SIZES, VERSION, Blosc, blosc, check_blosc
from unistore.zarr3.crc32c import RESIDUE, Crc32c, check_crc, crc32c
from unistore.zarr3.frames import ByteCodec, Bytes, FrameError, max_encoded_size

Decoded = bytes | NDArray[Any]
Decoder = Callable[[bytes, NDArray[Any] | None], Decoded]
"""``decode(raw, out)``: a stored chunk into `out`, C-contiguous and of the chunk's size; None: new memory."""


@dataclass(frozen=True, slots=True)
class Uncompressed:
    """Uncompressed chunks, with or without a crc32c.

    Attributes
    ----------
    nbytes
        Of the chunk.
    trailer
        Bytes of the checksum behind it: 4, or 0 without one.
    """

    nbytes: int
    trailer: int

    def fits(self, sizes: Sequence[int]) -> bool:
        """Whether stored chunks have the size that they must have."""
        return all(size == self.nbytes + self.trailer for size in sizes)

    def view(self, raw: bytes) -> NDArray[np.uint8]:
        """Check a stored chunk, and return its bytes as a view.

        Raises
        ------
        FrameError
            If checksum and size contradict each other.
        """
        if len(raw) != self.nbytes + self.trailer:
            msg = f"{len(raw)} bytes, expected {self.nbytes + self.trailer}"
            raise FrameError(msg)
        if self.trailer and crc32c(raw) != RESIDUE:
            check_crc(raw)
        return np.frombuffer(raw, np.uint8, self.nbytes)

    def check(self, chunk: NDArray[Any], trailer: bytes | bytearray) -> None:
        """Check a chunk that was read apart from its checksum `trailer`.

        Raises
        ------
        FrameError
            If the checksum differs.
        """
        if trailer and crc32c(chunk) != int.from_bytes(trailer, "little"):
            check_crc(chunk.tobytes() + trailer)

    def decode(self, raw: bytes, out: NDArray[Any] | None) -> Decoded:
        """See `Decoder`."""
        return _copied(self.view(raw), out)


def decoder(codecs: Sequence[ByteCodec], nbytes: int) -> Decoder:
    """Make ``decode(raw, out)`` for a chain of byte codecs and chunks of `nbytes` decoded bytes.

    The two chains that unistore writes, ``blosc, crc32c`` and ``crc32c``, have functions of their own; they
    decode without first copying the data away from its checksum.

    Raises
    ------
    FrameError
        From ``decode``, where checksum, frame and sizes contradict each other.
    """
    kinds = tuple(type(codec) for codec in codecs)
    if kinds in {(Blosc, Crc32c), (Blosc,)}:
        return _blosc_decoder(nbytes, checked=len(kinds) == 2)
    if (stored := uncompressed(codecs, nbytes)) is not None:
        return stored.decode
    return _chain_decoder(codecs, nbytes)


def uncompressed(codecs: Sequence[ByteCodec], nbytes: int) -> Uncompressed | None:
    """Reader of uncompressed chunks of `nbytes`; None if these codecs compress."""
    kinds = tuple(type(codec) for codec in codecs)
    return Uncompressed(nbytes, 4 * len(kinds)) if kinds in {(Crc32c,), ()} else None


def _blosc_decoder(nbytes: int, *, checked: bool) -> Decoder:
    sizes, decompress, checksum, residue = HEADER_SIZES.unpack_from, blosc.decompress, crc32c, RESIDUE
    trailer = 4 if checked else 0
    least = 16 + trailer

    def decode(raw: bytes, out: NDArray[Any] | None) -> Decoded:
        if checked and checksum(raw) != residue:
            check_crc(raw)
        size = len(raw)
        if size < least:
            check_blosc(raw, max(size - trailer, 0), nbytes, nbytes)
        decoded, block, encoded = sizes(raw)
        if decoded != nbytes or encoded + trailer != size or not 0 < block <= decoded or raw[0] != VERSION:
            check_blosc(raw, size - trailer, nbytes, nbytes)
        try:
            return decompress(raw, out)  # type: ignore[no-any-return]
        except (RuntimeError, ValueError) as error:
            raise FrameError(str(error)) from error

    return decode


def _chain_decoder(codecs: Sequence[ByteCodec], nbytes: int) -> Decoder:
    sizes: list[int | None] = [nbytes]
    for codec in codecs[:-1]:
        sizes.append(codec.encoded_size(sizes[-1]))
    steps = list(zip(codecs, sizes, strict=True))[::-1]
    limit = max_encoded_size(nbytes)

    def decode(raw: bytes, out: NDArray[Any] | None) -> Decoded:
        data = np.frombuffer(raw, np.uint8)
        for codec, size in steps:
            data = codec.decode(data, size, limit)
        return _copied(data, out)

    return decode


def _copied(data: Bytes, out: NDArray[Any] | None) -> NDArray[Any]:
    if out is None:
        return data
    out.reshape(-1).view(np.uint8)[:] = data
    return out
