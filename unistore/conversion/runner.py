"""Run a conversion from scan to seal; after a kill the same call continues from the journal."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from unistore.conversion.build import Build, FolderBuild
from unistore.conversion.conversion import Conversion
from unistore.conversion.executors.apart import Apart
from unistore.conversion.executors.asking import asking
from unistore.conversion.executors.local import Executor, Serial
from unistore.conversion.failure import writing_failed
from unistore.conversion.keys import Fingerprint, Fingerprints, fingerprints_of, sizes_of
from unistore.conversion.planning import plan_options, versions
from unistore.conversion.report import Report
from unistore.conversion.settings import DEFAULTS, Settings
from unistore.conversion.skipping import Skipping, check_resumed, scan_valid_sources
from unistore.conversion.split_rule import SplitRule
from unistore.conversion.splits import prepare_splits
from unistore.converters.files.paths import real_path
from unistore.converters.protocol import Converter, Scan
from unistore.converters.survey import Claims
from unistore.errors import InputError, Problem, StoreError
from unistore.remote.storage import local_path
from unistore.remote.url import require_local_path
from unistore.store.names import ROOT, build_folder
from unistore.store.reader import Store
from unistore.system.packed import view
from unistore.system.progress import NO_PROGRESS, Progress

# Whether a finished store is up to date with its sources.


def is_up_to_date(
    converter: Converter,
    paths: Sequence[Path],
    destination: str,
    settings: Settings,
    claims: Claims | None = None,
) -> bool:
    """Whether the store in a folder was made from these sources, with these options and versions.

    Sources must have the same names and sizes, and no file or folder under the given paths (lists of splits
    included) may have a modification or status change time after the seal. Values are not read.

    Raises
    ------
    InputError
        If the sources cannot be scanned.
    """
    folder = local_path(destination)
    if folder is None or build_folder(Path(os.path.abspath(folder))).exists():  # noqa: PTH100  links stay links
        return False
    try:
        store = Store(folder)
        sealed = (folder / ROOT).stat().st_mtime_ns
    except (StoreError, OSError):
        return False
    recorded = store.attributes
    if recorded.get("skipped") or recorded.get("created_with") != versions():
        return False
    with Apart() as executor:
        scan = scan_valid_sources(converter, paths, skip=False, ask=asking(executor), claims=claims)[1]
    rule = prepare_splits(settings.rule, paths, scan)
    options = json.loads(json.dumps(plan_options(scan, settings.codec, rule)))
    before = dict(recorded.get("options", {}))
    for each in (options, before):
        each.pop("found", None)  # known only from the values of the sources
    if (scan.family, options) != (recorded["family"], before):
        return False
    names, sizes = list(scan.sources.names), sizes_of(fingerprints_of(scan)).tolist()
    if names != store.text("sources/path") or sizes != store.array("sources/bytes").read().tolist():
        return False
    return all(changed < sealed for path in paths for changed in _change_times(path))


def _change_times(path: Path) -> Iterator[int]:
    """Time of the last change of a path and of everything below it, in ns."""
    yield _change_time(path)
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            yield _change_time(Path(folder, name))


def _change_time(path: Path) -> int:
    state = path.stat()
    return max(state.st_mtime_ns, state.st_ctime_ns)


# `open_build`: the build folder for a destination.


def open_build(
    destination: str | os.PathLike[str], *, work: str | os.PathLike[str] | None = None, restart: bool = False
) -> Build:
    """Build for a folder (or ``file://`` URL), or for a URL of an object store; not entered yet.

    Parameters
    ----------
    destination
        Path or URL.
    work
        For an object store: folder that holds the build folder; None: the current one.
    restart
        Discard an unfinished conversion.

    Raises
    ------
    InputError
        If the destination is a URL that cannot be written to, or `work` is given for a folder.
    """
    if work is not None:
        require_local_path(work, "the folder of --work")
    folder = local_path(destination)
    if folder is None:
        from unistore.conversion.object_build import ObjectBuild

        return ObjectBuild(os.fspath(destination), work=None if work is None else Path(work), restart=restart)
    if work is not None:
        msg = f"--work {work}: only for an object store; beside {folder} the store can be renamed when done"
        raise InputError(msg)
    return FolderBuild(Path(os.path.abspath(folder)), restart=restart)  # noqa: PTH100  links stay links


__all__ = ["Report", "run"]


def run(
    converter: Converter,
    paths: Sequence[Path],
    destination: str | os.PathLike[str],
    settings: Settings = DEFAULTS,
    *,
    executor: Executor | None = None,
    is_named: bool = False,
    claims: Claims | None = None,
    progress: Progress = NO_PROGRESS,
) -> Report:
    """Convert `paths` into a sealed store at `destination`.

    Parameters
    ----------
    executor
        Where steps and the scan run; by default in this process.
    is_named, claims
        As in `unistore.converters.scanning.scan_sources`.

    Raises
    ------
    InputError
        For bad sources (every problem of every file) or a destination that exists already.
    ConversionError
        If writing failed, a source changed meanwhile, or another converter is at work.
    """
    opened = open_build(destination, work=settings.work, restart=settings.restart)
    if not opened.folder.exists():
        opened.check(overwrite=settings.overwrite)
    _check_no_overlap(paths, opened)
    executor = executor or Serial()
    ask = asking(executor)
    first = scan_valid_sources(
        converter, paths, skip=settings.skips, ask=ask, is_named=is_named, claims=claims
    )
    rule = prepare_splits(settings.rule, paths, first[1])
    fingerprints = fingerprints_of(first[1])
    try:
        with opened as build:
            identity = _identity(converter, first, settings.codec, rule)
            build.begin(identity, _source_states(first[1], fingerprints), paths)
            check_resumed(build.journal, skips=settings.skips)
            if (report := build.finished_report()) is not None:
                build.remove()
                return Report(**report)
            build.check(overwrite=settings.overwrite)
            build.discard_on_input_error()
            skipping = Skipping(first, paths, build.journal, ask, is_named=is_named)
            while True:
                chosen, scan = skipping.scan()
                if scan.sources is not first[1].sources:
                    rule = prepare_splits(settings.rule, paths, scan)
                conversion = Conversion(
                    converter=chosen,
                    scan=scan,
                    fingerprints=fingerprints if scan.sources is first[1].sources else fingerprints_of(scan),
                    build=build,
                    settings=settings,
                    executor=executor,
                    progress=progress,
                    round=skipping.round,
                )
                try:
                    return conversion.execute(rule)
                except InputError as error:
                    if not settings.skips or not all(problem.source for problem in error.problems):
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
