"""The sources and stores that tests of export use, and copies of stores that may be damaged."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def copy_case(make_case: Callable[[str], tuple[Any, Path]], tmp_path: Path) -> Callable[[str], Any]:
    """``copy_case(name)``: the case and a copy of its store, to be damaged."""

    def copy(name: str) -> tuple[Any, Path]:
        case, store = make_case(name)
        target = tmp_path / f"{name}.zarr"
        shutil.copytree(store, target)
        return case, target

    return copy


@pytest.fixture
def tree() -> Callable[[Path], dict[str, bytes]]:
    """``tree(folder)``: every file of a folder by its path."""

    def read(folder: Path) -> dict[str, bytes]:
        files = (path for path in folder.rglob("*") if path.is_file())
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}

    return read


@pytest.fixture
def forge() -> Callable[..., None]:
    """``forge(store, {path: array})``: write other values and seal them, as a faulty converter would."""

    def write(store: Path, arrays: dict[str, Any], attributes: dict[str, Any] | None = None) -> None:
        import json

        import numpy as np

        from unistore.store.manifest import Entry, manifest_bytes, parse_manifest, seal_of, sign_root
        from unistore.zarr3.metadata import ArrayMetadata
        from unistore.zarr3.writer import content_digest, encode_shard, write_shard

        manifest = store / "unistore-manifest.jsonl"
        entries = {entry.key: entry for entry in parse_manifest(manifest.read_bytes(), "here")}
        for path, values in arrays.items():
            document = json.loads((store / path / "zarr.json").read_text())
            metadata = ArrayMetadata.from_json(document, path)
            assert metadata.shard_shape is not None
            for key in [key for key in entries if key.startswith(f"{path}/c/")]:
                number = int(key.removeprefix(f"{path}/c/").split("/")[0])
                lo = number * metadata.shard_shape[0]
                block = np.ascontiguousarray(values[lo : lo + metadata.shard_shape[0]], metadata.dtype)
                coordinates = (number, *(0 for _ in metadata.shape[1:]))
                written = write_shard(store, key, encode_shard(metadata, coordinates, block))
                entries[key] = Entry(
                    key=key,
                    bytes=written.bytes,
                    checksum=written.checksum,
                    rows=(lo, lo + len(block)),
                    content=content_digest(block),
                )
        data = manifest_bytes(entries.values())
        manifest.write_bytes(data)
        root = json.loads((store / "zarr.json").read_text())
        root["attributes"]["unistore"].update(attributes or {})
        root["attributes"]["unistore"]["seal"] = seal_of(entries.values(), data)
        (store / "zarr.json").write_bytes(sign_root(json.dumps(root, indent=1).encode() + b"\n"))

    return write
