"""One running conversion: derive, finalize, plan, write shards, seal; finished steps are not repeated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from unistore.conversion.build import Build
from unistore.conversion.executors.local import Executor, Job
from unistore.conversion.finish import seal, source_digests
from unistore.conversion.job import DeriveJob, ShardJob, source_batches
from unistore.conversion.keys import Fingerprints, Keys, sizes_of, source_keys, task_keys
from unistore.conversion.memory import check_space, estimate, largest_need, provisional_tables, reading_memory
from unistore.conversion.part_job import PartJob, parts_of
from unistore.conversion.plan import Plan, json_digest
from unistore.conversion.planning import Planned, choose_codecs, plan_conversion
from unistore.conversion.report import Report
from unistore.conversion.row_cache import RowCache
from unistore.conversion.schema_checks import bounded_columns, check_plan
from unistore.conversion.settings import Settings
from unistore.conversion.spill import Spill, SpilledBatch
from unistore.conversion.split_rule import SplitRule
from unistore.conversion.target import Folder
from unistore.converters.protocol import Converter, Scan
from unistore.errors import ConversionError, InputError, Problem
from unistore.schemas.tables import Table
from unistore.system.progress import Progress

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
