"""Source files: their family and layout, problems, and the command that converts them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unistore.conversion.convert import exclude_words, make_converter
from unistore.conversion.preview import preview
from unistore.converters.files.paths import folders_of_targets
from unistore.converters.registry import families
from unistore.converters.survey import Survey
from unistore.errors import InputError, Problem
from unistore.report.suggestions import convert_command

SHOWN_SOURCES = 5


@dataclass(slots=True, kw_only=True)
class FamilyReport:
    """A family that takes some of the files."""

    family: str
    layout: str
    reason: str
    files: int
    command: str  # that converts them


@dataclass(slots=True, kw_only=True)
class SourceReport:
    """Source files: the first family that takes some, and what a conversion would write.

    What would be written is None unless there is one family and nothing is wrong, and the families None if
    every file is refused.
    """

    family: str | None = None
    layout: str | None = None
    reason: str | None = None
    command: str | None = None
    families: list[FamilyReport] | None = None
    sources: dict[str, Any] | None = None
    tables: list[dict[str, Any]] | None = None
    raw_bytes: int | None = None
    memory: int | None = None
    options: dict[str, Any] | None = None
    notes: list[str] | None = None
    verdicts: list[dict[str, Any]]


def describe_sources(path: Path, surveyed: Survey) -> tuple[SourceReport, Sequence[Problem]]:
    """Scan and plan the sources at `path` without writing anything; returns every problem, too."""
    detected = surveyed.detected()
    if not detected:
        verdicts = [count.to_json() for count in surveyed.verdicts()]
        return SourceReport(verdicts=verdicts), surveyed.refused()
    counts = surveyed.counts()
    found = [
        FamilyReport(
            family=detection.family,
            layout=detection.layout,
            reason=detection.reason,
            files=counts[detection.family],
            command=_command(
                detection.family,
                path,
                alone=len(detected) == 1,
                more=exclude_words(detection.family, [path], surveyed),
            ),
        )
        for detection in detected
    ]
    planned: dict[str, Any] = {}
    problems: Sequence[Problem] = ()
    if len(detected) == 1:
        try:
            described = preview(make_converter(detected[0].family, {}), [path]).to_json()
        except InputError as error:
            problems = error.problems_at(str(path))
        else:
            planned = {
                name: described[name] for name in ("tables", "raw_bytes", "memory", "options", "notes")
            }
            sources, nbytes = described["sources"], described["source_bytes"]
            planned["sources"] = {"count": len(sources), "bytes": nbytes, "first": sources[:SHOWN_SOURCES]}
    first = found[0]
    report = SourceReport(
        family=first.family,
        layout=first.layout,
        reason=first.reason,
        command=first.command,
        families=found,
        verdicts=[count.to_json() for count in surveyed.verdicts(problems)],
        **planned,
    )
    return report, problems


def commands_behind_links(path: Path, problems: Sequence[Problem]) -> Iterator[tuple[str, str]]:
    """Yield titles and commands that follow links out of a path; none unless all problems are such links."""
    if any(problem.kind != "link" for problem in problems):
        return
    targets = folders_of_targets((Path(problem.file) for problem in problems), [path])
    folders = list(map(str, targets))
    more = []
    for folder in folders:
        more += ["--follow-links-to", folder]
    for family in families().values():
        if family.follows_links:
            yield f"files of {family.name.replace('_', ' ')}", _command(family.name, path, more=more)
    yield "others", f"unistore inspect {shlex.join(folders[:1])}"


def _command(family: str, path: Path, *, alone: bool = True, more: Sequence[str] = ()) -> str:
    """Return a command that converts into the working directory, or beside the sources if these are in it.

    With several families, the name of the store ends with the family.
    """
    real, here = path.resolve(), Path.cwd().resolve()
    stem = real.name.split(".")[0] or real.name.strip(".") or "store"
    destination = Path(f"{stem}.zarr" if alone else f"{stem}-{family.replace('_', '-')}.zarr")
    if real.is_dir() and (here == real or real in here.parents):
        destination = real.parent / destination
    return convert_command(family, [str(path)], str(destination), more=more)
