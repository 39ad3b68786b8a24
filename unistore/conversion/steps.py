"""The steps of a conversion: derive, finalize, plan, write shards, seal. Finished ones are not repeated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from typing import Any, TypeVar

import numpy as np

from unistore.conversion.build import Build, wait_turn
from unistore.conversion.codec_choice import choose_codecs, sampled_rows
from unistore.conversion.executors.local import STOP, Executor, Job, parallel_map
from unistore.conversion.job import RowsRead, ShardJob, bounded_columns, parts_of
from unistore.conversion.keys import Inputs, Keys, source_keys, task_keys
from unistore.conversion.memory import check_fits, check_space, estimate, provisional_tables, reading_memory
from unistore.conversion.new_store import (
    NewStore,
    check_plan,
    final_tables,
    plan_of,
    rows_by_table,
    shared_index,
)
from unistore.conversion.parts import JobPart
from unistore.conversion.plan import Plan, ShardTask, index_plan, json_digest
from unistore.conversion.report import Report
from unistore.conversion.settings import Settings
from unistore.conversion.spill import DeriveJob, Spill, SpilledBatch, source_batches
from unistore.conversion.split_rule import SplitRule
from unistore.conversion.splits import assign_splits, column_values
from unistore.converters.detection import TAKEN, counted_scan
from unistore.converters.protocol import ParallelMap
from unistore.errors import ConversionError, InputError, Problem, StoppedError, first_few
from unistore.system.progress import NO_PROGRESS, Progress, begin_items, listening
from unistore.system.types import Int64s, JsonObject
from unistore.zarr3.durable import Folder

T = TypeVar("T")
# Problems after which the conversion fails without looking for more, unless bad sources are skipped
MAX_PROBLEMS = 50


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
                return self._report(new_store, resumed, self.build.seal().to_json())
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
        return replace(new_store, plan=new_store.plan.with_codecs(codecs))

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


def finished_before(build: Build) -> Report | None:
    """Return the report of an earlier run that was killed after its store was in place, and clean up."""
    report = build.finished_report()
    if report is None:
        return None
    build.remove()
    lists = {name: tuple(value) for name, value in report.items() if isinstance(value, list)}
    return Report(**{**report, **lists})
