"""Check the files of a store with its manifest, and manifest and root document with their checksums."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import xxhash

from unistore.conversion.executors.local import Executor, Serial, parallel_map
from unistore.errors import Location, Problem, StoreError, without_fix
from unistore.remote.url import local_path
from unistore.schemas.recorded_rules import StoreRoot
from unistore.store.manifest import MANIFEST_LIMIT, Entry, parse_lines, root_digest
from unistore.store.names import MANIFEST, ROOT, SOURCES, STATISTICS
from unistore.store.reader import Store, open_storage
from unistore.store.shard_cache import CachedStorage
from unistore.system.progress import NO_PROGRESS, Progress, advanced, portion
from unistore.system.types import Attributes
from unistore.zarr3.documents import DocumentError, parse_document
from unistore.zarr3.durable import PART_SUFFIX
from unistore.zarr3.storage import AbsentError, Storage, read_parts

BATCH_BYTES = 64 << 20  # Bytes of files that one step checks
SMALL_FILE_BYTES = 64 << 10  # that are checked in the time that it takes to open a file
BATCHES_AT_ONCE = 8  # of objects in a bucket, so that requests seldom wait for the end of a step
FIX = "repair it from its sources with unistore verify STORE --repair SRC..."
_EXTRA = "extra"
UNKNOWN_FAMILY = "family"  # Kinds of problems that leave the content of a store intact


@dataclass(frozen=True, slots=True, kw_only=True)
class RootDocument:
    """The root document of a store on disk.

    Attributes
    ----------
    document : bytes
        Its bytes.
    attributes : mapping
        Its ``unistore`` object, which may be damaged. Empty: it cannot be read.
    root : StoreRoot or None
        What it states. None: the document does not match its own checksum.
    """

    document: bytes
    attributes: Attributes
    root: StoreRoot | None = None

    @property
    def intact(self) -> bool:
        """Whether the document matches its own checksum."""
        return self.root is not None

    @property
    def seal_digest(self) -> object:
        """The checksum of the manifest, which may be damaged. None: it cannot be read."""
        if self.root is not None:
            return self.root.seal.digest
        seal = self.attributes.get("seal")
        return seal.get("digest") if isinstance(seal, dict) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedFiles:
    """Result of `check_files`.

    Attributes
    ----------
    root : RootDocument
        The root document.
    manifest_intact : bool
        Whether the root is intact, and the manifest matches the checksum in its seal.
    entries : mapping of str to Entry
        Readable entries of the manifest, by key.
    sound : frozenset of str
        Keys of the files that match their entries.
    problems : tuple of Problem
        Everything that is wrong. Problems of kind ``"extra"`` are warnings.
    store : Store or None
        The store. None: root or manifest are damaged.
    """

    root: RootDocument
    manifest_intact: bool
    entries: Mapping[str, Entry]
    sound: frozenset[str]
    problems: tuple[Problem, ...]
    store: Store | None

    @property
    def bytes(self) -> int:
        """Sum of the sizes in `entries`."""
        return sum(entry.bytes for entry in self.entries.values())

    @property
    def is_intact(self) -> bool:
        """Whether root, manifest and every file are as they were written."""
        return self.manifest_intact and len(self.sound) == len(self.entries)


def is_warning(problem: Problem) -> bool:
    """Return whether a problem does not concern the content of the store."""
    return problem.kind in (_EXTRA, UNKNOWN_FAMILY)


def read_root(path: str) -> RootDocument:
    """Read the root document, intact or damaged."""
    store = None
    with suppress(StoreError):
        store = Store(path)
    storage = open_storage(path) if store is None else store.storage
    try:
        document = storage.get(ROOT)
    except AbsentError:
        Store(path)  # raises: says what is there instead
        raise
    if root_digest(document):
        root = (store or Store(path)).root
        return RootDocument(document=document, attributes=root.document, root=root)
    try:
        attributes = parse_document(document)["attributes"]["unistore"]
    except (DocumentError, KeyError, TypeError):
        attributes = None
        if storage.size(MANIFEST) is None:
            Store(path)  # raises: says what it is instead
    return RootDocument(document=document, attributes=attributes if isinstance(attributes, dict) else {})


def check_files(
    path: str,
    progress: Progress = NO_PROGRESS,
    executor: Executor | None = None,
    copies: Attributes | None = None,
) -> CheckedFiles:
    """Check every file of a store with the manifest, and root and manifest with their checksums.

    Files that are not in the manifest are reported only for local stores.

    Parameters
    ----------
    path : str
        Folder or URL of the store.
    progress : Progress, optional
        Receives the progress.
    executor : Executor, optional
        Runs the tasks. None: this process.
    copies : mapping, optional
        Result of `temporary_copies`, for files that are read again later. None: no copies.
    """
    root = read_root(path)
    storage = open_storage(path)
    problems: list[Problem] = []
    if not root.intact:
        problems.append(Problem(ROOT, "does not match the checksum of its seal", FIX, "root"))
    manifest, entries, manifest_intact = _check_manifest(storage, root, problems)
    store = None
    if manifest_intact:
        store = Store(path, listed=root.root, **(copies or {}))
        if isinstance(store.storage, CachedStorage):
            store.storage.documents = {ROOT: root.document, MANIFEST: manifest}
            storage = store.storage
    sound = set()
    most = BATCH_BYTES * (BATCHES_AT_ONCE if isinstance(storage, CachedStorage) else 1)
    batches = list(_batches(entries.values(), most))
    ask = parallel_map(executor or Serial(), progress, "checking", _bytes_of)
    answers = ask(partial(_check_batch, storage), batches)
    for batch, problems_of_batch in zip(batches, answers, strict=True):
        for entry, problem in zip(batch, problems_of_batch, strict=True):
            if problem is None:
                sound.add(entry.key)
            elif problem.kind == "checksum" and not manifest_intact:
                problems.append(
                    replace(problem, message=f"{problem.message}; the file or the manifest is damaged")
                )
            else:
                problems.append(problem)
    folder = local_path(path)
    if folder is not None and manifest_intact:
        problems += _unlisted(folder, entries)
    return CheckedFiles(
        store=store,
        root=root,
        manifest_intact=manifest_intact,
        entries=entries,
        sound=frozenset(sound),
        problems=tuple(problems),
    )


def _batches(entries: Iterable[Entry], most: int) -> Iterator[tuple[Entry, ...]]:
    batch: list[Entry] = []
    size = 0
    for entry in entries:
        batch.append(entry)
        size += entry.bytes + SMALL_FILE_BYTES  # opening a small file takes time, too
        if size >= most:
            yield tuple(batch)
            batch = []
            size = 0
    if batch:
        yield tuple(batch)


def _bytes_of(batch: Sequence[Entry]) -> int:
    return sum(entry.bytes for entry in batch)


def _check_batch(storage: Storage, entries: Sequence[Entry]) -> list[Problem | None]:
    if not isinstance(storage, CachedStorage):
        return [check_file(storage, entry) for entry in entries]
    # small objects first: a large one would keep those behind it waiting, as they arrive in order
    ordered = sorted(entries, key=lambda entry: entry.bytes)
    fetched = zip(ordered, storage.fetch([entry.key for entry in ordered]), strict=True)
    damaged = {entry.key for entry, is_intact in fetched if not is_intact}
    return [check_file(storage.inner, entry) if entry.key in damaged else None for entry in entries]


def _check_manifest(
    storage: Storage, root: RootDocument, problems: list[Problem]
) -> tuple[bytes, dict[str, Entry], bool]:
    try:
        data = storage.get(MANIFEST, MANIFEST_LIMIT)
    except AbsentError:
        problems.append(Problem(MANIFEST, "is missing, so no file can be checked", FIX, "missing"))
        return b"", {}, False
    except StoreError as error:
        problems.append(Problem(MANIFEST, f"cannot be read: {without_fix(error)}", FIX, "unreadable"))
        return b"", {}, False
    intact = xxhash.xxh3_128_hexdigest(data) == root.seal_digest
    if not intact:
        seal = "the seal in the root" if root.intact else "the seal in the root, which is damaged"
        problems.append(Problem(MANIFEST, f"does not match the checksum of {seal}", FIX, "manifest"))
    entries: dict[str, Entry] = {}
    for number, entry in parse_lines(data):
        if not isinstance(entry, str):
            entries[entry.key] = entry
        elif intact:
            problems.append(
                Problem.at(Location(MANIFEST, f"line {number}"), f"is damaged: {entry}", FIX, "manifest")
            )
    return data, entries, intact and root.intact


def check_file(storage: Storage, entry: Entry) -> Problem | None:
    """Compare size and xxh3-128 of a file with its manifest entry. None: both match."""
    rows = "" if entry.rows is None else f", in rows {entry.rows[0]}:{entry.rows[1]}"
    digest = xxhash.xxh3_128()
    try:
        size = storage.size(entry.key)
        if size is None:
            return Problem(entry.key, f"is missing{rows}", FIX, "missing")
        if size != entry.bytes:
            message = f"has {size:,} bytes, but the manifest states {entry.bytes:,}{rows}"
            return Problem(entry.key, message, FIX, "size")
        with portion(size):
            for part in read_parts(storage, entry.key, size):
                digest.update(part)
                advanced(len(part))
    except StoreError as error:
        return Problem(entry.key, f"cannot be read: {without_fix(error)}", FIX, "unreadable")
    if digest.hexdigest() != entry.checksum:
        message = f"its checksum is {digest.hexdigest()}, but the manifest states {entry.checksum}{rows}"
        return Problem(entry.key, message, FIX, "checksum")
    return None


def _unlisted(path: Path, entries: Mapping[str, Entry]) -> list[Problem]:
    keys = set[str]()
    for folder, _, names in os.walk(path):
        for name in names:
            file = Path(folder, name)
            if not stat.S_ISDIR(file.lstat().st_mode):
                keys.add(file.relative_to(path).as_posix())
    problems = []
    for key in sorted(keys - {*entries, ROOT, MANIFEST, STATISTICS, SOURCES}):
        left = "; a killed process left it behind" if key.endswith(PART_SUFFIX) else ""
        message = f"is not in the manifest, so it does not belong to the store{left}"
        problems.append(Problem(key, message, "remove it if nobody needs it", _EXTRA))
    return problems
