"""A destination that is a finished store: which of the sources it does not have, and what else differs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from unistore.conversion.build import FinishedStoreError, differences
from unistore.conversion.executors.local import parallel_map
from unistore.conversion.executors.processes import Processes
from unistore.conversion.keys import SourceState, read_states
from unistore.conversion.new_store import plan_options, versions
from unistore.conversion.settings import Settings
from unistore.conversion.skipping import scan_valid_sources
from unistore.conversion.splits import prepare_splits
from unistore.converters.common.exclusion import Exclusion
from unistore.converters.detection import Claims
from unistore.errors import Fix, InputError, RunCommand, StoreError, first_few
from unistore.store.versions import open_stores
from unistore.system.sizes import count_of

if TYPE_CHECKING:
    from unistore.converters.adapter.converter import Converter

_SHOWN = 5  # Options of which the message says what they were


def compared(
    error: FinishedStoreError,
    converter: Converter,
    paths: Sequence[Path],
    settings: Settings,
    claims: Claims | None = None,
) -> InputError:
    """Return the error of a finished store with what differs from its sources, and the commands that help.

    Parameters
    ----------
    error
        The error without them.
    converter, paths, settings, claims
        What was to be converted.
    """
    replacing: tuple[Fix, ...] = error.problems[0].fixes
    try:
        new, changed, missing = source_changes(error.destination, converter, paths, claims)
    except (InputError, StoreError, OSError):  # what is wrong with either is told by another command
        return error
    counted = (
        (new, "new"),
        (changed, "changed or touched since"),
        (missing, "not given now"),
    )
    differing = [f"{len(names):,} {state} ({first_few(names)})" for names, state in counted if names]
    append = ("convert", *error.sources, error.destination, "--append")
    fixes: list[Fix] = []
    if changed:
        purpose = f"to replace the sources that changed, {len(changed):,} at most"
        purpose += f", and to add {len(new):,}" if new else ""
        fixes.append(RunCommand((*append, "--replace"), purpose))
    elif new:
        fixes.append(RunCommand(append, f"to add {count_of(len(new), 'source')}"))
    if differing:
        origin = f"other sources: {'; '.join(differing)}"
    else:
        origin = _other_options(error.destination, converter, paths, settings, claims)
        words = ("verify", error.destination, "--against", *error.sources)
        fixes.append(RunCommand(words, "to compare values"))
    message = f"{error.problems[0].message}, made from {origin}"
    return InputError.at(error.destination, message, (*fixes, *replacing), "exists")


class SourceChanges(NamedTuple):
    """Names of sources that differ between a store, or the newest version of one, and given paths."""

    new: list[str]  # given, and not in the store
    changed: list[str]  # in both, with other sizes or times of files
    missing: list[str]  # in the store, and not given


def source_changes(
    destination: str, converter: Converter, paths: Sequence[Path], claims: Claims | None = None
) -> SourceChanges:
    """Return which sources are new, changed or missing since a store was made. Values are not read."""
    known = _stored_sources(destination)
    found = converter.find((claims or Claims(paths, converter)).listing, Exclusion(converter.exclude))
    given = {part.name: part.files for part in found.parts}
    return SourceChanges(
        new=[name for name in given if name not in known],
        changed=[name for name in given if name in known and not known[name].is_now(given[name])],
        missing=[name for name in known if name not in given],
    )


def _stored_sources(destination: str) -> dict[str, SourceState]:
    """Return the state of the files of each source of a store, or of the newest version of a grown one."""
    opened = open_stores(destination)
    known: dict[str, SourceState] = {}
    for store, removed in zip(opened.stores, opened.removed, strict=True):
        names = store.text("sources/path")
        states = read_states(store.storage, store.attributes["seal"]["digest"], len(names)).states
        for row, (name, state) in enumerate(zip(names, states, strict=True)):
            if row not in removed:
                known[name] = state
    return known


def _other_options(
    destination: str, converter: Converter, paths: Sequence[Path], settings: Settings, claims: Claims | None
) -> str:
    """Return how the options of a conversion of the same sources differ from those of the store."""
    store = open_stores(destination).stores[0]
    with Processes() as executor:
        scan = scan_valid_sources(
            converter, paths, skip=False, ask=parallel_map(executor), claims=claims
        ).scan
    rule = prepare_splits(settings.rule, paths, scan)
    now = json.loads(json.dumps(plan_options(scan, settings.codec, rule)))
    before = dict(store.attributes.get("options", {}))
    for options in (now, before):
        options.pop("found", None)  # known only from the values of the sources
    lines = differences(before, now)
    if store.family != scan.family:
        lines = [f"family: {store.family} before, {scan.family} now"]
    if lines:
        return f"the same sources with other options: {first_few(lines, _SHOWN, '; ')}"
    if store.attributes.get("created_with") != versions():
        return "the same sources and options by another version of unistore or of its libraries"
    return "the same sources and options"
