"""Names of the store format, version 1 (docs/format.md)."""

from __future__ import annotations

import os
import re
from pathlib import Path

from unistore.system.machine import absolute

FORMAT_VERSION = 1
MANIFEST = "unistore-manifest.jsonl"
# Lists what was left out because of problems; exists only if something was.
REPORT = "unistore-report.json"
# Statistics of the samples; may be added to a sealed store, which does not list it.
STATISTICS = "unistore-statistics.npz"
# Sizes and times of the source files when they were scanned; the manifest does not list it.
SOURCES = "unistore-sources.json"
# Suffix of the folder beside a store that a repair works in.
REPAIR = "unistore-repair"
# Suffix of the folder beside a store that holds its side tables, and the family in their roots.
SIDE_TABLES = "unistore-side"
SIDE_FAMILY = "side_table"
# Suffix of the folder beside a store in which its next version is made.
GROWTH = "unistore-growth"
# Metadata of the root group; written last, which completes the store.
ROOT = "zarr.json"

# Folders of a grown store: its versions, sealed stores by their digests, names of versions.
VERSIONS = "versions"
PARTS = "parts"
TAGS = "tags"
FIRST_VERSION = f"{VERSIONS}/1.json"
_PART_SUFFIX = ".zarr/"

# In an object store: names the conversion that writes to a prefix; removed once the store is sealed.
BUILD_MARK = "unistore-build.json"

# Entry of the root's ``zarr_conventions``; its URLs are relative to the project.
CONVENTION = {
    "uuid": "6d7f2a9e-9b0c-4f43-9f0e-4b1d6f0c7a51",
    "name": "unistore",
    "description": "Sealed training stores: tables of rows in sharded arrays, with a manifest of every file",
    "schema_url": "docs/format/schema.json",
    "spec_url": "docs/format.md",
}


def build_folder(destination: Path) -> Path:
    """Return the staging folder of a conversion, next to `destination`, so that a rename completes it."""
    return folder_beside(destination, "unistore-build")


def copies_folder(destination: Path) -> Path:
    """Return the folder for copies of sources from an object store."""
    return folder_beside(destination, "unistore-sources")


def folder_beside(store: Path, suffix: str) -> Path:
    """Return the folder next to a store with the same name and a suffix."""
    path = Path(os.path.normpath(absolute(store)))  # "." and "..", but not links, are resolved
    return path.parent / f"{path.name}.{suffix}"


def growth_folder(store: Path) -> Path:
    """Return the staging folder for the next version of a store."""
    return folder_beside(store, GROWTH)


def part_folder(manifest: str) -> str:
    """Return the folder of a part in a versioned store, by the checksum of its manifest."""
    return f"{PARTS}/{manifest}{_PART_SUFFIX}"


def split_part_key(key: str) -> tuple[str, str]:
    """Return the checksum of the manifest of a part, and the key in it, of a key in a grown store."""
    folder, _, own = key.partition(_PART_SUFFIX)
    return folder.removeprefix(f"{PARTS}/"), own


_MAX_NAME_BYTES = 255
_DRIVE = re.compile(r"[A-Za-z]:")


def file_name_problem(name: str) -> str | None:
    """Return why a relative path is not valid on every file system, or None if it is."""
    parts = name.split("/")
    if not name or name.startswith("/") or _DRIVE.match(name):
        return "it is empty or absolute"
    if any(part in ("", ".", "..") for part in parts):
        return "it contains '..', '.' or an empty part"
    if "\\" in name or not name.isprintable():
        return "it contains a backslash or a control character"
    if any(len(part.encode("utf-8", "surrogateescape")) > _MAX_NAME_BYTES for part in parts):
        return f"a part is longer than {_MAX_NAME_BYTES} bytes"
    return None
