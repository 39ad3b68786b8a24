"""Sources that ``on_error="skip"`` left out of a store: unchanged since, or mended."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from unistore.conversion.finished import SourceChanges
from unistore.conversion.keys import FileTime, SourceState, read_states
from unistore.conversion.skipping import skipped_sources
from unistore.converters.common.exclusion import Exclusion
from unistore.converters.files.paths import list_files
from unistore.store.reader import Store

if TYPE_CHECKING:
    from unistore.converters.adapter.converter import Converter


def skipped_since(stores: Sequence[Store]) -> dict[str, int]:
    """Return when the scan began that left each source, or item of one, out, in ns since 1970.

    A source that several stores, parts of a version, have left out has the time of the last. 0: unknown.
    """
    since: dict[str, int] = {}
    for store in stores:
        skipped = skipped_sources(store.read_root().options)
        if skipped:
            names = store.text("sources/path")
            scanned = read_states(store.storage, store.root.seal.digest, len(names)).scanned
            for name in skipped:
                since[name] = max(since.get(name, 0), scanned)
    return since


def still_skipped(stores: Sequence[Store]) -> tuple[dict[str, int], set[str]]:
    """Return what `skipped_since` does of the sources that no store has, and the names of the others.

    These were mended, and a later part of the version has them.
    """
    since = skipped_since(stores)
    added: set[str] = set()
    if since:
        for store in stores:
            added.update(name for name in store.text("sources/path") if name in since)
    return {name: scanned for name, scanned in since.items() if name not in added}, added


def including_mended(converter: Converter, paths: Sequence[Path], since: dict[str, int]) -> Converter:
    """Return a converter that no longer excludes the skipped sources whose files have changed since.

    Parameters
    ----------
    converter, paths
        As for `with_mended`.
    since
        What `skipped_since` returns.
    """
    found = converter.find(list_files(paths), Exclusion(_without(converter.exclude, since))).parts
    parts = {part.name: part for part in found}
    mended = set()
    for name, scanned in since.items():
        part = parts.get(name) or parts.get(name.partition(": ")[0])  # of an item, such as an episode
        if part is not None and scanned and not _is_unchanged(part.files, scanned):
            mended.add(name)
    return converter.excluding(tuple(_without(converter.exclude, mended)))


def with_mended(
    changes: SourceChanges, converter: Converter, paths: Sequence[Path], since: dict[str, int]
) -> SourceChanges:
    """Return changes in which skipped sources count as new if their files have changed, and else not at all.

    Parameters
    ----------
    changes
        As `source_changes` returns them.
    converter
        With the names that the first store excludes.
    paths
        Where the sources are now.
    since
        When the scan began that left each source out, of at least one; see `still_skipped`.
    """
    listing = list_files(paths)
    parts = converter.find(listing, Exclusion(_without(converter.exclude, since))).parts
    read: set[Path] = set()
    for part in converter.find(listing, Exclusion(converter.exclude)).parts:
        if part.name not in since:
            read.update(part.files)
    mended = []
    changed = list(changes.changed)
    unchanged = set()
    for part in parts:
        files = [file for file in part.files if file not in read]
        if not files or (part.name in changes.new and part.name not in since):
            continue
        if _is_unchanged(files, since.get(part.name, min(since.values()))):
            unchanged.add(part.name)
        elif part.name in since:
            mended.append(part.name)
        else:
            changed.append(part.name)
    new = [name for name in changes.new if name not in {*unchanged, *changed, *mended}]
    return changes._replace(new=[*new, *mended], changed=changed)


def _without(names: Iterable[str], others: Container[str]) -> list[str]:
    return [name for name in names if name not in others]


def _is_unchanged(files: Sequence[Path], scanned: int) -> bool:
    return SourceState(scanned, tuple(map(FileTime.of, files))).is_now(files)
