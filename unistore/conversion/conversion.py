"""One conversion at work: derive, finalize, plan, write every shard, seal; what is done is not done again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import numpy as np

from unistore.conversion.blocks import Kept
from unistore.conversion.build import Build
from unistore.conversion.estimate import estimate, provisional_tables
from unistore.conversion.executors.local import Executor, Job, largest_need
from unistore.conversion.finish import check_schema, seal, source_digests
from unistore.conversion.guard import Guards, sizes_of
from unistore.conversion.job import DeriveJob, ShardJob, lots
from unistore.conversion.keys import Keys, source_keys, task_keys
from unistore.conversion.memory import reading_memory
from unistore.conversion.plan import Plan, json_digest
from unistore.conversion.planning import Planned, plan_conversion
from unistore.conversion.report import Report
from unistore.conversion.space import check_space
from unistore.conversion.spill import Lot, Spill
from unistore.conversion.splits import Shares
from unistore.conversion.target import Folder
from unistore.conversion.trial import choose_codecs
from unistore.converters.protocol import Converter, Scan
from unistore.converters.verdicts import counted_scan
from unistore.errors import ConversionError, InputError, Problem
from unistore.schemas.tables import Table
from unistore.system.progress import Progress

__all__ = ["Conversion"]

T = TypeVar("T")
MANY = 50
"""Problems after which reading on for more of them stops, where they refuse the conversion anyway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """A conversion while it runs.

    Attributes
    ----------
    converter, scan, guards
        What is converted, and the sources' files as they were.
    build
        Entered: where it is written, and the journal of what is done.
    memory
        Bytes that one step and its process may hold; None: not bounded.
    room
        Bytes that one step may hold to be faster.
    executor, progress
        Where steps run, and who is told.
    round
        How often sources were left out before: work of earlier rounds is taken over where it is the same.
    exhaustive
        Look for the problems of all sources, however many there are.
    """

    converter: Converter
    scan: Scan
    guards: Guards
    build: Build
    memory: int | None
    room: int
    executor: Executor
    progress: Progress
    round: int = 0
    exhaustive: bool = False

    def execute(self, codec: str, shares: Shares | None) -> Report:
        """Derive, finalize, write every shard, seal, move into place.

        Raises
        ------
        InputError
            With the problems of the sources' values.
        ConversionError
            If writing failed, or a source changed meanwhile.
        """
        estimate(self.converter, self.scan, self.room).check(self.memory)
        if isinstance(self.build.target, Folder):
            tables = provisional_tables(self.scan)
            check_space(self.build.ground, self.build.folder, tables, self.progress)
        guards = self.guards
        keys = source_keys(self.scan, guards)
        planned, spill, kept = self._plan(guards, keys, codec, shares)
        plan = planned.plan
        check_schema(plan, planned.attributes)
        resumed = self._write_shards(guards, keys, planned, spill, kept)
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
            source_bytes=int(sizes_of(guards).sum()),
            raw_bytes=plan.raw_bytes,
            stored_bytes=sealed["bytes"],
            files=sealed["files"] + 2,
            tasks=len(plan.tasks()),
            resumed=resumed,
            digest=sealed["digest"],
            notes=(*self.scan.notes, *planned.notes),
            skipped=self.scan.options.get("skipped", ()),
            verdicts=tuple(each.to_json() for each in counted_scan(self.scan)),
        )
        self.build.journal.append({"step": "sealed", "report": asdict(report)})
        self.build.move_into_place()
        self.build.remove()
        return report

    def _plan(
        self, guards: Guards, keys: Keys, codec: str, shares: Shares | None
    ) -> tuple[Planned, Spill, Kept]:
        """Derive, finalize, plan: what only that needs, as a source a sample, is held no longer."""
        spill, kept = self._derive(guards, keys), Kept()
        finalized = self.converter.finalize(self.scan, spill if self.scan.is_derived else ())

        def choose(plan: Plan, spilled: Mapping[str, Table]) -> Mapping[str, str]:
            job = self._job(guards, plan, spilled, spill, kept)
            return choose_codecs(job, bad_sources=self.exhaustive)

        planned = plan_conversion(self.scan, finalized, codec, shares, spill, choose)
        return planned, spill, kept if self.memory is None else Kept()

    def _job(
        self, guards: Guards, plan: Plan, spilled: Mapping[str, Table], spill: Spill, kept: Kept
    ) -> ShardJob:
        return ShardJob(
            converter=self.converter,
            scan=self.scan,
            guards=guards,
            spill=spill,
            target=self.build.target,
            plan=plan,
            spilled=spilled,
            reading=reading_memory(self.scan),
            kept=kept,
        )

    def _derive(self, guards: Guards, keys: Keys) -> Spill:
        """What every source spilled; nothing if nothing is derived."""
        if not self.scan.is_derived:
            return Spill(self.build.spill, 0)
        spill = self._derived(keys)
        sizes = sizes_of(guards)
        job = DeriveJob(
            converter=self.converter,
            scan=self.scan,
            guards=guards,
            spill=self.build.spill / f"{self.round}",
            room=self.room,
        )
        todo = lots(spill.missing, sizes)
        self._steps(
            "reading", job, todo, lambda lot: int(sizes[list(lot)].sum()), lambda _: {"round": self.round}
        )
        for lot in todo:
            spill.add(f"{self.round}/{lot[0]}", lot, range(len(lot)))
        return spill

    def _derived(self, keys: Keys) -> Spill:
        """Sources that have been derived, in this round or, to the same end, in an earlier one."""
        spill, order = Spill(self.build.spill, len(keys)), np.argsort(keys)
        for record in self.build.journal.each("derive"):
            lot = f"{record['round']}/{record['lot']}"
            if not Lot.stands(self.build.spill / lot):
                continue
            found = Lot(self.build.spill / lot).keys
            if json_digest(found) != record["of"]:
                continue
            wanted = np.array([key or "" for key in found], "S32")
            number = order[np.searchsorted(keys, wanted, sorter=order).clip(max=len(keys) - 1)]
            known = np.flatnonzero(keys[number] == wanted)
            spill.add(lot, number[known].tolist(), known.tolist())
        return spill

    def _write_shards(
        self, guards: Guards, source_keys: Keys, planned: Planned, spill: Spill, kept: Kept
    ) -> int:
        """Write every shard that is not there yet; returns how many were."""
        journal, plan = self.build.journal, planned.plan
        before = [record for record in journal.of("plan") if record["round"] == self.round]
        if before and before[0]["digest"] != plan.digest:
            msg = f"{self.build.folder}: the plan is not the one that was begun; add --restart to start over"
            raise ConversionError(msg)
        if not before:
            tasks = len(plan.tasks())
            journal.append({"step": "plan", "digest": plan.digest, "tasks": tasks, "round": self.round})
        keys = task_keys(plan, source_keys)
        done = self._written(plan, keys)
        todo = [task for task in plan.tasks() if task.id not in done]
        self._steps(
            "writing",
            self._job(guards, plan, planned.spilled, spill, kept),
            todo,
            plan.task_bytes,
            lambda task: {"of": keys[task.id]},
        )
        return len(done)

    def _written(self, plan: Plan, keys: Mapping[str, str]) -> set[str]:
        """Tasks that have been done, in this round or, to the same end, in an earlier one."""
        journal = self.build.journal
        last = {record["task"]: record for record in journal.each("shard")}
        sizes = self.build.target.sizes() if last else {}
        done = set()
        for task in plan.tasks():
            record = last.get(task.id)
            if record is None or record["of"] != keys[task.id]:
                continue
            if any(sizes.get(file["key"]) != file["bytes"] for file in record["files"]):
                continue
            sources = [piece.source for piece in plan.table(task.table).pieces(task.lo, task.hi)]
            if sources != [source for source, _ in record["pieces"]]:  # the same ones, numbered anew
                digests = [digest for _, digest in record["pieces"]]
                pieces = [list(piece) for piece in zip(sources, digests, strict=True)]
                journal.append({**record, "pieces": pieces})
            done.add(task.id)
        return done

    def _steps(
        self,
        stage: str,
        job: Job[T],
        items: Sequence[T],
        size: Callable[[T], int],
        about: Callable[[T], dict[str, Any]],
    ) -> None:
        """Run steps, journal each that is done with what is `about` it, raise all problems together."""
        if items:
            largest_need(job, items, self.memory)
        self.progress.begin(stage, sum(size(item) for item in items))
        problems: dict[Problem, None] = {}
        with closing(self.executor.run(job, items)) as steps:
            for item, outcome in steps:
                if outcome.problems:
                    problems.update(dict.fromkeys(outcome.problems))
                    if len(problems) >= MANY and not self.exhaustive:
                        break
                if outcome.record:
                    self.build.journal.append({**outcome.record, **about(item)})
                self.progress.advance(size(item))
        if problems:
            raise InputError(tuple(problems))
