"""Compare a store with its sources: as converted now, and as restored beside what other libraries read."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.conversion.executors.local import Executor, Job, Outcome, T, run_in_order
from unistore.conversion.job import ShardJob, statistics_of
from unistore.conversion.keys import Fingerprints, reading
from unistore.conversion.new_store import NewStore
from unistore.conversion.plan import ArrayPlan, ShardTask, TablePlan
from unistore.conversion.run import Conversion
from unistore.conversion.seal import merged_statistics, source_digests
from unistore.converters.common.difference import difference
from unistore.converters.files.comparison import Compared, Restore, compare_source
from unistore.converters.protocol import Scan
from unistore.converters.registry import get_family
from unistore.errors import ConversionError, InputError, Problem, StoreError, WritingError, named, refusal
from unistore.integrity.recorded import differences, is_later, plan_recorded_conversion
from unistore.schemas.tables import IndexValues
from unistore.store.reader import Store
from unistore.system.progress import Progress

_CURE = "a source changed, or the store was not made from it: convert again"
# The comparison stops after so many differences
_MAX_DIFFERENCES = 50
# Bytes that are compared at a time
_BLOCK_BYTES = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What was compared when a store was found equal to its sources.

    Attributes
    ----------
    values
        Values in the files of the sources that were compared.
    files
        Files that hold them.
    stored_values
        Values of the store that were compared with what the converter makes of the sources now.
    sample
        Share of the store and of the sources that was compared, 0 to 1.
    left_out
        What the sources hold and the store does not: sources that were skipped, and what the compared files
        have besides.
    libraries
        What read the files: ``"numpy"``, ``"h5py"``, ``"OpenCV"``; ``"unistore"`` where none of these does.
    """

    values: int
    files: int
    stored_values: int
    sample: float
    left_out: tuple[str, ...]
    libraries: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """One line for a log or a notebook."""
        part = "" if self.sample >= 1 else f" (a sample of {100 * self.sample:g} %)"
        if not self.files:  # the family has no second way to read its sources
            return f"as converted: {self.stored_values:,} stored values equal{part}"
        verb = "reads" if len(self.libraries) == 1 else "read"
        readers = f"as {' and '.join(self.libraries)} {verb} them"
        equal = f"{self.values:,} values of {self.files:,} files equal, {readers}{part}"
        if not self.left_out:
            return f"lossless: {equal}"
        return f"{equal}; in the sources and not in the store: {', '.join(self.left_out)}"


@dataclass(slots=True)
class _Found:
    """Differences so far, and what was compared."""

    problems: list[Problem] = field(default_factory=list)
    stored_values: int = 0
    values: int = 0
    files: set[Path] = field(default_factory=set)
    left_out: set[str] = field(default_factory=set)
    libraries: set[str] = field(default_factory=set)


def compare(
    store: Store, sources: Sequence[Path], sample: float, progress: Progress, executor: Executor
) -> tuple[list[Problem], Receipt | None]:
    """Compare a sound store with its sources.

    The files of the store must be as they were written. `sample` is the share of the shards, and of the
    sources, to compare. There is no receipt if anything differs.
    """
    differences_found = _Found()
    with _temporary_folder() as work:
        conversion, new_store = plan_recorded_conversion(store.attributes, sources, work, progress, executor)
        lines = differences(store, new_store)
        if lines:
            shown_lines = "\n  ".join(lines)
            msg = f"{store.path}: these are not the sources that it was made from:\n  {shown_lines}"
            raise InputError(msg)
        new_store = _in_shards_of(store, new_store)
        comparison = _Comparison(store, conversion, new_store, sample, progress, executor, differences_found)
        comparison.compare_arrays()
    if not differences_found.problems and get_family(store.family).restore:
        comparison.compare_files()
    if differences_found.problems:
        return differences_found.problems, None
    differences_found.left_out |= {
        str(entry["left_out"]) for entry in store.attributes["options"].get("skipped", ())
    }
    receipt = Receipt(
        values=differences_found.values,
        files=len(differences_found.files),
        stored_values=differences_found.stored_values,
        sample=sample,
        left_out=tuple(sorted(differences_found.left_out)),
        libraries=tuple(sorted(differences_found.libraries, key=str.lower)),
    )
    return [], receipt


def _in_shards_of(store: Store, new_store: NewStore) -> NewStore:
    """Return a plan with the shards of a store: the digests of the sources are of their parts in each."""
    tables: list[TablePlan] = []
    for table in new_store.plan.tables:
        shards = [store.array(array.field.path).shard_shape for array in table.arrays]
        arrays = map(_with_shard, table.arrays, shards)
        tables.append(replace(table, arrays=tuple(arrays)))
    return replace(new_store, plan=replace(new_store.plan, tables=tuple(tables)))


def _with_shard(array: ArrayPlan, shard: tuple[int, ...]) -> ArrayPlan:
    return replace(array, shard=shard)


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    """Folder for what sources spill; if it cannot be written, the error says how to choose another."""
    try:
        with tempfile.TemporaryDirectory(prefix="unistore-verify-") as work:
            yield Path(work)
    except (OSError, WritingError) as error:
        refused = error if isinstance(error, OSError) else error.error
        then = "or set TMPDIR to a folder with room, then verify again"
        raise ConversionError(refusal(named(refused, Path(tempfile.gettempdir())), then)) from error


@dataclass(frozen=True, slots=True)
class _ShardStep(Job[ShardTask]):
    """Compare one shard of every column of a table with the rows that the sources give now."""

    store: Store
    job: ShardJob

    def __call__(self, task: ShardTask) -> Outcome:
        in_step = _Found()
        try:
            columns = self.job.columns(task)
            for column in columns:
                equal = True
                for corner, block in column:  # read to the end: digests and statistics need every block
                    equal = equal and _compare_block(
                        self.store, column.array.field.path, corner, block, in_step
                    )
            pieces = self.job.pieces(task, columns)
        except InputError as error:
            return Outcome(problems=error.problems)
        record = {"task": task.id, "pieces": pieces, "statistics": statistics_of(columns)}
        return Outcome({"values": in_step.stored_values, "record": record}, tuple(in_step.problems))

    def describe(self, task: ShardTask) -> str:
        return self.job.describe(task)


@dataclass(frozen=True)
class _SourceStep(Job[int]):
    """Compare the files of one source with what is restored of it."""

    store: Store
    scan: Scan
    fingerprints: Fingerprints

    @cached_property
    def _restore(self) -> Restore:
        restore: Restore = get_family(self.store.family).part("restore")(self.store, self.scan)
        return restore

    def __call__(self, number: int) -> Outcome:
        source = self.scan.sources[number]
        compared: list[Compared]
        try:
            with reading(source.name, self.fingerprints[number]):
                compared, left_out = compare_source(source.name, source.path, self._restore(number))
        except InputError as error:
            return Outcome(problems=error.problems)
        return Outcome({"compared": compared, "left_out": left_out})

    def describe(self, number: int) -> str:
        return f"comparing {self.scan.sources[number].name}"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.store, self.scan, self.fingerprints)


@dataclass(frozen=True, slots=True)
class _Comparison:
    store: Store
    conversion: Conversion
    new_store: NewStore
    sample: float
    progress: Progress
    executor: Executor
    found: _Found

    def compare_arrays(self) -> None:
        """Compare the shards of the tables, or a sample of them, and the index arrays."""
        store = self.store
        in_store = self.found
        new_store = self.new_store
        plan = new_store.plan
        tasks = plan.tasks()
        job = self.conversion.job(plan, new_store.spilled, new_store.spill)
        step = _ShardStep(store, job)
        records: list[dict[str, Any]] = []
        for record in self._run("comparing", step, tasks, plan.task_bytes):
            in_store.stored_values += record["values"]
            records.append(record["record"])
        if len(in_store.problems) >= _MAX_DIFFERENCES:
            return
        complete = len(records) == len(tasks)
        digests = source_digests(plan, records) if complete else np.zeros((len(plan.sources), 16), np.uint8)
        # not compared: the size of a source's file, which may differ where its values do not
        skipped = {"sources/bytes"}
        if not complete:
            skipped.add("sources/digest")
        for described, values in new_store.index(digests):
            if described.path not in skipped and not is_later(store, described.path):
                _compare_block(store, described.path, (0,), values, in_store)
        if complete and not _equal_json(merged_statistics(plan, records), store.attributes["statistics"]):
            message = "its statistics are not those of the sources"
            in_store.problems.append(Problem("zarr.json", message, _CURE, "source"))

    def compare_files(self) -> None:
        """Compare the files of the sources, or of a sample of the sources."""
        in_store = self.found
        scan = self.new_store.scan
        fingerprints = self.conversion.fingerprints
        sizes = [sum(file.size for file in fingerprint) for fingerprint in fingerprints]
        step = _SourceStep(self.store, scan, fingerprints)
        for record in self._run("receipt", step, range(len(sizes)), sizes.__getitem__):
            for compared in record["compared"]:
                in_store.values += compared.values
                in_store.files.add(compared.file)
                in_store.libraries.add(compared.library)
                if compared.difference is not None:
                    message = f"{compared.difference} (store, source)"
                    in_store.problems.append(Problem.at(compared.location, message, _CURE, "source"))
            in_store.left_out |= set(record["left_out"])

    def _run(
        self, stage: str, step: Job[T], items: Sequence[T], nbytes: Callable[[T], int]
    ) -> Iterator[dict[str, Any]]:
        """Run a step for the items, or a sample of them; yield the records of those that could be read."""
        chosen = [items[number] for number in self._sampled(len(items))]
        self.progress.begin(stage, sum(map(nbytes, chosen)))
        with closing(run_in_order(self.executor, step, chosen)) as steps:
            for item, outcome in steps:
                self.found.problems += outcome.problems
                if outcome.record:
                    yield outcome.record
                self.progress.advance(nbytes(item))
                if len(self.found.problems) >= _MAX_DIFFERENCES:
                    return

    def _sampled(self, count: int) -> list[int]:
        """Return numbers below `count`, rising: all, or a sample drawn with the store's digest as seed."""
        if self.sample >= 1:
            return list(range(count))
        seed = int(self.store.attributes["seal"]["digest"], 16)
        size = max(1, int(np.ceil(self.sample * count)))
        drawn = np.random.Generator(np.random.Philox(key=seed)).permutation(count)[:size]
        return np.sort(drawn).tolist()  # type: ignore[no-any-return]


def _compare_block(
    store: Store, path: str, corner: tuple[int, ...], expected: IndexValues, findings: _Found
) -> bool:
    """Return whether an array has the expected values from `corner` on; compares some rows at a time."""
    step = max(1, _BLOCK_BYTES // max(1, expected[:1].nbytes))
    return all(
        _compare_box(store, path, (corner[0] + start, *corner[1:]), expected[start : start + step], findings)
        for start in range(0, len(expected), step)
    )


def _compare_box(
    store: Store, path: str, corner: tuple[int, ...], expected: NDArray[Any], findings: _Found
) -> bool:
    """Whether an array has the expected values from `corner` on; axes that it does not name begin at 0."""
    low = [*corner, *(0 for _ in expected.shape[len(corner) :])]
    high = [first + extent for first, extent in zip(low, expected.shape, strict=True)]
    array = store.array(path)
    if high[0] > array.shape[0]:
        message = f"has {array.shape[0]} rows, the sources make {high[0]}"
        findings.problems.append(Problem(path, message, _CURE, "source"))
        return False
    try:
        stored = array.read_box(low, high)
    except StoreError as error:
        findings.problems.append(Problem(path, str(error), kind="unreadable"))
        return False
    findings.stored_values += stored.size
    differing = difference(stored, expected, low[0])
    if differing is not None:
        planes = f"planes {low[1]}:{high[1]} of " if len(corner) > 1 else ""
        findings.problems.append(Problem(path, f"{planes}{differing} (store, sources)", _CURE, "source"))
    return differing is None


def _equal_json(now: Any, stored: Any) -> bool:
    """Whether two JSON values are equal; floats may differ by the rounding of another order of summation."""
    if isinstance(now, dict) and isinstance(stored, dict):
        return now.keys() == stored.keys() and all(_equal_json(now[key], stored[key]) for key in now)
    if isinstance(now, list) and isinstance(stored, list):
        return len(now) == len(stored) and all(map(_equal_json, now, stored))
    if isinstance(now, float) and isinstance(stored, float):
        return bool(np.isclose(now, stored, rtol=1e-9, atol=0))
    return bool(now == stored)
