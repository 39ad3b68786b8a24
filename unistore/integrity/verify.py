"""``verify``: check files, documents and values of a store, and compare it with its sources."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from unistore.conversion.convert import check_exist, source_paths
from unistore.conversion.executors.apart import Apart
from unistore.conversion.executors.local import Executor
from unistore.conversion.executors.processes import Processes
from unistore.converters.registry import find_family
from unistore.errors import Problem, StoreError, UnsupportedError, first_few
from unistore.integrity.compare import Receipt, compare
from unistore.integrity.files import CheckedFiles, check_files, is_warning
from unistore.integrity.structure import RULES, check_structure, index_problem, run_rules
from unistore.progress import resolve_progress
from unistore.remote.storage import open_storage
from unistore.schemas.rules import View
from unistore.store.names import ROOT
from unistore.store.reader import Store
from unistore.system.arguments import MAX_WORKERS, Arguments, matches_type
from unistore.system.progress import NO_PROGRESS, Progress
from unistore.zarr3.array import Array
from unistore.zarr3.storage import Storage


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
        """Plain JSON values."""
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
    with resolve_progress(progress) as told, make_executor(workers) as executor:
        return verify_with(executor, os.fspath(store), sources, sample, told)


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
    found = Verified(
        path=root, files=len(checked.entries), bytes=checked.bytes, problems=_located(root, checked)
    )
    if not checked.root.intact or not checked.manifest_intact:
        return found
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
    found = replace(found, problems=(*found.problems, *structure, *problems), unchecked=tuple(unchecked))
    if not against or not found.ok:
        return found
    differing, receipt = compare(store, against, sample, progress, executor)
    return replace(found, problems=(*found.problems, *differing), receipt=receipt)


def _located(root: str, checked: CheckedFiles) -> tuple[Problem, ...]:
    """The problems of the files; those of shards also name the damaged chunks."""
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
    """Arrays below a group whose ``zarr.json`` is damaged: rules read the attributes of groups."""
    lost = [key.removesuffix(f"/{ROOT}") for key in set(checked.entries) - checked.sound]
    return {path for path in store.paths() if any(path.startswith(f"{group}/") for group in lost)}


def owning_array(key: str, paths: Iterable[str]) -> str | None:
    """Path of the array that a shard or ``zarr.json`` belongs to, or None."""
    owners = [path for path in paths if key.startswith(f"{path}/c/") or key == f"{path}/{ROOT}"]
    return max(owners, key=len, default=None)


def locate_damage(storage: Storage, path: str, key: str) -> str:
    """Which chunks of a shard of the array at `path` do not decode; ``""`` if that cannot be found out."""
    try:
        array = Array.open(storage, path)
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
        range(at * large // small, -(-min(extent, (at + 1) * large) // small))
        for at, large, small, extent in zip(
            shard, array.shard_shape, array.chunk_shape, array.shape, strict=True
        )
    ]
    damaged = [chunk for chunk in product(*axes) if not _decodes(array, chunk)]
    if not damaged:
        return "all of its chunks decode"
    rows = array.chunk_shape[0]
    lo, hi = damaged[0][0] * rows, min(array.shape[0], (damaged[-1][0] + 1) * rows)
    return f"damaged: chunk {first_few(list(map(str, damaged)), 3)}, in rows {lo}:{hi}"


def _decodes(array: Array, chunk: tuple[int, ...]) -> bool:
    lo = [at * step for at, step in zip(chunk, array.chunk_shape, strict=True)]
    hi = [min(at + step, size) for at, step, size in zip(lo, array.chunk_shape, array.shape, strict=True)]
    try:
        array.read_box(lo, hi)
    except StoreError:
        return False
    return True
