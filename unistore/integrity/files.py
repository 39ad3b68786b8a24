"""A store's files against its manifest, and the manifest and the root document against their digests."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from unistore.conversion.executors.local import Executor, Serial
from unistore.conversion.job import Outcome
from unistore.conversion.lock import owner_of
from unistore.errors import Problem, StoreError
from unistore.integrity.steps import in_order
from unistore.remote.storage import local_path, open_storage
from unistore.store.manifest import MANIFEST_LIMIT, Entry, parse_lines, root_is_intact
from unistore.store.names import MANIFEST, REPAIR, ROOT
from unistore.store.reader import Store
from unistore.system.progress import NO_PROGRESS, Progress
from unistore.system.sizes import count_of
from unistore.zarr3.documents import DocumentError, parse_document
from unistore.zarr3.storage import AbsentError, Storage
from unistore.zarr3.writer import PART_SUFFIX

__all__ = ["CURE", "Checked", "Root", "check_file", "check_files", "is_warning"]

PIECE = 4 << 20
"""Bytes read at a time."""
PART = 64 << 20
"""Bytes of the files that are checked in one step."""
CURE = "re-make it from its sources: unistore verify STORE --repair SRC..."
_WARNING = "extra"


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """The root document as it is on disk.

    Attributes
    ----------
    document
        Its bytes.
    attributes
        Its ``unistore`` object; None if that cannot be read.
    intact
        Whether the document carries its own digest.
    """

    document: bytes
    attributes: dict[str, Any] | None
    intact: bool

    @property
    def seal(self) -> Mapping[str, Any]:
        """The seal, as far as it can be read."""
        seal = (self.attributes or {}).get("seal")
        return seal if isinstance(seal, dict) else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What came of checking every file.

    Attributes
    ----------
    root
        The root document.
    manifest_intact
        Whether the manifest's digest is the one in an intact root's seal.
    entries
        Lines of the manifest that can be read, by key.
    sound
        Keys whose file is what its line says.
    bytes
        Bytes that were read.
    problems
        Everything that is wrong; problems of kind ``"extra"`` are warnings.
    """

    root: Root
    manifest_intact: bool
    entries: Mapping[str, Entry]
    sound: frozenset[str]
    bytes: int
    problems: tuple[Problem, ...]

    @property
    def is_whole(self) -> bool:
        """Whether root, manifest and every listed file are as they were written."""
        return self.root.intact and self.manifest_intact and len(self.sound) == len(self.entries)


def is_warning(problem: Problem) -> bool:
    """Whether a problem takes nothing from the store's content."""
    return problem.kind == _WARNING


def read_root(path: str) -> Root:
    """Read the root document, whole or damaged.

    Raises
    ------
    StoreError
        If there is no root document, the store is unfinished, or it is no unistore store.
    """
    storage = open_storage(path)
    if storage.size(ROOT) is None:
        Store(path)  # says what is there instead
    document = storage.get(ROOT)
    intact = root_is_intact(document)
    if intact:
        return Root(document=document, attributes=Store(path).attributes, intact=True)
    try:
        attributes = parse_document(document)["attributes"]["unistore"]
    except (DocumentError, KeyError, TypeError):
        attributes = None
        if storage.size(MANIFEST) is None:
            Store(path)  # says what it is instead
    return Root(
        document=document, attributes=attributes if isinstance(attributes, dict) else None, intact=False
    )


@dataclass(frozen=True, slots=True)
class _FilesStep:
    """Hold files of a store, given by their lines of the manifest, against these."""

    path: str

    def __call__(self, entries: Sequence[Entry]) -> Outcome:
        storage = open_storage(self.path)
        found = [(entry.key, check_file(storage, entry)) for entry in entries]
        return Outcome({"problems": dict(found)})

    def describe(self, entries: Sequence[Entry]) -> str:
        return f"{self.path}: {count_of(len(entries), 'file')} from {entries[0].key}"


def check_files(path: str, progress: Progress = NO_PROGRESS, executor: Executor | None = None) -> Checked:
    """Check every file of a store against the manifest, and both against the root.

    What stands in the folder besides is looked for where the store is a local one.

    Parameters
    ----------
    path
        Folder of the store.
    progress
        Told how far it is.
    executor
        Where files are read; None: in this process.

    Raises
    ------
    StoreError
        If there is no sealed store.
    """
    root = read_root(path)
    storage = open_storage(path)
    problems: list[Problem] = []
    if not root.intact:
        problems.append(Problem(ROOT, "differs from what was sealed (its own digest)", CURE, "root"))
    entries, manifest_intact = _check_manifest(storage, root, problems)
    progress.begin("checking", sum(entry.bytes for entry in entries.values()))
    sound = set()
    parts = list(_parts(entries.values()))
    for part, outcome in zip(parts, in_order(executor or Serial(), _FilesStep(path), parts), strict=True):
        for key, problem in outcome.record["problems"].items():
            if problem is None:
                sound.add(key)
            elif problem.kind == "checksum" and not manifest_intact:
                problems.append(
                    Problem(key, f"{problem.message}; one of both is damaged", CURE, problem.kind)
                )
            else:
                problems.append(problem)
        progress.advance(sum(entry.bytes for entry in part))
    folder = local_path(path)
    if manifest_intact and folder is not None:
        problems += _extra(folder, entries)
    if folder is not None:
        problems += _left_by_repair(folder.absolute())
    return Checked(
        root=root,
        manifest_intact=manifest_intact,
        entries=entries,
        sound=frozenset(sound),
        bytes=sum(entry.bytes for entry in entries.values()),
        problems=tuple(problems),
    )


def _parts(entries: Iterable[Entry]) -> Iterator[tuple[Entry, ...]]:
    """Lines of the manifest in parts of about `PART` bytes of files."""
    part: list[Entry] = []
    size = 0
    for entry in entries:
        part.append(entry)
        size += entry.bytes + PIECE // 64  # opening many small files takes its time, too
        if size >= PART:
            yield tuple(part)
            part, size = [], 0
    if part:
        yield tuple(part)


def _check_manifest(storage: Storage, root: Root, problems: list[Problem]) -> tuple[dict[str, Entry], bool]:
    try:
        data = storage.get(MANIFEST, MANIFEST_LIMIT)
    except AbsentError:
        problems.append(Problem(MANIFEST, "is missing, so that no file can be checked", CURE, "missing"))
        return {}, False
    except StoreError as error:
        problems.append(Problem(MANIFEST, f"cannot be read ({error})", CURE, "unreadable"))
        return {}, False
    intact = xxhash.xxh3_128_hexdigest(data) == root.seal.get("digest")
    if not intact:
        whose = "the root's seal" if root.intact else "the seal of a damaged root"
        problems.append(Problem(MANIFEST, f"differs from what {whose} says (its digest)", CURE, "manifest"))
    entries: dict[str, Entry] = {}
    for number, entry in parse_lines(data):
        if not isinstance(entry, str):
            entries[entry.key] = entry
        elif intact:
            problems.append(Problem(f"{MANIFEST}: line {number}", f"is damaged ({entry})", CURE, "manifest"))
    return entries, intact and root.intact


def check_file(storage: Storage, entry: Entry) -> Problem | None:
    """Hold one file against its line of the manifest: size, then xxh3-128 of its bytes; None: it is sound."""
    digest = xxhash.xxh3_128()
    try:
        size = storage.size(entry.key)
        if size is None:
            return Problem(entry.key, "is missing", CURE, "missing")
        if size != entry.bytes:
            return Problem(entry.key, f"has {size} bytes, the manifest says {entry.bytes}", CURE, "size")
        buffer = memoryview(bytearray(min(PIECE, size)))
        for at in range(0, size, PIECE):
            piece = buffer[: min(PIECE, size - at)]
            storage.read_into(entry.key, at, piece)
            digest.update(piece)
    except StoreError as error:
        return Problem(entry.key, f"cannot be read ({error})", CURE, "unreadable")
    if digest.hexdigest() != entry.checksum:
        message = f"xxh3-128 is {digest.hexdigest()}, the manifest says {entry.checksum}"
        return Problem(entry.key, message, CURE, "checksum")
    return None


def _extra(path: Path, entries: Mapping[str, Entry]) -> list[Problem]:
    """Files that the manifest does not list."""
    problems = []
    for key in sorted(_files(path)):
        if key in entries or key in (ROOT, MANIFEST):
            continue
        left = " (left behind by a process that was killed)" if key.endswith(PART_SUFFIX) else ""
        message = f"is not in the manifest{left}: no part of the store"
        problems.append(Problem(key, message, "remove it, if nobody needs it", _WARNING))
    return problems


def _left_by_repair(store: Path) -> list[Problem]:
    """The folder in which a repair was at work, unless one is."""
    folder = store.with_name(f"{store.name}.{REPAIR}")
    if not folder.is_dir() or owner_of(folder / "lock") is not None:
        return []
    message = "was left by a repair that was stopped: no part of the store"
    return [Problem(folder.name, message, "repair again with --repair, or remove it", _WARNING)]


def _files(path: Path) -> Iterator[str]:
    for folder, _, names in os.walk(path):
        for name in names:
            file = Path(folder, name)
            if not stat.S_ISDIR(file.lstat().st_mode):
                yield file.relative_to(path).as_posix()
