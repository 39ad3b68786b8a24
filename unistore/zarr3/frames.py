"""Shared by the byte codecs: their protocol, the error for damaged frames, checks of options."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from unistore.errors import StoreError
from unistore.zarr3.documents import shown
from unistore.zarr3.unsupported import unsupported

Buffers = list[bytes | memoryview]
"""Parts of one encoded chunk; their concatenation is stored."""

Bytes = NDArray[np.uint8]


class FrameError(Exception):
    """Stored bytes of one chunk contradict their checksum, their frame or the chunk's size."""


class ByteCodec(Protocol):
    """One codec from bytes to bytes, as listed behind ``bytes`` in a chain."""

    @classmethod
    def from_json(cls, configuration: dict[str, Any], where: str) -> ByteCodec:
        """Parse the codec's ``configuration``."""

    def to_json(self) -> dict[str, Any]:
        """The codec as listed in ``codecs``."""

    def encode(self, buffers: Buffers) -> Buffers:
        """Encode the concatenation of `buffers`."""

    def decode(self, raw: Bytes, nbytes: int | None, limit: int) -> Bytes:
        """Decode to `nbytes` bytes, or, where None, to at most `limit`; else raise `FrameError`."""

    def encoded_size(self, nbytes: int | None) -> int | None:
        """Bytes that `nbytes` bytes are encoded to; None where that depends on them."""


def max_encoded_size(nbytes: int) -> int:
    """Upper bound on the bytes of a chunk of `nbytes` after any codec of its chain.

    Incompressible data, encoded by a whole chain, stays below it.
    """
    return 2 * nbytes + 65536


def joined(buffers: Buffers) -> bytes | memoryview:
    """Concatenate buffers; a single one is not copied."""
    return buffers[0] if len(buffers) == 1 else b"".join(buffers)


def check_options(configuration: dict[str, Any], known: tuple[str, ...], codec: str, where: str) -> None:
    """Refuse options that the engine does not know.

    Raises
    ------
    UnsupportedError
        Naming the first one.
    """
    unknown = sorted(set(configuration) - set(known))
    if unknown:
        raise unsupported(where, f"option {shown(unknown[0])} of codec {codec!r}", ", ".join(known))


def integer_option(
    configuration: dict[str, Any], name: str, default: int, bounds: tuple[int, int], where: str
) -> int:
    """An integer option of a codec, within `bounds`, both ends included.

    Raises
    ------
    StoreError
        If it is not an integer within `bounds`.
    """
    value = configuration.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not bounds[0] <= value <= bounds[1]:
        msg = f"{where}: codec option {name!r} must be within {bounds[0]}…{bounds[1]}, found {shown(value)}"
        raise StoreError(msg)
    return value
