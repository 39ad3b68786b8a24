"""Describe source files: their family and layout, problems, and the command that converts them."""

from __future__ import annotations

import json
import os
import shlex
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from unistore.conversion.convert import exclude_words, make_converter
from unistore.conversion.dry_run import PlannedSource, PlannedTable, dry_run
from unistore.conversion.lock import owner_of
from unistore.conversion.parts import begun_counts
from unistore.converters.detection import Claims, CountReport
from unistore.converters.files.paths import folders_of_targets
from unistore.converters.registry import conversion_of, families
from unistore.errors import InputError, Problem, StoreError
from unistore.report.suggestions import convert_command
from unistore.store.names import MANIFEST, build_folder
from unistore.store.reader import Store
from unistore.system.types import JsonObject
from unistore.zarr3.documents import DocumentError, parse_document
from unistore.zarr3.storage import LocalStorage

# Folders without a sealed store: conversions under way or stopped, and other Zarr hierarchies.

# Suffix of the folder in which a conversion is under way
BUILD_SUFFIX = build_folder(Path("x")).name.removeprefix("x")
_METADATA = ("zarr.json", ".zarray", ".zgroup")


class GivenSources(TypedDict):
    """The sources of a conversion under way: their number, and the paths that were given."""

    count: int
    given: list[str]


@dataclass(slots=True, kw_only=True)
class UnfinishedReport:
    """A conversion that is running or was stopped, described by its journal.

    Attributes
    ----------
    destination : str
        Path of the store.
    family : str or None
        Name of the family. None: not yet known.
    options : mapping
        Options of the conversion.
    sources : mapping
        ``count``: number of sources; ``given``: the paths.
    sources_read : int
        Number of sources that were read.
    tasks_done : int
        Number of finished tasks.
    tasks : int or None
        Number of tasks. None: not yet known.
    sealed : bool
        Whether the store is sealed.
    written_bytes : int
        Number of bytes written.
    at_work : str or None
        Process that has the lock. None: none.
    replaces : str or None
        Store that will be replaced. None: none.
    command : str
        Command that continues the conversion.
    """

    destination: str
    family: str | None
    options: JsonObject
    sources: GivenSources
    sources_read: int
    tasks_done: int
    tasks: int | None
    sealed: bool
    written_bytes: int
    at_work: str | None
    replaces: str | None
    command: str


@dataclass(slots=True, kw_only=True)
class ZarrReport:
    """A Zarr hierarchy that is not a store."""

    zarr_format: int


def describe_unfinished(build: Path) -> UnfinishedReport:
    """Return a description of a conversion, from its staging folder.

    Damaged lines of its journal are ignored.
    """
    steps = _steps(build)
    begun = steps["begin"][0] if steps["begin"] else {}
    identity = _typed(begun, "identity", {})
    family: str | None = _typed(identity, "family", "") or None
    options = _typed(identity, "options", {})
    paths = [path for path in _typed(begun, "paths", []) if isinstance(path, str)]
    url = _typed(identity, "destination", "")  # empty: beside the build folder
    local = build.with_name(build.name.removesuffix(BUILD_SUFFIX))
    if url:
        replaces = url if any(record.get("staged") for record in steps["place"]) else None
        written = sum(map(_shard_bytes, steps["shard"]))
    else:
        replaces = next((str(path) for path in (local, build / "old") if _is_sealed(path)), None)
        written = sum(file.stat().st_size for file in (build / "store").rglob("*") if file.is_file())
    more = ["--work", str(build.parent)] if url else []
    if replaces:
        more.append("--overwrite")
    for count in begun_counts(build):
        more += ["--part", f"i/{count}"]
    destination = url or str(local)
    given = [len(_typed(record, "of", {})) for record in steps["sources"]]
    last_round = steps["derive"][-1].get("round") if steps["derive"] else None
    derived = [record for record in steps["derive"] if record.get("round") == last_round]
    planned = steps["plan"][0] if steps["plan"] else {}
    owners = filter(None, map(owner_of, sorted(build.glob("lock*"))))
    return UnfinishedReport(
        destination=destination,
        family=family,
        options=options,
        sources={"count": sum(given), "given": paths},
        sources_read=sum(_typed(record, "sources", 0) for record in derived),
        tasks_done=len({str(shard.get("task")) for shard in steps["shard"]}),
        tasks=_typed(planned, "tasks", 0) or None,
        sealed=bool(steps["sealed"]),
        written_bytes=written,
        at_work=next(owners, None),
        replaces=replaces,
        command="" if family is None else convert_command(family, paths, destination, options, more),
    )


def _steps(build: Path) -> defaultdict[str, list[JsonObject]]:
    steps = defaultdict(list)
    lines: list[bytes] = []
    for journal in sorted(build.glob("journal*.jsonl")):
        lines += journal.read_bytes().splitlines()
    for line in lines:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            steps[str(record.get("step"))].append(record)
    return steps


def _typed(record: Mapping[str, Any], name: str, default: Any) -> Any:
    # A journal may be damaged
    value = record.get(name)
    return value if isinstance(value, type(default)) else default


def _shard_bytes(shard: Mapping[str, Any]) -> int:
    files = _typed(shard, "files", [])
    return sum(_typed(file, "bytes", 0) for file in files if isinstance(file, dict))


def _is_sealed(path: Path) -> bool:
    try:
        Store(path)
    except StoreError:
        return False
    return True


def is_zarr(path: Path) -> bool:
    """Return whether a folder has Zarr metadata of version 2 or 3, readable or not."""
    return any(os.path.lexists(path / name) for name in _METADATA)


def is_store(path: Path) -> bool:
    """Return whether a Zarr hierarchy has attributes or a manifest of unistore, finished or not."""
    root = path / "zarr.json"
    if root.exists() and not os.access(root, os.R_OK):
        msg = f"{root}: cannot be read: Permission denied. Fix: change its permissions"
        raise StoreError(msg)
    return "unistore" in _typed(_document(root), "attributes", {}) or os.path.lexists(path / MANIFEST)


def _document(path: Path) -> JsonObject:
    try:
        return parse_document(LocalStorage(path.parent).get(path.name))
    except (StoreError, DocumentError):
        return {}


def stores_inside(path: Path) -> list[str]:
    """Return the names of the Zarr folders directly in a folder."""
    inside = path.iterdir() if path.is_dir() else ()
    return sorted(entry.name for entry in inside if entry.is_dir() and is_zarr(entry))


SHOWN_SOURCES = 5


@dataclass(slots=True, kw_only=True)
class FamilyReport:
    """A family that can convert some of the files.

    Attributes
    ----------
    family, layout : str
        Names of the family and of the layout of its files.
    reason : str
        Why the first file belongs to it.
    files : int
        Number of its files.
    command : str
        Command that converts them.
    """

    family: str
    layout: str
    reason: str
    files: int
    command: str


class PlannedSources(TypedDict):
    """The sources of a planned conversion: their number, the bytes of their files, and the first ones."""

    count: int
    bytes: int
    first: list[PlannedSource]


@dataclass(slots=True, kw_only=True)
class SourceReport:
    """Source files: the first family that can convert some, and what a conversion would write.

    Attributes of the result are None unless there is one family and no problem. The attributes of
    families are None if every file is rejected.
    """

    family: str | None = None
    layout: str | None = None
    reason: str | None = None
    command: str | None = None
    families: list[FamilyReport] | None = None
    sources: PlannedSources | None = None
    tables: list[PlannedTable] | None = None
    raw_bytes: int | None = None
    memory: int | None = None
    options: JsonObject | None = None
    notes: list[str] | None = None
    offers: list[JsonObject] | None = None
    verdicts: list[CountReport]


# Words of a command that leave files out, two a name; more are not read
_MOST_EXCLUDED = 2 * 8


def describe_sources(path: Path, surveyed: Claims) -> tuple[SourceReport, Sequence[Problem]]:
    """Scan and plan the sources at `path` without writing anything. Return both."""
    report = SourceReport(verdicts=[count.to_json() for count in surveyed.verdicts()])
    detected = surveyed.detected()
    if not detected:
        return report, surveyed.refused()
    counts = surveyed.counts()
    is_alone = len(detected) == 1
    report.families = []
    for detection in detected:
        family = detection.family
        command = _command(family, path, alone=is_alone, more=exclude_words(family, surveyed))
        report.families.append(
            FamilyReport(
                family=family,
                layout=detection.layout,
                reason=detection.reason,
                files=counts[family],
                command=command,
            )
        )
    first = report.families[0]
    report.family = first.family
    report.layout = first.layout
    report.reason = first.reason
    report.command = first.command
    if not is_alone:
        return report, ()
    try:
        planned = dry_run(make_converter(first.family, {}), [path], claims=surveyed).to_json()
    except InputError as error:
        problems = error.problems_at(str(path))
        report.verdicts = [count.to_json() for count in surveyed.verdicts(problems)]
        return report, problems
    # the verdicts of a plan know the files that are read with others
    report.verdicts = planned["verdicts"]
    report.tables = planned["tables"]
    report.raw_bytes = planned["raw_bytes"]
    report.memory = planned["memory"]
    report.options = planned["options"]
    report.notes = planned["notes"]
    report.offers = planned["offers"]
    sources = planned["sources"]
    nbytes = planned["source_bytes"]
    report.sources = {"count": len(sources), "bytes": nbytes, "first": sources[:SHOWN_SOURCES]}
    return report, ()


def commands_behind_links(path: Path, problems: Sequence[Problem]) -> Iterator[tuple[str, str]]:
    """Iterate over titles and commands that follow links out of a path.

    There are none unless all problems are such links.
    """
    links = [Path(problem.file) for problem in problems]
    # Links inside of HDF5 files lead to no further sources: their fixes name the folders to be given.
    if any(problem.kind != "link" for problem in problems) or not all(map(Path.is_symlink, links)):
        return
    targets = folders_of_targets(links, [path])
    folders = list(map(str, targets))
    more = []
    for folder in folders:
        more += ["--follow-links-to", folder]
    for family in families().values():
        if family.follows_links:
            yield f"files of {family.name.replace('_', ' ')}", _command(family.name, path, more=more)
    yield "others", f"unistore inspect {shlex.join(folders[:1])}"


def _command(family: str, path: Path, *, alone: bool = True, more: Sequence[str] = ()) -> str:
    if alone and len(more) > _MOST_EXCLUDED:
        # A family that was not named leaves plain arrays out by itself.
        return str(conversion_of("", [path]))
    return str(conversion_of(family, [path], more, is_alone=alone))
