"""Convert sources into a sealed store: begin or continue, and leave bad sources out if the user says so."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from unistore.conversion.build import Build, FinishedStoreError
from unistore.conversion.execution import execute
from unistore.conversion.executors.local import Executor, Serial, parallel_map
from unistore.conversion.keys import Fingerprint, Inputs
from unistore.conversion.new_store import plan_options
from unistore.conversion.parts import SEALING
from unistore.conversion.plan import versions
from unistore.conversion.report import Report
from unistore.conversion.settings import DEFAULTS, Settings
from unistore.conversion.skipping import (
    SKIP,
    ValidScan,
    check_resumed,
    leave_out,
    recorded_problems,
    scan_valid_sources,
    sources_of,
    with_skipped,
)
from unistore.conversion.split_rule import SplitRule
from unistore.conversion.splits import prepare_splits
from unistore.conversion.steps import Conversion
from unistore.converters.detection import Claims
from unistore.converters.scan_types import Stored
from unistore.errors import InputError, writing_failed
from unistore.system.packed import view
from unistore.system.progress import NO_PROGRESS, Progress
from unistore.system.types import JsonObject, PathLike

if TYPE_CHECKING:
    from unistore.converters.adapter.converter import Converter


def run(
    converter: Converter,
    paths: Sequence[Path],
    destination: PathLike,
    settings: Settings = DEFAULTS,
    *,
    executor: Executor | None = None,  # where steps and the scan run; by default in this process
    # as in `unistore.converters.source_scan.scan_sources`
    is_named: bool = False,
    claims: Claims | None = None,
    stored: Stored = Stored(),  # noqa: B008 - immutable
    check: Callable[[Inputs], object] | None = None,  # refuses sources that were scanned
    progress: Progress = NO_PROGRESS,
) -> Report:
    """Convert `paths` into a sealed store at `destination`."""
    scanned = time.time_ns() if claims is None else claims.begun
    opened = settings.open_build(destination, paths)
    try:
        opened.check_early(overwrite=settings.overwrite)
    except FinishedStoreError as error:
        from unistore.conversion.finished import compared

        raise compared(error, converter, paths, settings, claims) from None
    opened.check_no_overlap(paths)
    executor = executor or Serial()
    ask = parallel_map(executor, progress, "scanning")
    if settings.is_shared:
        from unistore.conversion.shared_scan import shared_scan

        ask = shared_scan(ask, opened.folder, paths, progress)
    scan_valid = partial(
        scan_valid_sources,
        converter,
        paths,
        skip=settings.skips,
        ask=ask,
        is_named=is_named,
        stored=stored,
    )
    first = _prepared(scan_valid(claims=claims), paths, settings)
    if check is not None:
        check(first.inputs)
    try:
        with opened as build:
            with build.turn():
                report = _begin(build, first, paths, settings, scanned)
            if report is not None:
                return report
            if not build.journal.of(SKIP):
                leave_out(build.journal, first.valid.problems)
            prepared = first
            while True:
                problems = recorded_problems(build.journal)
                if sources_of(problems) != sources_of(prepared.valid.problems):
                    valid = scan_valid(problems)
                    leave_out(build.journal, valid.problems[len(problems) :])
                    problems = recorded_problems(build.journal)
                    prepared = _prepared(valid, paths, settings)
                conversion = Conversion(
                    inputs=replace(prepared.inputs, scan=with_skipped(prepared.valid.scan, problems)),
                    build=build,
                    settings=settings,
                    executor=executor,
                    progress=progress,
                    round=len(build.journal.of(SKIP)),
                )
                try:
                    return execute(conversion, prepared.rule)
                except InputError as error:
                    if not settings.skips or not all(problem.source for problem in error.problems):
                        raise
                    leave_out(build.journal, error.problems)
    except OSError as error:
        raise writing_failed(error, opened.output_path) from error


class _Prepared(NamedTuple):
    """Sources that were scanned, their splits, and their files."""

    valid: ValidScan
    rule: SplitRule | None
    inputs: Inputs


def _prepared(valid: ValidScan, paths: Sequence[Path], settings: Settings) -> _Prepared:
    rule = prepare_splits(settings.rule, paths, valid.scan)
    return _Prepared(valid, rule, Inputs.of(valid.converter, valid.scan))


def _begin(
    build: Build,
    first: _Prepared,
    paths: Sequence[Path],
    settings: Settings,
    scanned: int,  # when the scan of the sources began, in ns since 1970
) -> Report | None:
    """Begin a conversion or continue it, in its turn. Return the report of one that is finished already."""
    if build.part is not None and not build.is_begun:
        from unistore.conversion.finished import report_if_current

        options = plan_options(first.inputs.scan, settings.codec, first.rule)
        report = report_if_current(build, first.inputs, options, paths)
        if report is not None:
            build.withdraw()
            return report
    identity = _identity(first.valid, settings.codec, first.rule)
    build.begin(identity, _source_states(first.inputs), paths, scanned)
    check_resumed(build.journal, skips=settings.skips)
    report = build.finished_before()
    if report is not None:
        return report
    build.check(overwrite=settings.overwrite and build.part != SEALING)
    build.discard_on_input_error()
    return None


def _identity(first: ValidScan, codec: str, split: SplitRule | None) -> JsonObject:
    identity = {
        "family": first.scan.family,
        "options": plan_options(first.scan, codec, split),
        "left out": [str(problem) for problem in first.problems],
        "versions": versions(),
    }
    plain: JsonObject = json.loads(json.dumps(identity))
    return plain


def _source_states(inputs: Inputs) -> Sequence[tuple[str, str | dict[str, str]]]:
    names = inputs.scan.sources.names

    def state(number: int) -> tuple[str, str | dict[str, str]]:
        return names[number], _file_states(inputs.fingerprints[number])

    return view(range(len(names)), state)


def _file_states(fingerprint: Fingerprint) -> str | dict[str, str]:
    states = {}
    for file in fingerprint:
        modified = np.datetime64(file.modified, "ns")
        states[file.path] = f"{file.size} bytes, modified {modified} UTC"
    return states if len(states) != 1 else states[fingerprint[0].path]
