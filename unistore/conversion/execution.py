"""A conversion from its plan to the seal: checks, shards, the report. Jobs leave the seal to the last one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from unistore.conversion.build import Build
from unistore.conversion.keys import task_keys
from unistore.conversion.memory import check_space, estimate, provisional_tables
from unistore.conversion.new_store import NewStore
from unistore.conversion.parts import not_ready
from unistore.conversion.plan import Plan
from unistore.conversion.report import Report
from unistore.conversion.split_rule import SplitRule
from unistore.conversion.steps import Conversion
from unistore.system.progress import begin_items


def execute(conversion: Conversion, split: SplitRule | None) -> Report:
    """Derive, finalize, write every shard, seal, move into place."""
    build = conversion.build
    scan = conversion.inputs.scan
    settings = conversion.settings
    steps = estimate(conversion.inputs.converter, scan, settings.budget)
    steps.peak(settings.limit, 0)
    # The free space of an object store is unknown, and so is the part that an earlier run has used.
    if not build.in_bucket and not build.journal.of("plan"):
        check_space(build.output_path, provisional_tables(scan), conversion.progress)
    new_store = conversion.plan(split)
    new_store.check()
    resumed = write_shards(conversion, new_store)
    with build.turn():
        if build.is_removed:
            return _report(conversion, new_store, resumed, build.seal().to_json())
        if unfinished := _unfinished_parts(conversion, new_store.plan):
            report = _report(conversion, new_store, resumed, {})
            return replace(report, unfinished_parts=unfinished)
        return _seal(conversion, new_store, resumed)


def write_shards(conversion: Conversion, new_store: NewStore) -> int:
    """Write the shards that are missing, and return the number of tasks that were done before."""
    build = conversion.build
    plan = new_store.plan
    # For the report on an unfinished conversion. Task keys decide what of an earlier run is kept.
    if all(record["round"] != conversion.round for record in build.journal.each("plan")):
        build.journal.append({"step": "plan", "tasks": len(plan.tasks()), "round": conversion.round})
    keys = task_keys(plan, conversion.keys)
    done = _done_tasks(build, plan, keys)
    share = plan.tasks() if build.part is None else build.part.share(plan.tasks())
    todo = [task for task in share if task.id not in done]
    job = conversion.job(new_store)
    conversion.run_steps("writing", job, todo, plan.task_bytes, lambda task: {"of": keys[task.id]})
    return len(done)


def _done_tasks(build: Build, plan: Plan, keys: Mapping[str, str]) -> set[str]:
    # With the same key, in this round or an earlier one
    last = {record["task"]: (record["of"], record["files"]) for record in build.journal.each("shard")}
    sizes = build.target.sizes() if last else {}
    done = set()
    for task in plan.tasks():
        key, files = last.get(task.id, ("", ()))
        if key != keys[task.id]:
            continue
        if all(sizes.get(file["key"]) == file["bytes"] for file in files):
            done.add(task.id)
    return done


def _unfinished_parts(conversion: Conversion, plan: Plan) -> tuple[int, ...]:
    build = conversion.build
    part = build.part
    if part is None:
        return ()
    tasks = plan.tasks()
    done = _done_tasks(build, plan, task_keys(plan, conversion.keys))
    missing = {task for task in tasks if task.id not in done}
    unfinished = sorted(other.number for other in part.having(tasks, missing))
    # One that is run again after its last step may look for files that a seal moves
    unfinished = unfinished or build.parts_at_work()
    if unfinished and not part.number:
        raise not_ready(build.destination, unfinished)
    if unfinished:
        build.leave()
    return tuple(unfinished)


def _seal(conversion: Conversion, new_store: NewStore, resumed: int) -> Report:
    begin_items(conversion.progress, "sealing")
    build = conversion.build
    conversion.inputs.check_unchanged()
    states = conversion.inputs.states(build.scanned)
    digests = new_store.source_digests(build.journal)
    sealed = new_store.seal(build.target, build.journal, digests, states).to_json()
    report = _report(conversion, new_store, resumed, sealed)
    notes = new_store.equal_sources_notes(digests)
    if conversion.settings.overwrite:
        from unistore.conversion.finished import replaced_notes

        notes = (*replaced_notes(build.destination, new_store), *notes)
    report = replace(report, notes=(*report.notes, *notes))
    build.finish(report)
    return report


def _report(
    conversion: Conversion,
    new_store: NewStore,
    resumed: int,  # tasks that were done before
    sealed: Mapping[str, Any],  # JSON of the seal; empty: the store is not sealed
) -> Report:
    plan = new_store.plan
    scan = conversion.inputs.scan
    return Report(
        destination=conversion.build.destination,
        family=plan.family,
        samples=new_store.samples,
        sample_table=plan.sample_table,
        sources=len(scan.sources),
        source_bytes=int(conversion.sizes.sum()),
        raw_bytes=plan.raw_bytes,
        stored_bytes=sealed.get("bytes", 0),
        files=sealed["files"] + 2 if sealed else 0,
        tasks=len(plan.tasks()),
        resumed=resumed,
        digest=sealed.get("digest", ""),
        notes=(*scan.notes, *new_store.notes),
        skipped=tuple(scan.options.get("skipped", ())),
        verdicts=new_store.verdicts,
    )
