"""Names and numbers of the store format, version 1 (docs/format.md)."""

from __future__ import annotations

import os
import re
from pathlib import Path

__all__ = [
    "BUILD_MARK",
    "CONVENTION",
    "FORMAT_VERSION",
    "MANIFEST",
    "REPAIR",
    "REPORT",
    "ROOT",
    "build_folder",
    "file_name_problem",
]

FORMAT_VERSION = 1
MANIFEST = "unistore-manifest.jsonl"
REPORT = "unistore-report.json"
"""What was left out because of its problems; only where something was."""
REPAIR = "unistore-repair"
"""Ending of the folder beside a store in which a repair works."""
ROOT = "zarr.json"
"""The root group's metadata: written last, it makes the store."""

BUILD_MARK = "unistore-build.json"
"""In an object store: says who converts to a prefix; removed once the store is sealed."""

CONVENTION = {
    "uuid": "6d7f2a9e-9b0c-4f43-9f0e-4b1d6f0c7a51",
    "name": "unistore",
    "description": "Sealed training stores: tables of rows in sharded arrays, with a manifest of every file",
}


def build_folder(destination: Path) -> Path:
    """Where an unfinished conversion to `destination` lives: beside it, so that a rename finishes it."""
    path = Path(os.path.abspath(destination))  # noqa: PTH100  "." and ".." have names, links stay links
    return path.parent / f"{path.name}.unistore-build"


_LONGEST = 255
_DRIVE = re.compile(r"[A-Za-z]:")


def file_name_problem(name: str) -> str | None:
    """Say why a name cannot be that of a file below a folder, on every file system; None if it can."""
    parts = name.split("/")
    if not name or name.startswith("/") or _DRIVE.match(name):
        return "it is empty or absolute"
    if any(part in ("", ".", "..") for part in parts):
        return "it holds '..', '.' or an empty part"
    if "\\" in name or not name.isprintable():
        return "it holds a backslash or a control character"
    if any(len(part.encode("utf-8", "surrogateescape")) > _LONGEST for part in parts):
        return f"a part is longer than {_LONGEST} bytes"
    return None
