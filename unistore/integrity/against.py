"""A store against its sources, twice: as its converter reads them now, and as other libraries read them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.conversion.columns import IndexValues
from unistore.conversion.executors.local import Executor
from unistore.conversion.failure import WritingError, named, refusal
from unistore.conversion.finish import merged_statistics, source_digests
from unistore.conversion.guard import Guards, reading
from unistore.conversion.job import Outcome, ShardJob, statistics_of
from unistore.conversion.plan import ShardTask
from unistore.converters.common.comparing import difference
from unistore.converters.common.originals import Compared
from unistore.converters.protocol import Scan
from unistore.converters.registry import get_family
from unistore.errors import ConversionError, InputError, Problem, StoreError
from unistore.integrity.rebuilt import Rebuilt, differences, rebuild
from unistore.integrity.receipt import Receipt
from unistore.integrity.steps import in_order
from unistore.store.reader import Store
from unistore.system.progress import Progress

__all__ = ["compare"]

_CURE = "a source changed, or the store was not made from it: convert again"
_MANY = 50
"""Differences after which looking for more of them stops."""
_PIECE = 16 << 20
"""Bytes compared at a time."""


@dataclass(slots=True)
class _Found:
    """What was compared so far."""

    problems: list[Problem] = field(default_factory=list)
    stored_values: int = 0
    values: int = 0
    files: set[Path] = field(default_factory=set)
    left_out: dict[str, None] = field(default_factory=dict)


def compare(
    store: Store, sources: Sequence[Path], sample: float, progress: Progress, executor: Executor
) -> tuple[list[Problem], Receipt | None]:
    """Compare a sound store with its sources.

    First with what its converter, made again from the store's options, reads now: every array of every
    shard that is compared, derived ones included. Then the sources' own datasets, read by h5py, numpy and
    OpenCV alone, with the same values taken back out of the store.

    Parameters
    ----------
    store
        A store whose files are as they were written.
    sources
        As given to the conversion.
    sample
        Share of the shards and of the sources to compare.
    progress
        Told how far it is.
    executor
        Where sources are read and compared.

    Returns
    -------
    list of Problem, Receipt or None
        No receipt where anything differs.

    Raises
    ------
    InputError
        If the sources cannot be read, or are not those that the store was made from.
    ConversionError
        If what sources spill cannot be written to the folder for temporary files.
    """
    outcome = _Found()
    with _scratch() as work:
        made = rebuild(store.attributes, sources, work, progress, executor)
        _check_same_plan(store, made)
        _compare_arrays(store, made, sample, outcome, progress, executor)
    if not outcome.problems and get_family(store.family).originals:
        _compare_originals(store, made, sample, outcome, progress, executor)
    if outcome.problems:
        return outcome.problems, None
    receipt = Receipt(
        values=outcome.values,
        files=len(outcome.files),
        stored_values=outcome.stored_values,
        sample=sample,
        left_out=tuple(sorted(outcome.left_out)),
    )
    return [], receipt


@contextmanager
def _scratch() -> Iterator[Path]:
    """A folder for what sources spill; where it cannot be written, the error says how to choose another."""
    try:
        with tempfile.TemporaryDirectory(prefix="unistore-verify-") as work:
            yield Path(work)
    except (OSError, WritingError) as error:
        refused = error if isinstance(error, OSError) else error.error
        then = "or set TMPDIR to a folder with room, then verify again"
        raise ConversionError(refusal(named(refused, Path(tempfile.gettempdir())), then)) from error


def _check_same_plan(store: Store, made: Rebuilt) -> None:
    """Refuse sources that would become other arrays; what encoded them does not matter here."""
    lines = differences(store, made.planned)
    if lines:
        listed = "\n  ".join(lines)
        msg = f"{store.path}: these are not the sources that it was made from:\n  {listed}"
        raise InputError(msg)


@dataclass(frozen=True, slots=True)
class _ShardStep:
    """Compare one shard of every column of a table with what the sources make now."""

    store: Store
    job: ShardJob

    def __call__(self, task: ShardTask) -> Outcome:
        found = _Found()
        try:
            pieces, statistics = self._compare(task, found)
        except InputError as error:
            return Outcome(problems=error.problems)
        record = {"task": task.id, "pieces": pieces, "statistics": statistics}
        return Outcome({"values": found.stored_values, "record": record}, tuple(found.problems))

    def _compare(self, task: ShardTask, found: _Found) -> tuple[list[Any], dict[str, Any]]:
        """Compare; gives digests of the pieces, and statistics."""
        columns = self.job.columns(task)
        for column in columns:
            alike = True
            for corner, block in column:  # every block is taken, for the digests
                alike = alike and _compare_block(self.store, column.array.field.path, corner, block, found)
        return self.job.pieces(task, columns), statistics_of(columns)

    def describe(self, task: ShardTask) -> str:
        return self.job.describe(task)


def _compare_arrays(
    store: Store,
    made: Rebuilt,
    sample: float,
    outcome: _Found,
    progress: Progress,
    executor: Executor,
) -> None:
    """Every shard of the tables, or a sample of them, and the index arrays."""
    plan = made.planned.plan
    tasks = plan.tasks()
    chosen = [tasks[number] for number in _chosen(len(tasks), sample, store)]
    progress.begin("comparing", sum(map(plan.task_bytes, chosen)))
    records: list[dict[str, Any]] = []
    with closing(in_order(executor, _ShardStep(store, made.job(Path())), chosen)) as steps:
        for task, step in zip(chosen, steps, strict=True):
            outcome.problems += step.problems
            if step.record:
                outcome.stored_values += step.record["values"]
                records.append(step.record["record"])
            progress.advance(plan.task_bytes(task))
            if len(outcome.problems) >= _MANY:
                return
    whole = len(records) == len(tasks)
    digests = source_digests(plan, records) if whole else np.zeros((len(plan.sources), 16), np.uint8)
    left = {"sources/bytes"} if whole else {"sources/bytes", "sources/digest"}
    for described, values in made.planned.index(digests):
        if described.path not in left:  # a file of another size may hold the same values
            _compare_block(store, described.path, (0,), values, outcome)
    if whole and not _like(merged_statistics(plan, records), store.attributes["statistics"]):
        message = "its statistics are not those of the sources"
        outcome.problems.append(Problem("zarr.json", message, _CURE, "source"))


def _compare_block(
    store: Store, path: str, corner: tuple[int, ...], expected: IndexValues, outcome: _Found
) -> bool:
    """Whether an array holds what is expected from a corner on, some rows at a time."""
    step = max(1, _PIECE // max(1, expected[:1].nbytes))
    return all(
        _compare_box(store, path, (corner[0] + at, *corner[1:]), expected[at : at + step], outcome)
        for at in range(0, len(expected), step)
    )


def _compare_box(
    store: Store, path: str, corner: tuple[int, ...], expected: NDArray[Any], outcome: _Found
) -> bool:
    """Whether an array holds what is expected from a corner on (0 on the axes that it does not name)."""
    low = [*corner, *(0 for _ in expected.shape[len(corner) :])]
    high = [first + extent for first, extent in zip(low, expected.shape, strict=True)]
    array = store.array(path)
    if high[0] > array.shape[0]:
        message = f"has {array.shape[0]} rows, the sources make {high[0]}"
        outcome.problems.append(Problem(path, message, _CURE, "source"))
        return False
    try:
        stored = array.read_box(low, high)
    except StoreError as error:
        outcome.problems.append(Problem(path, str(error), kind="unreadable"))
        return False
    outcome.stored_values += stored.size
    found = difference(stored, expected, low[0])
    if found is not None:
        planes = f"planes {low[1]}:{high[1]} of " if len(corner) > 1 else ""
        outcome.problems.append(Problem(path, f"{planes}{found} (store, sources)", _CURE, "source"))
    return found is None


@dataclass(frozen=True)
class _OriginalStep:
    """Compare one source's own datasets."""

    store: Store
    scan: Scan
    guards: Guards

    @cached_property
    def _originals(self) -> Any:
        return get_family(self.store.family).part("originals")(self.store, self.scan)

    def __call__(self, number: int) -> Outcome:
        try:
            with reading(self.scan.sources[number], self.guards[number]):
                compared: list[Compared] = list(self._originals.compare(number))
                left_out = self._originals.left_out(number)
        except InputError as error:
            return Outcome({"compared": [], "left_out": []}, error.problems)
        return Outcome({"compared": compared, "left_out": left_out})

    def describe(self, number: int) -> str:
        return f"comparing {self.scan.sources[number].name}"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.store, self.scan, self.guards)


def _compare_originals(
    store: Store,
    made: Rebuilt,
    sample: float,
    outcome: _Found,
    progress: Progress,
    executor: Executor,
) -> None:
    """The sources' own datasets, or those of a sample of the sources."""
    scan = made.planned.scan
    chosen = _chosen(len(scan.sources), sample, store)
    sizes = [sum(file.size for file in guard) for guard in made.guards]
    progress.begin("receipt", sum(sizes[number] for number in chosen))
    with closing(in_order(executor, _OriginalStep(store, scan, made.guards), chosen)) as steps:
        for number, step in zip(chosen, steps, strict=True):
            outcome.problems += step.problems
            for each in step.record["compared"]:
                outcome.values += each.values
                outcome.files.add(each.file)
                if each.difference is not None:
                    message = f"{each.difference} (store, source)"
                    outcome.problems.append(Problem(each.location, message, _CURE, "source"))
            outcome.left_out |= dict.fromkeys(step.record["left_out"])
            progress.advance(sizes[number])
            if len(outcome.problems) >= _MANY:
                return


def _like(now: Any, stored: Any) -> bool:
    """Whether two JSON values are equal, floats up to what another order of summation explains."""
    if isinstance(now, dict) and isinstance(stored, dict):
        return now.keys() == stored.keys() and all(_like(now[key], stored[key]) for key in now)
    if isinstance(now, list) and isinstance(stored, list):
        return len(now) == len(stored) and all(map(_like, now, stored))
    if isinstance(now, float) and isinstance(stored, float):
        return bool(np.isclose(now, stored, rtol=1e-9, atol=0))
    return bool(now == stored)


def _chosen(count: int, sample: float, store: Store) -> list[int]:
    """Numbers of those that are compared: all, or a share drawn from the store's own digest, rising."""
    if sample >= 1:
        return list(range(count))
    seed = int(store.attributes["seal"]["digest"], 16)
    some = max(1, int(np.ceil(sample * count)))
    drawn = np.random.Generator(np.random.Philox(key=seed)).permutation(count)[:some]
    return np.sort(drawn).tolist()  # type: ignore[no-any-return]
