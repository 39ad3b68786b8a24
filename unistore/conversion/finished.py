"""Whether a finished store is up to date with its sources."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from unistore.conversion.executors.apart import Apart
from unistore.conversion.executors.asking import asking
from unistore.conversion.fingerprint import fingerprints_of, sizes_of
from unistore.conversion.planning import plan_options, versions
from unistore.conversion.skipping import scan_valid_sources
from unistore.conversion.split_rule import SplitRule
from unistore.conversion.splits import prepare_splits
from unistore.converters.protocol import Converter
from unistore.errors import StoreError
from unistore.remote.storage import local_path
from unistore.store.names import ROOT, build_folder
from unistore.store.reader import Store


def is_up_to_date(
    converter: Converter,
    paths: Sequence[Path],
    destination: str,
    *,
    codec: str,
    split: SplitRule | None,
) -> bool:
    """Whether the store in a folder was made from these sources, with these options and versions.

    Sources must have the same names and sizes, and no file or folder under the given paths (lists of splits
    included) may have a modification or status change time after the seal. Values are not read.

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
    recorded = store.attributes
    if recorded.get("skipped") or recorded.get("created_with") != versions():
        return False
    with Apart() as executor:
        scan = scan_valid_sources(converter, paths, skip=False, ask=asking(executor))[1]
    rule = prepare_splits(split, paths, scan)
    options = json.loads(json.dumps(plan_options(scan, codec, rule)))
    before = dict(recorded.get("options", {}))
    for each in (options, before):
        each.pop("found", None)  # known only from the values of the sources
    if (scan.family, options) != (recorded["family"], before):
        return False
    names, sizes = list(scan.sources.names), sizes_of(fingerprints_of(scan)).tolist()
    if names != store.text("sources/path") or sizes != store.array("sources/bytes").read().tolist():
        return False
    return all(changed < sealed for path in paths for changed in _change_times(path))


def _change_times(path: Path) -> Iterator[int]:
    """Time of the last change of a path and of everything below it, in ns."""
    yield _change_time(path)
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            yield _change_time(Path(folder, name))


def _change_time(path: Path) -> int:
    state = path.stat()
    return max(state.st_mtime_ns, state.st_ctime_ns)
