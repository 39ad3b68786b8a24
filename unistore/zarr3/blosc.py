"""``blosc``: frames of c-blosc 1, decoded by numcodecs after their header has been checked.

blosc's own threads are switched off for the whole process when this module is imported: its default starts a
pool in the main thread, which dies in a forked child and hangs the first decode there.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numcodecs import blosc  # type: ignore[attr-defined]
from numpy.typing import NDArray

from unistore.zarr3.documents import shown, unsupported
from unistore.zarr3.frames import Buffers, Bytes, FrameError, check_options, integer_option, joined

__all__ = ["HEADER_SIZES", "VERSION", "Blosc", "blosc", "check_blosc", "compressor"]

blosc.use_threads = False

VERSION = 2
"""Version of the frame format, its first byte."""

HEADER_SIZES = struct.Struct("<4xIII")
"""Decoded bytes, bytes of a block, and bytes of the frame, in the 16 bytes of its header."""

_HEADER = struct.Struct("<BBBBIII")  # version, versionlz, flags, typesize, and HEADER_SIZES
SHUFFLES = ("noshuffle", "shuffle", "bitshuffle")
_CNAMES = ("blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd")


def check_blosc(raw: bytes | Bytes, size: int, sizes: range) -> int:
    """Check the header of a frame of `size` bytes, with which `raw` starts; give its decoded size.

    Raises `FrameError` if header and `size` contradict each other, or the decoded size is not within `sizes`.
    """
    if size < _HEADER.size:
        msg = f"{size} bytes, less than a blosc header"
        raise FrameError(msg)
    version, _, _, typesize, decoded, block, encoded = _HEADER.unpack(bytes(raw[: _HEADER.size]))
    sized = encoded == size and decoded in sizes and 0 < block <= max(decoded, 1)
    if version != VERSION or typesize == 0 or not sized:
        msg = (
            f"blosc header (version {version}, typesize {typesize}, {decoded} bytes in {encoded}, "
            f"blocks of {block}) does not fit a frame of {size} bytes for {sizes[-1]} decoded ones"
        )
        raise FrameError(msg)
    return int(decoded)


@dataclass(frozen=True, slots=True, kw_only=True)
class Blosc:
    """``blosc``; snappy only where numcodecs was built with it."""

    overhead: ClassVar[int | None] = None
    typesize: int = 1
    """Bytes of one element, for shuffling."""
    cname: str = "lz4"
    clevel: int = 5
    """0 to 9."""
    shuffle: str = "shuffle"
    blocksize: int = 0
    """Bytes of one block; 0: chosen by blosc."""

    @classmethod
    def from_json(cls, configuration: dict[str, Any], where: str) -> Blosc:
        """Parse the configuration; names and ranges are checked."""
        names = ("cname", "clevel", "shuffle", "typesize", "blocksize")
        check_options(configuration, names, "blosc", where)
        cname, shuffle = configuration.get("cname"), configuration.get("shuffle", "noshuffle")
        if cname not in _CNAMES or shuffle not in SHUFFLES:
            raise unsupported(where, f"codec 'blosc' with cname {shown(cname)} and shuffle {shown(shuffle)}")
        if cname not in (built := blosc.list_compressors()):
            feature = f"codec 'blosc' with cname {cname!r}, as numcodecs was built here,"
            raise unsupported(where, feature, ", ".join(built))
        return cls(
            cname=cname,
            clevel=integer_option(configuration, "clevel", 5, (0, 9), where),
            shuffle=shuffle,
            typesize=integer_option(configuration, "typesize", 1, (1, 255), where),
            blocksize=integer_option(configuration, "blocksize", 0, (0, 2**31 - 1), where),
        )

    def to_json(self) -> dict[str, Any]:
        """The codec as listed in ``codecs``."""
        return {"name": "blosc", "configuration": asdict(self)}

    def encode(self, buffers: Buffers) -> Buffers:
        """Compress into one frame."""
        source: NDArray[Any] = np.frombuffer(joined(buffers), np.uint8)
        if self.typesize > 1 and len(source) % self.typesize == 0:
            source = source.view(f"V{self.typesize}")
        return [compressor(self)(source)]

    def decode(self, raw: Bytes, sizes: range) -> Bytes:
        """Check the header and decompress."""
        out = np.empty(check_blosc(raw, len(raw), sizes), np.uint8)
        try:
            blosc.decompress(raw, out)
        except (RuntimeError, ValueError) as error:
            raise FrameError(str(error)) from error
        return out


def compressor(codec: Blosc) -> Callable[[NDArray[Any]], bytes]:
    """Make the function that compresses a contiguous array; the items of its dtype are shuffled."""
    shuffle = SHUFFLES.index(codec.shuffle)
    return partial(
        blosc.compress,
        cname=codec.cname.encode(),
        clevel=codec.clevel,
        shuffle=shuffle,
        blocksize=codec.blocksize,
    )
