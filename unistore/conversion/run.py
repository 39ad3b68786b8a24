"""Run a conversion: scan, derive, finalize, plan, write shards, seal. Finished steps are not repeated."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from stat import S_ISDIR
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from unistore.conversion.build import Build, FinishedStoreError, FolderBuild, wait_turn
from unistore.conversion.codec_choice import choose_codecs, sampled_rows
from unistore.conversion.executors.local import STOP, Executor, Job, Serial, parallel_map
from unistore.conversion.executors.processes import Processes
from unistore.conversion.job import RowsRead, ShardJob, bounded_columns, parts_of
from unistore.conversion.keys import (
    Fingerprint,
    Inputs,
    Keys,
    read_states,
    source_keys,
    task_keys,
)
from unistore.conversion.memory import check_fits, check_space, estimate, provisional_tables, reading_memory
from unistore.conversion.new_store import (
    NewStore,
    check_plan,
    final_tables,
    index_plan,
    plan_of,
    plan_options,
    rows_by_table,
    shared_index,
    versions,
    with_codecs,
)
from unistore.conversion.parts import SEALING, JobPart
from unistore.conversion.plan import Plan, ShardTask, json_digest
from unistore.conversion.settings import DEFAULTS, Settings
from unistore.conversion.shared_scan import shared_scan
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
from unistore.conversion.spill import DeriveJob, Spill, SpilledBatch, source_batches
from unistore.conversion.split_rule import SplitRule
from unistore.conversion.splits import assign_splits, column_values, prepare_splits
from unistore.converters.detection import TAKEN, Claims, CountReport, counted_scan
from unistore.converters.files.paths import real_path
from unistore.converters.protocol import ParallelMap
from unistore.converters.scan_types import Stored
from unistore.errors import (
    ConversionError,
    InputError,
    Problem,
    RunCommand,
    StoppedError,
    StoreError,
    first_few,
    writing_failed,
)
from unistore.remote.url import local_path, require_local_path
from unistore.store.names import copies_folder
from unistore.store.reader import Store
from unistore.system.packed import view
from unistore.system.progress import NO_PROGRESS, Progress, begin_items, listening
from unistore.system.sizes import count_of, size
from unistore.system.types import Int64s, JsonObject, PathLike
from unistore.zarr3.durable import Folder
from unistore.zarr3.storage import FailedReadError

if TYPE_CHECKING:
    from unistore.converters.adapter.converter import Converter

T = TypeVar("T")
# Problems after which the conversion fails without looking for more, unless bad sources are skipped
MAX_PROBLEMS = 50


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Report:
    """Result of a finished conversion.

    Attributes
    ----------
    destination : str
        Folder or URL of the store.
    family : str
        Name of the family.
    samples : int
        Number of rows of the table of samples: frames, episodes, volumes, segments. A `Dataset` may make
        more or fewer samples of them, such as clips of frames or transitions of episodes.
    sources : int
        Number of sources.
    source_bytes : int
        Size of the files that were read.
    raw_bytes, stored_bytes : int
        Size of all arrays, uncompressed and stored.
    files : int
        Number of files of the store.
    tasks : int
        Number of tasks. 0 for a job that began after the seal.
    resumed : int
        Number of tasks that an earlier run had finished.
    digest : str
        Checksum of the seal.
    sample_table : str
        Name of the table of samples.
    unfinished_parts : tuple of int
        Numbers of the other jobs (``part="3/8"``) that have not finished. The store is not sealed then:
        `digest` is empty, `files` and `stored_bytes` are 0.
    notes : tuple of str
        Notes for the user.
    skipped : tuple of dict
        One entry for each problem that caused something to be skipped; see `unistore.conversion.skipping`.
    verdicts : tuple of dict
        Results of the files below the given paths: ``verdict`` (``"taken"``, ``"left out"``,
        ``"refused"``), ``why``, ``files`` (their number), and the names of the first as ``examples``.
    """

    destination: str
    family: str
    samples: int
    sources: int
    source_bytes: int
    raw_bytes: int
    stored_bytes: int
    files: int
    tasks: int
    resumed: int
    digest: str
    sample_table: str = "samples"
    unfinished_parts: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    skipped: tuple[Mapping[str, Any], ...] = ()
    verdicts: tuple[CountReport, ...] = ()

    def __repr__(self) -> str:
        noun = self.sample_table.rpartition("/")[2]
        samples = f"{self.samples:,} {noun} from {count_of(self.sources, 'source')}"
        left_out = f", {len(self.skipped)} skipped" if self.skipped else ""
        left_out += ", unfinished" if self.unfinished_parts else ""
        return f"Report({self.destination!r}: {samples}, {size(self.stored_bytes)}{left_out})"


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """A running conversion."""

    inputs: Inputs
    build: Build  # the entered build folder, with the journal
    # of the conversion. With ``on_error="skip"`` the problems of all sources are collected, however many
    settings: Settings
    # where steps run, and progress callbacks
    executor: Executor
    progress: Progress
    # how often sources were left out before; steps of earlier rounds are reused if their keys are the same
    round: int = 0

    def execute(self, split: SplitRule | None) -> Report:
        """Derive, finalize, write every shard, seal, move into place."""
        steps = estimate(self.inputs.converter, self.inputs.scan, self.settings.budget)
        steps.peak(self.settings.limit, 0)
        # An object store does not tell how much room it has, a continued conversion how much it took.
        if isinstance(self.build.target, Folder) and not self.build.journal.of("plan"):
            tables = provisional_tables(self.inputs.scan)
            check_space(self.build.output_path, tables, self.progress)
        new_store = self.plan(split)
        plan = new_store.plan
        check_plan(new_store)
        resumed = self.write_shards(new_store)
        with self.build.turn():
            if self.build.is_removed:
                return self._report(new_store, resumed, Store(self.build.destination).attributes["seal"])
            if unfinished := self._unfinished_parts(plan):
                return replace(self._report(new_store, resumed, {}), unfinished_parts=unfinished)
            return self._seal(new_store, resumed)

    def _seal(self, new_store: NewStore, resumed: int) -> Report:
        begin_items(self.progress, "sealing")
        self.inputs.check_unchanged()
        states = self.inputs.states(self.build.scanned)
        digests = new_store.source_digests(self.build.journal)
        sealed = new_store.seal(self.build.target, self.build.journal, digests, states).to_json()
        report = self._report(new_store, resumed, sealed)
        notes = new_store.equal_sources_notes(digests)
        if self.settings.overwrite:
            from unistore.conversion.finished import replaced_notes

            notes = (*replaced_notes(self.build.destination, new_store), *notes)
        report = replace(report, notes=(*report.notes, *notes))
        self.build.journal.append({"step": "sealed", "report": asdict(report)})
        self.build.move_into_place()
        self.build.remove()
        return report

    def _report(self, new_store: NewStore, resumed: int, sealed: Mapping[str, Any]) -> Report:
        plan = new_store.plan
        return Report(
            destination=self.build.destination,
            family=plan.family,
            samples=new_store.samples,
            sample_table=plan.sample_table,
            sources=len(self.inputs.scan.sources),
            source_bytes=int(self.sizes.sum()),
            raw_bytes=plan.raw_bytes,
            stored_bytes=sealed.get("bytes", 0),
            files=sealed["files"] + 2 if sealed else 0,
            tasks=len(plan.tasks()),
            resumed=resumed,
            digest=sealed.get("digest", ""),
            notes=(*self.inputs.scan.notes, *new_store.notes),
            skipped=tuple(self.inputs.scan.options.get("skipped", ())),
            verdicts=new_store.verdicts,
        )

    def _unfinished_parts(self, plan: Plan) -> tuple[int, ...]:
        part = self.build.part
        if part is None:
            return ()
        done = self._done_tasks(plan, task_keys(plan, self.keys))
        parts = sorted(part.all(), key=lambda other: other.number)

        def is_unfinished(other: JobPart) -> bool:
            return any(task.id not in done for task in other.share(plan.tasks()))

        unfinished = [other.number for other in parts if is_unfinished(other)]
        # One that is run again after its last step may look for files that a seal moves
        unfinished = unfinished or self.build.parts_at_work()
        if unfinished and not part.number:
            raise _not_ready(self.build, unfinished)
        if unfinished:
            self.build.leave()
        return tuple(unfinished)

    @cached_property
    def rows_read(self) -> RowsRead:
        """Return rows that are read before their shards are written."""
        return RowsRead(self.build.spill / f"parts{self.build.suffix}")

    @cached_property
    def keys(self) -> Keys:
        """Return the key of each source."""
        return source_keys(self.inputs)

    @cached_property
    def sizes(self) -> Int64s:
        """Return the bytes of the files of each source."""
        return self.inputs.sizes()

    def plan(self, split: SplitRule | None, codecs: Mapping[str, str] | None = None) -> NewStore:
        """Derive, finalize, plan. `codecs` are those that the codec ``"auto"`` chose before, by path."""
        scan = self.inputs.scan
        codec = self.settings.codec
        spill = self._derive()
        begin_items(self.progress, "gathering")
        finalized = self.inputs.converter.finalize(scan, spill if scan.is_derived else ())
        ask = parallel_map(self.executor, self.progress, "splitting")
        read_column = partial(column_values, self.inputs.converter, scan, finalized, ask)
        assigned = assign_splits(scan, finalized, split, read_column)
        tables = final_tables(scan, finalized, spill)
        digests = np.zeros((len(scan.sources), 16), np.uint8)  # known at the end
        rows = rows_by_table(scan, finalized, tables)
        shared = shared_index(scan.sources.names, rows, self.sizes, digests, assigned.codes)
        forms = [index_plan(field, len(values)) for field, values in (*finalized.arrays, *shared)]
        verdicts = tuple(count.to_json() for count in counted_scan(scan))
        is_reported = "skipped" in scan.options or any(count["verdict"] != TAKEN for count in verdicts)
        new_store = NewStore(
            scan=scan,
            plan=plan_of(scan, codec, split, tables, forms, assigned.found),
            samples=finalized.samples,
            verdicts=verdicts,
            reported=list(verdicts) if is_reported else None,
            groups={**finalized.groups, "splits": {"names": list(assigned.names)}},
            codes=assigned.codes,
            rows=rows,
            sizes=self.sizes,
            arrays=finalized.arrays,
            spill=spill,
            spilled={table.name: table for table in finalized.spilled},
            notes=(*finalized.notes, *assigned.notes),
            digests=finalized.digests,
        )
        if codecs is None:
            job = self.job(new_store)
            self._read_parts(job)
            begin_items(self.progress, "choosing codecs")
            codecs = self._chosen_codecs(job, parallel_map(self.executor)) if codec == "auto" else {}
        if codec != "auto":
            return new_store
        return replace(new_store, plan=with_codecs(new_store.plan, codecs))

    def _chosen_codecs(self, job: ShardJob, ask: ParallelMap) -> Mapping[str, str]:
        sampled: list[ShardTask] = []
        for table in job.plan.tables:
            if not (self.inputs.converter.reads_planes and table.has_planes):
                sampled += sampled_rows(table)
        missing = [task for task in sampled if job.cached(task) is None]
        replace(self, progress=NO_PROGRESS)._read(job, missing)
        return choose_codecs(job, ask, in_bucket=self.build.in_bucket)

    def _read_parts(self, job: ShardJob) -> None:
        # Only where there are more workers than shards to write
        parts: list[ShardTask] = []
        for table in job.plan.tables if self.build.part is None else ():
            parts += parts_of(table, self.executor.workers)
        if parts:
            self._read(job, parts)

    def _read(self, job: ShardJob, parts: Sequence[ShardTask]) -> None:
        reading = replace(job, reads_parts=True)
        self.run_steps("reading", reading, parts, job.plan.task_bytes, lambda _: {})
        job.rows_read.parts.extend(parts)

    def job(self, new_store: NewStore) -> ShardJob:
        """Return a job that writes the shards of a store."""
        return ShardJob(
            inputs=self.inputs,
            spill=new_store.spill,
            target=self.build.target,
            plan=new_store.plan,
            spilled=new_store.spilled,
            reading=reading_memory(self.inputs.scan),
            bounded=bounded_columns(new_store.plan),
            rows_read=self.rows_read,
        )

    def _derive(self) -> Spill:
        if not self.inputs.scan.is_derived:
            return Spill(self.build.spill, 0)
        job = DeriveJob(
            inputs=self.inputs,
            keys=self.keys,
            spill=self.build.spill / f"{self.round}",
            budget=self.settings.budget,
        )
        if self.build.part is not None:
            return self._derive_in_parts(self.build.part, job)
        self._derive_batches(job, source_batches(self._derived_before().missing, self.sizes))
        return self._derived_before()

    def _derive_batches(self, job: DeriveJob, batches: Sequence[Sequence[int]]) -> None:
        sizes = self.sizes
        self.run_steps(
            "reading",
            job,
            batches,
            lambda batch: int(sizes[list(batch)].sum()),
            lambda _: {"round": self.round},
        )

    def _derive_in_parts(self, part: JobPart, job: DeriveJob) -> Spill:
        # All rows must be known before any shard is planned. So a part also reads what others have not begun
        batches = source_batches(range(len(self.keys)), self.sizes)
        is_told = False
        while missing := self._underived(batches):
            parts = [other for other in part.all() if not missing.isdisjoint(other.share(batches))]
            if not part.number:
                raise _not_ready(self.build, [other.number for other in parts])
            for other in parts:
                with self.build.reading(other) as is_free:
                    if is_free:
                        still_missing = self._underived(other.share(batches))
                        self._derive_batches(job, sorted(still_missing))
                    elif not is_told:
                        is_told = True
                        self.progress.tell(f"waiting: job {other.number} is reading its sources")
            self._raise_if_stopped()
            wait_turn()
        return self._derived_before()

    def _underived(self, batches: Sequence[tuple[int, ...]]) -> set[tuple[int, ...]]:
        missing = set(self._derived_before().missing)
        return {batch for batch in batches if not missing.isdisjoint(batch)}

    def _derived_before(self) -> Spill:
        # With the same key, in this round or an earlier one
        keys = self.keys
        spill = Spill(self.build.spill, len(keys))
        order = np.argsort(keys)
        for record in self.build.journal.each("derive"):
            batch = f"{record['round']}/{record['batch']}"
            if not SpilledBatch.is_complete(self.build.spill / batch):
                continue
            batch_keys = SpilledBatch(self.build.spill / batch).keys
            if json_digest(batch_keys) != record["of"]:
                continue
            spilled_keys = np.array([key or "" for key in batch_keys], "S32")
            places = np.searchsorted(keys, spilled_keys, sorter=order)
            number = order[places.clip(max=len(keys) - 1)]
            unchanged = np.flatnonzero(keys[number] == spilled_keys)
            spill.add(batch, number[unchanged].tolist(), unchanged.tolist())
        return spill

    def write_shards(self, new_store: NewStore) -> int:
        """Write the shards that are missing, and return the number of tasks that were done before."""
        journal = self.build.journal
        plan = new_store.plan
        # For the report on an unfinished conversion. Task keys decide what of an earlier run is kept.
        if all(record["round"] != self.round for record in journal.each("plan")):
            journal.append({"step": "plan", "tasks": len(plan.tasks()), "round": self.round})
        keys = task_keys(plan, self.keys)
        done = self._done_tasks(plan, keys)
        part = self.build.part
        share = plan.tasks() if part is None else part.share(plan.tasks())
        todo = [task for task in share if task.id not in done]
        job = self.job(new_store)
        self.run_steps("writing", job, todo, plan.task_bytes, lambda task: {"of": keys[task.id]})
        return len(done)

    def _done_tasks(self, plan: Plan, keys: Mapping[str, str]) -> set[str]:
        # With the same key, in this round or an earlier one
        journal = self.build.journal
        last = {record["task"]: (record["of"], record["files"]) for record in journal.each("shard")}
        sizes = self.build.target.sizes() if last else {}
        done = set()
        for task in plan.tasks():
            key, files = last.get(task.id, ("", ()))
            if key != keys[task.id]:
                continue
            if all(sizes.get(file["key"]) == file["bytes"] for file in files):
                done.add(task.id)
        return done

    def run_steps(
        self,
        stage: str,
        job: Job[T],
        items: Sequence[T],
        size: Callable[[T], int],
        about: Callable[[T], JsonObject],
    ) -> None:
        """Run steps, journal each with the fields from `about`, raise all problems together."""
        if items:
            self._raise_if_stopped()
            largest = max(items, key=job.need)
            check_fits(self.settings.limit, job.need(largest), job.describe(largest))
        self.progress.begin(stage, sum(size(item) for item in items))
        problems: dict[Problem, None] = {}
        done = 0
        with listening(self.progress.advance), closing(self.executor.run(job, items)) as steps:
            for item, outcome in steps:
                if outcome.problems:
                    problems.update(dict.fromkeys(outcome.problems))
                    if len(problems) >= MAX_PROBLEMS and not self.settings.skips:
                        break
                if outcome.record:
                    self.build.journal.append({**outcome.record, **about(item)})
                self.progress.advance(size(item) - outcome.told)
                done += 1
        if problems:
            bad = {problem.source for problem in problems}
            names = self.inputs.scan.sources.names
            raise InputError(tuple(problems), can_skip=any(name not in bad for name in names))
        if done < len(items):
            self._raise_if_stopped()

    def _raise_if_stopped(self) -> None:
        if STOP.is_set():
            msg = (
                f"{self.build.destination}: a signal stopped the conversion; all finished work is kept. "
                "Fix: run the same command to continue"
            )
            raise StoppedError(msg)


def _not_ready(build: Build, parts: Sequence[int]) -> ConversionError:
    numbers = first_few([str(number) for number in parts], 20)
    return ConversionError(
        f"{build.destination}: jobs that are not finished: {numbers}. Fix: run them, then --seal"
    )


# Whether a finished store is up to date with its sources.


def is_up_to_date(
    converter: Converter,
    paths: Sequence[Path],
    destination: str,
    settings: Settings,
    claims: Claims | None = None,
    progress: Progress = NO_PROGRESS,
) -> bool:
    """Return whether there is a store that was made from these sources, with these options and versions."""
    build = open_build(destination, work=settings.work)
    store = _whole_store(build)
    if build.folder.exists() or store is None:
        return False
    with Processes() as executor:
        ask = parallel_map(executor, progress, "scanning")
        scan = scan_valid_sources(converter, paths, skip=False, ask=ask, claims=claims).scan
    rule = prepare_splits(settings.rule, paths, scan)
    options = plan_options(scan, settings.codec, rule)
    return _finished_report(build, store, Inputs.of(converter, scan), options, paths) is not None


def _whole_store(build: Build) -> Store | None:
    try:
        store = Store(build.destination)
    except FailedReadError:
        raise
    except StoreError:
        return None
    recorded = store.attributes
    is_whole = not recorded.get("skipped") and recorded.get("created_with") == versions()
    return store if is_whole else None


def _finished_report(
    build: Build, store: Store, inputs: Inputs, options: JsonObject, paths: Sequence[Path]
) -> Report | None:
    # Values are not read: names, sizes and times of the sources are the same, and nothing under the given
    # paths, lists of splits included, was modified or changed status since they were scanned
    scan = inputs.scan
    now = json.loads(json.dumps(options))
    before = dict(store.attributes.get("options", {}))
    for recorded_options in (now, before):
        recorded_options.pop("found", None)  # known only from the values of the sources
    if (scan.family, now) != (store.family, before):
        return None
    sizes = inputs.sizes()
    names = list(scan.sources.names)
    if names != store.text("sources/path"):
        return None
    if not np.array_equal(sizes, store.array("sources/bytes").read()):
        return None
    seal = store.attributes["seal"]
    states = read_states(store.storage, seal["digest"], len(names))
    every = chain.from_iterable(chain((path,), path.rglob("*")) for path in paths)
    copies = copies_folder(build.folder.with_suffix(""))
    if max(_changed(path, is_copy=copies in path.parents) for path in every) >= states.scanned:
        return None
    for state, fingerprint in zip(states.states, inputs.fingerprints, strict=True):
        files = [file.path for file in fingerprint]
        is_copied = any(copies in Path(file).parents for file in files)  # of objects, at another time
        if not is_copied and not state.is_now(files):
            return None
    raw_bytes = 0
    for array in store.arrays().values():
        raw_bytes += math.prod(array.shape) * array.dtype.itemsize
    return Report(
        destination=build.destination,
        family=store.family,
        samples=store.sample_count,
        sample_table=store.sample_table,
        sources=len(names),
        source_bytes=int(sizes.sum()),
        raw_bytes=raw_bytes,
        stored_bytes=seal["bytes"],
        files=seal["files"] + 2,
        tasks=0,
        resumed=0,
        digest=seal["digest"],
        notes=tuple(scan.notes),
        verdicts=tuple(count.to_json() for count in counted_scan(scan)),
    )


def _changed(path: Path, *, is_copy: bool) -> int:
    # Copies of sources in a bucket have the modification times of their objects; all else of them is new
    state = path.stat()
    if is_copy:
        return 0 if S_ISDIR(state.st_mode) else state.st_mtime_ns
    return max(state.st_mtime_ns, state.st_ctime_ns)


def open_build(
    destination: PathLike,  # path or URL
    *,
    # for an object store: folder that holds the build folder; None: the current one
    work: PathLike | None = None,
    restart: bool = False,  # discard an unfinished conversion
    part: JobPart | None = None,
    sources: Sequence[PathLike] = (),  # as they were given, for messages
) -> Build:
    """Return the build of a folder, or of a URL of an object store, not entered yet."""
    build = _build_of(destination, work, restart=restart, part=part)
    build.sources = tuple(os.fspath(source) for source in sources)
    return build


def _build_of(destination: PathLike, work: PathLike | None, *, restart: bool, part: JobPart | None) -> Build:
    if work is not None:
        require_local_path(work, "the folder of --work")
    folder = local_path(destination)
    if folder is None:
        from unistore.conversion.object_build import ObjectBuild

        folder = None if work is None else Path(work)
        return ObjectBuild(os.fspath(destination), work=folder, restart=restart, part=part)
    if work is not None:
        message = "is only for a destination in a bucket"
        fix = f"leave --work out; unistore builds {folder} in its own parent folder and renames it when done"
        option = f"--work {work}"
        raise InputError.at(option, message, fix, "option")
    path = Path(os.path.abspath(folder))  # noqa: PTH100  links stay links
    return FolderBuild(path, restart=restart, part=part)


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
    opened = open_build(
        destination, work=settings.work, restart=settings.restart, part=settings.own_part, sources=paths
    )
    try:
        opened.check_early(overwrite=settings.overwrite)
    except FinishedStoreError as error:
        from unistore.conversion.finished import compared

        raise compared(error, converter, paths, settings, claims) from None
    _check_no_overlap(paths, opened)
    executor = executor or Serial()
    scan_valid = partial(
        scan_valid_sources,
        converter,
        paths,
        skip=settings.skips,
        ask=shared_scan(
            parallel_map(executor, progress, "scanning"),
            opened.folder if settings.is_shared else None,
            paths,
            progress,
        ),
        is_named=is_named,
        stored=stored,
    )
    valid = scan_valid(claims=claims)
    rule = prepare_splits(settings.rule, paths, valid.scan)
    inputs = Inputs.of(valid.converter, valid.scan)
    if check is not None:
        check(inputs)
    try:
        with opened as build:
            with build.turn():
                is_first = build.part is not None and not build.is_begun
                if is_first and (store := _whole_store(build)) is not None:
                    options = plan_options(inputs.scan, settings.codec, rule)
                    if (report := _finished_report(build, store, inputs, options, paths)) is not None:
                        build.withdraw()
                        return report
                build.begin(
                    _identity(valid, settings.codec, rule),
                    _source_states(inputs),
                    paths,
                    scanned,
                )
                check_resumed(build.journal, skips=settings.skips)
                if (report := finished_before(build)) is not None:
                    return report
                build.check(overwrite=settings.overwrite and build.part != SEALING)
                build.discard_on_input_error()
            if not build.journal.of(SKIP):
                leave_out(build.journal, valid.problems)
            while True:
                problems = recorded_problems(build.journal)
                if sources_of(problems) != sources_of(valid.problems):
                    valid = scan_valid(problems)
                    leave_out(build.journal, valid.problems[len(problems) :])
                    problems = recorded_problems(build.journal)
                    rule = prepare_splits(settings.rule, paths, valid.scan)
                    inputs = Inputs.of(valid.converter, valid.scan)
                conversion = Conversion(
                    inputs=replace(inputs, scan=with_skipped(valid.scan, problems)),
                    build=build,
                    settings=settings,
                    executor=executor,
                    progress=progress,
                    round=len(build.journal.of(SKIP)),
                )
                try:
                    return conversion.execute(rule)
                except InputError as error:
                    if not settings.skips or not all(problem.source for problem in error.problems):
                        raise
                    leave_out(build.journal, error.problems)
    except OSError as error:
        raise writing_failed(error, opened.output_path) from error


def with_destination(error: InputError, destination: str) -> InputError:
    """Return an error whose command for another family has the given destination."""
    problems = [_command_into(problem, destination) for problem in error.problems]
    return InputError(problems, can_skip=error.can_skip) if problems else error


def _command_into(problem: Problem, destination: str) -> Problem:
    commands = [fix for fix in problem.fixes if isinstance(fix, RunCommand) and fix.arguments[0] == "convert"]
    if problem.kind != "family" or len(commands) != 1:  # several families become several stores
        return problem
    (command,) = commands
    own = replace(command, arguments=(*command.arguments[:-1], destination))
    return replace(problem, fix=tuple(own if fix == command else fix for fix in problem.fixes))


def finished_before(build: Build) -> Report | None:
    """Return the report of an earlier run that was killed after its store was in place, and clean up."""
    report = build.finished_report()
    if report is None:
        return None
    build.remove()
    lists = {name: tuple(value) for name, value in report.items() if isinstance(value, list)}
    return Report(**{**report, **lists})


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


def _check_no_overlap(paths: Sequence[Path], build: Build) -> None:
    for path in map(real_path, paths):
        target = build.output_path.resolve()
        if path == target or target in path.parents or path in target.parents:
            message = f"{build.overlap_message} {path}"
            raise InputError.at(str(build.output_path), message, build.overlap_fix, "target")
