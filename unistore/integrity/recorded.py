"""Plan once more the conversion that made a store, from its recorded options and its sources."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from unistore.conversion.convert import recorded_converter
from unistore.conversion.executors.asking import T, asking, run_in_order
from unistore.conversion.executors.local import Executor
from unistore.conversion.fingerprint import Fingerprints, fingerprints_of, sizes_of
from unistore.conversion.job import DeriveJob, ShardJob, source_batches
from unistore.conversion.keys import source_keys
from unistore.conversion.planning import Planned, plan_conversion, versions
from unistore.conversion.spill import Spill
from unistore.conversion.split_rule import SplitRule
from unistore.conversion.target import Folder
from unistore.converters.protocol import Converter
from unistore.converters.scanning import scan_sources
from unistore.errors import InputError, Problem, StoreError, printable
from unistore.schemas.tables import HDF5_ATTRIBUTES, SOURCE_FILES, text_values
from unistore.store.reader import Store
from unistore.system.progress import Progress
from unistore.zarr3.presets import compressor_of

_SHOWN = 5
_TEXT = (f"{HDF5_ATTRIBUTES}/data", f"{HDF5_ATTRIBUTES}/offsets")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedConversion:
    """The conversion that made a store, planned from the sources as they are now."""

    converter: Converter
    """With the store's options."""
    planned: Planned
    fingerprints: Fingerprints
    """State of the source files when it was planned."""
    spill: Spill
    """Spilled rows and facts of the sources."""

    def job(self, root: Path) -> ShardJob:
        """Job that makes the shards and writes them below `root`."""
        return ShardJob(
            converter=self.converter,
            scan=self.planned.scan,
            fingerprints=self.fingerprints,
            spill=self.spill,
            target=Folder(root),
            plan=self.planned.plan,
            spilled=self.planned.spilled,
        )


def plan_recorded_conversion(
    attributes: Mapping[str, Any], sources: Sequence[Path], work: Path, progress: Progress, executor: Executor
) -> RecordedConversion:
    """Scan and derive the sources, and plan their conversion with the options of a store.

    `attributes` is the root's ``unistore`` object; in `work`, derived tables spill their rows.

    Raises
    ------
    InputError
        With every problem of the sources.
    StoreError
        If the store does not say how it was converted.
    """
    try:
        options: Mapping[str, Any] = attributes["options"]
        converter = recorded_converter(attributes["family"], options)
        codec, split = options["codec"], SplitRule.recorded(options)
        codecs = dict(options["found"]["codecs"]) if codec == "auto" else {}
        for chosen in codecs.values():
            compressor_of(str(chosen), np.dtype(np.uint8))
    except (KeyError, TypeError, ValueError, InputError) as error:
        msg = f"the store's options are not those of a converter of this unistore ({error})"
        raise StoreError(msg) from error
    scan = scan_sources(converter, sources, (), asking(executor))
    if "skipped" in options:  # reasons given to the conversion
        scan = replace(scan, options={**scan.options, "skipped": options["skipped"]})
    fingerprints = fingerprints_of(scan)
    sizes = sizes_of(fingerprints)
    spill = Spill(work / "spill", len(scan.sources) if scan.is_derived else 0)
    if scan.is_derived:
        derive = DeriveJob(
            converter=converter,
            scan=scan,
            fingerprints=fingerprints,
            keys=source_keys(scan, fingerprints),
            spill=work / "spill",
        )
        progress.begin("reading", int(sizes.sum()))
        problems: list[Problem] = []
        for batch, outcome in run_in_order(executor, derive, source_batches(range(len(sizes)), sizes)):
            problems += outcome.problems
            spill.add(str(batch[0]), batch, range(len(batch)))
            progress.advance(int(sizes[list(batch)].sum()))
        if problems:
            raise InputError(problems)
    finalized = converter.finalize(scan, spill if scan.is_derived else ())
    planned = plan_conversion(converter, scan, finalized, codec, split, spill, sizes, lambda *_: codecs)
    # verdicts are those of the store: other files beside the sources may have come or gone
    own = {name: value for name, value in planned.attributes.items() if name != "verdicts"}
    if "verdicts" in attributes:
        own["verdicts"] = attributes["verdicts"]
    planned = replace(planned, attributes=own)
    return RecordedConversion(converter=converter, planned=planned, fingerprints=fingerprints, spill=spill)


def encoder_differences(attributes: Mapping[str, Any]) -> list[str]:
    """One line for each library whose version is not the one that wrote the store."""
    made, now = attributes["created_with"], versions()
    differing = [name for name in _differing(made, now) if name in now]
    return [f"{name}: {made.get(name)} made the store, this is {now[name]}" for name in differing]


def differences(store: Store, planned: Planned) -> list[str]:
    """One line for each source, option or array that differs between a store and a plan.

    Arrays are compared only where sources and options are the same, and if they can be opened.
    """
    plan = planned.plan
    lines = _source_lines(store, planned)
    options = store.attributes["options"]
    lines += [
        f"option {name}: {options.get(name)} in the store, {plan.options.get(name)} now"
        for name in sorted(_differing(options, plan.options))
    ]
    if lines := lines or _attribute_lines(store, planned):
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


def is_later(store: Store, path: str) -> bool:
    """Return whether stores had no such array when this one was made. It says nothing of values."""
    return path.startswith(f"{SOURCE_FILES}/") and not store.has(path)


def _source_lines(store: Store, planned: Planned) -> list[str]:
    try:
        before = store.text("sources/path")
    except (StoreError, UnicodeDecodeError):
        return []
    now = [source.name for source in planned.scan.sources]
    gone = [f"source {name}: not among those given" for name in before if name not in now]
    new = [f"source {name}: not one of the store's" for name in now if name not in before]
    more = len(gone[_SHOWN:]) + len(new[_SHOWN:])
    lines = gone[:_SHOWN] + new[:_SHOWN] + ([f"and {more} further sources"] if more else [])
    return lines or (["the order of the sources"] if before != now else [])


def _attribute_lines(store: Store, planned: Planned) -> list[str]:
    """One line for each attribute of an HDF5 source that differs from the store's."""
    now = {described.path: values[:] for described, values in planned.arrays if described.path in _TEXT}
    names = [source.name for source in planned.scan.sources]
    try:
        before = store.text(HDF5_ATTRIBUTES) if store.has(f"{HDF5_ATTRIBUTES}/data") else ["{}"] * len(names)
        after = text_values(*(now[path] for path in _TEXT)) if now else ["{}"] * len(names)
        lines = [
            f"source {name}: attribute {attribute} of {path or '/'}"
            for name, one, two in zip(names, before, after, strict=True)
            if one != two
            for path, attribute in _differing(_by_path_and_name(one), _by_path_and_name(two))
        ]
    except (StoreError, ValueError, TypeError, AttributeError):
        return []  # the store's text is damaged: the comparison of its arrays says so
    more = [f"and {len(lines) - _SHOWN} further attributes"] if len(lines) > _SHOWN else []
    return [printable(line) for line in lines[:_SHOWN]] + more


def _by_path_and_name(text: str) -> dict[tuple[str, str], Any]:
    found = json.loads(text)
    return {(path, name): value for path, named in found.items() for name, value in named.items()}


def _differing(one: Mapping[T, Any], two: Mapping[T, Any]) -> list[T]:
    """Keys whose values differ; a missing one is None."""
    return [key for key in dict.fromkeys([*one, *two]) if one.get(key) != two.get(key)]
