"""Make the function that encodes one chunk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.zarr3.blosc import Blosc, compressor
from unistore.zarr3.crc32c import Crc32c, crc32c
from unistore.zarr3.frames import Buffers, ByteCodec

Encoder = Callable[[NDArray[Any]], Buffers]
"""``encode(chunk)``: a C-contiguous chunk into buffers whose concatenation is stored."""


def encoder(codecs: Sequence[ByteCodec], itemsize: int) -> Encoder:
    """Make ``encode(chunk)`` for a chain of byte codecs and chunks of elements of `itemsize` bytes.

    The chain that unistore writes most, ``blosc, crc32c``, has a function of its own.
    """
    match codecs:
        case [Blosc() as blosc, Crc32c()] if blosc.typesize % itemsize == 0:
            return _blosc_encoder(blosc, itemsize)
    return _chain_encoder(codecs)


def _blosc_encoder(codec: Blosc, itemsize: int) -> Encoder:
    compress, several = compressor(codec), codec.typesize // itemsize
    element = np.dtype(f"V{codec.typesize}")

    def encode(chunk: NDArray[Any]) -> Buffers:
        if several > 1 and chunk.size % several == 0:
            chunk = chunk.reshape(-1).view(element)
        frame = compress(chunk)
        return [frame, crc32c(frame).to_bytes(4, "little")]

    return encode


def _chain_encoder(codecs: Sequence[ByteCodec]) -> Encoder:
    def encode(chunk: NDArray[Any]) -> Buffers:
        buffers: Buffers = [chunk.reshape(-1).view(np.uint8).data]
        for codec in codecs:
            buffers = codec.encode(buffers)
        return buffers

    return encode
