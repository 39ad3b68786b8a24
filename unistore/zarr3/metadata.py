"""The metadata of an array, ``zarr.json``: parsed, checked, written back (Zarr v3 core specification)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from unistore.errors import StoreError
from unistore.zarr3.codecs import CodecChain
from unistore.zarr3.documents import is_list_of, must_be, parse_extension, shown, unsupported
from unistore.zarr3.dtypes import decode_fill, encode_fill, parse_dtype
from unistore.zarr3.sharding import ShardIndex, is_sharding

_REQUIRED = ("shape", "data_type", "chunk_grid", "chunk_key_encoding", "fill_value", "codecs")
_OPTIONAL = ("zarr_format", "node_type", "attributes", "dimension_names", "storage_transformers")
_MOST_AXES = 32
_MOST_BYTES = 2**63 - 1
"""Of a whole array: what a 64-bit number can count."""
_MOST_CHUNK_BYTES = 2**31 - 1
"""Decoded bytes of one chunk: what blosc can compress."""
_MOST_CHUNKS = 2**24
"""Chunks of one shard: an index of 256 MiB."""


@dataclass(frozen=True, slots=True)
class KeyEncoding:
    """``chunk_key_encoding``: from the coordinates of a chunk (of a shard, where sharded) to its key.

    ``"default"`` makes ``c/0/1``, ``"v2"`` makes ``0.1``; each with either separator.
    """

    name: str = "default"
    separator: str = "/"

    @classmethod
    def from_json(cls, item: object, where: str) -> KeyEncoding:
        """Parse ``chunk_key_encoding``."""
        name, configuration = parse_extension(item, f"{where}: chunk_key_encoding")
        if name not in {"default", "v2"}:
            raise unsupported(where, f"chunk key encoding {shown(name)}", "default, v2")
        _check_members(configuration, "separator", "chunk key encoding", where)
        separator = configuration.get("separator", "/" if name == "default" else ".")
        if separator not in ("/", "."):
            raise must_be(where, "chunk key separator", "'/' or '.'", separator)
        return cls(name, separator)

    def to_json(self) -> dict[str, Any]:
        """The ``chunk_key_encoding`` member."""
        return {"name": self.name, "configuration": {"separator": self.separator}}

    def key(self, coordinates: tuple[int, ...]) -> str:
        """Key of a chunk, relative to the array."""
        parts = [str(coordinate) for coordinate in coordinates]
        if self.name == "default":
            return self.separator.join(["c", *parts])
        return self.separator.join(parts) or "0"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayMetadata:
    """What ``zarr.json`` says about an array.

    Attributes
    ----------
    shape
        Extent of every axis.
    dtype
        Native numpy dtype.
    chunk_shape
        Shape of what is decoded at once: the inner chunks of a sharded array, else its chunks.
    shard_shape
        Shape of one stored object, a multiple of `chunk_shape`; None: not sharded, every chunk is an object.
    fill_value
        Scalar of `dtype`, bit for bit.
    codecs
        Chain of one chunk.
    index
        Where and how a shard's index is stored; None: not sharded.
    keys
        Chunk key encoding.
    attributes
        JSON attributes.
    dimension_names
        One name (or None) an axis, or None.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunk_shape: tuple[int, ...]
    shard_shape: tuple[int, ...] | None
    fill_value: np.generic
    codecs: CodecChain
    index: ShardIndex | None
    keys: KeyEncoding = KeyEncoding()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    dimension_names: tuple[str | None, ...] | None = None

    @classmethod
    def from_json(cls, document: Mapping[str, Any], where: str) -> ArrayMetadata:
        """Parse the JSON object of a ``zarr.json``; errors name store and array as `where`.

        Raises `UnsupportedError`, which names the data type, codec, grid or other feature that the engine
        does not implement, or `StoreError` if the document is no valid array metadata.
        """
        _check_kind(document, where)
        shape = _extents(document["shape"], "shape", where, least=0)
        dtype = parse_dtype(document["data_type"], where)
        grid, configuration = parse_extension(document["chunk_grid"], f"{where}: chunk_grid")
        if grid != "regular":
            raise unsupported(where, f"chunk grid {shown(grid)}", "regular")
        _check_members(configuration, "chunk_shape", "chunk grid", where)
        outer = _extents(configuration.get("chunk_shape"), "chunk_shape", where, least=1, ndim=len(shape))
        chain = document["codecs"]
        index = None
        inner = outer
        if isinstance(chain, list) and any(map(is_sharding, chain)):
            index, inner_shape, chain = ShardIndex.from_json(chain, where)
            inner = _extents(inner_shape, "inner chunk_shape", where, least=1, ndim=len(shape))
            if any(large % small for large, small in zip(outer, inner, strict=True)):
                msg = f"{where}: shards of {outer} are no multiple of their chunks of {inner}"
                raise StoreError(msg)
        _check_sizes(shape, outer, inner, dtype.itemsize, where)
        return cls(
            shape=shape,
            dtype=dtype,
            chunk_shape=inner,
            shard_shape=outer if index else None,
            fill_value=decode_fill(document["fill_value"], dtype, where),
            codecs=CodecChain.from_json(chain, dtype, len(shape), where),
            index=index,
            keys=KeyEncoding.from_json(document["chunk_key_encoding"], where),
            attributes=document.get("attributes", {}),
            dimension_names=_dimension_names(document.get("dimension_names"), len(shape), where),
        )

    def to_json(self) -> dict[str, Any]:
        """The ``zarr.json`` document, members in a fixed order."""
        codecs = self.codecs.to_json()
        outer = self.chunk_shape
        if self.index is not None and self.shard_shape is not None:
            outer = self.shard_shape
            codecs = [self.index.to_json(self.chunk_shape, codecs)]
        document: dict[str, Any] = {
            "shape": list(self.shape),
            "data_type": self.dtype.name,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(outer)}},
            "chunk_key_encoding": self.keys.to_json(),
            "fill_value": encode_fill(self.fill_value),
            "codecs": codecs,
            "attributes": dict(self.attributes),
        }
        if self.dimension_names is not None:
            document["dimension_names"] = list(self.dimension_names)
        return document | {"zarr_format": 3, "node_type": "array", "storage_transformers": []}

    def to_bytes(self) -> bytes:
        """The ``zarr.json`` file: equal metadata give equal bytes."""
        return json.dumps(self.to_json(), indent=2, allow_nan=False).encode()

    @property
    def object_shape(self) -> tuple[int, ...]:
        """Shape of one stored object: shard, or chunk where not sharded."""
        return self.shard_shape or self.chunk_shape

    @property
    def chunks_per_object(self) -> tuple[int, ...]:
        """Inner chunks of one stored object along every axis."""
        return tuple(large // small for large, small in zip(self.object_shape, self.chunk_shape, strict=True))

    @property
    def objects(self) -> tuple[int, ...]:
        """Stored objects along every axis."""
        return tuple(-(-extent // step) for extent, step in zip(self.shape, self.object_shape, strict=True))

    @property
    def chunk_bytes(self) -> int:
        """Decoded bytes of one chunk."""
        return self.dtype.itemsize * math.prod(self.chunk_shape)


def _check_members(configuration: dict[str, Any], known: str, what: str, where: str) -> None:
    for name in sorted(configuration.keys() - {known}):
        msg = f"{where}: a {what} has no option {shown(name)}, only {known}"
        raise StoreError(msg)


def _check_kind(document: Mapping[str, Any], where: str) -> None:
    version, kind = document.get("zarr_format"), document.get("node_type")
    if version != 3 or kind != "array":
        found = f"(zarr_format {shown(version)}, node_type {shown(kind)})"
        msg = f"{where}: not the metadata of a Zarr v3 array {found}"
        raise StoreError(msg)
    for name in _REQUIRED:
        if name not in document:
            msg = f"{where}: zarr.json has no {name!r}"
            raise StoreError(msg)
    if document.get("storage_transformers", []) != []:
        raise unsupported(where, "an array with storage transformers")
    for name in sorted(document.keys() - {*_REQUIRED, *_OPTIONAL}):
        value = document[name]
        if not (isinstance(value, dict) and value.get("must_understand") is False):
            raise unsupported(where, f"metadata member {shown(name)}")
    if not isinstance(document.get("attributes", {}), dict):
        raise must_be(where, "attributes", "an object", document["attributes"])


def _extents(value: object, what: str, where: str, *, least: int, ndim: int | None = None) -> tuple[int, ...]:
    if (
        is_list_of(value, int)
        and (len(value) <= _MOST_AXES if ndim is None else len(value) == ndim)
        and all(least <= extent <= _MOST_BYTES for extent in value)
    ):
        return tuple(value)
    count = f"up to {_MOST_AXES}" if ndim is None else ndim
    raise must_be(where, what, f"{count} integers of at least {least}", value)


def _check_sizes(
    shape: tuple[int, ...], outer: tuple[int, ...], inner: tuple[int, ...], itemsize: int, where: str
) -> None:
    """Bounds that every later size keeps: a reader asks for no memory that these do not allow."""
    per_shard = math.prod(large // small for large, small in zip(outer, inner, strict=True))
    for what, found, most in (
        ("bytes of the array", itemsize * math.prod(shape), _MOST_BYTES),
        ("bytes of a chunk", itemsize * math.prod(inner), _MOST_CHUNK_BYTES),
        ("chunks of a shard", per_shard, _MOST_CHUNKS),
    ):
        if found > most:
            msg = f"{where}: {shown(found)} {what}, expected at most {most:,}"
            raise StoreError(msg)


def _dimension_names(value: object, ndim: int, where: str) -> tuple[str | None, ...] | None:
    if value is None:
        return None
    names = tuple(value) if isinstance(value, list) else ()
    if len(names) != ndim or not all(isinstance(name, str | None) for name in names):
        raise must_be(where, "dimension_names", f"{ndim} names", value)
    return names
