"""Compare a store with its sources: converted once more, and as other libraries read them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from unistore.conversion.build import FolderBuild
from unistore.conversion.convert import recorded_converter
from unistore.conversion.executors.local import Executor, R, T, parallel_map
from unistore.conversion.identity import source_digests
from unistore.conversion.job import Corner, ShardJob, ShardRecord
from unistore.conversion.keys import Inputs
from unistore.conversion.new_store import NewStore
from unistore.conversion.plan import ShardTask, versions
from unistore.conversion.sealing import merged_statistics
from unistore.conversion.settings import Settings
from unistore.conversion.split_rule import SplitRule
from unistore.conversion.steps import Conversion
from unistore.converters.families import restorer_of
from unistore.converters.files.comparison import Compared, Restore, compare_source, difference
from unistore.converters.files.hdf5.attributes import attribute_label
from unistore.converters.registry import family_of
from unistore.converters.scan_types import Scan, Stored
from unistore.converters.source_scan import scan_sources
from unistore.errors import (
    ConversionError,
    Fix,
    InputError,
    Location,
    Problem,
    RunCommand,
    StoreError,
    WritingError,
    first_few,
    named,
    printable,
    refusal,
)
from unistore.schemas.recorded_rules import skipped_entries
from unistore.schemas.tables import HDF5_ATTRIBUTES, SOURCE_FILES, IndexValues, text_values
from unistore.store.reader import Store
from unistore.system.progress import Progress
from unistore.system.sizes import count_of
from unistore.system.types import AnyArray, Attributes
from unistore.zarr3.writer import compressor_of

# Plan once more the conversion that made a store, from its recorded options and its sources.

_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedConversion:
    """What a root states about the conversion that made the store.

    Attributes
    ----------
    family : str
        Name of the family.
    options : mapping
        Options of the conversion.
    created_with : mapping
        Versions of libraries. Empty: they are not stated.
    plan_digest : str
        Hash of the plan. Empty: it is not stated.
    verdicts
        Number of files by verdict and reason, as JSON. None: they are not stated.
    """

    family: str
    options: Attributes
    created_with: Attributes
    plan_digest: str
    verdicts: Any

    @classmethod
    def from_json(cls, attributes: Attributes) -> RecordedConversion:
        """Parse the ``unistore`` object of a root, which may be damaged. Raises `StoreError`."""
        created_with = attributes.get("created_with")
        plan_digest = attributes.get("plan_digest")
        try:
            return cls(
                family=attributes["family"],
                options=attributes["options"],
                created_with=created_with if isinstance(created_with, dict) else {},
                plan_digest=plan_digest if isinstance(plan_digest, str) else "",
                verdicts=attributes.get("verdicts"),
            )
        except KeyError as error:
            raise _unknown_options(error) from error


def _unknown_options(error: Exception) -> StoreError:
    return StoreError(f"this version of unistore does not know the options of the store: {error}")


def plan_recorded_conversion(
    recorded: RecordedConversion,
    sources: Sequence[Path],
    work: Path,
    progress: Progress,
    executor: Executor,
    others: frozenset[str] = frozenset(),
    *,
    check: Callable[[Scan], None] | None = None,
) -> tuple[Conversion, NewStore]:
    """Scan sources, and plan their conversion with the options of a store.

    Parameters
    ----------
    recorded : RecordedConversion
        What the store states.
    sources : sequence of Path
        The sources.
    work : Path
        Folder for scratch files.
    progress : Progress
        Receives the progress.
    executor : Executor
        Runs the tasks.
    others : frozenset of str
        Names of sources in these folders that do not belong to the store.
    check : callable, optional
        Called with the scan, before values are read. It may raise an error.
    """
    try:
        options = recorded.options
        converter = recorded_converter(recorded.family, options)
        codec = options["codec"]
        split = SplitRule.recorded(options)
        codecs = dict(options["found"]["codecs"]) if codec == "auto" else {}
        for chosen in codecs.values():
            compressor_of(str(chosen), np.dtype(np.uint8))
    except (KeyError, TypeError, ValueError, InputError) as error:
        raise _unknown_options(error) from error
    ask = parallel_map(executor, progress, "scanning")
    scan = scan_sources(converter, sources, (), ask, stored=Stored(names=others))
    if check is not None:
        check(scan)
    if "skipped" in options:
        scan = replace(scan, options={**scan.options, "skipped": options["skipped"]})
    with FolderBuild(work / "store") as build:
        conversion = Conversion(
            inputs=Inputs.of(converter, scan),
            build=build,
            settings=Settings(codec=codec, split=split, on_error="skip"),
            executor=executor,
            progress=progress,
        )
        new_store = conversion.plan(split, codecs)
    # Other files beside the sources may have come or gone: the verdicts on them are those of the store.
    return conversion, replace(new_store, reported=recorded.verdicts)


def encoder_differences(versions_then: Attributes) -> list[str]:
    """Return one line for each library whose version differs from the one that wrote the store."""
    now = versions()
    differing = [name for name in _differing(versions_then, now) if name in now]
    return [
        f"{name}: the store was made with {versions_then.get(name)}, now {now[name]}" for name in differing
    ]


def differences(store: Store, new_store: NewStore) -> list[str]:
    """Return one line for each source, option or array that differs between a store and a plan.

    Arrays are compared only if sources and options are the same, and if they can be opened.
    """
    plan = new_store.plan
    lines = _source_lines(store, new_store.scan.sources.names)
    options = _without_compaction(store.root.options)
    lines += [
        f"option {name}: {options.get(name)} in the store, {plan.options.get(name)} now"
        for name in sorted(_differing(options, plan.options))
    ]
    if lines := lines or _attribute_lines(store, new_store):
        return lines
    forms = {array.field.path: f"{array.field.dtype} {array.shape}" for array in plan.arrays()}
    for path in sorted({*forms, *store.paths()}):
        if is_later(store, path):
            continue
        if path not in forms or not store.has(path):
            owner = "only the store has it" if store.has(path) else "the store does not have it"
            lines.append(f"array {path}: {owner}")
            continue
        try:
            array = store.array(path)
        except StoreError:
            continue
        form = f"{array.dtype.name} {array.shape}"
        if form != forms[path]:
            lines.append(f"array {path}: {form} in the store, {forms[path]} now")
    return lines


def _without_compaction(options: Attributes) -> Attributes:
    if "compacted" not in options.get("found", {}):
        return options
    of_values = {name: value for name, value in options["found"].items() if name != "compacted"}
    plain = {name: value for name, value in options.items() if name != "found"}
    return {**plain, "found": of_values} if of_values else plain


def is_later(store: Store, path: str) -> bool:
    """Return whether an array was introduced after this store was written, so that the store may lack it."""
    return path.startswith(f"{SOURCE_FILES}/") and not store.has(path)


def _other_sources(path: str, lines: Sequence[str], fixes: tuple[Fix, ...] = ()) -> InputError:
    shown = "\n  ".join(lines)
    message = f"the store was not made from these sources:\n  {shown}"
    return InputError(Problem(path, message, fixes, "source"))


def _check_names(store: Store, path: str, given: Sequence[Path], scan: Scan) -> None:
    """Refuse sources of other names than the store's, with the commands that go on.

    `path`: what the user calls the store, of which `store` may be a part.
    """
    lines = _source_lines(store, scan.sources.names)
    if not lines:
        return
    before = set(store.text("sources/path"))
    gone = sorted(before.difference(scan.sources.names))
    fixes: list[Fix] = []
    if before.issuperset(scan.sources.names):
        fixes.append("give the folders of all sources of the store")
    else:
        words = ("convert", family_of(store.root).command(), *map(str, given), path, "--append")
        fixes.append(RunCommand(words, "to add the new sources"))
    if gone:
        purpose = "to remove the missing sources, and then unistore compact to a new store"
        fixes.append(RunCommand(("remove", path, *gone), purpose))
    raise _other_sources(path, lines, tuple(fixes))


def _source_lines(store: Store, now: Sequence[str]) -> list[str]:
    try:
        before = store.text("sources/path")
    except (StoreError, UnicodeDecodeError):
        return []
    gone = [f"source {name}: in the store, but not given" for name in before if name not in now]
    new = [f"source {name}: given, but not in the store" for name in now if name not in before]
    lines = gone[:_SHOWN] + new[:_SHOWN]
    more = len(gone) + len(new) - len(lines)
    if more:
        lines.append(f"and {more:,} more sources")
    if not lines and before != [*now]:
        return ["the sources are in another order"]
    return lines


def fix_of_sources(store: Store, now: Sequence[str]) -> str:
    """Return how to give the sources of a store, if others are given. Empty: these are given."""
    lines = _source_lines(store, now)
    before = store.text("sources/path") if lines else []
    if gone := [name for name in before if name not in now]:
        return f"give all sources of the store, {first_few(gone)} too"
    if new := [name for name in now if name not in before]:
        return f"give only the sources of the store, without {first_few(new)}"
    return "give the sources in the order of the conversion" if lines else ""


def _attribute_lines(store: Store, new_store: NewStore) -> list[str]:
    names = [source.name for source in new_store.scan.sources]
    nothing = ["{}"] * len(names)
    now = {described.path: values[:] for described, values in new_store.arrays}
    texts = (f"{HDF5_ATTRIBUTES}/data", f"{HDF5_ATTRIBUTES}/offsets")
    after = text_values(*(now[path] for path in texts)) if texts[0] in now else nothing
    lines = []
    try:
        before = store.text(HDF5_ATTRIBUTES) if store.has(texts[0]) else nothing
        for name, old, new in zip(names, before, after, strict=True):
            differing = _differing(_by_path_and_name(old), _by_path_and_name(new)) if old != new else []
            lines += [f"source {name}: {attribute_label(path, attribute)}" for path, attribute in differing]
    except (StoreError, ValueError, TypeError, AttributeError):
        return []  # the store's text is damaged
    more = [f"and {len(lines) - _SHOWN:,} more attributes"] if len(lines) > _SHOWN else []
    return [printable(line) for line in lines[:_SHOWN]] + more


def _by_path_and_name(text: str) -> dict[tuple[str, str], Any]:
    values = {}
    for path, own in json.loads(text).items():
        for name, value in own.items():
            values[path, name] = value
    return values


def _differing(before: Mapping[T, Any], after: Mapping[T, Any]) -> list[T]:
    return [key for key in dict.fromkeys([*before, *after]) if before.get(key) != after.get(key)]


_FIX = "convert again, if a source has changed since, or give the sources of this store"
# The comparison stops after so many differences
_MAX_DIFFERENCES = 50
# Bytes that are compared at a time
_BLOCK_BYTES = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """Summary of a comparison that found a store equal to its sources.

    Attributes
    ----------
    values : int
        Number of compared values in the files of the sources.
    files : int
        Number of these files.
    stored_values : int
        Number of values of the store that were compared with a new conversion of the sources.
    sample : float
        Share of the store and of the sources that was compared, 0 to 1.
    left_out : tuple of str
        Content of the sources that is not stored: skipped sources, and arrays of the compared files.
    libraries : tuple of str
        Libraries that read the files: ``"numpy"``, ``"h5py"``, ``"OpenCV"``; ``"unistore"`` if no other
        library can.
    unread : tuple of str
        Files that no other library can read, each with the reason. They were compared as unistore reads them.
    """

    values: int
    files: int
    stored_values: int
    sample: float
    left_out: tuple[str, ...]
    libraries: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()

    def merge(self, other: Receipt) -> Receipt:
        """Return the summary of two comparisons of parts of one store."""
        return Receipt(
            values=self.values + other.values,
            files=self.files + other.files,
            stored_values=self.stored_values + other.stored_values,
            sample=self.sample,
            left_out=tuple(sorted({*self.left_out, *other.left_out})),
            libraries=tuple(sorted({*self.libraries, *other.libraries}, key=str.lower)),
            unread=tuple(sorted({*self.unread, *other.unread})),
        )

    @property
    def line(self) -> str:
        """The summary as one line of text."""
        all_of = "all" if self.sample >= 1 else f"in a sample of {100 * self.sample:g} %, all"
        again = f"{all_of} {self.stored_values:,} values are equal to a new conversion of the sources."
        equal = (
            f"{all_of} {self.values:,} values of {count_of(self.files, 'file')} are equal to the store "
            f"(read with {' and '.join(self.libraries)})."
        )
        first = equal if self.files else again  # without files, no other library reads the sources
        is_lossless = bool(self.files) and not self.left_out and not self.unread
        sentences = [f"lossless: {first}" if is_lossless else first[0].upper() + first[1:]]
        if self.left_out:
            sentences.append(f"Not in the store: {', '.join(self.left_out)}.")
        if self.unread:
            sentences.append(f"Not read by another library: {', '.join(self.unread)}.")
        return " ".join(sentences)


@dataclass(slots=True)
class _Findings:
    problems: list[Problem] = field(default_factory=list)
    stored_values: int = 0
    values: int = 0
    files: set[Path] = field(default_factory=set)
    left_out: set[str] = field(default_factory=set)
    libraries: set[str] = field(default_factory=set)
    unread: set[str] = field(default_factory=set)

    def refuse(self, location: Location | str, message: str) -> None:
        self.problems.append(Problem.at(location, message, _FIX, "source"))

    def add(self, other: _Findings) -> None:
        self.problems += other.problems
        self.stored_values += other.stored_values
        self.values += other.values
        self.files |= other.files
        self.left_out |= other.left_out
        self.libraries |= other.libraries
        self.unread |= other.unread


def compare(
    store: Store,
    sources: Sequence[Path],
    sample: float,
    progress: Progress,
    executor: Executor,
    others: frozenset[str] = frozenset(),
    path: str = "",
) -> tuple[list[Problem], Receipt | None]:
    """Compare an intact store with its sources.

    Parameters
    ----------
    store : Store
        The store.
    sources : sequence of Path
        Its sources.
    sample : float
        Share of the store and of the sources to compare.
    progress : Progress
        Receives the progress.
    executor : Executor
        Runs the tasks.
    others : frozenset of str
        Names of sources in these folders that do not belong to the store.
    path : str, default ""
        Name of the store for the user, if it is a part of a versioned store.

    Returns
    -------
    problems : list of Problem
        The differences.
    receipt : Receipt or None
        Summary. None: there are differences.
    """
    findings = _Findings()
    with _temporary_folder() as work:
        conversion, new_store = plan_recorded_conversion(
            RecordedConversion.from_json(store.root.document),
            sources,
            work,
            progress,
            executor,
            others,
            check=partial(_check_names, store, path or store.path, sources),
        )
        if lines := differences(store, new_store):
            raise _other_sources(path or store.path, lines)
        comparison = _Comparison(store, conversion, new_store, sample, findings)
        comparison.compare_arrays()
    if not findings.problems:
        comparison.compare_files()
    if findings.problems:
        return findings.problems, None
    # A source that was mended and appended since is in another part
    entries = skipped_entries(store.root.options)
    skipped = {entry.left_out for entry in entries if not entry.is_among(others)}
    receipt = Receipt(
        values=findings.values,
        files=len(findings.files),
        stored_values=findings.stored_values,
        sample=sample,
        left_out=tuple(sorted(findings.left_out.union(skipped))),
        libraries=tuple(sorted(findings.libraries, key=str.lower)),
        unread=tuple(sorted(findings.unread)),
    )
    return [], receipt


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    try:
        with tempfile.TemporaryDirectory(prefix="unistore-verify-") as work:
            yield Path(work)
    except (OSError, WritingError) as error:
        refused = error if isinstance(error, OSError) else error.error
        then = "or set TMPDIR to a folder with space, then verify again"
        raise ConversionError(refusal(named(refused, Path(tempfile.gettempdir())), then)) from error


def _compare_shard(store: Store, job: ShardJob, task: ShardTask) -> tuple[_Findings, ShardRecord | None]:
    findings = _Findings()
    try:
        columns, digests = job.columns(task)
        for column in columns:
            equal = True
            for corner, block in column:  # read to the end: digests and statistics need every block
                equal = equal and _compare_block(store, column.array.field.path, corner, block, findings)
        return findings, job.record(task, (), columns, digests)
    except InputError as error:
        findings.problems += error.problems
        return findings, None


@dataclass(frozen=True)
class _CompareSource:
    store: Store
    inputs: Inputs

    @cached_property
    def _restore(self) -> Restore:
        return restorer_of(family_of(self.store.root), self.store, self.inputs.scan)

    def __call__(self, number: int) -> _Findings:
        source = self.inputs.scan.sources[number]
        findings = _Findings()
        compared: Sequence[Compared] = []
        try:
            with self.inputs.reading(number):
                comparison = compare_source(source.name, source.path, self._restore(number))
                compared = comparison.compared
                findings.left_out |= set(comparison.left_out)
                findings.unread |= set(comparison.unread)
        except InputError as error:
            findings.problems += error.problems
            return findings
        for part in compared:
            findings.values += part.values
            findings.files.add(part.file)
            findings.libraries.add(part.library)
            if part.difference is not None:
                findings.refuse(part.location, f"{part.difference} (store, source)")
        return findings

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.store, self.inputs)


@dataclass(frozen=True, slots=True)
class _Comparison:
    store: Store
    conversion: Conversion
    new_store: NewStore
    sample: float
    findings: _Findings

    def compare_arrays(self) -> None:
        store = self.store
        plan = self.new_store.plan
        tasks = plan.tasks()
        job = self.conversion.job(self.new_store)
        records: list[ShardRecord] = []
        compare_shard = partial(_compare_shard, store, job)
        for of_shard, record in self._ask("comparing", compare_shard, tasks, plan.task_bytes):
            self.findings.add(of_shard)
            records += [] if record is None else [record]
        if len(self.findings.problems) >= _MAX_DIFFERENCES:
            return
        complete = len(records) == len(tasks)
        digests = np.zeros((len(plan.sources), 16), np.uint8)
        if complete:
            digests = source_digests(plan, lambda: records)
        # not compared: the size of a source's file, which may differ where its values do not
        skipped = {"sources/bytes"}
        if not complete:
            skipped.add("sources/hash")
        for described, values in self.new_store.index(digests):
            if described.path not in skipped and not is_later(store, described.path):
                _compare_block(store, described.path, (0,), values, self.findings)
        if complete and not _equal_json(merged_statistics(plan, records), store.root.statistics):
            self.findings.refuse("zarr.json", "its statistics differ from the statistics of the sources")

    def compare_files(self) -> None:
        sizes = self.conversion.sizes.tolist()
        step = _CompareSource(self.store, self.conversion.inputs)
        stage = "comparing with other libraries"
        for of_source in self._ask(stage, step, range(len(sizes)), sizes.__getitem__):
            self.findings.add(of_source)

    def _ask(
        self, stage: str, function: Callable[[T], R], items: Sequence[T], nbytes: Callable[[T], int]
    ) -> Iterator[R]:
        chosen = [items[number] for number in self._sampled(len(items))]
        ask = parallel_map(self.conversion.executor, self.conversion.progress, stage, nbytes)
        for answer in ask(function, chosen):
            yield answer
            if len(self.findings.problems) >= _MAX_DIFFERENCES:
                return

    def _sampled(self, count: int) -> list[int]:
        # Drawn with the store's digest as seed
        if self.sample >= 1:
            return list(range(count))
        seed = int(self.store.root.seal.digest, 16)
        size = max(1, int(np.ceil(self.sample * count)))
        drawn = np.random.Generator(np.random.Philox(key=seed)).permutation(count)[:size]
        return sorted(drawn.tolist())


def _compare_block(
    store: Store, path: str, corner: Corner, expected: IndexValues, findings: _Findings
) -> bool:
    step = max(1, _BLOCK_BYTES // max(1, expected[:1].nbytes))
    return all(
        _compare_box(store, path, (corner[0] + start, *corner[1:]), expected[start : start + step], findings)
        for start in range(0, len(expected), step)
    )


def _compare_box(store: Store, path: str, corner: Corner, expected: AnyArray, findings: _Findings) -> bool:
    # Axes that `corner` does not name begin at 0
    low = [*corner, *(0 for _ in expected.shape[len(corner) :])]
    high = [first + extent for first, extent in zip(low, expected.shape, strict=True)]
    array = store.array(path)
    if high[0] > array.shape[0]:
        findings.refuse(path, f"has {array.shape[0]:,} rows, but the sources have {high[0]:,}")
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
        findings.refuse(path, f"{planes}{differing} (store, sources)")
    return differing is None


def _equal_json(now: Any, stored: Any) -> bool:
    # Floats may differ by the rounding of another order of summation
    if isinstance(now, dict) and isinstance(stored, dict):
        return now.keys() == stored.keys() and all(_equal_json(now[key], stored[key]) for key in now)
    if isinstance(now, list) and isinstance(stored, list):
        return len(now) == len(stored) and all(map(_equal_json, now, stored))
    if isinstance(now, float) and isinstance(stored, float):
        return bool(np.isclose(now, stored, rtol=1e-9, atol=0))
    return bool(now == stored)
