"""``sharding_indexed``: many chunks in one object, with an index (Zarr v3 sharding codec)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from unistore.errors import StoreError
from unistore.zarr3.documents import must_be, parse_extension, shown, unsupported
from unistore.zarr3.frames import FrameError

EMPTY = -1
"""Offset and size of an absent chunk: 2**64 - 1 as a signed number (sharding codec, "Empty chunks")."""

_OPTIONS = {"chunk_shape", "codecs", "index_codecs", "index_location"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardIndex:
    """How a shard stores its index: pairs (offset, size) of 64-bit numbers, one a chunk, in C order.

    It is at the ``"end"`` or ``"start"`` of the shard; `checked` if a crc32c follows the pairs.
    """

    location: str = "end"
    checked: bool = True
    endian: str = "little"

    @classmethod
    def from_json(cls, chain: Sequence[object], where: str) -> tuple[ShardIndex, object, object]:
        """Parse the codecs of a sharded array.

        Returns the index, and chunk_shape and codecs as they stand in the sharding codec's configuration.
        Other codecs around it, nested shards and a compressed index are not supported.
        """
        if len(chain) != 1:
            raise unsupported(where, "codec 'sharding_indexed' among other codecs")
        item = chain[0]
        configuration = item.get("configuration") if isinstance(item, dict) else None
        if not isinstance(configuration, dict) or not {"chunk_shape", "codecs"} <= configuration.keys():
            msg = f"{where}: codec 'sharding_indexed' needs chunk_shape and codecs, found {shown(item)}"
            raise StoreError(msg)
        for name in sorted(configuration.keys() - _OPTIONS):
            raise unsupported(where, f"option {shown(name)} of codec 'sharding_indexed'")
        inner = configuration["codecs"]
        if isinstance(inner, list) and any(map(is_sharding, inner)):
            raise unsupported(where, "codec 'sharding_indexed' inside 'sharding_indexed'")
        location = configuration.get("index_location", "end")
        if location not in ("start", "end"):
            raise must_be(where, "index_location", "'start' or 'end'", location)
        endian, checked = _index_codecs(configuration.get("index_codecs"), where)
        return cls(location=location, checked=checked, endian=endian), configuration["chunk_shape"], inner

    def to_json(self, chunk_shape: Sequence[int], codecs: list[dict[str, Any]]) -> dict[str, Any]:
        """The sharding codec as listed in ``codecs``."""
        pairs = {"name": "bytes", "configuration": {"endian": self.endian}}
        configuration = {
            "chunk_shape": list(chunk_shape),
            "codecs": codecs,
            "index_codecs": [pairs, {"name": "crc32c"}] if self.checked else [pairs],
            "index_location": self.location,
        }
        return {"name": "sharding_indexed", "configuration": configuration}

    def nbytes(self, chunks: int) -> int:
        """Bytes of the index of a shard of `chunks` chunks."""
        return 16 * chunks + (4 if self.checked else 0)

    def encode(self, entries: NDArray[np.int64]) -> bytes:
        """Encode (chunks, 2) offsets and sizes; `EMPTY` in both marks an absent chunk."""
        raw = entries.astype(self._dtype).tobytes()
        return raw + google_crc32c.value(raw).to_bytes(4, "little") if self.checked else raw

    def decode(self, raw: bytes, chunks: int, shard_bytes: int, most: int) -> NDArray[np.int64]:
        """Decode and check the index of a shard of `shard_bytes` bytes.

        Gives (chunks, 2): offset and size of every chunk, `EMPTY` in both where it is absent. Raises
        `FrameError` if the checksum differs, an entry lies outside, or a chunk has more than `most` bytes.
        """
        pairs = 16 * chunks
        if self.checked:
            found, stored = google_crc32c.value(raw[:pairs]), int.from_bytes(raw[pairs:], "little")
            if found != stored:
                msg = f"crc32c of the shard index is 0x{found:08x}, stored is 0x{stored:08x}"
                raise FrameError(msg)
        entries = np.frombuffer(raw, self._dtype, 2 * chunks).astype("<i8").reshape(chunks, 2)
        offset, size = entries[:, 0], entries[:, 1]
        absent = (offset == EMPTY) & (size == EMPTY)
        outside = ~absent & ((offset < 0) | (size < 0) | (size > shard_bytes) | (offset > shard_bytes - size))
        if outside.any():
            chunk = int(np.flatnonzero(outside)[0])
            low, count = (int(value) for value in entries[chunk].view(np.uint64))
            msg = f"shard index puts chunk {chunk} at {low}+{count}, outside the shard of {shard_bytes} bytes"
            raise FrameError(msg)
        if (size > most).any():
            msg = f"shard index puts a chunk at {int(size.max())} bytes, more than {most} encoded ones"
            raise FrameError(msg)
        return entries

    @property
    def _dtype(self) -> str:
        return "<i8" if self.endian == "little" else ">i8"


def is_sharding(codec: object) -> bool:
    """Whether an item of ``codecs`` is the sharding codec."""
    return (codec.get("name") if isinstance(codec, dict) else codec) == "sharding_indexed"


def _index_codecs(chain: object, where: str) -> tuple[str, bool]:
    """Byte order of the index and whether a crc32c follows it."""
    if chain is None:
        return "little", True
    if not isinstance(chain, list) or not chain:
        raise must_be(where, "index_codecs", "a list of codecs", chain)
    codecs = [parse_extension(item, f"{where}: index codec") for item in chain]
    names = [name for name, _ in codecs]
    if names not in (["bytes"], ["bytes", "crc32c"]):
        other = next((name for name in names if name not in {"bytes", "crc32c"}), names)
        raise unsupported(where, f"index codec {shown(other)}", "bytes, crc32c")
    endian = codecs[0][1].get("endian")
    if endian not in ("little", "big"):
        raise must_be(where, "endian of index codec 'bytes'", "'little' or 'big'", endian)
    return str(endian), len(names) == 2
