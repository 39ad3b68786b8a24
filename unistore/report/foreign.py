"""Zarr hierarchies that are not unistore stores."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from unistore.errors import StoreError
from unistore.report.blocks import Block, format_shape
from unistore.store.names import MANIFEST
from unistore.zarr3.documents import DocumentError, is_list_of, parse_document
from unistore.zarr3.local import LocalStorage

_METADATA = ("zarr.json", ".zarray", ".zgroup")
_MAX_ARRAYS = 50


def is_zarr(path: Path) -> bool:
    """Whether a folder has Zarr metadata of version 2 or 3, readable or not."""
    return any(os.path.lexists(path / name) for name in _METADATA)


def is_store(path: Path) -> bool:
    """Whether a Zarr hierarchy has unistore's attributes or manifest, finished or not.

    Raises
    ------
    StoreError
        If its root document cannot be read.
    """
    root = path / "zarr.json"
    if root.exists() and not os.access(root, os.R_OK):
        msg = f"{root}: cannot be read (Permission denied); change the rights"
        raise StoreError(msg)
    attributes = _document(path, "zarr.json").get("attributes")
    return (isinstance(attributes, dict) and "unistore" in attributes) or os.path.lexists(path / MANIFEST)


def describe_zarr(path: Path) -> dict[str, Any]:
    """Version and the first 50 arrays of a Zarr hierarchy. JSON values."""
    arrays = []
    for folder, folders, files in os.walk(path):
        folders.sort()
        found = next((name for name in _METADATA if name in files), None)
        if found is None:
            folders.clear()  # chunks lie below
            continue
        document = _document(Path(folder), found)
        shape = document.get("shape")
        if found == ".zarray" or document.get("node_type") == "array":
            folders.clear()
            arrays.append(
                {
                    "path": Path(folder).relative_to(path).as_posix().removeprefix("."),
                    "shape": shape if is_list_of(shape, int) else None,
                    "dtype": str(document.get("data_type", document.get("dtype"))),
                }
            )
            if len(arrays) == _MAX_ARRAYS:
                break
    version = 3 if (path / "zarr.json").exists() else 2
    return {"zarr_format": version, "arrays": arrays, "more": len(arrays) == _MAX_ARRAYS}


def _document(folder: Path, name: str) -> dict[str, Any]:
    """A metadata document; empty if it cannot be read."""
    try:
        return parse_document(LocalStorage(folder).get(name))
    except (StoreError, DocumentError):
        return {}


def zarr_blocks(path: str, about: dict[str, Any]) -> list[Block]:
    """Blocks of `describe_zarr`'s result."""
    rows = [(array["path"] or "/", format_shape(array["shape"]), array["dtype"]) for array in about["arrays"]]
    lines = ["A Zarr hierarchy, but not a unistore store: it has no samples and no seal."]
    if about["zarr_format"] == 3:
        lines.append("Read it with unistore.open_zarr(path), a zarr.Group, or with any Zarr reader.")
    blocks = [Block(facts=[("zarr", f"{path} (format {about['zarr_format']})")]), Block(lines=lines)]
    if rows:
        more = " (the first ones)" if about["more"] else ""
        blocks.append(Block(title=f"arrays{more}", columns=("array", "shape", "dtype"), rows=rows))
    return blocks


def stores_inside(path: Path) -> list[str]:
    """Names of the Zarr folders directly inside a folder."""
    if not path.is_dir():
        return []
    return sorted(entry.name for entry in path.iterdir() if entry.is_dir() and is_zarr(entry))
