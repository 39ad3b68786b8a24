"""`verify`: check files, documents and values of a store, and compare it with its sources."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import reduce
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from unistore.conversion.convert import check_exist, source_paths
from unistore.conversion.executors.local import Executor, Serial
from unistore.conversion.executors.processes import Processes
from unistore.converters.registry import find_family
from unistore.errors import (
    InputError,
    NoStoreError,
    Problem,
    RunCommand,
    StoreError,
    without_fix,
)
from unistore.integrity.compare import Receipt, compare
from unistore.integrity.files import check_files, is_warning
from unistore.integrity.structure import check_structure
from unistore.integrity.values import RULES, run_rules
from unistore.progress import resolve_progress
from unistore.remote.url import local_path
from unistore.schemas.rules import RuleView
from unistore.store.listing import describe_arrays
from unistore.store.names import ROOT, VERSIONS
from unistore.store.reader import Store
from unistore.store.shard_cache import temporary_copies
from unistore.store.side_tables import read_side_table, side_names
from unistore.store.versions import OpenedStores, describe_part, find_grown, open_stores
from unistore.system.arguments import MAX_WORKERS, Arguments, matches_type
from unistore.system.progress import NO_PROGRESS, Progress, ProgressLike
from unistore.system.types import JsonObject, PathLike, VersionLike

if TYPE_CHECKING:
    from distributed import Client

    from unistore.conversion.executors.dask_executor import Dask


def make_executor(
    workers: int, scheduler: str | Client | None = None, progress: Progress = NO_PROGRESS
) -> Dask | Processes:
    """Return the executor for a number of worker processes.

    0: this process, and one process for other libraries.
    """
    if scheduler is not None:
        from unistore.conversion.executors.dask_executor import Dask

        return Dask(scheduler, tell=progress.tell)
    return Processes(workers, imports=("unistore.integrity.verify",) if workers else ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """Result of a verification.

    Attributes
    ----------
    path : str
        The store.
    files, bytes : int
        Number and size of the files in the manifest.
    problems : tuple of Problem
        Everything that is wrong. Problems of the kinds ``"extra"`` and ``"family"`` are warnings.
    unchecked : tuple of str
        Rules for values that could not be checked, because arrays are damaged or contradict each other.
    receipt : Receipt, optional
        Summary of the comparison with the sources. None: there was no comparison, or it found differences.
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

    def to_json(self) -> JsonObject:
        """Return the attributes as JSON values."""
        plain = asdict(self) | {"ok": self.ok, "problems": [problem.to_json() for problem in self.problems]}
        if self.receipt is not None:
            plain["receipt"]["line"] = self.receipt.line
        return plain


def verify(
    store: PathLike,
    *,
    against: PathLike | Sequence[PathLike] = (),
    sample: float = 1.0,
    version: VersionLike = None,
    workers: int = 0,
    scheduler: str | Client | None = None,
    progress: ProgressLike = None,
) -> Verified:
    """Check a store, and optionally compare it with its sources.

    Size and xxh3-128 of every file are compared with the manifest, the manifest with the seal, and the
    root with its own checksum, so every changed byte is found. Then documents, shard indexes, the schema
    and the rules for values are checked, and added columns.

    Parameters
    ----------
    store : path or URL
        Folder or URL of the store.
    against : path or sequence of paths, optional
        Sources to compare with, as they were given to the conversion. They are not read if the store is
        damaged.
    sample : float, default 1.0
        Share of the shards and of the sources to compare, above 0 and at most 1; at least one of each is
        compared.
    version : int or str, optional
        Number or name of the version of a versioned store, whose parts are verified. Parts still have
        sources that the version removes, so `against` needs them, too. None: the newest.
    workers : int, default 0
        Number of worker processes. 0: this process. The result is the same.
    scheduler : str or Client, optional
        A dask cluster whose workers check instead, as in `unistore.convert`. Not with `against`, whose
        temporary files are on this machine.
    progress : optional
        As in `unistore.convert`.

    Returns
    -------
    Verified
        The problems; for a comparison without differences, also a receipt.

    Raises
    ------
    StoreError
        If there is no sealed store. With `against`, if it does not state how it was converted.
    InputError
        If an argument is invalid, or the sources cannot be read.
    ConversionError
        If the folder for temporary files, in which sources are converted again, cannot be written.

    Examples
    --------
    >>> verified = unistore.verify("train.zarr", against="recordings/")  # doctest: +SKIP
    >>> verified.ok  # doctest: +SKIP
    True
    """
    check = Arguments()
    check.path("store", store)
    check.expect(
        "sample", sample, matches_type(sample, float) and 0 < sample <= 1, "a share above 0 and up to 1"
    )
    check.integer("workers", workers, most=MAX_WORKERS)
    if scheduler is not None and against:
        check.refuse("--scheduler", "does not work with sources to compare", "use --workers N instead")
    check.raise_problems()
    sources = [] if isinstance(against, Sequence) and not against else source_paths(against)
    with resolve_progress(progress) as callbacks, make_executor(workers, scheduler, callbacks) as executor:
        return verify_version(executor, os.fspath(store), version, sources, sample, callbacks)


def verify_version(
    executor: Executor,
    path: str,
    version: VersionLike,
    against: Sequence[Path] = (),
    sample: float = 1.0,
    progress: Progress = NO_PROGRESS,
) -> Verified:
    """Verify a single store, or the parts of a version."""
    if version is None and local_path(path) is None:  # a store without versions is not asked for them
        with suppress(NoStoreError):
            return verify_with(executor, path, against, sample, progress)
    opened = listed_stores(path, version)
    if opened is None:
        return verify_with(executor, path, against, sample, progress)
    return _verify_parts(executor, opened, against, sample, progress)


def listed_stores(path: str, version: VersionLike) -> OpenedStores | None:
    """Return the stores of a version. None: it is a single store, which may be damaged."""
    if version is None and find_grown(path) is None:
        return None
    return open_stores(path, version)


def source_names(opened: OpenedStores) -> list[frozenset[str]]:
    """Return the names of the sources of each store; no names if they are damaged."""
    names: list[frozenset[str]] = []
    kept: set[str] = set()
    removed: set[str] = set()
    for store, numbers in zip(opened.stores, opened.removed, strict=True):
        own: list[str] = []
        with suppress(StoreError, UnicodeDecodeError):
            own = store.text("sources/path")
        left_out = {own[number] for number in numbers if own}
        removed |= left_out
        kept |= {*own} - left_out
        names.append(frozenset(own))
    if replaced := sorted(removed & kept):
        message = f"an older part contains '{replaced[0]}', which was replaced later"
        whole = f"{opened.path.rstrip('/').removesuffix('.zarr')}-whole.zarr"
        fix = RunCommand(("compact", opened.path, whole), "and use the new store"), "give the path of a part"
        raise InputError.at(opened.path, message, fix, "version")
    return names


def _verify_parts(
    executor: Executor, opened: OpenedStores, against: Sequence[Path], sample: float, progress: Progress
) -> Verified:
    """Verify the stores of a version, and that they are as it says."""
    problems: list[Problem] = []
    verified: list[Verified] = []
    names = source_names(opened) if against else [frozenset[str]() for _ in opened.stores]
    if not all(names):  # a damaged store is not compared
        against = ()
    every = frozenset[str]().union(*names)
    for store, own in zip(opened.stores, names, strict=True):
        try:
            of_part = verify_with(executor, store.path, against, sample, progress, every - own, opened.path)
            verified.append(of_part)
        except NoStoreError as error:
            fix = "restore it from a copy"
            message = without_fix(error).removeprefix(f"{store.path}: ")
            problems.append(Problem(store.path, message, fix, "missing"))
    for of_part in verified:
        name = of_part.path.removeprefix(f"{opened.path.rstrip('/')}/")
        problems += [replace(problem, file=f"{name}/{problem.file}") for problem in of_part.problems]
    if not problems and opened.version is not None:
        problems += _listing_problems(opened)
    receipts = [of_part.receipt for of_part in verified if of_part.receipt is not None]
    is_compared = bool(receipts) and len(receipts) == len(opened.stores)
    return Verified(
        path=opened.path,
        files=sum(of_part.files for of_part in verified),
        bytes=sum(of_part.bytes for of_part in verified),
        problems=tuple(problems),
        unchecked=tuple(dict.fromkeys(chain.from_iterable(of_part.unchecked for of_part in verified))),
        receipt=reduce(Receipt.merge, receipts) if is_compared else None,
    )


def _listing_problems(opened: OpenedStores) -> Iterator[Problem]:
    assert opened.version is not None
    schemas = list(opened.version.schemas)
    listing = opened.version.arrays
    for number, (store, part) in enumerate(zip(opened.stores, opened.version.parts, strict=True)):
        listed = {path: array.in_part(number) for path, array in listing.items()}
        described = None
        with suppress(StoreError):
            arrays = {**dict.fromkeys(listed), **describe_arrays(store)}
            described = describe_part(store, schemas, part.removed), arrays
        if described != (part, listed):
            message = f"its description of {part.key} does not match that part"
            key = f"{VERSIONS}/{opened.version.number}.json"
            yield Problem(key, message, "restore it from a copy, or open another version", "metadata")


def verify_with(
    executor: Executor,
    root: str,
    against: Sequence[Path] = (),
    sample: float = 1.0,
    progress: Progress = NO_PROGRESS,
    others: frozenset[str] = frozenset(),
    whole: str = "",
) -> Verified:
    """Verify one store with an executor.

    Parameters
    ----------
    executor : Executor
        Runs the tasks.
    root : str
        Folder or URL of the store.
    against, sample, progress
        As in `verify`.
    others : frozenset of str
        Names of sources in `against` that do not belong to the store.
    whole : str, default ""
        Path of the versioned store that it is a part of. Empty: it is a single store.
    """
    check_exist(against)
    is_here = isinstance(executor, Processes | Serial)  # others may have no folder of this machine
    with temporary_copies(root, wanted=is_here) as copies:
        checked = check_files(root, progress, executor, copies)
        files = len(checked.entries)
        verified = Verified(path=root, files=files, bytes=checked.bytes, problems=checked.problems)
        store = checked.store
        if store is None:
            return verified
        document = checked.root.document
        structure = check_structure(store.storage, store.root, document, checked.entries, checked.sound)
        problems: list[Problem] = []
        unchecked: list[str] = []
        if all(map(is_warning, structure)):
            view = RuleView(store, _damaged_arrays(store, set(checked.entries) - checked.sound))
            # Without the package of its family, a store is held against the rules of every store.
            family = None if structure else find_family(store.family)
            for rules in (RULES, () if family is None else family.rules()):
                if problems:  # rules of the family read the rows that indices give
                    unchecked += [rule.__name__ for rule in rules]
                else:
                    problems, missed = run_rules(view, rules, executor, progress)
                    unchecked += missed
        problems += _side_problems(store, executor)
        found = (*verified.problems, *structure, *problems)
        verified = replace(verified, problems=found, unchecked=tuple(unchecked))
        if not against or not verified.ok:
            return verified
        differing, receipt = compare(store, against, sample, progress, executor, others, whole)
        return replace(verified, problems=(*found, *differing), receipt=receipt)


def _side_problems(store: Store, executor: Executor) -> list[Problem]:
    # Check the files of side tables, and that they are of this store
    problems = []
    for name in side_names(store):
        try:
            side = read_side_table(store, name)
            if not side.is_of(store):
                problems.append(Problem(name, side.stale(store), kind="side"))
                continue
            checked = check_files(str(side.folder), executor=executor)
            fix = "make this added column again"
            for problem in checked.problems:
                own = replace(problem, file=f"{name}: {problem.file}", fix=problem.fix and fix)
                problems.append(own)
            if checked.is_intact:
                beside = Store(store.path, beside=[side.folder])
                for path in side.paths:
                    beside.array(path)
        except StoreError as error:
            problems.append(Problem(name, str(error), kind="side"))
    return problems


def _damaged_arrays(store: Store, damaged: Collection[str]) -> frozenset[str]:
    # Also those below a damaged group: rules read the attributes of groups
    documents = tuple(key.removesuffix(ROOT) for key in damaged if key.endswith(f"/{ROOT}"))
    shards = {key.rpartition("/c/")[0] for key in damaged}
    return frozenset(path for path in store.paths() if path in shards or f"{path}/".startswith(documents))
