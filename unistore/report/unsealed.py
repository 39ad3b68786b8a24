"""Folders that are no sealed stores: conversions under way or stopped, and other Zarr hierarchies."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from unistore.conversion.lock import owner_of
from unistore.errors import StoreError
from unistore.report.blocks import Block, format_shape
from unistore.report.suggestions import convert_command
from unistore.store.names import MANIFEST, build_folder
from unistore.store.reader import Store
from unistore.system.sizes import count_of
from unistore.zarr3.documents import DocumentError, is_list_of, parse_document
from unistore.zarr3.local import LocalStorage

BUILD_SUFFIX = build_folder(Path("x")).name.removeprefix("x")
"""Suffix of the folder in which a conversion is under way."""
_METADATA = ("zarr.json", ".zarray", ".zgroup")
_MAX_ARRAYS = 50


def describe_unfinished(build: Path) -> dict[str, Any]:
    """Describe a conversion from the journal of its build folder. JSON values; damaged lines are left out."""
    records = _records(build / "journal.jsonl")
    begun = next(iter(_steps(records, "begin")), {})
    identity = _typed(begun, "identity", dict) or {}
    shards, derived = _steps(records, "shard"), _steps(records, "derive")
    url = _typed(identity, "destination", str)  # None: beside the build folder
    local = build.with_name(build.name.removesuffix(BUILD_SUFFIX))
    destination = str(local) if url is None else url
    last = [record for record in derived if record.get("round") == derived[-1].get("round")]
    paths = [path for path in _typed(begun, "paths", list) or () if isinstance(path, str)]
    family, options = _typed(identity, "family", str), _typed(identity, "options", dict) or {}
    if url is None:
        replaces = next((str(path) for path in (local, build / "old") if _is_sealed(path)), None)
        written = sum(file.stat().st_size for file in (build / "store").rglob("*") if file.is_file())
    else:
        replaces = url if any(record.get("staged") for record in _steps(records, "place")) else None
        files = [file for shard in shards for file in _typed(shard, "files", list) or ()]
        written = sum(_typed(file, "bytes", int) or 0 for file in files if isinstance(file, dict))
    more = [] if url is None else ["--work", str(build.parent)]
    more += ["--overwrite"] if replaces else []
    command = "" if family is None else convert_command(family, paths, destination, options, more)
    return {
        "destination": destination,
        "family": family,
        "options": options,
        "sources": {
            "count": sum(len(_typed(record, "of", dict) or ()) for record in _steps(records, "sources")),
            "given": paths,
        },
        "sources_read": sum(_typed(record, "sources", int) or 0 for record in last),
        "tasks_done": len({str(shard.get("task")) for shard in shards}),
        "tasks": _typed(next(iter(_steps(records, "plan")), {}), "tasks", int),
        "sealed": bool(_steps(records, "sealed")),
        "written_bytes": written,
        "at_work": owner_of(build / "lock"),
        "replaces": replaces,
        "command": command,
    }


def _steps(records: list[dict[str, Any]], step: str) -> list[dict[str, Any]]:
    return [record for record in records if record.get("step") == step]


def _records(journal: Path) -> list[dict[str, Any]]:
    found = []
    for line in journal.read_bytes().splitlines() if journal.exists() else ():
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            found.append(record)
    return found


def _typed(record: dict[str, Any], name: str, kind: type) -> Any:
    """A value of a record, or None if it has another type: a journal may be damaged."""
    value = record.get(name)
    return value if isinstance(value, kind) else None


def _is_sealed(path: Path) -> bool:
    try:
        Store(path)
    except StoreError:
        return False
    return True


def unfinished_blocks(path: str, about: dict[str, Any]) -> list[Block]:
    """Blocks of `describe_unfinished`'s result."""
    total = "" if about["tasks"] is None else f" of {about['tasks']:,}"
    done = f"{about['tasks_done']:,}{total} shards written"
    if about["sources_read"]:
        done = f"{about['sources_read']:,} of {count_of(about['sources']['count'], 'source')} read, {done}"
    if about["sealed"]:
        done = "all, and sealed; it only has to be moved into place"
    facts = [
        ("unfinished", path),
        ("leads to", about["destination"]),
        ("family", (about["family"] or "not known yet").replace("_", " ")),
        ("sources", ", ".join(about["sources"]["given"])),
        ("done", done),
        ("at work", about["at_work"] or "nobody"),
        ("replaces", about["replaces"] or ""),
    ]
    blocks = [Block(facts=[fact for fact in facts if fact[1]])]
    if about["command"] and not about["at_work"]:
        blocks.append(Block(title="go on", code=about["command"]))
        hint = "The same command continues. To begin anew, add --restart; to give up, remove the folder."
        blocks.append(Block(lines=[hint]))
    return blocks


def is_zarr(path: Path) -> bool:
    """Whether a folder has Zarr metadata of version 2 or 3, readable or not."""
    return any(os.path.lexists(path / name) for name in _METADATA)


def is_store(path: Path) -> bool:
    """Whether a Zarr hierarchy has unistore's attributes or manifest, finished or not.

    Raises `StoreError` if its root document cannot be read.
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
        if found == ".zarray" or document.get("node_type") == "array":
            folders.clear()
            name, shape = Path(folder).relative_to(path).as_posix().removeprefix("."), document.get("shape")
            dtype = str(document.get("data_type", document.get("dtype")))
            arrays.append({"path": name, "shape": shape if is_list_of(shape, int) else None, "dtype": dtype})
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
    inside = path.iterdir() if path.is_dir() else ()
    return sorted(entry.name for entry in inside if entry.is_dir() and is_zarr(entry))
