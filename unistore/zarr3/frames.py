"""What the byte codecs share: their protocol, the error for damaged frames, checks of sizes and options."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from unistore.zarr3.documents import must_be, shown, unsupported

Buffers = list[bytes | memoryview]
"""Parts of one encoded chunk; their concatenation is stored."""

Bytes = NDArray[np.uint8]


class FrameError(Exception):
    """Stored bytes of one chunk contradict their checksum, their frame or the chunk's size."""


class ByteCodec(Protocol):
    """One codec from bytes to bytes, as listed behind ``bytes`` in a chain."""

    overhead: ClassVar[int | None]
    """Bytes that encoding adds; None where that depends on the data."""

    @classmethod
    def from_json(cls, configuration: dict[str, Any], where: str) -> ByteCodec:
        """Parse the codec's ``configuration``."""

    def to_json(self) -> dict[str, Any]:
        """The codec as listed in ``codecs``."""

    def encode(self, buffers: Buffers) -> Buffers:
        """Encode the concatenation of `buffers`."""

    def decode(self, raw: Bytes, sizes: range) -> Bytes:
        """Check and decode; raises `FrameError` unless the number of decoded bytes is within `sizes`."""


def exactly(nbytes: int) -> range:
    """The sizes to give to `ByteCodec.decode` where the decoded size is known."""
    return range(nbytes, nbytes + 1)


def check_size(size: int, sizes: range, what: str) -> None:
    """Raise `FrameError` unless `size` is within `sizes`."""
    if size not in sizes:
        msg = f"{what} of {size} bytes, expected {'' if len(sizes) == 1 else 'at most '}{sizes[-1]}"
        raise FrameError(msg)


def max_encoded_size(nbytes: int) -> int:
    """Upper bound on the bytes of a chunk of `nbytes` after any codec of its chain.

    Incompressible data, encoded by a whole chain, stays below it.
    """
    return 2 * nbytes + 65536


def joined(buffers: Buffers) -> bytes | memoryview:
    """Concatenate buffers; a single one is not copied."""
    return buffers[0] if len(buffers) == 1 else b"".join(buffers)


def check_options(configuration: dict[str, Any], known: tuple[str, ...], codec: str, where: str) -> None:
    """Raise `UnsupportedError` for the first option of a codec that is not one of `known`."""
    for name in sorted(configuration.keys() - set(known)):
        raise unsupported(where, f"option {shown(name)} of codec {codec!r}", ", ".join(known))


def integer_option(
    configuration: dict[str, Any], name: str, default: int, bounds: tuple[int, int], where: str
) -> int:
    """An integer option of a codec; `StoreError` unless it is within `bounds`, both ends included."""
    value = configuration.get(name, default)
    if type(value) is not int or not bounds[0] <= value <= bounds[1]:
        raise must_be(where, f"codec option {name!r}", f"within {bounds[0]}…{bounds[1]}", value)
    return value
