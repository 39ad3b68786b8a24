"""Run a conversion from scan to seal; the same call after a kill continues where the journal ends."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from unistore.converters.protocol import Converter, Facts, Scan
from unistore.errors import ConversionError, InputError, Problem
from unistore.execute.build import Build
from unistore.execute.destination import open_build
from unistore.execute.executors import Executor, Job, Serial
from unistore.execute.failure import writing_failed
from unistore.execute.finish import check_schema, seal, source_digests
from unistore.execute.job import DeriveJob, Guard, ShardJob, guard_of
from unistore.execute.memory import check_fits
from unistore.execute.planning import plan_conversion, versions
from unistore.execute.spill import Spill
from unistore.plan import Plan
from unistore.schemas.tables import Table

__all__ = ["Progress", "Report", "Silent", "run"]

T = TypeVar("T")
MANY = 50
"""Problems after which reading on for more of them stops."""


class Progress(Protocol):
    """Told how far a conversion is."""

    def begin(self, stage: str, total: int) -> None:
        """A stage of `total` bytes begins."""
        ...

    def advance(self, amount: int) -> None:
        """So many more bytes are done."""
        ...

    def tell(self, line: str) -> None:
        """Something happened that the user should know, as that a worker was lost."""
        ...


class Silent:
    """Tells nobody."""

    def begin(self, stage: str, total: int) -> None:
        """Do nothing."""

    def advance(self, amount: int) -> None:
        """Do nothing."""

    def tell(self, line: str) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a conversion did.

    ``source_bytes`` are the sizes of the files read, ``raw_bytes`` the uncompressed and ``stored_bytes`` the
    stored sizes of all arrays; ``resumed`` counts the tasks that an earlier run had finished.
    """

    destination: str
    modality: str
    samples: int
    sources: int
    source_bytes: int
    raw_bytes: int
    stored_bytes: int
    files: int
    tasks: int
    resumed: int
    digest: str
    notes: tuple[str, ...] = ()


def run(
    converter: Converter,
    paths: Sequence[Path],
    destination: str | os.PathLike[str],
    *,
    codec: str = "fast",
    shares: Mapping[str, float] | None = None,
    overwrite: bool = False,
    restart: bool = False,
    work: Path | None = None,
    memory: int | None = None,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> Report:
    """Convert `paths` into a sealed store at `destination`.

    Parameters
    ----------
    codec
        Preset of the codec chain: ``"fast"``, ``"balanced"``, ``"small"``, ``"none"``.
    shares
        Deal sources out to splits by these shares of the samples.
    overwrite
        Replace a store at the destination once the new one is sealed.
    restart
        Forget an unfinished conversion to this destination.
    work
        For a destination in an object store: folder that holds the build folder; None: the current one.
    memory
        Bytes that one step and its process may hold at most; executors share it out between processes.

    Raises
    ------
    InputError
        For bad sources (every problem of every file) or a destination that is taken.
    ConversionError
        If writing failed, a source changed meanwhile, or another converter is at work.
    """
    opened = open_build(destination, work=work, restart=restart)
    if not opened.folder.exists():
        opened.check(overwrite=overwrite)
    _check_apart(paths, opened)
    scan = converter.scan(paths)
    _check_shares(scan, shares)
    try:
        guards = tuple(guard_of(source) for source in scan.sources)
        with opened as build:
            build.begin(_identity(converter, scan, guards, codec, shares), paths)
            if (moved := build.moved()) is not None:
                build.remove()
                return Report(**{**moved, "notes": tuple(moved["notes"])})
            build.check(overwrite=overwrite)
            build.take_up()
            conversion = _Conversion(
                converter, scan, guards, build, memory, executor or Serial(), progress or Silent()
            )
            return conversion.execute(codec, shares)
    except OSError as error:
        raise writing_failed(error, opened.ground) from error


@dataclass(frozen=True, slots=True)
class _Conversion:
    """One conversion while it runs."""

    converter: Converter
    scan: Scan
    guards: tuple[Guard, ...]
    build: Build
    memory: int | None
    executor: Executor
    progress: Progress

    def execute(self, codec: str, shares: Mapping[str, float] | None) -> Report:
        """Derive, settle, write every shard, seal, move into place."""
        facts = self._derive()
        settled = self.converter.settle(self.scan, facts)
        planned = plan_conversion(self.scan, settled, codec, shares, self.build.spill)
        plan = planned.plan
        check_schema(plan, planned.attributes)
        resumed = self._write_shards(plan, planned.spilled)
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
            modality=plan.modality,
            samples=settled.samples,
            sources=len(self.scan.sources),
            source_bytes=sum(size for guard in self.guards for _, size, _ in guard),
            raw_bytes=sum(int(np.prod(a.shape[:1])) * a.field.row_bytes for a in plan.arrays()),
            stored_bytes=sealed["bytes"],
            files=sealed["files"] + 2,
            tasks=len(plan.tasks()),
            resumed=resumed,
            digest=sealed["digest"],
            notes=self.scan.notes,
        )
        self.build.journal.append({"step": "sealed", "report": asdict(report)})
        self.build.move_into_place()
        self.build.remove()
        return report

    def _derive(self) -> list[Facts]:
        """Facts of every source, in order; empty if nothing is derived."""
        if not (self.scan.needs_facts or any(table.spilled for table in self.scan.tables)):
            return []
        spill = self.build.spill
        recorded = {record["source"] for record in self.build.journal.of("derive")}
        done = {source for source in recorded if Spill.stands(spill / str(source))}
        todo = [source for source in range(len(self.guards)) if source not in done]
        job = DeriveJob(converter=self.converter, scan=self.scan, guards=self.guards, spill=spill)
        self._steps("reading", job, todo, lambda source: sum(size for _, size, _ in self.guards[source]))
        return [Spill(spill / str(source)).facts() for source in range(len(self.guards))]

    def _write_shards(self, plan: Plan, spilled: Mapping[str, Table]) -> int:
        """Write every shard that is not there yet; returns how many were."""
        journal = self.build.journal
        planned = journal.of("plan")
        if planned and planned[0]["digest"] != plan.digest:
            msg = f"{self.build.folder}: the plan is not the one that was begun; add --restart to start over"
            raise ConversionError(msg)
        if not planned:
            journal.append({"step": "plan", "digest": plan.digest, "tasks": len(plan.tasks())})
        records = journal.of("shard")
        held = self.build.target.held() if records else {}
        done = {
            record["task"]
            for record in records
            if all(held.get(file["key"]) == file["bytes"] for file in record["files"])
        }
        todo = [task for task in plan.tasks() if task.id not in done]
        job = ShardJob(
            converter=self.converter,
            scan=self.scan,
            guards=self.guards,
            spill=self.build.spill,
            target=self.build.target,
            plan=plan,
            spilled=spilled,
        )
        row_bytes = {table.name: table.row_bytes for table in plan.tables}
        self._steps("writing", job, todo, lambda task: (task.hi - task.lo) * row_bytes[task.table])
        return len(done)

    def _steps(self, stage: str, job: Job[T], items: Sequence[T], size: Callable[[T], int]) -> None:
        """Run steps, journal each that is done, raise all problems together at the end."""
        if items:
            largest = max(items, key=job.need)
            check_fits(self.memory, job.need(largest), job.describe(largest))
        self.progress.begin(stage, sum(size(item) for item in items))
        problems: dict[Problem, None] = {}
        with closing(self.executor.run(job, items)) as steps:
            for item, outcome in steps:
                if outcome.problems:
                    problems.update(dict.fromkeys(outcome.problems))
                    if len(problems) >= MANY:
                        break
                else:
                    self.build.journal.append(outcome.record)
                self.progress.advance(size(item))
        if problems:
            raise InputError(tuple(problems))


def _check_shares(scan: Scan, shares: Mapping[str, float] | None) -> None:
    """Refuse more splits than sources: whole sources are dealt out, so that some split would stay empty."""
    if shares is not None and len(scan.sources) < len(shares):
        msg = (
            f"--split: {len(shares)} splits ({', '.join(shares)}) of {len(scan.sources)} source(s): a source "
            "is never cut in two, so give at least one source a split"
        )
        raise InputError(msg)


def _identity(
    converter: Converter, scan: Scan, guards: Sequence[Guard], codec: str, shares: Mapping[str, float] | None
) -> dict[str, Any]:
    """What must stay the same for a run to be continued."""
    identity = {
        "modality": scan.modality,
        "converter": type(converter).__name__,
        "options": {**scan.options, "codec": codec, "split": None if shares is None else dict(shares)},
        "sources": {source.name: _look(guard) for source, guard in zip(scan.sources, guards, strict=True)},
        "versions": versions(),
    }
    plain: dict[str, Any] = json.loads(json.dumps(identity))
    return plain


def _look(guard: Guard) -> str | dict[str, str]:
    """Size and time of a source's file, or of each of its files, for the journal and for people."""
    looks = {}
    for path, size, modified in guard:
        seconds, rest = divmod(modified, 10**9)
        time = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").removesuffix("+00:00")
        looks[path] = f"{size} bytes, modified {time}.{rest:09d} UTC"
    if len(looks) == 1:
        return next(iter(looks.values()))
    common = os.path.commonpath(list(looks)) if looks else ""
    return {Path(path).relative_to(common).as_posix(): look for path, look in looks.items()}


def _check_apart(paths: Sequence[Path], build: Build) -> None:
    """Refuse a destination that is, holds, or lies in a source: nothing is ever written among sources."""
    for path in (Path(path).resolve() for path in paths):
        target = build.ground.resolve()
        if path == target or target in path.parents or path in target.parents:
            msg = f"{build.ground}: {build.overlap}; the source is {path}"
            raise InputError(msg)
