"""Write shards: choose the codec chain, encode a whole shard, bring it durably to disk."""

from __future__ import annotations

import errno
import itertools
import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import xxhash
from numpy.typing import NDArray

from unistore.errors import ConversionError
from unistore.zarr3.codecs import CodecChain
from unistore.zarr3.compressors import Blosc, ByteCodec, Crc32c
from unistore.zarr3.dtypes import decode_fill, parse_dtype
from unistore.zarr3.metadata import ArrayMetadata
from unistore.zarr3.sharding import EMPTY, ShardIndex

__all__ = [
    "CODECS",
    "PART_SUFFIX",
    "WrittenFile",
    "array_metadata",
    "codec_chain",
    "content_digest",
    "encode_shard",
    "write_shard",
]

Codec = Literal["fast", "balanced", "small", "none"]

CODECS: tuple[Codec, ...] = ("fast", "balanced", "small", "none")
"""Codec presets, from fast to decode to small on disk; ``none`` stores plain bytes."""

PART_SUFFIX = ".part"
"""Ending of the temporary names; such a file is left over from a killed process."""

fsync = os.fsync
rename = os.replace
writev = getattr(os, "writev", None)
_BUFFERS_A_CALL = 512  # POSIX allows IOV_MAX, 1024 on Linux and macOS


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that is durably on disk.

    Attributes
    ----------
    key
        Its key: path relative to the store, with slashes.
    bytes
        Its size.
    checksum
        xxh3-128 of its content, hexadecimal.
    """

    key: str
    bytes: int
    checksum: str


def array_metadata(
    shape: Sequence[int],
    dtype: np.dtype[Any] | str | type,
    chunk: Sequence[int],
    shard: Sequence[int],
    codec: str,
    fill: float | bool | complex | np.generic = 0,
    attributes: Mapping[str, Any] | None = None,
    dimension_names: Sequence[str | None] | None = None,
) -> ArrayMetadata:
    """Metadata of an array as unistore writes it: sharded, index at the end, crc32c on chunks and index.

    Parameters
    ----------
    shape, dtype
        Of the array.
    chunk, shard
        Shapes of inner chunks and shards; `shard` is a multiple of `chunk`.
    codec
        One of `CODECS`.
    fill
        Value of what is not stored.
    attributes, dimension_names
        As in ``zarr.json``.

    Raises
    ------
    StoreError
        If shapes, fill or names do not fit each other.
    """
    native = parse_dtype(np.dtype(dtype).newbyteorder("=").name, "array_metadata")
    metadata = ArrayMetadata(
        shape=tuple(int(extent) for extent in shape),
        dtype=native,
        chunk_shape=tuple(int(extent) for extent in chunk),
        shard_shape=tuple(int(extent) for extent in shard),
        fill_value=np.asarray(fill).astype(native)[()],
        codecs=codec_chain(codec, native),
        index=ShardIndex(),
        attributes=dict(attributes or {}),
        dimension_names=None if dimension_names is None else tuple(dimension_names),
    )
    return ArrayMetadata.from_json(metadata.to_json(), "array_metadata")


def codec_chain(codec: str, dtype: np.dtype[Any]) -> CodecChain:
    """The chain of a codec preset for elements of `dtype`, crc32c last.

    Raises
    ------
    ValueError
        If there is no such preset.
    """
    size = dtype.itemsize
    shuffle = "shuffle" if size > 1 else "noshuffle"
    compressors: dict[str, tuple[ByteCodec, ...]] = {
        "fast": (Blosc(cname="lz4", clevel=5, shuffle=shuffle, typesize=size),),
        "balanced": (Blosc(cname="zstd", clevel=3, shuffle=shuffle, typesize=size),),
        "small": (
            Blosc(cname="zstd", clevel=9, shuffle="bitshuffle" if size > 1 else "noshuffle", typesize=size),
        ),
        "none": (),
    }
    if codec not in compressors:
        msg = f"codec must be one of {', '.join(CODECS)}, found {codec!r}"
        raise ValueError(msg)
    return CodecChain(endian="little" if size > 1 else None, byte_codecs=(*compressors[codec], Crc32c()))


def encode_shard(
    metadata: ArrayMetadata, shard_coord: Sequence[int], block: NDArray[Any]
) -> list[bytes | memoryview]:
    """Encode one whole shard.

    Chunks that hold nothing but fill (compared bit for bit) become empty entries of the index.

    Parameters
    ----------
    metadata
        Of a sharded array.
    shard_coord
        Coordinates of the shard.
    block
        What the array holds there: cut off at the array's end where the shard reaches beyond it.

    Returns
    -------
    list of bytes or memoryview
        Buffers whose concatenation is the shard. Memoryviews may look into `block`: write before changing it.

    Raises
    ------
    ValueError
        If the block has not the shape or dtype that belong there.
    """
    extent = _extent(metadata, shard_coord)
    if metadata.index is None or block.shape != extent or block.dtype != metadata.dtype:
        msg = f"shard {tuple(shard_coord)} takes {metadata.dtype} {extent}, found {block.dtype} {block.shape}"
        raise ValueError(msg)
    per_shard = metadata.chunks_per_object
    entries = np.full((int(np.prod(per_shard, dtype=np.int64)), 2), EMPTY, np.int64)
    at = metadata.index.nbytes(len(entries)) if metadata.index.location == "start" else 0
    buffers: list[bytes | memoryview] = []
    blank = np.full(metadata.chunk_shape, metadata.fill_value, metadata.dtype)
    blank_bytes = blank.tobytes()
    for number, chunk in enumerate(_chunks(metadata, block, blank)):
        if chunk is None or _same_bytes(chunk, blank_bytes):
            continue
        encoded = metadata.codecs.encode(chunk)
        size = sum(map(len, encoded))
        entries[number] = at, size
        at += size
        buffers.extend(encoded)
    index = metadata.index.encode(entries)
    return [index, *buffers] if metadata.index.location == "start" else [*buffers, index]


def write_shard(
    root: str | os.PathLike[str], key: str, buffers: Iterable[bytes | memoryview], *, durable: bool = True
) -> WrittenFile:
    """Write a file so that it is either absent or whole, also after a crash.

    Temporary name in the same folder, write, fsync, rename, fsync of the folder and of folders made for it.

    Parameters
    ----------
    root
        Folder of the store.
    key
        Path of the file in it, with slashes.
    buffers
        Its content.
    durable
        False leaves out the fsyncs (the rename stays).

    Raises
    ------
    ConversionError
        If it cannot be written; nothing is left under the temporary name.
    """
    path = Path(root, *key.split("/"))
    part = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}{PART_SUFFIX}")
    digest = xxhash.xxh3_128()
    size = 0
    try:
        folders = _make_folders(path.parent)
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
        try:
            try:
                for group in _grouped(buffers):
                    for buffer in group:
                        digest.update(buffer)
                    size += _write_all(fd, group)
                if durable:
                    fsync(fd)
            finally:
                os.close(fd)
            rename(part, path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        if durable:
            for folder in folders:
                _fsync_folder(folder)
    except OSError as error:
        raise _failed(path, error) from error
    return WrittenFile(key, size, digest.hexdigest())


def content_digest(block: NDArray[Any]) -> str:
    """xxh3-128 (hexadecimal) of the values of `block` in C order, little-endian."""
    little = np.ascontiguousarray(block, block.dtype.newbyteorder("<"))
    return xxhash.xxh3_128_hexdigest(little.reshape(-1).view(np.uint8))


def _extent(metadata: ArrayMetadata, coordinates: Sequence[int]) -> tuple[int, ...]:
    """Shape of what a shard holds of the array."""
    if len(coordinates) != len(metadata.shape) or not all(
        0 <= at < count for at, count in zip(coordinates, metadata.objects, strict=True)
    ):
        msg = f"an array of {metadata.objects} shards has no shard {tuple(coordinates)}"
        raise ValueError(msg)
    return tuple(
        min(step, extent - at * step)
        for at, step, extent in zip(coordinates, metadata.object_shape, metadata.shape, strict=True)
    )


def _chunks(
    metadata: ArrayMetadata, block: NDArray[Any], blank: NDArray[Any]
) -> Iterable[NDArray[Any] | None]:
    """Whole, C-contiguous chunks of a shard in C order, padded with fill; None where one lies outside."""
    for position in itertools.product(*map(range, metadata.chunks_per_object)):
        low = tuple(at * step for at, step in zip(position, metadata.chunk_shape, strict=True))
        part = block[tuple(slice(a, a + step) for a, step in zip(low, metadata.chunk_shape, strict=True))]
        if part.shape == metadata.chunk_shape:
            yield np.ascontiguousarray(part)
        elif part.size == 0:
            yield None
        else:
            padded = blank.copy()
            padded[tuple(map(slice, part.shape))] = part
            yield padded


def _same_bytes(chunk: NDArray[Any], blank: bytes) -> bool:
    view = chunk.reshape(-1).view(np.uint8)
    head = min(64, len(blank))
    return view[:head].tobytes() == blank[:head] and view.tobytes() == blank


def _make_folders(folder: Path) -> list[Path]:
    """Make a folder with its parents; give every folder that got a new entry, the file's own included."""
    missing = [folder]
    while not missing[-1].exists():
        missing.append(missing[-1].parent)
    folder.mkdir(parents=True, exist_ok=True)
    return missing


def _grouped(buffers: Iterable[bytes | memoryview]) -> Iterable[list[bytes | memoryview]]:
    iterator = iter(buffers)
    while group := list(itertools.islice(iterator, _BUFFERS_A_CALL)):
        yield group


def _write_all(fd: int, buffers: list[bytes | memoryview]) -> int:
    """Write buffers in as few calls as the system allows; give their bytes."""
    total = sum(map(len, buffers))
    if writev is None:
        joined = memoryview(b"".join(buffers))
        while joined:
            joined = joined[os.write(fd, joined) :]
        return total
    done = writev(fd, buffers)
    if done < total:
        rest = memoryview(b"".join(buffers))[done:]
        while rest:
            rest = rest[os.write(fd, rest) :]
    return total


def _fsync_folder(folder: Path) -> None:
    if os.name == "nt":  # Windows has no fsync of folders
        return
    fd = os.open(folder, os.O_RDONLY)
    try:
        fsync(fd)
    finally:
        os.close(fd)


def _failed(path: Path, error: OSError) -> ConversionError:
    cures = {
        errno.ENOSPC: "free space",
        errno.EDQUOT: "free space or raise the quota",
        errno.EACCES: "allow writing there",
        errno.EPERM: "allow writing there",
        errno.EROFS: "choose a destination that can be written to",
    }
    cure = cures.get(error.errno or 0, "mend the destination")
    return ConversionError(
        f"{path}: cannot be written ({error.strerror or error}); {cure}, then run the same command"
    )
