"""Files of stores, as bytes, and a disk that is full."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from unistore.store.manifest import Entry, make_seal, manifest_bytes, parse_manifest, sign_root
from unistore.store.names import SOURCES
from unistore.zarr3.durable import write_file
from unistore.zarr3.metadata import ArrayMetadata
from unistore.zarr3.writer import encode_shard, little_endian_bytes


def tree(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder by its path, but for the times of sources in stores."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != SOURCES)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def flip(path: Path, at: int, mask: int = 1) -> None:
    """Change bits of a byte of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= mask
    path.write_bytes(data)


def attributes_of(store: Path) -> dict[str, Any]:
    """Return what the root says of a store."""
    attributes: dict[str, Any] = json.loads((store / "zarr.json").read_text())["attributes"]["unistore"]
    return attributes


def full_disk(*_: object, **__: object) -> None:
    """Stand for what writes: there is no room."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def forge(store: Path, arrays: dict[str, Any], attributes: dict[str, Any] | None = None) -> None:
    """Write other values and members of the root, and seal them, as a faulty converter would."""

    manifest = store / "unistore-manifest.jsonl"
    entries = {entry.key: entry for entry in parse_manifest(manifest.read_bytes(), "here")}
    for path, values in arrays.items():
        document = json.loads((store / path / "zarr.json").read_text())
        metadata = ArrayMetadata.from_json(document, path)
        for key in [key for key in entries if key.startswith(f"{path}/c/")]:
            number = int(key.removeprefix(f"{path}/c/").split("/")[0])
            lo = number * metadata.shard_shape[0]
            block = np.ascontiguousarray(values[lo : lo + metadata.shard_shape[0]], metadata.dtype)
            coordinates = (number, *(0 for _ in metadata.shape[1:]))
            written = write_file(store, key, encode_shard(metadata, coordinates, block))
            entries[key] = Entry(
                key=key,
                bytes=written.bytes,
                checksum=written.checksum,
                rows=(lo, lo + len(block)),
                content=xxhash.xxh3_128_hexdigest(little_endian_bytes(block)),
            )
    data = manifest_bytes(entries.values())
    manifest.write_bytes(data)
    root = json.loads((store / "zarr.json").read_text())
    root["attributes"]["unistore"].update(attributes or {})
    root["attributes"]["unistore"]["seal"] = make_seal(entries.values(), data).to_json()
    (store / "zarr.json").write_bytes(sign_root(json.dumps(root, indent=1).encode() + b"\n"))
