"""An unfinished conversion: its progress, the process that runs it, and the command that continues it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from unistore.conversion.lock import owner_of
from unistore.errors import StoreError
from unistore.report.blocks import Block
from unistore.report.commands import convert_command
from unistore.store.names import build_folder
from unistore.store.reader import Store
from unistore.system.sizes import count_of

SUFFIX = build_folder(Path("x")).name.removeprefix("x")
"""Suffix of the folder in which a conversion is under way."""


def describe_unfinished(build: Path) -> dict[str, Any]:
    """Describe a conversion from the journal of its build folder. JSON values; damaged lines are left out."""
    records = _records(build / "journal.jsonl")
    begun = next((record for record in records if record.get("step") == "begin"), {})
    identity = _typed(begun, "identity", dict) or {}
    planned = next((record for record in records if record.get("step") == "plan"), {})
    url = _typed(identity, "destination", str)  # None: beside the build folder
    local = build.with_name(build.name.removesuffix(SUFFIX))
    destination = str(local) if url is None else url
    done = {str(record.get("task")) for record in records if record.get("step") == "shard"}
    scanned = [_typed(record, "of", dict) or {} for record in records if record.get("step") == "sources"]
    derived = [record for record in records if record.get("step") == "derive"]
    last = [record for record in derived if record.get("round") == derived[-1].get("round")]
    paths = [path for path in _typed(begun, "paths", list) or () if isinstance(path, str)]
    family, options = _typed(identity, "family", str), _typed(identity, "options", dict) or {}
    replaces = _replaced_folder(local, build / "old") if url is None else _replaced_url(records, url)
    more = [] if url is None else ["--work", str(build.parent)]
    more += ["--overwrite"] if replaces else []
    command = "" if family is None else convert_command(family, paths, destination, options, more)
    return {
        "destination": destination,
        "family": family,
        "options": options,
        "sources": {"count": sum(map(len, scanned)), "given": paths},
        "sources_read": sum(_typed(record, "sources", int) or 0 for record in last),
        "tasks_done": len(done),
        "tasks": _typed(planned, "tasks", int),
        "sealed": any(record.get("step") == "sealed" for record in records),
        "written_bytes": _local_bytes(build / "store") if url is None else _recorded_bytes(records),
        "at_work": owner_of(build / "lock"),
        "replaces": replaces,
        "command": command,
    }


def _local_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _recorded_bytes(records: list[dict[str, Any]]) -> int:
    shards = [record for record in records if record.get("step") == "shard"]
    files = [file for shard in shards for file in _typed(shard, "files", list) or ()]
    return sum(_typed(file, "bytes", int) or 0 for file in files if isinstance(file, dict))


def _replaced_url(records: list[dict[str, Any]], url: str) -> str | None:
    """The URL, if the conversion replaces a store there."""
    staged = any(record.get("staged") for record in records if record.get("step") == "place")
    return url if staged else None


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


def _replaced_folder(*paths: Path) -> str | None:
    """The first path that is a store."""
    for path in paths:
        try:
            Store(path)
        except StoreError:
            continue
        return str(path)
    return None


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
