"""``verify``: check files, documents and values of a store, and compare it with its sources."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from unistore.conversion.convert import check_exist, source_paths
from unistore.conversion.executors.apart import Apart
from unistore.conversion.executors.local import Executor, Job, Outcome, run_in_order
from unistore.conversion.executors.processes import Processes
from unistore.converters.registry import find_family, get_family
from unistore.errors import InputError, Problem, StoreError, UnsupportedError, first_few
from unistore.integrity.compare import Receipt, compare
from unistore.integrity.files import UNKNOWN_FAMILY, CheckedFiles, check_files, is_warning
from unistore.progress import resolve_progress
from unistore.schemas.array_specs import GENERAL, ArrayInfo, offsets_errors
from unistore.schemas.indices import table_columns
from unistore.schemas.rules import Rule, UnreadableError, View, broken, first_row
from unistore.schemas.tables import text_values
from unistore.store.manifest import Entry, consolidated_problems, make_seal, manifest_bytes
from unistore.store.names import REPORT, ROOT, STATISTICS
from unistore.store.reader import Store, open_storage
from unistore.system.arguments import MAX_WORKERS, Arguments, matches_type
from unistore.system.progress import NO_PROGRESS, Progress
from unistore.zarr3.array import StoredArray, read_metadata
from unistore.zarr3.codecs import FrameError, max_encoded_size
from unistore.zarr3.documents import parse_document, shown
from unistore.zarr3.metadata import EMPTY, ArrayMetadata, decode_index, index_bytes, shard_key
from unistore.zarr3.storage import Storage

_CURE = "convert the sources again; if it comes back, report it"


def check_structure(
    storage: Storage, attributes: Mapping[str, Any], entries: Mapping[str, Entry], sound: frozenset[str]
) -> list[Problem]:
    """Return every contradiction between the documents of a store.

    `attributes` is the root's ``unistore`` object, `entries` are those of the manifest by key. Only the files
    with `sound` keys, which are as the manifest says, are read.
    """
    problems = list(_seal_problems(attributes.get("seal", {}), entries))
    metadata: dict[str, ArrayMetadata] = {}
    for path, field in attributes["fields"].items():
        key = f"{path}/{ROOT}"
        if key not in entries:
            problems.append(_wrong(key, f"is not in the manifest, but the root lists the array {path}"))
        elif key in sound:
            try:
                metadata[path] = read_metadata(storage, path)
            except (StoreError, UnsupportedError) as error:
                problems.append(_wrong(key, str(error)))
                continue
            own = metadata[path]
            described: dict[str, Any] = {**own.attributes, "axes": list(own.dimension_names or ())}
            for name, member in (("axes", "axes"), ("units", "unit"), ("long_name", "description")):
                in_document = described.get(name)
                in_root = field.get(member) or None
                if (in_document or None) != in_root:
                    problems.append(
                        _wrong(key, f"has {name} {shown(in_document)}, the root says {shown(in_root)}")
                    )
    problems += [
        _wrong(ROOT, f"has statistics of {path}, which is no array of the store")
        for path in sorted(set(attributes.get("statistics", {})) - set(attributes["fields"]))
    ]
    keys = [key for key in entries if key.endswith(f"/{ROOT}")]
    documents = {key: storage.get(key) for key in keys if key in sound}
    repeated = consolidated_problems(parse_document(storage.get(ROOT)), keys, documents)
    problems += [_wrong(ROOT, message) for message in repeated]
    problems += _shard_problems(storage, attributes["fields"], metadata, entries, sound)
    if len(metadata) == len(attributes["fields"]):
        problems += _schema_problems(metadata, attributes)
    return problems


def _wrong(location: str, message: str, kind: str = "metadata") -> Problem:
    return Problem(location, message, _CURE, kind)


def _seal_problems(seal: Mapping[str, Any], entries: Mapping[str, Entry]) -> Iterator[Problem]:
    """Yield counts and content digest of the seal that differ from those of the manifest entries."""
    lines = list(entries.values())
    expected_seal = make_seal(lines, manifest_bytes(lines))
    for name in ("files", "bytes", "content_digest"):
        if seal.get(name) != expected_seal[name]:
            message = (
                f"its seal says {name} {seal.get(name)}, the manifest's lines make {expected_seal[name]}"
            )
            yield _wrong(ROOT, message, "seal")


def _shard_problems(
    storage: Storage,
    fields: Collection[str],
    metadata: Mapping[str, ArrayMetadata],
    entries: Mapping[str, Entry],
    sound: frozenset[str],
) -> Iterator[Problem]:
    """Yield shards missing in the manifest or with other rows, files of no array, and wrong shard indexes."""
    expected = set()
    for path, array in metadata.items():
        if prod(array.shards) > len(entries):
            missing = f"has {prod(array.shards):,} shards of shape {array.shard_shape}"
            yield _wrong(path, f"{missing}, but the manifest has {len(entries):,} files")
            continue
        shards = product(*map(range, array.shards)) if 0 not in array.shape else ()
        for coordinates in shards:
            key = f"{path}/{shard_key(coordinates)}"
            expected.add(key)
            entry = entries.get(key)
            if entry is None:
                yield _wrong(key, f"is not in the manifest, but belongs to the array {path}")
                continue
            lo = coordinates[0] * array.shard_shape[0]
            rows = (lo, min(array.shape[0], lo + array.shard_shape[0]))
            if entry.rows != rows:
                yield _wrong(key, f"holds rows {rows}, the manifest says {entry.rows}")
            if key in sound:
                reason = index_problem(storage, key, array, entry.bytes)
                if reason is not None:
                    yield _wrong(key, reason, "index")
    expected |= {REPORT, *_metadata_keys(fields)}
    unknown = [path for path in fields if path not in metadata]
    for key in entries:
        if key not in expected and not any(key.startswith(f"{path}/") for path in unknown):
            yield _wrong(key, "is in the manifest, but belongs to no array")


def _metadata_keys(fields: Collection[str]) -> Iterator[str]:
    """Yield keys of the ``zarr.json`` of all arrays and of the groups above them."""
    for path in fields:
        parts = path.split("/")
        yield from ("/".join([*parts[:depth], ROOT]) for depth in range(1, len(parts) + 1))


def _schema_problems(
    metadata: Mapping[str, ArrayMetadata], attributes: Mapping[str, Any]
) -> Iterator[Problem]:
    arrays = {path: ArrayInfo(array.shape, array.dtype.name) for path, array in metadata.items()}
    specs = GENERAL
    try:
        specs = get_family(attributes["family"]).part("specs")
    except InputError as unknown:
        for problem in unknown.problems:
            yield Problem(ROOT, str(problem), problem.cure, UNKNOWN_FAMILY)
    for problem in specs.problems(arrays, attributes["samples"]["count"]):
        yield replace(problem, cure=problem.cure or _CURE, kind="schema")


def index_problem(storage: Storage, key: str, array: ArrayMetadata, size: int) -> str | None:
    """Return what is wrong with the index of a shard of `size` bytes, or None.

    Its checksum must be right; chunks must lie in the shard, not overlap, and leave no byte unused.
    """
    nbytes = index_bytes(prod(array.chunks_per_shard))
    if size < nbytes:
        return f"has {size} bytes, less than its index of {nbytes}"
    raw = bytearray(nbytes)
    storage.read_into(key, size - nbytes, memoryview(raw))
    try:
        index = decode_index(bytes(raw), size, max_encoded_size(array.chunk_bytes))
    except FrameError as error:
        return str(error)
    present = index[index[:, 0] != EMPTY]
    present = present[np.argsort(present[:, 0])]
    ends = np.concatenate([[0], present.sum(axis=1)])
    if (present[:, 0] != ends[:-1]).any() or ends[-1] != size - nbytes:
        return "its index leaves bytes unused, or chunks overlap"
    return None


# Value rules of every store (offsets, text, sources, splits), and running rules.


def indices(view: View) -> Iterator[Problem]:
    """Offsets, codes and extents stay within the arrays that they index; text is UTF-8."""
    for path in view.store.paths():
        spec = view.spec(path)
        if spec.bounds_values:
            yield from (broken(path, error) for error in spec.value_errors(view.whole(path), view.shape))
    for path in view.store.paths():
        if view.store.specs.is_text(path, view.store.paths()):
            yield from _not_text(view, path)


def _not_text(view: View, path: str) -> Iterator[Problem]:
    """Yield text that is not UTF-8; nothing if its offsets are wrong, which `indices` reports."""
    values = view.whole(path)
    offsets = view.whole(f"{path.removesuffix('/data')}/offsets")
    if any(offsets_errors(offsets, len(values), "")):
        return
    try:
        text_values(values, offsets)
    except UnicodeDecodeError as error:
        yield broken(path, f"is not UTF-8 ({error})")


def sources(view: View) -> Iterator[Problem]:
    """Check that the rows of the sources follow each other and are all rows of the main table."""
    rows = view.whole("sources/rows")
    first = view.whole("sources/first_row")
    wrong = first != np.cumsum(rows) - rows
    if wrong.any():
        row = first_row(wrong)
        yield broken("sources/first_row", f"source {row} begins at {first[row]}, not where others end")
    main = view.store.attributes.get("main_table", "")
    lengths = {view.shape(path)[0] for path in table_columns(view.store, main)}
    if lengths and int(rows.sum()) not in lengths:
        shortest = min(lengths)
        yield broken("sources/rows", f"sums up to {int(rows.sum())}, but table {main} has {shortest} rows")


def splits(view: View) -> Iterator[Problem]:
    """Check that splits have one code per sample, and every code a name."""
    try:
        names = view.store.split_names()
    except StoreError as error:
        yield broken("splits", str(error))
        return
    (count,) = view.shape("splits/code")
    if count != view.store.sample_count:
        yield broken("splits/code", f"has {count} rows, but there are {view.store.sample_count} samples")
    most = max((int(codes.max()) for _, codes in view.blocks("splits/code")), default=0)
    if most >= max(1, len(names)):
        yield broken("splits/code", f"holds code {most}, but there are {len(names)} names")


def statistics(view: View) -> Iterator[Problem]:
    """Check that statistics kept with the store are those of its values."""
    from unistore.data.statistics import kept_problem

    store = Store(view.store.path)
    if open_storage(store.path).size(STATISTICS) is None:
        return
    for path in view.store.paths():
        view.array(path)
    try:
        problem = kept_problem(store)
    except InputError as error:  # nothing installed says what the samples are
        raise UnreadableError(STATISTICS) from error
    if problem is not None:
        yield Problem(STATISTICS, problem, f"unistore statistics {store.path}", "statistics")


RULES: tuple[Rule, ...] = (indices, sources, splits, statistics)


def run_rules(view: View, rules: Sequence[Rule], executor: Executor) -> tuple[list[Problem], list[str]]:
    """Problems of all rules, and the names of rules that could not be checked as arrays are damaged."""
    problems: list[Problem] = []
    unchecked: list[str] = []
    for _, outcome in run_in_order(executor, _RuleStep(view), rules):
        problems += outcome.problems
        unchecked += outcome.record["unchecked"]
    return problems, unchecked


@dataclass(frozen=True, slots=True)
class _RuleStep(Job[Rule]):
    view: View

    def __call__(self, rule: Rule) -> Outcome:
        problems: list[Problem] = []
        try:
            problems.extend(rule(self.view))
        except UnreadableError:
            return Outcome({"unchecked": [rule.__name__]}, tuple(problems))
        return Outcome({"unchecked": []}, tuple(problems))

    def describe(self, rule: Rule) -> str:
        return f"{self.view.store.path}: the rule {rule.__name__!r}"


def make_executor(workers: int) -> Apart | Processes:
    """Return the executor for so many worker processes; 0: this process, and one for foreign libraries."""
    return Processes(workers, imports=("unistore.integrity.verify",)) if workers else Apart()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What a verification found.

    Attributes
    ----------
    path
        The store.
    files, bytes
        Files that the manifest lists, and their bytes.
    problems
        Everything that is wrong; those of kinds ``"extra"`` and ``"family"`` are warnings.
    unchecked
        Value rules that could not be checked, as arrays are damaged or contradict each other.
    receipt
        Receipt of a comparison with the sources that found no difference; else None.
    """

    path: str
    files: int
    bytes: int
    problems: tuple[Problem, ...]
    unchecked: tuple[str, ...] = ()
    receipt: Receipt | None = None

    @property
    def ok(self) -> bool:
        """Whether there are no problems except warnings."""
        return all(is_warning(problem) for problem in self.problems)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        plain = asdict(self) | {"ok": self.ok, "problems": [problem.to_json() for problem in self.problems]}
        if self.receipt is not None:
            plain["receipt"]["line"] = self.receipt.line
        return plain


def verify(
    store: str | os.PathLike[str],
    *,
    against: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    sample: float = 1.0,
    workers: int = 0,
    progress: Progress | bool | None = None,
) -> Verified:
    """Check a store, and compare it with its sources.

    Size and xxh3-128 of every file are compared with the manifest, the manifest with the seal, and the root
    with its own digest, so that every changed byte is found. Then documents, shard indexes, the schema and
    the value rules are checked.

    Parameters
    ----------
    store
        Folder or URL of the store.
    against
        Source or sources to compare with, as they were given to the conversion; not read if the store is
        damaged.
    sample
        Share of the shards and of the sources to compare, above 0 and up to 1; at least one of each.
    workers
        Worker processes; 0 verifies in this process. The result does not depend on it.
    progress
        As of `unistore.convert`.

    Raises
    ------
    StoreError
        If there is no sealed store, or it does not say how it was converted (with `against`).
    InputError
        If an argument has a value that it cannot have, or the sources cannot be read.
    ConversionError
        If the folder for temporary files, where sources are read again, cannot be written.
    """
    check = Arguments()
    check.path("store", store)
    check.expect(
        "sample", sample, matches_type(sample, float) and 0 < sample <= 1, "a share above 0 and up to 1"
    )
    check.integer("workers", workers, most=MAX_WORKERS)
    check.raise_problems()
    sources = [] if isinstance(against, Sequence) and not against else source_paths(against)
    with resolve_progress(progress) as callbacks, make_executor(workers) as executor:
        return verify_with(executor, os.fspath(store), sources, sample, callbacks)


def verify_with(
    executor: Executor,
    root: str,
    against: Sequence[Path] = (),
    sample: float = 1.0,
    progress: Progress = NO_PROGRESS,
) -> Verified:
    """`verify` with an executor."""
    check_exist(against)
    checked = check_files(root, progress, executor)
    verified = Verified(
        path=root, files=len(checked.entries), bytes=checked.bytes, problems=_located(root, checked)
    )
    if not checked.root.intact or not checked.manifest_intact:
        return verified
    store = Store(root)
    structure = check_structure(open_storage(root), store.attributes, checked.entries, checked.sound)
    damaged = {owning_array(key, store.paths()) or "" for key in set(checked.entries) - checked.sound}
    problems: list[Problem] = []
    unchecked: list[str] = []
    if all(map(is_warning, structure)):
        view = View(store, frozenset(damaged | _below_damaged_groups(store, checked)))
        # Without the package of its family, a store is held against the rules of every store.
        family = None if structure else find_family(store.family)
        for rules in (RULES, family.part("rules") if family is not None and family.rules else ()):
            if problems:  # rules of the family read the rows that indices give
                unchecked += [rule.__name__ for rule in rules]
            else:
                problems, missed = run_rules(view, rules, executor)
                unchecked += missed
    verified = replace(
        verified, problems=(*verified.problems, *structure, *problems), unchecked=tuple(unchecked)
    )
    if not against or not verified.ok:
        return verified
    differing, receipt = compare(store, against, sample, progress, executor)
    return replace(verified, problems=(*verified.problems, *differing), receipt=receipt)


def _located(root: str, checked: CheckedFiles) -> tuple[Problem, ...]:
    """Return the problems of the files; those of shards also name the damaged chunks."""
    storage = open_storage(root)
    fields = (checked.root.attributes or {}).get("fields", {})
    problems = list(checked.problems)
    for number, problem in enumerate(problems):
        path = owning_array(problem.file, fields if isinstance(fields, dict) else {})
        if path and problem.kind in ("checksum", "size") and f"{path}/{ROOT}" in checked.sound:
            where = locate_damage(storage, path, problem.file)
            if where:
                problems[number] = replace(problem, message=f"{problem.message}; {where}")
    return tuple(problems)


def _below_damaged_groups(store: Store, checked: CheckedFiles) -> set[str]:
    """Return arrays below a group whose ``zarr.json`` is damaged: rules read the attributes of groups."""
    lost = [key.removesuffix(f"/{ROOT}") for key in set(checked.entries) - checked.sound]
    return {path for path in store.paths() if any(path.startswith(f"{group}/") for group in lost)}


def owning_array(key: str, paths: Iterable[str]) -> str | None:
    """Return the path of the array that a shard or ``zarr.json`` belongs to, or None."""
    owners = [path for path in paths if key.startswith(f"{path}/c/") or key == f"{path}/{ROOT}"]
    return max(owners, key=len, default=None)


def locate_damage(storage: Storage, path: str, key: str) -> str:
    """Which chunks of a shard of the array at `path` do not decode; ``""`` if that cannot be found out."""
    try:
        array = StoredArray.open(storage, path)
        shard = [int(part) for part in key.removeprefix(f"{path}/c/").split("/")]
    except (StoreError, UnsupportedError, ValueError):
        return ""
    if len(shard) != len(array.shape):
        return ""
    size = storage.size(key)
    reason = None if size is None else index_problem(storage, key, array.metadata, size)
    if reason is not None:
        return f"none of its chunks can be found: {reason}"
    axes = [
        range(start * large // small, -(-min(extent, (start + 1) * large) // small))
        for start, large, small, extent in zip(
            shard, array.shard_shape, array.chunk_shape, array.shape, strict=True
        )
    ]
    damaged = [chunk for chunk in product(*axes) if not _decodes(array, chunk)]
    if not damaged:
        return "all of its chunks decode"
    rows = array.chunk_shape[0]
    lo = damaged[0][0] * rows
    hi = min(array.shape[0], (damaged[-1][0] + 1) * rows)
    return f"damaged: chunk {first_few(list(map(str, damaged)), 3)}, in rows {lo}:{hi}"


def _decodes(array: StoredArray, chunk: tuple[int, ...]) -> bool:
    lo = [position * step for position, step in zip(chunk, array.chunk_shape, strict=True)]
    hi = [
        min(start + step, size) for start, step, size in zip(lo, array.chunk_shape, array.shape, strict=True)
    ]
    try:
        array.read_box(lo, hi)
    except StoreError:
        return False
    return True
