"""Plan once more the conversion that made a store, from its recorded options and its sources."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from unistore.conversion.build import FolderBuild
from unistore.conversion.convert import recorded_converter
from unistore.conversion.executors.local import Executor, T, asking
from unistore.conversion.keys import Inputs
from unistore.conversion.new_store import NewStore, versions
from unistore.conversion.run import Conversion
from unistore.conversion.settings import Settings
from unistore.conversion.split_rule import SplitRule
from unistore.converters.files.hdf5.attributes import attribute_label
from unistore.converters.scan import Stored
from unistore.converters.scanning import scan_sources
from unistore.errors import InputError, StoreError, printable
from unistore.schemas.tables import HDF5_ATTRIBUTES, SOURCE_FILES, text_values
from unistore.store.reader import Store
from unistore.system.progress import Progress
from unistore.zarr3.writer import compressor_of

_SHOWN = 5


def plan_recorded_conversion(
    attributes: Mapping[str, Any],
    sources: Sequence[Path],
    work: Path,
    progress: Progress,
    executor: Executor,
    others: frozenset[str] = frozenset(),  # names of sources there that are not the store's
) -> tuple[Conversion, NewStore]:
    """Scan and derive the sources, and plan their conversion with the options of a store."""
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
    scan = scan_sources(converter, sources, (), asking(executor), stored=Stored(names=others))
    if "skipped" in options:
        scan = replace(scan, options={**scan.options, "skipped": options["skipped"]})
    with FolderBuild(work / "store") as build:
        conversion = Conversion(
            inputs=Inputs.of(converter, scan),
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
    return conversion, replace(new_store, attributes=own)


def encoder_differences(attributes: Mapping[str, Any]) -> list[str]:
    """Return one line for each library whose version is not the one that wrote the store."""
    versions_then = attributes["created_with"]
    now = versions()
    differing = [name for name in _differing(versions_then, now) if name in now]
    return [f"{name}: {versions_then.get(name)} made the store, this is {now[name]}" for name in differing]


def differences(store: Store, new_store: NewStore) -> list[str]:
    """Return one line for each source, option or array that differs between a store and a plan."""
    # Arrays are compared only where sources and options are the same, and if they can be opened
    plan = new_store.plan
    lines = _source_lines(store, new_store)
    options = _without_compaction(store.attributes["options"])
    lines += [
        f"option {name}: {options.get(name)} in the store, {plan.options.get(name)} now"
        for name in sorted(_differing(options, plan.options))
    ]
    if lines := lines or _attribute_lines(store, new_store):
        return lines
    forms = {array.field.path: f"{array.field.dtype} {array.shape}" for array in plan.arrays()}
    for path in sorted({*forms, *store.paths()}):
        if is_later(store, path):
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


def _without_compaction(options: Mapping[str, Any]) -> Mapping[str, Any]:
    if not is_compacted(options):
        return options
    of_values = {name: value for name, value in options["found"].items() if name != "compacted"}
    plain = {name: value for name, value in options.items() if name != "found"}
    return {**plain, "found": of_values} if of_values else plain


def is_compacted(options: Mapping[str, Any]) -> bool:
    """Return whether the store was made of parts, so that its digests of sources are of other shards."""
    return "compacted" in options.get("found", {})


def is_later(store: Store, path: str) -> bool:
    """Return whether stores had no such array when this one was made. It says nothing of values."""
    return path.startswith(f"{SOURCE_FILES}/") and not store.has(path)


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
    names = [source.name for source in new_store.scan.sources]
    nothing = ["{}"] * len(names)
    now = {described.path: values[:] for described, values in new_store.arrays}
    texts = (f"{HDF5_ATTRIBUTES}/data", f"{HDF5_ATTRIBUTES}/offsets")
    after = text_values(*(now[path] for path in texts)) if texts[0] in now else nothing
    lines = []
    try:
        before = store.text(HDF5_ATTRIBUTES) if store.has(texts[0]) else nothing
        for name, old, new in zip(names, before, after, strict=True):
            differing = _differing(_by_path_and_name(old), _by_path_and_name(new)) if old != new else []
            lines += [f"source {name}: {attribute_label(path, attribute)}" for path, attribute in differing]
    except (StoreError, ValueError, TypeError, AttributeError):
        return []  # the store's text is damaged
    more = [f"and {len(lines) - _SHOWN} further attributes"] if len(lines) > _SHOWN else []
    return [printable(line) for line in lines[:_SHOWN]] + more


def _by_path_and_name(text: str) -> dict[tuple[str, str], Any]:
    values = {}
    for path, named in json.loads(text).items():
        for name, value in named.items():
            values[path, name] = value
    return values


def _differing(before: Mapping[T, Any], after: Mapping[T, Any]) -> list[T]:
    return [key for key in dict.fromkeys([*before, *after]) if before.get(key) != after.get(key)]
