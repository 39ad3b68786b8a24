"""Leave out the sources that have problems, and list them in a report: ``--on-error skip``."""

# Sources that contradict each other are still refused: only the user knows which is wrong. The journal
# records what was left out, so that a continued conversion leaves out the same

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from unistore.conversion.journal import Journal
from unistore.converters.detection import Claims
from unistore.converters.files.paths import natural_key
from unistore.converters.protocol import ParallelMap, Scan, serial_map
from unistore.converters.scan_types import Stored
from unistore.converters.source_scan import claims_for, scan_sources
from unistore.errors import AddOptions, ConversionError, Fixes, InputError, Problem
from unistore.schemas.recorded_rules import SkippedEntry, skipped_entries
from unistore.store.names import file_name_problem
from unistore.system.types import Attributes

if TYPE_CHECKING:
    from unistore.converters.adapter.converter import Converter

SKIP = "skip"  # Step of the journal


def leave_out(journal: Journal, problems: Sequence[Problem]) -> None:
    """Record that the sources of some problems are left out."""
    if problems:
        journal.append({"step": SKIP, "problems": [problem.to_json() for problem in problems]})


def recorded_problems(journal: Journal) -> list[Problem]:
    """Return the problems for which sources were left out, in natural order of these."""
    # Two sources may have the same problem of one file, and such problems are equal.
    distinct: dict[tuple[Problem, str], Problem] = {}
    for record in journal.each(SKIP):
        for fields in record["problems"]:
            problem = Problem.from_json(fields)
            distinct[problem, problem.source] = problem
    return sorted(
        distinct.values(),
        key=lambda problem: (natural_key(problem.source), problem.location, problem.message),
    )


def check_resumed(journal: Journal, *, skips: bool) -> None:
    """Refuse to continue without ``--on-error skip`` a conversion that has left sources out."""
    problems = recorded_problems(journal)
    if problems and not skips:
        names = dict.fromkeys(problem.source for problem in problems)
        msg = (
            f"{journal.path.parent}: an unfinished conversion skipped {', '.join(names)}. "
            "Fix: add --on-error skip to continue it, or --restart to start over"
        )
        raise ConversionError(msg)


class ValidScan(NamedTuple):
    """A scan without the sources that have problems."""

    converter: Converter  # which excludes them
    scan: Scan
    problems: list[Problem]


def scan_valid_sources(
    # as in `scan_sources`
    converter: Converter,
    paths: Sequence[Path],
    skipped: Iterable[Problem] = (),  # problems whose sources are left out from the start
    *,
    skip: bool,  # whether to leave sources out; else problems are raised
    # as in `scan_sources`
    ask: ParallelMap = serial_map,
    is_named: bool = False,
    claims: Claims | None = None,
    stored: Stored = Stored(),  # noqa: B008 - immutable
) -> ValidScan:
    """Scan, and with `skip` repeat without the sources that have problems until there are none."""
    claims = claims_for(converter, paths, claims)
    problems = list(skipped)
    left_out = sources_of(problems)
    must_exclude = [name for name in converter.exclude if name not in left_out | stored.excluded]
    while True:
        chosen = _without(converter, problems)
        try:
            scan = scan_sources(
                chosen, paths, must_exclude, ask, is_named=is_named, claims=claims, stored=stored
            )
            _check_names(scan)
            return ValidScan(chosen, scan, problems)
        except InputError as error:
            old = {"", *sources_of(problems)}
            new = [problem for problem in error.problems if problem.source not in old]
            if skip and new:
                problems += new
            elif problems:
                raise InputError([*problems, *error.problems_at("sources")], can_skip=False) from error
            else:
                raise


def _check_names(scan: Scan) -> None:
    # An export could not write such names
    problems = [
        Problem(name, f"has a name that cannot be exported: {reason}", _how_to_avoid(name), "name", name)
        for name in scan.sources.names
        if (reason := file_name_problem(name)) is not None
    ]
    if problems:
        raise InputError(problems)


def _how_to_avoid(name: str) -> Fixes:
    return "rename it", AddOptions(("--exclude", name), "to skip it")


def sources_of(problems: Iterable[Problem]) -> set[str]:
    """Return the names of the sources that have the problems."""
    return {problem.source for problem in problems}


def _entry_of(problem: Problem) -> SkippedEntry:
    return SkippedEntry(
        file=problem.file,
        dataset=problem.dataset,
        reason=problem.message,
        fix=problem.advice,
        kind=problem.kind,
        left_out=problem.source,
        row=problem.row,
    )


def with_skipped(scan: Scan, problems: Sequence[Problem]) -> Scan:
    """Return a scan whose options record what was left out."""
    if not problems:
        return scan
    entries = [_entry_of(problem).to_json() for problem in problems]
    return replace(scan, options={**scan.options, "skipped": entries})


def skipped_sources(options: Attributes) -> list[str]:
    """Return names of the sources, or items of sources, that options state as skipped, in natural order."""
    return sorted({entry.left_out for entry in skipped_entries(options)}, key=natural_key)


def report_document(options: Attributes, verdicts: Sequence[Mapping[str, Any]]) -> bytes:
    """Return the store's report: sources that were skipped for their problems, and all files by verdict."""
    sources = skipped_sources(options)
    document = {
        "skipped": len(sources),
        "left_out": sources,
        "problems": list(options.get("skipped", ())),
        "verdicts": list(verdicts),
    }
    return json.dumps(document, indent=1, ensure_ascii=True).encode() + b"\n"


def _without(converter: Converter, problems: Iterable[Problem]) -> Converter:
    names = sources_of(problems)
    if not names:
        return converter
    configured: Any = converter
    excluded = sorted({*configured.exclude, *names}, key=natural_key)
    return cast("Converter", configured).excluding(tuple(excluded))
