"""Make the function that decodes one chunk: every check first, then straight into the output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.zarr3.blosc import HEADER_SIZES, VERSION, Blosc, blosc, check_blosc
from unistore.zarr3.compressors import RESIDUE, Crc32c, check_crc, crc32c
from unistore.zarr3.frames import ByteCodec, Bytes, FrameError, check_size, exactly, max_encoded_size

Decoded = bytes | NDArray[Any]
Decoder = Callable[[bytes, NDArray[Any] | None], Decoded]
"""``decode(raw, out)``: a stored chunk into `out`, C-contiguous and of the chunk's size.

None: what is returned starts with the chunk, in memory of its own or in `raw`.
"""


@dataclass(frozen=True, slots=True)
class Uncompressed:
    """Uncompressed chunks of `nbytes`, each with a checksum of `trailer` bytes behind it: 4, or 0."""

    nbytes: int
    trailer: int

    def fits(self, sizes: Sequence[int]) -> bool:
        """Whether stored chunks have the size that they must have."""
        return all(size == self.nbytes + self.trailer for size in sizes)

    def check(self, chunk: NDArray[Any], trailer: bytes | bytearray) -> None:
        """Check a chunk that was read apart from its checksum `trailer`; raises `FrameError`."""
        if trailer and crc32c(chunk) != int.from_bytes(trailer, "little"):
            check_crc(chunk.tobytes() + trailer)

    def decode(self, raw: bytes, out: NDArray[Any] | None) -> Decoded:
        """See `Decoder`."""
        if len(raw) != self.nbytes + self.trailer:
            check_size(len(raw), exactly(self.nbytes + self.trailer), "chunk")
        if self.trailer and crc32c(raw) != RESIDUE:
            check_crc(raw)
        return raw if out is None else _copied(np.frombuffer(raw, np.uint8, self.nbytes), out)


def decoder(codecs: Sequence[ByteCodec], nbytes: int) -> Decoder:
    """Make ``decode(raw, out)`` for a chain of byte codecs and chunks of `nbytes` decoded bytes.

    The two chains that unistore writes, ``blosc, crc32c`` and ``crc32c``, have functions of their own; they
    decode without first copying the data away from its checksum.
    """
    match codecs:
        case [Blosc()] | [Blosc(), Crc32c()]:
            return _blosc_decoder(nbytes, trailer=4 * (len(codecs) - 1))
    stored = uncompressed(codecs, nbytes)
    return _chain_decoder(codecs, nbytes) if stored is None else stored.decode


def uncompressed(codecs: Sequence[ByteCodec], nbytes: int) -> Uncompressed | None:
    """Reader of uncompressed chunks of `nbytes`; None if these codecs compress."""
    match codecs:
        case [] | [Crc32c()]:
            return Uncompressed(nbytes, 4 * len(codecs))
    return None


def _blosc_decoder(nbytes: int, trailer: int) -> Decoder:
    unpack, decompress, checksum, residue = HEADER_SIZES.unpack_from, blosc.decompress, crc32c, RESIDUE
    least, expected = 16 + trailer, exactly(nbytes)

    def decode(raw: bytes, out: NDArray[Any] | None) -> Decoded:
        if trailer and checksum(raw) != residue:
            check_crc(raw)
        size = len(raw)
        if size < least:
            check_blosc(raw, max(size - trailer, 0), expected)
        decoded, block, encoded = unpack(raw)
        if decoded != nbytes or encoded + trailer != size or not 0 < block <= decoded or raw[0] != VERSION:
            check_blosc(raw, size - trailer, expected)
        try:
            return decompress(raw, out)  # type: ignore[no-any-return]
        except (RuntimeError, ValueError) as error:
            raise FrameError(str(error)) from error

    return decode


def _chain_decoder(codecs: Sequence[ByteCodec], nbytes: int) -> Decoder:
    sizes, steps = exactly(nbytes), []
    for codec in codecs:
        steps.append((codec, sizes))
        if codec.overhead is None:
            sizes = range(max_encoded_size(nbytes) + 1)
        elif len(sizes) == 1:
            sizes = exactly(sizes[0] + codec.overhead)
    steps.reverse()

    def decode(raw: bytes, out: NDArray[Any] | None) -> Decoded:
        data = np.frombuffer(raw, np.uint8)
        for codec, expected in steps:
            data = codec.decode(data, expected)
        return _copied(data, out)

    return decode


def _copied(data: Bytes, out: NDArray[Any] | None) -> NDArray[Any]:
    if out is None:
        return data
    out.reshape(-1).view(np.uint8)[:] = data
    return out
