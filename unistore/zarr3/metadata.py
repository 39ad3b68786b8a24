"""The metadata of an array, ``zarr.json``: parsed, checked, written back (Zarr v3 core specification)."""

# A store has one kind of array. Its document is written down once, in `_document`: whatever differs from it
# is no array of a store

from __future__ import annotations

import json
import math
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from unistore.errors import StoreError
from unistore.system.types import Attributes, Dtype, Int64s, JsonObject, Shape
from unistore.zarr3.codecs import (
    CRC_BYTES,
    Compressor,
    FrameError,
    check_chunk,
    codecs_document,
    crc32c,
    parse_codecs,
)
from unistore.zarr3.documents import ANY, check_equal, is_list_of, must_be, shown, unsupported

# ``sharding_indexed``: many chunks in one object, and behind them an index (Zarr v3 sharding codec).
#
# The index has a pair (offset, size) of 64-bit numbers for each chunk, in C order, and a crc32c.

# Offset and size of an absent chunk: 2**64 - 1 as a signed number (sharding codec, "Empty chunks").
EMPTY = -1
_ENTRY_BYTES = 16


def sharding_document(chunk_shape: Any, codecs: Any) -> JsonObject:
    """Return the sharding codec as ``zarr.json`` lists it."""
    configuration = {
        "chunk_shape": chunk_shape,
        "codecs": codecs,
        "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}],
        "index_location": "end",
    }
    return {"name": "sharding_indexed", "configuration": configuration}


def index_bytes(chunks: int) -> int:
    """Return the bytes of the index of a shard of `chunks` chunks."""
    return _ENTRY_BYTES * chunks + CRC_BYTES


def encode_index(entries: Int64s) -> bytes:
    """Encode (chunks, 2) offsets and sizes. `EMPTY` in both marks an absent chunk."""
    raw = entries.astype("<i8").tobytes()
    checksum: int = crc32c(raw)
    return raw + checksum.to_bytes(CRC_BYTES, "little")


def decode_index(raw: bytes, shard_bytes: int, most: int) -> Int64s:
    """Return the offset and size of every chunk of a shard, (chunks, 2), `EMPTY` where it is absent."""
    pairs = np.frombuffer(raw, "<i8", (len(raw) - CRC_BYTES) // 8)
    try:
        check_chunk(pairs, raw[-CRC_BYTES:])
    except FrameError as error:
        msg = f"its shard index is damaged: {error}"
        raise FrameError(msg) from error
    entries = pairs.reshape(-1, 2)
    offset = entries[:, 0]
    size = entries[:, 1]
    absent = (offset == EMPTY) & (size == EMPTY)
    # written without a sum, which hostile entries would overflow
    inside = (offset >= 0) & (size >= 0) & (size <= shard_bytes) & (offset <= shard_bytes - size)
    outside = np.flatnonzero(~(absent | inside))
    if len(outside):
        first, count = entries[outside[0]].view(np.uint64).tolist()
        place = f"chunk {outside[0]} of {count:,} bytes at byte {first:,}"
        msg = f"its shard index puts {place}, beyond the shard of {shard_bytes:,} bytes"
        raise FrameError(msg)
    if (size > most).any():
        msg = f"its shard index states a chunk of {size.max():,} bytes, but at most {most:,} are possible"
        raise FrameError(msg)
    return entries


# Names of the data types of arrays; numpy uses the same names.
DTYPE_NAMES = (
    "bool",
    *("int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
)

_MOST_AXES = 32
# Of a whole array: what a 64-bit number can count
_MOST_BYTES = 2**63 - 1
# Decoded bytes of one chunk: what blosc can compress
_MOST_CHUNK_BYTES = 2**31 - 1
# Chunks of one shard: an index of 256 MiB
_MOST_CHUNKS = 2**24
_NOT_IN_JSON = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayMetadata:
    """What ``zarr.json`` says about an array."""

    shape: Shape  # extent of every axis; at least one axis
    dtype: Dtype  # native numpy dtype
    chunk_shape: Shape  # shape of what is decoded at once
    shard_shape: Shape  # shape of one stored object, a multiple of `chunk_shape`
    fill_value: np.generic  # scalar of `dtype`
    compressor: Compressor | None  # None: chunks are not compressed
    attributes: Attributes = field(default_factory=dict)  # JSON attributes
    dimension_names: tuple[str | None, ...] | None = None  # one name (or None) an axis, or None

    @classmethod
    def from_json(cls, document: Attributes, where: str) -> ArrayMetadata:
        """Parse the JSON object of a ``zarr.json``, with `where` as store and array in errors."""
        names = document.get("dimension_names")
        expected = _document(dimension_names=None if names is None else ANY)
        check_equal(document, expected, "zarr.json", where)
        sharding = document["codecs"][0]["configuration"]
        shape = _extents(document["shape"], "shape", where, least=0)
        grid = document["chunk_grid"]["configuration"]
        shard_shape = _extents(grid["chunk_shape"], "chunk_shape", where, least=1, ndim=len(shape))
        chunk_shape = _extents(sharding["chunk_shape"], "inner chunk_shape", where, least=1, ndim=len(shape))
        if any(large % small for large, small in zip(shard_shape, chunk_shape, strict=True)):
            msg = f"{where}: the shard shape {shard_shape} is not a multiple of the chunk shape {chunk_shape}"
            raise StoreError(msg)
        dtype = parse_dtype(document["data_type"], where)
        if not isinstance(document["attributes"], dict):
            raise must_be(where, "attributes", "an object", document["attributes"])
        metadata = cls(
            shape=shape,
            dtype=dtype,
            chunk_shape=chunk_shape,
            shard_shape=shard_shape,
            fill_value=_decode_fill(document["fill_value"], dtype, where),
            compressor=parse_codecs(sharding["codecs"], dtype.itemsize, where),
            attributes=document["attributes"],
            dimension_names=_dimension_names(names, len(shape), where),
        )
        metadata._check_sizes(where)
        return metadata

    def to_json(self) -> JsonObject:
        """Return the ``zarr.json`` document, members in a fixed order."""
        return _document(
            shape=list(self.shape),
            data_type=self.dtype.name,
            chunk_shape=list(self.chunk_shape),
            shard_shape=list(self.shard_shape),
            fill_value=_encode_fill(self.fill_value),
            codecs=codecs_document(self.compressor, self.dtype.itemsize),
            attributes=dict(self.attributes),
            dimension_names=None if self.dimension_names is None else list(self.dimension_names),
        )

    def to_bytes(self) -> bytes:
        """Return the ``zarr.json`` file: equal metadata give equal bytes."""
        return json_bytes(self.to_json())

    @property
    def chunks_per_shard(self) -> Shape:
        """Return the chunks of one shard along every axis."""
        return tuple(large // small for large, small in zip(self.shard_shape, self.chunk_shape, strict=True))

    @property
    def shards(self) -> Shape:
        """Return the shards along every axis."""
        return tuple(-(-extent // step) for extent, step in zip(self.shape, self.shard_shape, strict=True))

    @property
    def chunk_bytes(self) -> int:
        """Return the decoded bytes of one chunk."""
        return self.dtype.itemsize * math.prod(self.chunk_shape)

    def _check_sizes(self, where: str) -> None:
        # A reader asks for no memory that these bounds do not allow
        for what, size, most in (
            ("bytes of the array", self.dtype.itemsize * math.prod(self.shape), _MOST_BYTES),
            ("bytes of a chunk", self.chunk_bytes, _MOST_CHUNK_BYTES),
            ("chunks of a shard", math.prod(self.chunks_per_shard), _MOST_CHUNKS),
        ):
            if size > most:
                msg = f"{where}: it states {shown(size)} {what}, but at most {most:,} are allowed"
                raise StoreError(msg)


def _document(
    *,
    shape: Any = ANY,
    data_type: Any = ANY,
    chunk_shape: Any = ANY,
    shard_shape: Any = ANY,
    fill_value: Any = ANY,
    codecs: Any = ANY,
    attributes: Any = ANY,
    dimension_names: Any = ANY,
) -> JsonObject:
    document = {
        "shape": shape,
        "data_type": data_type,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": shard_shape}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": fill_value,
        "codecs": [sharding_document(chunk_shape, codecs)],
        "attributes": attributes,
    }
    if dimension_names is not None:
        document["dimension_names"] = dimension_names
    return document | {"zarr_format": 3, "node_type": "array", "storage_transformers": []}


def json_bytes(document: Attributes) -> bytes:
    """Return the ``zarr.json`` file of a document."""
    return json.dumps(document, indent=2, allow_nan=False).encode()


def shard_key(coordinates: Shape) -> str:
    """Return the key of a shard, relative to the array."""
    return "/".join(["c", *map(str, coordinates)])


def parse_dtype(name: object, where: str) -> Dtype:
    """Turn a ``data_type`` member into a native numpy dtype. Raises `UnsupportedError`."""
    if isinstance(name, str) and name in DTYPE_NAMES:
        return np.dtype(name)
    raise unsupported(where, f"the data type is {shown(name)}, expected one of {', '.join(DTYPE_NAMES)}")


def _decode_fill(value: object, dtype: Dtype, where: str) -> np.generic:
    number = _NOT_IN_JSON.get(value) if isinstance(value, str) else value
    if isinstance(number, int | float):
        # a number that the dtype cannot hold is refused below: it does not come back as the same value
        with suppress(ValueError, OverflowError), np.errstate(over="ignore"):
            scalar: np.generic = np.array([number], dtype)[0]
            if _encode_fill(scalar) == value:
                return scalar
    raise must_be(where, "fill_value", f"a value of {dtype.name}", value)


def _encode_fill(fill: np.generic) -> Any:
    number = fill.item()
    if math.isfinite(number):
        return number
    if math.isnan(number):
        return "NaN"
    return "Infinity" if number > 0 else "-Infinity"


def _extents(value: object, what: str, where: str, *, least: int, ndim: int | None = None) -> Shape:
    if is_list_of(value, int) and all(least <= extent <= _MOST_BYTES for extent in value):
        if ndim is None and 1 <= len(value) <= _MOST_AXES:
            return tuple(value)
        if ndim == len(value):
            return tuple(value)
    count = f"1 to {_MOST_AXES}" if ndim is None else ndim
    raise must_be(where, what, f"{count} integers of at least {least}", value)


def _dimension_names(value: object, ndim: int, where: str) -> tuple[str | None, ...] | None:
    if value is None:
        return None
    names = tuple(value) if isinstance(value, list) else ()
    if len(names) != ndim or not all(isinstance(name, str | None) for name in names):
        raise must_be(where, "dimension_names", f"{ndim} names", value)
    return names
