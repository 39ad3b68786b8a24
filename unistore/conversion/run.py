"""One running conversion: derive, finalize, plan, write shards, seal; finished steps are not repeated."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from unistore.conversion.build import Build, FolderBuild
from unistore.conversion.columns import bounded_columns, check_plan
from unistore.conversion.executors.apart import Apart
from unistore.conversion.executors.asking import asking
from unistore.conversion.executors.local import Executor, Job, Serial
from unistore.conversion.failure import writing_failed
from unistore.conversion.finish import seal, source_digests
from unistore.conversion.job import DeriveJob, PartJob, RowCache, ShardJob, parts_of, source_batches
from unistore.conversion.keys import (
    Fingerprint,
    Fingerprints,
    Keys,
    fingerprints_of,
    sizes_of,
    source_keys,
    task_keys,
)
from unistore.conversion.memory import check_space, estimate, largest_need, provisional_tables, reading_memory
from unistore.conversion.plan import Plan, json_digest
from unistore.conversion.planning import Planned, choose_codecs, plan_conversion, plan_options, versions
from unistore.conversion.report import Report
from unistore.conversion.settings import DEFAULTS, Settings
from unistore.conversion.skipping import Skipping, check_resumed, scan_valid_sources
from unistore.conversion.spill import Spill, SpilledBatch
from unistore.conversion.split_rule import SplitRule
from unistore.conversion.splits import prepare_splits
from unistore.converters.files.paths import real_path
from unistore.converters.protocol import Converter, Scan
from unistore.converters.survey import Claims
from unistore.errors import ConversionError, InputError, Problem, StoreError
from unistore.remote.url import local_path, require_local_path
from unistore.schemas.tables import Table
from unistore.store.names import ROOT, build_folder
from unistore.store.reader import Store
from unistore.system.packed import view
from unistore.system.progress import NO_PROGRESS, Progress
from unistore.zarr3.durable import Folder

T = TypeVar("T")
MAX_PROBLEMS = 50
"""Problems after which the conversion fails without looking for more, unless bad sources are skipped."""


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """A running conversion.

    Attributes
    ----------
    converter, scan, fingerprints
        The converter, its scan, and the state of the source files.
    build
        The entered build folder, with the journal.
    settings
        Of the conversion. With ``on_error="skip"`` the problems of all sources are collected, however many.
    executor, progress
        Where steps run, and progress callbacks.
    round
        How often sources were left out before; steps of earlier rounds are reused if their keys are the same.
    """

    converter: Converter
    scan: Scan
    fingerprints: Fingerprints
    build: Build
    settings: Settings
    executor: Executor
    progress: Progress
    round: int = 0

    def execute(self, split: SplitRule | None) -> Report:
        """Derive, finalize, write every shard, seal, move into place.

        Raises
        ------
        InputError
            With the problems of the sources' values.
        ConversionError
            If writing failed, or a source changed meanwhile.
        """
        estimate(self.converter, self.scan, self.settings.budget).check(self.settings.limit)
        if isinstance(self.build.target, Folder):
            tables = provisional_tables(self.scan)
            check_space(self.build.output_path, self.build.folder, tables, self.progress)
        planned, spill, row_cache = self.plan(split)
        plan = planned.plan
        check_plan(plan, planned.attributes["samples"]["count"], planned.arrays)
        resumed = self.write_shards(planned, self.job(plan, planned.spilled, spill, row_cache))
        sealed = seal(
            self.build.target,
            plan,
            self.build.journal,
            planned.index(source_digests(plan, self.build.journal.each("shard"))),
            planned.attributes,
            planned.groups,
        )
        report = Report(
            destination=self.build.destination,
            family=plan.family,
            samples=int(planned.attributes["samples"]["count"]),
            sample_table=plan.sample_table,
            sources=len(self.scan.sources),
            source_bytes=int(self.sizes.sum()),
            raw_bytes=plan.raw_bytes,
            stored_bytes=sealed["bytes"],
            files=sealed["files"] + 2,
            tasks=len(plan.tasks()),
            resumed=resumed,
            digest=sealed["digest"],
            notes=(*self.scan.notes, *planned.notes),
            skipped=self.scan.options.get("skipped", ()),
            verdicts=planned.verdicts,
        )
        self.build.journal.append({"step": "sealed", "report": asdict(report)})
        self.build.move_into_place()
        self.build.remove()
        return report

    @cached_property
    def keys(self) -> Keys:
        """Key of each source."""
        return source_keys(self.scan, self.fingerprints)

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Bytes of the files of each source."""
        return sizes_of(self.fingerprints)

    def plan(
        self, split: SplitRule | None, codecs: Mapping[str, str] | None = None
    ) -> tuple[Planned, Spill, RowCache]:
        """Derive, finalize, plan; `codecs` are those that the codec ``"auto"`` chose before, by path."""
        codec = self.settings.codec
        spill = self._derive()
        row_cache = RowCache()
        finalized = self.converter.finalize(self.scan, spill if self.scan.is_derived else ())

        def choose(plan: Plan, spilled: Mapping[str, Table]) -> Mapping[str, str]:
            if codecs is not None:
                return codecs
            job = self.job(plan, spilled, spill, row_cache)
            self._read_parts(job)
            folder = self.build.spill / "trial"
            return choose_codecs(job, self.executor, folder, bad_sources=self.settings.skips)

        planned = plan_conversion(
            self.converter, self.scan, finalized, codec, split, spill, self.sizes, choose
        )
        if codec != "auto" and codecs is None:
            self._read_parts(self.job(planned.plan, planned.spilled, spill, row_cache))
        return planned, spill, row_cache

    def _read_parts(self, job: ShardJob) -> None:
        """Read small sources on all workers, where these are more than there are shards to write."""
        plan, workers = job.plan, self.executor.workers
        parts = [part for table in plan.tables for part in parts_of(job, table, workers)]
        reading = PartJob(job, self.build.spill / "parts")
        if parts:
            self.run_steps("reading", reading, parts, plan.task_bytes, lambda _: {})
        for part in parts:
            job.row_cache.add(reading.rows(part))

    def job(self, plan: Plan, spilled: Mapping[str, Table], spill: Spill, row_cache: RowCache) -> ShardJob:
        """Job that writes the shards of a plan."""
        return ShardJob(
            converter=self.converter,
            scan=self.scan,
            fingerprints=self.fingerprints,
            spill=spill,
            target=self.build.target,
            plan=plan,
            spilled=spilled,
            reading=reading_memory(self.scan),
            bounded=bounded_columns(plan),
            row_cache=row_cache,
        )

    def _derive(self) -> Spill:
        """Derive the sources, unless done already; returns their spilled rows and facts."""
        if not self.scan.is_derived:
            return Spill(self.build.spill, 0)
        spill, sizes = self._derived_before(self.keys), self.sizes
        job = DeriveJob(
            converter=self.converter,
            scan=self.scan,
            fingerprints=self.fingerprints,
            keys=self.keys,
            spill=self.build.spill / f"{self.round}",
            budget=self.settings.budget,
        )
        todo = source_batches(spill.missing, sizes)
        self.run_steps(
            "reading", job, todo, lambda batch: int(sizes[list(batch)].sum()), lambda _: {"round": self.round}
        )
        for batch in todo:
            spill.add(f"{self.round}/{batch[0]}", batch, range(len(batch)))
        return spill

    def _derived_before(self, keys: Keys) -> Spill:
        """Spilled rows of sources that were derived with the same key, in this round or an earlier one."""
        spill, order = Spill(self.build.spill, len(keys)), np.argsort(keys)
        for record in self.build.journal.each("derive"):
            batch = f"{record['round']}/{record['batch']}"
            if not SpilledBatch.is_complete(self.build.spill / batch):
                continue
            found = SpilledBatch(self.build.spill / batch).keys
            if json_digest(found) != record["of"]:
                continue
            wanted = np.array([key or "" for key in found], "S32")
            number = order[np.searchsorted(keys, wanted, sorter=order).clip(max=len(keys) - 1)]
            known = np.flatnonzero(keys[number] == wanted)
            spill.add(batch, number[known].tolist(), known.tolist())
        return spill

    def write_shards(self, planned: Planned, job: ShardJob) -> int:
        """Write the shards that are missing; returns the number of tasks that were done before."""
        journal, plan, digest = self.build.journal, planned.plan, planned.attributes["plan_digest"]
        before = [record for record in journal.of("plan") if record["round"] == self.round]
        if before and before[0]["digest"] != digest:
            msg = (
                f"{self.build.folder}: the plan differs from that of the unfinished conversion; "
                "add --restart to start over"
            )
            raise ConversionError(msg)
        if not before:
            tasks = len(plan.tasks())
            journal.append({"step": "plan", "digest": digest, "tasks": tasks, "round": self.round})
        keys = task_keys(plan, self.keys)
        done = self._done_tasks(plan, keys)
        todo = [task for task in plan.tasks() if task.id not in done]
        self.run_steps("writing", job, todo, plan.task_bytes, lambda task: {"of": keys[task.id]})
        return len(done)

    def _done_tasks(self, plan: Plan, keys: Mapping[str, str]) -> set[str]:
        """Ids of tasks that were done with the same key, in this round or an earlier one."""
        journal = self.build.journal
        last = {record["task"]: record for record in journal.each("shard")}
        sizes = self.build.target.sizes() if last else {}
        done = set()
        for task in plan.tasks():
            record = last.get(task.id)
            if record is None or record["of"] != keys[task.id]:
                continue
            if all(sizes.get(file["key"]) == file["bytes"] for file in record["files"]):
                done.add(task.id)
        return done

    def run_steps(
        self,
        stage: str,
        job: Job[T],
        items: Sequence[T],
        size: Callable[[T], int],
        about: Callable[[T], dict[str, Any]],
    ) -> None:
        """Run steps, journal each with the fields from `about`, raise all problems together."""
        if items:
            largest_need(job, items, self.settings.limit)
        self.progress.begin(stage, sum(size(item) for item in items))
        problems: dict[Problem, None] = {}
        with closing(self.executor.run(job, items)) as steps:
            for item, outcome in steps:
                if outcome.problems:
                    problems.update(dict.fromkeys(outcome.problems))
                    if len(problems) >= MAX_PROBLEMS and not self.settings.skips:
                        break
                if outcome.record:
                    self.build.journal.append({**outcome.record, **about(item)})
                self.progress.advance(size(item))
        if problems:
            raise InputError(tuple(problems))


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
