"""One conversion at work: derive, settle, plan, write every shard, seal; what is done is not done again."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from unistore.conversion.build import Build
from unistore.conversion.estimate import estimate, provisional_tables
from unistore.conversion.executors.local import Executor, Job, largest_need
from unistore.conversion.finish import check_schema, seal, source_digests
from unistore.conversion.guard import Guard, guard_of
from unistore.conversion.job import DeriveJob, ShardJob
from unistore.conversion.keys import source_keys, task_keys
from unistore.conversion.memory import reading_memory
from unistore.conversion.plan import Plan
from unistore.conversion.planning import Planned, plan_conversion
from unistore.conversion.report import Report
from unistore.conversion.space import check_space
from unistore.conversion.spill import Spill
from unistore.conversion.splits import Shares
from unistore.conversion.target import Folder
from unistore.converters.protocol import Converter, Facts, Scan
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
    converter, scan
        What is converted.
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
    build: Build
    memory: int | None
    room: int
    executor: Executor
    progress: Progress
    round: int = 0
    exhaustive: bool = False

    def execute(self, codec: str, shares: Shares | None) -> Report:
        """Derive, settle, write every shard, seal, move into place.

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
        guards = tuple(guard_of(source) for source in self.scan.sources)
        planned = self._plan(guards, codec, shares)
        plan = planned.plan
        check_schema(plan, planned.attributes)
        resumed = self._write_shards(guards, plan, planned.spilled)
        sealed = seal(
            self.build.target,
            plan,
            self.build.journal,
            planned.index(source_digests(plan, self.build.journal.of("shard"))),
            planned.attributes,
            planned.groups,
        )
        report = Report(
            destination=self.build.destination,
            family=plan.family,
            samples=int(planned.attributes["samples"]["count"]),
            sample_table=plan.sample_table,
            sources=len(self.scan.sources),
            source_bytes=sum(file.size for guard in guards for file in guard),
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

    def _plan(self, guards: tuple[Guard, ...], codec: str, shares: Shares | None) -> Planned:
        """Derive, settle, plan: what only that needs, as a source a sample, is held no longer."""
        settled = self.converter.settle(self.scan, self._derive(guards))
        return plan_conversion(self.scan, settled, codec, shares, self._spill(self.round))

    def _spill(self, number: int) -> Path:
        """Folder of what the sources spilled in a round: sources are numbered anew in each."""
        return self.build.spill if number == 0 else self.build.spill / f"round-{number}"

    def _derive(self, guards: tuple[Guard, ...]) -> list[Facts]:
        """Facts of every source, in order; empty if nothing is derived."""
        if not self.scan.is_derived:
            return []
        spill = self._spill(self.round)
        keys = source_keys(self.scan, guards)
        done = self._derived(spill, keys)
        todo = [source for source in range(len(guards)) if source not in done]
        job = DeriveJob(converter=self.converter, scan=self.scan, guards=guards, spill=spill, room=self.room)
        self._steps(
            "reading",
            job,
            todo,
            lambda source: sum(file.size for file in guards[source]),
            lambda source: {"round": self.round, "of": keys[source]},
        )
        return [Spill(spill / str(source)).facts() for source in range(len(guards))]

    def _derived(self, spill: Path, keys: Sequence[str]) -> set[int]:
        """Sources that have been derived, in this round or, to the same end, in the one before."""
        records = self.build.journal.of("derive")
        now = [(record["source"], record["of"]) for record in records if record["round"] == self.round]
        done = {source for source, key in now if key == keys[source]}
        done = {source for source in done if Spill.stands(spill / str(source))}
        before = {record["of"]: record["source"] for record in records if record["round"] == self.round - 1}
        for source, key in enumerate(keys):
            if source in done or key not in before:
                continue
            former, folder = self._spill(self.round - 1) / str(before[key]), spill / str(source)
            if Spill.stands(former):
                if folder.exists():
                    shutil.rmtree(folder)
                spill.mkdir(parents=True, exist_ok=True)
                former.rename(folder)
                record = {"step": "derive", "source": source, "round": self.round, "of": key}
                self.build.journal.append(record)
                done.add(source)
        return done

    def _write_shards(self, guards: tuple[Guard, ...], plan: Plan, spilled: Mapping[str, Table]) -> int:
        """Write every shard that is not there yet; returns how many were."""
        journal = self.build.journal
        planned = [record for record in journal.of("plan") if record["round"] == self.round]
        if planned and planned[0]["digest"] != plan.digest:
            msg = f"{self.build.folder}: the plan is not the one that was begun; add --restart to start over"
            raise ConversionError(msg)
        if not planned:
            tasks = len(plan.tasks())
            journal.append({"step": "plan", "digest": plan.digest, "tasks": tasks, "round": self.round})
        keys = task_keys(plan, source_keys(self.scan, guards))
        done = self._written(plan, keys)
        todo = [task for task in plan.tasks() if task.id not in done]
        job = ShardJob(
            converter=self.converter,
            scan=self.scan,
            guards=guards,
            spill=self._spill(self.round),
            target=self.build.target,
            plan=plan,
            spilled=spilled,
            reading=reading_memory(self.scan),
        )
        self._steps("writing", job, todo, plan.task_bytes, lambda task: {"of": keys[task.id]})
        return len(done)

    def _written(self, plan: Plan, keys: Mapping[str, str]) -> set[str]:
        """Tasks that have been done, in this round or, to the same end, in an earlier one."""
        journal = self.build.journal
        last = {record["task"]: record for record in journal.of("shard")}
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
                else:
                    self.build.journal.append({**outcome.record, **about(item)})
                self.progress.advance(size(item))
        if problems:
            raise InputError(tuple(problems))
