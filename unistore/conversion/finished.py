"""A destination that is a finished store: whether it is up to date, and what differs if it is not."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from stat import S_ISDIR
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from unistore.conversion.build import Build, FinishedStoreError, is_store
from unistore.conversion.executors.local import parallel_map
from unistore.conversion.executors.processes import Processes
from unistore.conversion.keys import Inputs, SourceState, read_states
from unistore.conversion.new_store import NewStore, plan_options
from unistore.conversion.plan import versions
from unistore.conversion.report import Report
from unistore.conversion.settings import Settings
from unistore.conversion.skipping import scan_valid_sources
from unistore.conversion.split_rule import EXACT, share_text
from unistore.conversion.splits import prepare_splits
from unistore.converters.common.exclusion import Exclusion
from unistore.converters.detection import Claims, counted_scan
from unistore.converters.files.paths import name_ends
from unistore.errors import AddOptions, Fix, InputError, RunCommand, StoreError, first_few
from unistore.store.names import copies_folder
from unistore.store.reader import Store
from unistore.store.versions import OpenedPart, open_stores
from unistore.system.progress import NO_PROGRESS, Progress
from unistore.system.sizes import count_of
from unistore.system.types import JsonObject
from unistore.zarr3.storage import FailedReadError

if TYPE_CHECKING:
    from unistore.converters.adapter.converter import Converter

_SHOWN = 5  # Options of which the message says what they were


def is_up_to_date(
    converter: Converter,
    paths: Sequence[Path],
    destination: str,
    settings: Settings,
    claims: Claims | None = None,
    progress: Progress = NO_PROGRESS,
) -> bool:
    """Return whether there is a store that was made from these sources, with these options and versions."""
    build = settings.open_build(destination)
    store = _whole_store(build)
    if build.folder.exists() or store is None:
        return False
    with Processes() as executor:
        ask = parallel_map(executor, progress, "scanning")
        scan = scan_valid_sources(converter, paths, skip=False, ask=ask, claims=claims).scan
    rule = prepare_splits(settings.rule, paths, scan)
    options = plan_options(scan, settings.codec, rule)
    return _report_if_same(build, store, Inputs.of(converter, scan), options, paths) is not None


def _whole_store(build: Build) -> Store | None:
    try:
        store = Store(build.destination)
    except FailedReadError:
        raise
    except StoreError:
        return None
    recorded = store.attributes
    is_whole = not recorded.get("skipped") and recorded.get("created_with") == versions()
    return store if is_whole else None


def report_if_current(
    build: Build, inputs: Inputs, options: JsonObject, paths: Sequence[Path]
) -> Report | None:
    """Return the report of a finished store that these sources and options would make again, or None."""
    store = _whole_store(build)
    return None if store is None else _report_if_same(build, store, inputs, options, paths)


def _report_if_same(
    build: Build, store: Store, inputs: Inputs, options: JsonObject, paths: Sequence[Path]
) -> Report | None:
    # Values are not read: names, sizes and times of the sources are the same, and nothing under the given
    # paths, lists of splits included, was modified or changed status since they were scanned
    scan = inputs.scan
    now = json.loads(json.dumps(options))
    before = dict(store.attributes.get("options", {}))
    for recorded_options in (now, before):
        recorded_options.pop("found", None)  # known only from the values of the sources
    if (scan.family, now) != (store.family, before):
        return None
    sizes = inputs.sizes()
    names = list(scan.sources.names)
    if names != store.text("sources/path"):
        return None
    if not np.array_equal(sizes, store.array("sources/bytes").read()):
        return None
    seal = store.attributes["seal"]
    states = read_states(store.storage, seal["digest"], len(names))
    every = chain.from_iterable(chain((path,), path.rglob("*")) for path in paths)
    copies = copies_folder(build.folder.with_suffix(""))
    if max(_changed_at(path, is_copy=copies in path.parents) for path in every) >= states.scanned:
        return None
    for state, fingerprint in zip(states.states, inputs.fingerprints, strict=True):
        files = [file.path for file in fingerprint]
        is_copied = any(copies in Path(file).parents for file in files)  # of objects, at another time
        if not is_copied and not state.is_now(files):
            return None
    raw_bytes = 0
    for array in store.arrays().values():
        raw_bytes += math.prod(array.shape) * array.dtype.itemsize
    return Report(
        destination=build.destination,
        family=store.family,
        samples=store.sample_count,
        sample_table=store.sample_table,
        sources=len(names),
        source_bytes=int(sizes.sum()),
        raw_bytes=raw_bytes,
        stored_bytes=seal["bytes"],
        files=seal["files"] + 2,
        tasks=0,
        resumed=0,
        digest=seal["digest"],
        notes=tuple(scan.notes),
        verdicts=tuple(count.to_json() for count in counted_scan(scan)),
    )


def _changed_at(path: Path, *, is_copy: bool) -> int:
    # Copies of sources in a bucket have the modification times of their objects; all else of them is new
    # A link that leads nowhere, such as the lock of an editor, has times of its own
    state = path.stat() if path.exists() else path.lstat()
    if is_copy:
        return 0 if S_ISDIR(state.st_mode) else state.st_mtime_ns
    return max(state.st_mtime_ns, state.st_ctime_ns)


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
        changes = source_changes(error.destination, converter, paths, claims)
    except (InputError, StoreError, OSError):  # what is wrong with either is told by another command
        return error
    new, changed, missing, longer, removed = changes
    if longer:
        names = first_few([f"{name} was {before}" for name, before in longer.items()])
        message = f"{error.problems[0].message}, with names that begin at another folder: {names}"
        if not error.is_grown:
            purpose = "to convert all sources again, because a store cannot rename them"
            replacing = (AddOptions(("--overwrite",), purpose),)
        return InputError.at(error.destination, message, replacing, "exists")
    counted = (
        (new, "new"),
        (changed, "changed or touched since"),
        (missing, "not given now"),
        (removed, "removed from it"),
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
        with suppress(InputError, StoreError, OSError):  # the message is about the sources first
            if lines := _changed_options(error.destination, converter, paths, settings, claims):
                origin += f", and with other options: {first_few(lines, _SHOWN, '; ')}"
    elif lines := _changed_options(error.destination, converter, paths, settings, claims):
        origin = f"the same sources with other options: {first_few(lines, _SHOWN, '; ')}"
        if all(line.startswith("--codec ") for line in lines):
            compact = ("compact", error.destination, "NEW", "--codec", settings.codec)
            fixes.append(RunCommand(compact, "to change the codec without the sources"))
    else:
        origin = "the same sources and options"
        if open_stores(error.destination).stores[0].read_root().created_with != versions():
            origin += " by another version of unistore or of its libraries"
        verify = ("verify", error.destination, "--against", *error.sources)
        fixes.append(RunCommand(verify, "to compare values"))
    if missing and not error.is_grown:
        replacing = (AddOptions(("--overwrite",), f"to replace it by a store without {first_few(missing)}"),)
    message = f"{error.problems[0].message}, made from {origin}"
    return InputError.at(error.destination, message, (*fixes, *replacing), "exists")


class SourceChanges(NamedTuple):
    """Names of sources that differ between a store, or the newest version of one, and given paths."""

    new: list[str]  # given, and not in the store
    changed: list[str]  # in both, with other sizes or times of files
    missing: list[str]  # in the store, and not given
    # name in the store by the name given, which has more folders before it; both are also new and missing
    longer: dict[str, str]
    removed: list[str]  # given with their folder, and only in older versions: an append leaves them out

    @property
    def are_any(self) -> bool:
        """Whether a store of the given paths would have other sources, apart from removed ones."""
        return bool(self.new or self.changed or self.missing)


def source_changes(
    destination: str, converter: Converter, paths: Sequence[Path], claims: Claims | None = None
) -> SourceChanges:
    """Return which sources are new, changed or missing since a store was made. Values are not read."""
    opened = open_stores(destination)
    known = _stored_sources(opened.opened_parts())
    listing = (claims or Claims(paths, converter)).listing
    found = converter.find(listing, Exclusion(converter.exclude))
    given = {part.name: part.files for part in found.parts}
    missing = {name: state for name, state in known.items() if name not in given}
    new = [name for name in given if name not in known]
    removed: dict[str, None] = {}
    if new:
        before = _stored_sources([OpenedPart(store, ()) for store, _ in opened.parts_of_all_versions()])
        for name in new:
            is_named = not listing.given.isdisjoint(map(str, given[name]))
            if name in before and before[name].is_now(given[name]) and not is_named:
                removed[name] = None
        new = [name for name in new if name not in removed]
    longer = {}
    for name in new:
        for end in name_ends(name):
            if end in missing and missing[end].is_now(given[name]):
                longer[name] = end
    return SourceChanges(
        new=new,
        changed=[name for name in given if name in known and not known[name].is_now(given[name])],
        missing=[*missing],
        longer=longer,
        removed=[*removed],
    )


def _stored_sources(parts: Sequence[OpenedPart]) -> dict[str, SourceState]:
    """Return the state of the files of each source that is not removed."""
    known: dict[str, SourceState] = {}
    for store, removed in parts:
        names = store.text("sources/path")
        states = read_states(store.storage, store.root.seal.digest, len(names)).states
        for row, (name, state) in enumerate(zip(names, states, strict=True)):
            if row not in removed:
                known[name] = state
    return known


def _changed_options(
    destination: str, converter: Converter, paths: Sequence[Path], settings: Settings, claims: Claims | None
) -> list[str]:
    """Return how the options of a conversion differ from those of the store, a line for each."""
    store = open_stores(destination).stores[0]
    with Processes() as executor:
        scan = scan_valid_sources(
            converter, paths, skip=False, ask=parallel_map(executor), claims=claims
        ).scan
    if store.family != scan.family:
        return [f"the family was {store.family}, is {scan.family}"]
    rule = prepare_splits(settings.rule, paths, scan)
    return option_changes(store.read_root().options, plan_options(scan, settings.codec, rule))


def replaced_notes(destination: str, new_store: NewStore) -> list[str]:
    """Return notes that name the sources, splits and options that are lost when a store is replaced."""
    if not is_store(destination):
        return []
    old = Store(destination)
    try:
        sources = old.text("sources/path")
        splits = old.split_names() if old.has("splits/code") else []
    except (StoreError, UnicodeDecodeError) as error:
        return [f"the replaced store is damaged, so it was not compared with the new one: {error}"]
    names = set(new_store.scan.sources.names)
    notes = []
    if gone := [name for name in sources if name not in names]:
        are = "is" if len(gone) == 1 else "are"
        counted = count_of(len(gone), "source")
        notes.append(f"{counted} of the replaced store {are} not in the new one: {first_few(gone)}")
    if missing := [name for name in splits if name not in new_store.split_names]:
        word = "split" if len(missing) == 1 else "splits"
        notes.append(f"the replaced store had the {word} {', '.join(missing)}, which the new one has not")
    if lines := option_changes(old.root.options, new_store.plan.options):
        notes.append(f"options differ from the replaced store: {first_few(lines, _SHOWN, '; ')}")
    return notes


def option_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return how recorded options differ, a line for each: ``"--split was train=0.8,val=0.2, is none"``."""
    old, new = _option_texts(before), _option_texts(now)
    names = sorted({*old, *new})
    if "--split" in names and "none" in (old.get("--split"), new.get("--split")):
        names = [name for name in names if name not in _OF_SPLITS]  # they mean nothing without splits
    lines = []
    for name in names:
        was, is_now = (texts.get(name, "none") for texts in (old, new))
        if was != is_now:
            lines.append(f"{name} was {was}, is {is_now}")
    return lines


_OF_SPLITS = ("--split-by", "--split-seed", "--split-below", "--group-by")
# Known only from the values of the sources, or part of the text of another option
_NOT_COMPARED = ("found", "split_rule", "skipped", "compacted", "split_below", "codecs")


def _option_texts(options: Mapping[str, Any]) -> dict[str, str]:
    plain: dict[str, Any] = json.loads(json.dumps(dict(options)))
    texts = {
        f"--{name.replace('_', '-')}": _option_text(value)
        for name, value in plain.items()
        if name not in _NOT_COMPARED
    }
    if plain.get("split") and plain.get("split_rule") == "exact":
        texts["--split"] = EXACT + texts["--split"]
    return texts


def _option_text(value: Any) -> str:
    if isinstance(value, dict):
        value = share_text(value)
    elif isinstance(value, list):
        value = ",".join(map(str, value))
    text = "none" if value is None or value == "" else str(value)
    return text if len(text) <= 80 else f"{text[:77]}…"
