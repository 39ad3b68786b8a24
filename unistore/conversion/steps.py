"""A running conversion: it derives sources, plans the store, and runs steps that are not yet finished."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property, partial

from unistore.conversion.build import Build, wait_turn
from unistore.conversion.codec_choice import choose_codecs, unread_rows
from unistore.conversion.executors.local import STOP, Executor, Job, T, parallel_map
from unistore.conversion.job import RowsRead, ShardJob
from unistore.conversion.keys import Inputs, Keys, source_keys
from unistore.conversion.memory import check_fits, reading_memory
from unistore.conversion.new_store import NewStore
from unistore.conversion.parts import JobPart, not_ready
from unistore.conversion.plan import ShardTask
from unistore.conversion.settings import Settings
from unistore.conversion.spill import DeriveJob, Spill, source_batches
from unistore.conversion.split_rule import SplitRule
from unistore.conversion.splits import assign_splits, column_values
from unistore.errors import InputError, Problem, StoppedError
from unistore.system.progress import NO_PROGRESS, Progress, begin_items, listening
from unistore.system.types import Int64s, JsonObject

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
        new_store = NewStore.of(scan, finalized, assigned, spill, self.sizes, codec=codec, split=split)
        if codecs is None:
            job = self.job(new_store)
            self._read_parts(job)
            begin_items(self.progress, "choosing codecs")
            codecs = self._chosen_codecs(job) if codec == "auto" else {}
        if codec != "auto":
            return new_store
        return replace(new_store, plan=new_store.plan.with_codecs(codecs))

    def _chosen_codecs(self, job: ShardJob) -> Mapping[str, str]:
        replace(self, progress=NO_PROGRESS)._read(job, unread_rows(job))
        return choose_codecs(job, parallel_map(self.executor), in_bucket=self.build.in_bucket)

    def _read_parts(self, job: ShardJob) -> None:
        # Only where there are more workers than shards to write
        parts = job.parts(self.executor.workers) if self.build.part is None else ()
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
            bounded=new_store.plan.bounded_columns(),
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
            parts = part.having(batches, missing)
            if not part.number:
                raise not_ready(self.build.destination, [other.number for other in parts])
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
        return Spill.recorded(self.build.spill, self.keys, self.build.journal.each("derive"))

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
