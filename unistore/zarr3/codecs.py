"""Codec chains: how the bytes of one chunk are made and read back.

A chain is what a Zarr v3 array (or the inner chain of a sharded one) lists: any number of ``transpose``, one
``bytes``, then codecs from bytes to bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.errors import StoreError
from unistore.zarr3.blosc import Blosc, compressor
from unistore.zarr3.compressors import Crc32c, Gzip, Zstd, crc32c
from unistore.zarr3.decoding import Decoded, Decoder, Uncompressed, decoder, uncompressed
from unistore.zarr3.documents import is_list_of, must_be, parse_extension, shown, unsupported
from unistore.zarr3.frames import Buffers, ByteCodec

Encoder = Callable[[NDArray[Any]], Buffers]
"""``encode(chunk)``: a C-contiguous chunk into buffers whose concatenation is stored."""

BYTE_CODECS: dict[str, type[ByteCodec]] = {"blosc": Blosc, "zstd": Zstd, "gzip": Gzip, "crc32c": Crc32c}
"""Codecs from bytes to bytes by their name in ``codecs``."""
_LONGEST = 8
"""Codecs of one chain: each may make incompressible data a little larger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecChain:
    """The codecs of one chunk, in the order of encoding."""

    order: tuple[int, ...] | None = None
    """Axes order in which elements are laid out (all ``transpose`` codecs composed), or None: C order."""
    endian: str | None = "little"
    """``"little"``, ``"big"``, or None for one-byte elements."""
    byte_codecs: tuple[ByteCodec, ...] = ()
    """Codecs from bytes to bytes, in the order of encoding."""

    @classmethod
    def from_json(cls, codecs: object, dtype: np.dtype[Any], ndim: int, where: str) -> CodecChain:
        """Parse the ``codecs`` member of an array or of the sharding codec.

        Raises `UnsupportedError`, which names the first codec or option that the engine does not implement,
        or `StoreError` if the chain is not a valid one.
        """
        if not isinstance(codecs, list) or len(codecs) > _LONGEST:
            raise must_be(where, "codecs", f"a list of at most {_LONGEST}", codecs)
        order: tuple[int, ...] | None = None
        endian: str | None = None
        byte_codecs: list[ByteCodec] = []
        seen_bytes = False
        for item in codecs:
            name, configuration = parse_extension(item, f"{where}: codec")
            if name == "transpose" and not seen_bytes:
                then = _transpose_order(configuration, ndim, where)
                order = then if order is None else tuple(order[axis] for axis in then)
            elif name == "bytes" and not seen_bytes:
                seen_bytes = True
                endian = _endian(configuration, dtype, where)
            elif name in BYTE_CODECS and seen_bytes:
                byte_codecs.append(BYTE_CODECS[name].from_json(configuration, where))
            elif name in BYTE_CODECS or name in {"transpose", "bytes"}:
                msg = f"{where}: codec {name!r} is at the wrong position in the chain"
                raise StoreError(msg)
            else:
                known = ", ".join(["transpose", "bytes", *BYTE_CODECS, "sharding_indexed (outermost)"])
                raise unsupported(where, f"codec {shown(name)}", known)
        if not seen_bytes:
            msg = f"{where}: the codec chain has no 'bytes'"
            raise StoreError(msg)
        if order == tuple(range(ndim)):
            order = None
        return cls(order=order, endian=endian, byte_codecs=tuple(byte_codecs))

    def to_json(self) -> list[dict[str, Any]]:
        """The ``codecs`` member."""
        items: list[dict[str, Any]] = []
        if self.order is not None:
            items.append({"name": "transpose", "configuration": {"order": list(self.order)}})
        items.append(
            {"name": "bytes", "configuration": {"endian": self.endian}} if self.endian else {"name": "bytes"}
        )
        items.extend(codec.to_json() for codec in self.byte_codecs)
        return items

    @property
    def byte_swapped(self) -> bool:
        """Whether elements are stored in non-native byte order."""
        return self.endian is not None and self.endian != sys.byteorder

    @property
    def native_layout(self) -> bool:
        """Whether chunks are stored in C order and native byte order: no transpose, no byteswap."""
        return self.order is None and not self.byte_swapped

    def decoder(self, nbytes: int) -> Decoder:
        """Make the function ``decode(raw, out)`` for chunks of `nbytes` decoded bytes.

        ``raw`` is the stored chunk, ``out`` any C-contiguous array of `nbytes` bytes that gets the elements
        as they are stored (`order` and `endian` not undone), or None: what is returned starts with them. It
        raises `FrameError` where the bytes contradict themselves; ``out`` may then hold anything.
        """
        return decoder(self.byte_codecs, nbytes)

    def uncompressed(self, nbytes: int) -> Uncompressed | None:
        """Reader of uncompressed chunks of `nbytes`; None if chunks are compressed."""
        return uncompressed(self.byte_codecs, nbytes)

    def restore(self, decoded: Decoded, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        """Undo byte order and transposition of the chunk that `decoded` starts with: a view or copy."""
        order = self.order
        stored = shape if order is None else tuple(shape[axis] for axis in order)
        chunk: NDArray[Any] = np.ndarray(stored, dtype, decoded)
        if self.byte_swapped:
            chunk = chunk.byteswap()
        return chunk if order is None else chunk.transpose(np.argsort(order))

    def encoder(self, dtype: np.dtype[Any]) -> Encoder:
        """Make the function ``encode(chunk)`` for whole chunks of `dtype`."""
        match self.byte_codecs:
            case [Blosc() as blosc, Crc32c()] if blosc.typesize % dtype.itemsize == 0:
                encode = _blosc_encoder(blosc, dtype.itemsize)
            case _:
                encode = self._encode_bytes
        if self.native_layout:
            return encode
        order, byte_swapped = self.order, self.byte_swapped

        def arrange_and_encode(chunk: NDArray[Any]) -> Buffers:
            arranged = np.ascontiguousarray(chunk if order is None else chunk.transpose(order))
            return encode(arranged.byteswap() if byte_swapped else arranged)

        return arrange_and_encode

    def _encode_bytes(self, chunk: NDArray[Any]) -> Buffers:
        buffers: Buffers = [chunk.reshape(-1).view(np.uint8).data]
        for codec in self.byte_codecs:
            buffers = codec.encode(buffers)
        return buffers


def _blosc_encoder(codec: Blosc, itemsize: int) -> Encoder:
    """The encoder of ``blosc, crc32c``, which unistore writes most: a fifth faster than codec by codec."""
    compress, several = compressor(codec), codec.typesize // itemsize
    element = np.dtype(f"V{codec.typesize}")

    def encode(chunk: NDArray[Any]) -> Buffers:
        if several > 1 and chunk.size % several == 0:
            chunk = chunk.reshape(-1).view(element)
        frame = compress(chunk)
        return [frame, crc32c(frame).to_bytes(4, "little")]

    return encode


def _transpose_order(configuration: dict[str, Any], ndim: int, where: str) -> tuple[int, ...]:
    order = configuration.get("order")
    if not is_list_of(order, int) or sorted(order) != list(range(ndim)):
        msg = f"{where}: transpose order {shown(order)} is no permutation of {ndim} axes"
        raise StoreError(msg)
    return tuple(order)


def _endian(configuration: dict[str, Any], dtype: np.dtype[Any], where: str) -> str | None:
    endian = configuration.get("endian")
    if dtype.itemsize == 1:
        return None
    if endian not in ("little", "big"):
        raise must_be(where, f"endian of codec 'bytes' for {dtype.name}", "'little' or 'big'", endian)
    return str(endian)
