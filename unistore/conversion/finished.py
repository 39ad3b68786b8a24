"""Whether a finished store is what a conversion would make again."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from unistore.conversion.guard import guard_of
from unistore.conversion.planning import plan_options, versions
from unistore.conversion.skipping import scan_sound
from unistore.conversion.splits import Shares
from unistore.converters.protocol import Converter
from unistore.errors import StoreError
from unistore.remote.storage import local_path
from unistore.store.names import ROOT, build_folder
from unistore.store.reader import Store

__all__ = ["is_up_to_date"]


def is_up_to_date(
    converter: Converter,
    paths: Sequence[Path],
    destination: str,
    *,
    codec: str,
    shares: Shares | None,
) -> bool:
    """Whether the store in a folder was made of these sources, with these options and versions.

    Sources are the same by name and size, and no file or folder under the given paths, lists of splits
    included, was changed since the store was sealed: neither its modification nor its status change time is
    later. Values are not read.

    Raises
    ------
    InputError
        If the sources cannot be scanned.
    """
    folder = local_path(destination)
    if folder is None or build_folder(Path(os.path.abspath(folder))).exists():  # noqa: PTH100  links stay links
        return False
    try:
        store = Store(folder)
        sealed = (folder / ROOT).stat().st_mtime_ns
    except (StoreError, OSError):
        return False
    made = store.attributes
    if made.get("skipped") or made.get("created_with") != versions():
        return False
    scan = scan_sound(converter, paths, skip=False)[1]
    options = json.loads(json.dumps(plan_options(scan, codec, shares)))
    recorded = dict(made.get("options", {}))
    for each in (options, recorded):
        each.pop("found", None)  # in the values of the sources
    if (scan.family, options) != (made["family"], recorded):
        return False
    sizes = [sum(file.size for file in guard_of(source)) for source in scan.sources]
    names = [source.name for source in scan.sources]
    if names != store.text("sources/path") or sizes != store.array("sources/bytes").read().tolist():
        return False
    return all(changed < sealed for path in paths for changed in _changes(path))


def _changes(path: Path) -> Iterator[int]:
    """When a path and everything below it was changed last, in ns."""
    yield _changed(path)
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            yield _changed(Path(folder, name))


def _changed(path: Path) -> int:
    state = path.stat()
    return max(state.st_mtime_ns, state.st_ctime_ns)
