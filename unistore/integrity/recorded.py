"""Plan once more the conversion that made a store, from its recorded options and its sources."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from unistore.conversion.build import FolderBuild
from unistore.conversion.convert import recorded_converter
from unistore.conversion.executors.local import Executor, T, asking
from unistore.conversion.job import ShardJob
from unistore.conversion.keys import Fingerprints, fingerprints_of
from unistore.conversion.new_store import NewStore, versions
from unistore.conversion.run import Conversion
from unistore.conversion.settings import Settings
from unistore.conversion.skipping import with_skipped
from unistore.conversion.split_rule import SplitRule
from unistore.converters.common.exported import VALUE
from unistore.converters.files.hdf5.attributes import attribute_label
from unistore.converters.scanning import scan_sources
from unistore.errors import InputError, StoreError, printable
from unistore.schemas.tables import HDF5_ATTRIBUTES, SOURCE_FILES, text_values
from unistore.store.reader import Store
from unistore.system.progress import Progress
from unistore.zarr3.durable import Folder
from unistore.zarr3.writer import compressor_of

_SHOWN = 5
_TEXT = (f"{HDF5_ATTRIBUTES}/data", f"{HDF5_ATTRIBUTES}/offsets")


@dataclass(frozen=True, slots=True)
class SeededFolder(Folder):
    """A folder to write shards to, beside shards of `sizes_beside` that are somewhere else."""

    sizes_beside: Mapping[str, int]

    def sizes(self) -> Mapping[str, int]:
        """Return sizes of the files by key, those beside included."""
        return {**self.sizes_beside, **Folder.sizes(self)}


class RecordedBuild(FolderBuild):
    """Build folder of a conversion that is made once more.

    Attributes
    ----------
    sound
        Sizes of the shards by key that the store has already.
    """

    def __init__(self, work: Path) -> None:
        super().__init__(work / "store")
        self.sound: dict[str, int] = {}

    @property
    def target(self) -> Folder:
        """Folder of the shards that the store lacks."""
        return SeededFolder(self.local, self.sound)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedConversion:
    """The conversion that made a store, planned from the sources as they are now."""

    conversion: Conversion
    build: RecordedBuild
    new_store: NewStore

    @property
    def fingerprints(self) -> Fingerprints:
        """State of the source files when it was planned."""
        return self.conversion.fingerprints

    def job(self) -> ShardJob:
        """Return a job that makes the shards."""
        new_store = self.new_store
        return self.conversion.job(new_store.plan, new_store.spilled, new_store.spill)


def plan_recorded_conversion(
    attributes: Mapping[str, Any], sources: Sequence[Path], work: Path, progress: Progress, executor: Executor
) -> RecordedConversion:
    """Scan and derive the sources, and plan their conversion with the options of a store.

    `attributes` is the root's ``unistore`` object; the build folder is in `work`.
    """
    try:
        options: Mapping[str, Any] = attributes["options"]
        converter = recorded_converter(attributes["family"], options)
        codec = options["codec"]
        split = SplitRule.recorded(options)
        codecs = dict(options["found"]["codecs"]) if codec == "auto" else {}
        for chosen in codecs.values():
            compressor_of(str(chosen), np.dtype(np.uint8))
    except (KeyError, TypeError, ValueError, InputError) as error:
        msg = f"the store's options are not those of a converter of this unistore ({error})"
        raise StoreError(msg) from error
    scan = with_skipped(scan_sources(converter, sources, (), asking(executor)), options.get("skipped", ()))
    with RecordedBuild(work) as build:
        conversion = Conversion(
            converter=converter,
            scan=scan,
            fingerprints=fingerprints_of(scan),
            build=build,
            settings=Settings(codec=codec, split=split, on_error="skip"),
            executor=executor,
            progress=progress,
        )
        new_store = conversion.plan(split, codecs)
    # Other files beside the sources may have come or gone: the verdicts on them are those of the store.
    own = {name: value for name, value in new_store.attributes.items() if name != "verdicts"}
    if "verdicts" in attributes:
        own["verdicts"] = attributes["verdicts"]
    new_store = replace(new_store, attributes=own)
    return RecordedConversion(conversion=conversion, build=build, new_store=new_store)


def encoder_differences(attributes: Mapping[str, Any]) -> list[str]:
    """Return one line for each library whose version is not the one that wrote the store."""
    versions_then = attributes["created_with"]
    now = versions()
    differing = [name for name in _differing(versions_then, now) if name in now]
    return [f"{name}: {versions_then.get(name)} made the store, this is {now[name]}" for name in differing]


def differences(store: Store, new_store: NewStore) -> list[str]:
    """Return one line for each source, option or array that differs between a store and a plan.

    Arrays are compared only where sources and options are the same, and if they can be opened.
    """
    plan = new_store.plan
    lines = _source_lines(store, new_store)
    options = store.attributes["options"]
    lines += [
        f"option {name}: {options.get(name)} in the store, {plan.options.get(name)} now"
        for name in sorted(_differing(options, plan.options))
    ]
    if lines := lines or _attribute_lines(store, new_store):
        return lines
    forms = {array.field.path: f"{array.field.dtype} {array.shape}" for array in plan.arrays()}
    later = later_arrays(store, new_store)
    for path in sorted({*forms, *store.paths()}):
        if path in later or is_later(store, path):
            continue
        if path not in forms or not store.has(path):
            lines.append(f"array {path}: only {'the store' if store.has(path) else 'now'} has it")
            continue
        try:
            array = store.array(path)
        except StoreError:
            continue
        form = f"{array.dtype.name} {array.shape}"
        if form != forms[path]:
            lines.append(f"array {path}: {form} in the store, {forms[path]} now")
    return lines


def is_later(store: Store, path: str) -> bool:
    """Return whether stores had no such array when this one was made. It says nothing of values."""
    return path.startswith(f"{SOURCE_FILES}/") and not store.has(path)


def later_arrays(store: Store, new_store: NewStore) -> set[str]:
    """Return paths of arrays that hold more now than when a store was made: single values of HDF5 files."""
    before, after = _attribute_texts(store, new_store)
    return set(_TEXT) if _hold_single_values(after) and not _hold_single_values(before) else set()


def _hold_single_values(texts: Sequence[str]) -> bool:
    # Not parsed: a store that is repaired may hold any text. In JSON such an entry is the first of its path.
    return any(': {"": ' in text for text in texts)


def _attribute_texts(store: Store, new_store: NewStore) -> tuple[list[str], list[str]]:
    """Return attributes of the sources as a store has them, empty if it is damaged, and as they are now."""
    nothing = ["{}"] * len(new_store.scan.sources)
    now = {described.path: values[:] for described, values in new_store.arrays if described.path in _TEXT}
    after = text_values(*(now[path] for path in _TEXT)) if now else nothing
    try:
        before = store.text(HDF5_ATTRIBUTES) if store.has(f"{HDF5_ATTRIBUTES}/data") else nothing
    except (StoreError, UnicodeDecodeError):
        before = []
    return before, after


def _source_lines(store: Store, new_store: NewStore) -> list[str]:
    try:
        before = store.text("sources/path")
    except (StoreError, UnicodeDecodeError):
        return []
    now = [source.name for source in new_store.scan.sources]
    gone = [f"source {name}: not among those given" for name in before if name not in now]
    new = [f"source {name}: not one of the store's" for name in now if name not in before]
    more = len(gone[_SHOWN:]) + len(new[_SHOWN:])
    lines = gone[:_SHOWN] + new[:_SHOWN] + ([f"and {more} further sources"] if more else [])
    return lines or (["the order of the sources"] if before != now else [])


def _attribute_lines(store: Store, new_store: NewStore) -> list[str]:
    """Return one line for each attribute of an HDF5 source that differs from the store's."""
    names = [source.name for source in new_store.scan.sources]
    before, after = _attribute_texts(store, new_store)
    if not before:
        return []  # the store's text is damaged: the comparison of its arrays says so
    try:
        later = later_arrays(store, new_store)
        lines = []
        for name, old, new in zip(names, before, after, strict=True):
            if old == new:
                continue
            for path, attribute in _differing(_by_path_and_name(old), _by_path_and_name(new)):
                if attribute != VALUE or not later:
                    lines.append(f"source {name}: {attribute_label(path, attribute)}")
    except (ValueError, TypeError, AttributeError):
        return []
    more = [f"and {len(lines) - _SHOWN} further attributes"] if len(lines) > _SHOWN else []
    return [printable(line) for line in lines[:_SHOWN]] + more


def _by_path_and_name(text: str) -> dict[tuple[str, str], Any]:
    values = {}
    for path, named in json.loads(text).items():
        for name, value in named.items():
            values[path, name] = value
    return values


def _differing(before: Mapping[T, Any], after: Mapping[T, Any]) -> list[T]:
    """Return keys whose values differ; a missing one is None."""
    return [key for key in dict.fromkeys([*before, *after]) if before.get(key) != after.get(key)]
