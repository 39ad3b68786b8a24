"""Run a conversion from scan to seal; after a kill the same call continues from the journal."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from unistore.conversion.build import Build
from unistore.conversion.conversion import Conversion
from unistore.conversion.destination import open_build
from unistore.conversion.executors.local import Executor, Serial
from unistore.conversion.failure import writing_failed
from unistore.conversion.fingerprint import Fingerprint, Fingerprints, fingerprints_of
from unistore.conversion.memory import PROCESS, STEP_BUDGET
from unistore.conversion.planning import plan_options, versions
from unistore.conversion.report import Report
from unistore.conversion.skipping import Skipping, check_mode, check_resumed, scan_valid_sources
from unistore.conversion.split_rule import SplitRule
from unistore.conversion.splits import prepare_splits
from unistore.converters.files.paths import real_path
from unistore.converters.protocol import Converter, Scan
from unistore.converters.scanning import ScanParts, scan_here
from unistore.errors import InputError, Problem
from unistore.system.packed import view
from unistore.system.progress import NO_PROGRESS, Progress

__all__ = ["Report", "run"]


def run(
    converter: Converter,
    paths: Sequence[Path],
    destination: str | os.PathLike[str],
    *,
    codec: str = "auto",
    split: SplitRule | None = None,
    overwrite: bool = False,
    restart: bool = False,
    work: Path | None = None,
    memory: int | None = None,
    budget: int = STEP_BUDGET,
    on_error: str = "fail",
    executor: Executor | None = None,
    scan_all: ScanParts = scan_here,
    is_named: bool = False,
    progress: Progress = NO_PROGRESS,
) -> Report:
    """Convert `paths` into a sealed store at `destination`.

    Parameters
    ----------
    codec
        ``"auto"``, or a preset for all columns: ``"fast"``, ``"balanced"``, ``"small"``, ``"none"``.
    split
        How samples are assigned to splits; None: the sources name them.
    overwrite
        Replace a store at the destination once the new one is sealed.
    restart
        Forget an unfinished conversion to this destination.
    work
        For a destination in an object store: folder that holds the build folder; None: the current one.
    memory
        Limit in bytes for all processes together; None: not limited.
    budget
        Bytes that one step may use to be faster, within `memory`; see `memory.step_budget`.
    on_error
        ``"fail"``: any problem refuses the conversion. ``"skip"``: sources (or episodes) with problems are
        left out; see `unistore.conversion.skipping`.
    executor, scan_all
        Where steps and the scan run; by default in this process.
    is_named
        As in `unistore.converters.scanning.scan_sources`.

    Raises
    ------
    InputError
        For bad sources (every problem of every file) or a destination that exists already.
    ConversionError
        If writing failed, a source changed meanwhile, or another converter is at work.
    """
    opened = open_build(destination, work=work, restart=restart)
    if not opened.folder.exists():
        opened.check(overwrite=overwrite)
    _check_no_overlap(paths, opened)
    check_mode(on_error)
    first = scan_valid_sources(
        converter, paths, skip=on_error == "skip", scan_all=scan_all, is_named=is_named
    )
    rule = prepare_splits(split, paths, first[1])
    fingerprints = fingerprints_of(first[1])
    try:
        with opened as build:
            build.begin(
                _identity(converter, first, codec, rule), _source_states(first[1], fingerprints), paths
            )
            check_resumed(on_error, build.journal)
            if (report := build.finished_report()) is not None:
                build.remove()
                return Report(**report)
            build.check(overwrite=overwrite)
            build.discard_on_input_error()
            skipping = Skipping(first, paths, build.journal, scan_all, is_named=is_named)
            while True:
                chosen, scan = skipping.scan()
                if scan.sources is not first[1].sources:
                    rule = prepare_splits(split, paths, scan)
                conversion = Conversion(
                    converter=chosen,
                    scan=scan,
                    fingerprints=fingerprints if scan.sources is first[1].sources else fingerprints_of(scan),
                    build=build,
                    memory=memory,
                    budget=budget if memory is None else min(budget, memory - PROCESS),
                    executor=executor or Serial(),
                    progress=progress,
                    round=skipping.round,
                    exhaustive=on_error == "skip",
                )
                try:
                    return conversion.execute(codec, rule)
                except InputError as error:
                    if on_error != "skip" or not all(problem.source for problem in error.problems):
                        raise
                    skipping.add(error.problems)
    except OSError as error:
        raise writing_failed(error, opened.output_path) from error


def _identity(
    converter: Converter,
    first: tuple[Converter, Scan, list[Problem]],
    codec: str,
    split: SplitRule | None,
) -> dict[str, Any]:
    """Options and versions that must be the same to continue a run."""
    _, scan, problems = first
    identity = {
        "family": scan.family,
        "converter": type(converter).__name__,
        "options": plan_options(scan, codec, split),
        "left out": [str(problem) for problem in problems],
        "versions": versions(),
    }
    plain: dict[str, Any] = json.loads(json.dumps(identity))
    return plain


def _source_states(scan: Scan, fingerprints: Fingerprints) -> Sequence[tuple[str, str | dict[str, str]]]:
    """Name of each source, and size and time of its files."""
    return view(range(len(fingerprints)), lambda at: (scan.sources.names[at], _file_states(fingerprints[at])))


def _file_states(fingerprint: Fingerprint) -> str | dict[str, str]:
    """Size and time of a source's file, or of each of its files, in readable form."""
    states = {}
    for file in fingerprint:
        seconds, rest = divmod(file.modified, 10**9)
        time = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").removesuffix("+00:00")
        states[file.path] = f"{file.size} bytes, modified {time}.{rest:09d} UTC"
    if len(states) == 1:
        return next(iter(states.values()))
    common = os.path.commonpath(list(states)) if states else ""
    return {Path(path).relative_to(common).as_posix(): state for path, state in states.items()}


def _check_no_overlap(paths: Sequence[Path], build: Build) -> None:
    """Refuse a destination that is, contains, or lies in a source."""
    for path in map(real_path, paths):
        target = build.output_path.resolve()
        if path == target or target in path.parents or path in target.parents:
            msg = f"{build.output_path}: {build.overlap_message}; the source is {path}"
            raise InputError(msg)
