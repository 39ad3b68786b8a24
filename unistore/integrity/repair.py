"""``repair``: write damaged and missing files of a store again from its sources, byte for byte."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from unistore.conversion.columns import ColumnRows, InMemory, Planes, in_planes, metadata_of, shard_key
from unistore.conversion.convert import source_paths
from unistore.conversion.executors.local import Executor, Job, Outcome
from unistore.conversion.failure import named, refusal
from unistore.conversion.job import ShardJob
from unistore.conversion.keys import task_keys
from unistore.conversion.plan import ArrayPlan, Plan, ShardTask
from unistore.conversion.seal import seal, source_digests
from unistore.errors import ConversionError, InputError, StoreError, first_few
from unistore.exporting.run import temporary_folder, temporary_folder_path
from unistore.integrity.files import CheckedFiles, check_file, check_files
from unistore.integrity.recorded import (
    RecordedConversion,
    differences,
    encoder_differences,
    plan_recorded_conversion,
)
from unistore.integrity.verify import Verified, make_executor, verify_with
from unistore.progress import resolve_progress
from unistore.remote.url import local_path
from unistore.store.manifest import MANIFEST_LIMIT, Entry, parse_manifest, root_head, root_is_intact
from unistore.store.names import MANIFEST, REPAIR, ROOT
from unistore.store.reader import Store
from unistore.system.arguments import MAX_WORKERS, Arguments
from unistore.system.progress import Progress
from unistore.zarr3.array import StoredArray
from unistore.zarr3.documents import DocumentError
from unistore.zarr3.durable import sync_folder, write_file
from unistore.zarr3.storage import LocalStorage
from unistore.zarr3.writer import content_digest

# Repair one wrong byte of a root document: try values until the document has the digest that it carries.
#
# No other file has the options of a store, so that the root cannot be made again from the sources alone.

_SIGNATURE = re.compile(rb'"root": "([0-9a-f]{32})"')
_AFTER_HEAD = b' "attributes": {'
_ZEROS = b"0" * 32
_TAIL = 80
"""The signature is within so many bytes of the end."""
_MAX_HASHED = 2 * 10**11
"""Bytes to hash at most: about ten seconds."""

Candidates = Callable[[int], list[int]]
"""Gives the values that a byte may have had."""


def repaired_root(document: bytes, documents: Mapping[str, bytes]) -> bytes | None:
    """Return the root document as it was signed, if only one byte was changed; otherwise None.

    The part of it that repeats other documents is taken from `documents`, which are by key.
    """
    head = _head(document, documents)
    document = head + document[len(head) :]
    if root_is_intact(document):
        return document
    repaired = _repaired_before(document, len(head), _one_bit) or _repaired_signature(document)
    return repaired or _repaired_before(document, len(head), _any_value)


def _head(document: bytes, documents: Mapping[str, bytes]) -> bytes:
    """Return the first part of the root, made from `documents`; empty if it does not fit what follows it."""
    try:
        head = root_head(documents)
    except DocumentError:
        return b""
    follows = document[len(head) :][: len(_AFTER_HEAD)]
    return head if sum(a != b for a, b in zip(follows, _AFTER_HEAD, strict=False)) <= 1 else b""


def _repaired_before(document: bytes, first: int, candidates: Candidates) -> bytes | None:
    """Change one byte from `first` on, outside the signature, so that the digest is that of the signature."""
    signatures = list(_SIGNATURE.finditer(document, first))
    if not signatures or (len(document) - first) ** 2 * len(candidates(0)) > _MAX_HASHED:
        return None
    lo, hi = signatures[-1].span(1)
    unsigned = bytearray(document[first:lo] + _ZEROS + document[hi:])
    signed_digest = bytes.fromhex(document[lo:hi].decode())
    head = xxhash.xxh3_128(document[:first])
    for position, value in enumerate(unsigned):
        for other in candidates(value):
            unsigned[position] = other
            digest = head.copy()
            digest.update(unsigned)
            if digest.digest() == signed_digest:
                whole = document[:first] + unsigned
                return whole[:lo] + document[lo:hi] + whole[hi:]
        unsigned[position] = value
    return None


def _repaired_signature(document: bytes) -> bytes | None:
    """Change one byte of the signature itself, near the end of the document."""
    for position in range(max(0, len(document) - _TAIL), len(document)):
        for value in range(256):
            changed = document[:position] + bytes([value]) + document[position + 1 :]
            if root_is_intact(changed):
                return changed
    return None


def _one_bit(value: int) -> list[int]:
    return [value ^ (1 << bit) for bit in range(8)]


def _any_value(value: int) -> list[int]:
    return [other for other in range(256) if other != value]


def shard_keys(plan: Plan, task: ShardTask) -> list[str]:
    """Return the key of each shard that a task writes."""
    arrays = plan.table(task.table).arrays
    return [shard_key(array, task.number) for array in arrays if not array.is_empty]


@dataclass(frozen=True, slots=True, kw_only=True)
class SoundShards(Job[ShardTask]):
    """Make the journal's record of a task from the shards that a store has of it."""

    folder: Path  # the store
    job: ShardJob
    entries: Mapping[str, Entry]  # lines of the manifest by key, of which sizes and checksums are right
    # whether shards are decoded for their rows, digests and statistics. If not, rows and digests of shards
    # are those of `entries`, and the record's digests of sources and statistics mean nothing
    are_read: bool

    def __call__(self, task: ShardTask) -> Outcome:
        """Return the record, as the task itself would."""
        files = {key: self.entries[key] for key in shard_keys(self.job.plan, task)}
        if not self.are_read:
            return Outcome(self.job.record(task, list(files.values()), ()))
        columns = self._columns(task)
        for column in columns:
            deque(column, maxlen=0)  # digests are made while a column is iterated
            if not column.array.is_empty:
                key = shard_key(column.array, task.number)
                files[key] = replace(files[key], rows=column.rows, content=column.content)
        return Outcome(self.job.record(task, list(files.values()), columns))

    def describe(self, task: ShardTask) -> str:
        """Describe the task for messages."""
        return self.job.describe(task)

    def need(self, task: ShardTask) -> int:
        """Return the peak bytes of a task, which are at most those of writing it."""
        return self.job.need(task)

    def _columns(self, task: ShardTask) -> list[ColumnRows]:
        table = self.job.plan.table(task.table)
        if in_planes(self.job.converter, table):
            rows = range(task.lo, task.hi)
            return [
                Planes(array, task.lo, [partial(self._read_planes, array, row) for row in rows])
                for array in table.arrays
            ]
        return [self._in_memory(array, task) for array in table.arrays]

    def _in_memory(self, array: ArrayPlan, task: ShardTask) -> InMemory:
        block = self._array(array).read(task.lo, task.hi)
        digests = [
            content_digest(block[piece.at :][: piece.hi - piece.lo]) for piece in self.job.pieces_of(task)
        ]
        return InMemory(array, (task.lo, task.hi), block, np.array(digests, "S32"))

    def _read_planes(self, array: ArrayPlan, row: int, lo: int, hi: int, block: NDArray[Any]) -> None:
        beyond = array.shape[2:]
        self._array(array).read_box([row, lo, *(0 for _ in beyond)], [row + 1, hi, *beyond], block)

    def _array(self, array: ArrayPlan) -> StoredArray:
        # The form is that of the plan, as the document of the array may be damaged.
        return StoredArray(LocalStorage(self.folder), array.field.path, metadata_of(array))


_AGAIN = "convert the sources again with --overwrite"


@dataclass(frozen=True, slots=True, kw_only=True)
class Repaired(Verified):
    """The files that a repair wrote, and what verifying the store found afterwards.

    Attributes
    ----------
    repaired
        Keys of the files that were written.
    """

    repaired: tuple[str, ...]


def repair(
    store: str | os.PathLike[str],
    sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    workers: int = 0,
    progress: Progress | bool | None = None,
) -> Repaired:
    """Write the damaged and missing files of a store again, byte for byte, and verify the store.

    The files are written beside the store first and compared with the manifest, or with the seal if the
    manifest is damaged; only then do they replace the damaged ones. Intact files are never touched. A root
    document of which one byte was changed is repaired from its own digest.

    Parameters
    ----------
    store
        Folder of a sealed store.
    sources
        Source or sources, as they were given to the conversion.
    workers
        Worker processes; 0 repairs in this process. The files are the same.
    progress
        As of `unistore.convert`.

    Raises
    ------
    StoreError
        If there is no store in a local folder, or its root does not say how the store was made.
    InputError
        If an argument has a value that it cannot have, the sources cannot be read, or they would not become
        this store; names what differs.
    ConversionError
        If the sources no longer give the same bytes, or writing failed; the store is as it was.
    """
    check = Arguments()
    check.path("store", store)
    check.integer("workers", workers, most=MAX_WORKERS)
    check.raise_problems()
    paths = source_paths(sources)
    folder = local_path(store)
    if folder is None:
        msg = f"{os.fspath(store)}: only a store in a local folder can be repaired: repair a copy of it"
        raise StoreError(msg)
    folder = folder.absolute()
    with resolve_progress(progress) as callbacks, make_executor(workers) as executor:
        checked = check_files(str(folder), callbacks, executor)
        keys: list[str] = []
        # a repair that was killed after its last step left an intact store, and its folder
        if not checked.is_intact or temporary_folder_path(folder, REPAIR).exists():
            try:
                with temporary_folder(folder, REPAIR) as work:
                    job = _Repair(folder, checked, work, callbacks, executor)
                    keys = [] if checked.is_intact else job.run(paths)
            except OSError as error:
                raise ConversionError(refusal(named(error, folder), "then repair again")) from error
        verified = verify_with(executor, str(folder), progress=callbacks)
        fields_of_verified = {field.name: getattr(verified, field.name) for field in fields(verified)}
        return Repaired(**fields_of_verified, repaired=tuple(keys))


@dataclass(frozen=True, slots=True)
class _Repair:
    folder: Path
    checked: CheckedFiles
    work: Path
    progress: Progress
    executor: Executor

    def run(self, sources: Sequence[Path]) -> list[str]:
        """Write what is damaged and move it into place; returns its keys."""
        checked = self._with_repaired_root()
        document = None if self.checked.root.intact else checked.root.document
        if checked.is_intact:
            return self._move(Path(), [], document)
        recorded = self._recorded_conversion(checked, sources)
        with recorded.build:
            self._continue(recorded, checked)
        new_files = recorded.build.local
        damaged = self._damaged_files(checked, new_files)
        if not checked.root.intact:
            document = (new_files / ROOT).read_bytes()
        return self._move(new_files, damaged, document)

    def _continue(self, recorded: RecordedConversion, checked: CheckedFiles) -> None:
        """Convert again, but for the tasks of which every shard is sound."""
        conversion = recorded.conversion
        new_store = recorded.new_store
        journal = recorded.build.journal
        plan = new_store.plan
        job = recorded.job()
        digests = {key for key in checked.entries if key.startswith("sources/digest/c/")}
        sound = SoundShards(
            folder=self.folder,
            job=job,
            entries=checked.entries,
            # What a damaged manifest or root says no more of the values is read from the values.
            are_read=not (checked.manifest_intact and digests <= checked.sound),
        )
        recorded.build.sound.update({key: checked.entries[key].bytes for key in checked.sound})
        done = [task for task in plan.tasks() if checked.sound.issuperset(shard_keys(plan, task))]
        keys = task_keys(plan, conversion.keys)
        conversion.run_steps("checking", sound, done, plan.task_bytes, lambda task: {"of": keys[task.id]})
        conversion.write_shards(new_store, job)
        index = new_store.index(source_digests(plan, journal.each("shard")))
        seal(recorded.build.target, plan, journal, index, new_store.attributes, new_store.groups)

    def _damaged_files(self, checked: CheckedFiles, new_files: Path) -> list[str]:
        """Keys of the files to replace, the manifest last; refuses files that are not those of the store."""
        manifest = (new_files / MANIFEST).read_bytes()
        digest = xxhash.xxh3_128_hexdigest(manifest)
        entries = {entry.key: entry for entry in parse_manifest(manifest, str(new_files))}
        # A store of an older unistore has not all files that one has now.
        keys = [key for key in entries if key in checked.entries or not checked.manifest_intact]
        damaged = [key for key in keys if key not in checked.sound]
        if checked.manifest_intact:
            differing = [key for key in damaged if entries[key] != checked.entries[key]]
        elif checked.root.intact:
            differing = [] if digest == checked.root.seal["digest"] else damaged
        else:
            before = checked.entries
            differing = [
                key
                for key in checked.sound
                if key in entries and entries[key].checksum != before[key].checksum
            ]
        if differing:
            raise _values_differ(differing)
        if not checked.manifest_intact:
            entries[MANIFEST] = Entry(key=MANIFEST, bytes=len(manifest), checksum=digest)
            damaged.append(MANIFEST)
        storage = LocalStorage(self.folder)
        return [key for key in damaged if check_file(storage, entries[key]) is not None]

    def _with_repaired_root(self) -> CheckedFiles:
        """The check's result, with the root document as it was signed if only one byte of it was changed."""
        root = self.checked.root
        if root.intact:
            return self.checked
        storage = LocalStorage(self.folder)
        keys = [path.relative_to(self.folder).as_posix() for path in self.folder.rglob(f"*/{ROOT}")]
        document = repaired_root(root.document, {key: storage.get(key) for key in keys})
        if document is None:
            return self.checked
        write_file(self.work / "root", ROOT, [document])
        attributes = Store(self.work / "root").attributes
        digest = attributes["seal"]["digest"]
        try:
            manifest = storage.get(MANIFEST, MANIFEST_LIMIT)
            intact = xxhash.xxh3_128_hexdigest(manifest) == digest
        except StoreError:
            intact = False
        repaired = replace(root, document=document, attributes=attributes, intact=True)
        return replace(self.checked, root=repaired, manifest_intact=intact)

    def _recorded_conversion(self, checked: CheckedFiles, sources: Sequence[Path]) -> RecordedConversion:
        """Return the conversion that made the store; refuses sources that would give another store."""
        attributes = checked.root.attributes or {}
        if not isinstance(attributes.get("plan_digest"), str):
            msg = f"{self.folder}: {ROOT} is damaged so that it does not say how the store was made; {_AGAIN}"
            raise StoreError(msg)
        recorded = plan_recorded_conversion(attributes, sources, self.work, self.progress, self.executor)
        if recorded.new_store.plan.digest != attributes["plan_digest"]:
            lines = encoder_differences(attributes)
            if self.checked.root.intact:
                lines += differences(Store(self.folder), recorded.new_store)
            # Without a difference, an older unistore described the same arrays in other words: what is
            # written again is compared with the manifest.
            if lines or not (self.checked.root.intact and checked.manifest_intact):
                reasons = "\n  ".join(lines or ["options or descriptions in the root, which is damaged"])
                msg = (
                    f"{self.folder}: these sources, read by this unistore, would not become it:\n  {reasons}"
                )
                raise InputError(msg)
        return recorded

    def _move(self, new_files: Path, keys: Sequence[str], document: bytes | None) -> list[str]:
        """Move files into the store, and write the root last. Returns the keys."""
        storage = LocalStorage(self.folder)
        for key in keys:
            storage.path(key)  # raises if a folder on the way is a link out of the store
        for key in keys:
            target = self.folder / key
            target.parent.mkdir(parents=True, exist_ok=True)
            (new_files / key).replace(target)
        parents = set(chain.from_iterable(Path(key).parents for key in keys))
        for parent in sorted(parents, reverse=True):
            sync_folder(self.folder / parent)
        if document is None:
            return list(keys)
        write_file(self.folder, ROOT, [document])
        return [*keys, ROOT]


def _values_differ(keys: Sequence[str]) -> ConversionError:
    shown_keys = first_few(keys, 10, "\n  ")
    return ConversionError(
        f"the sources no longer give the same values as when they were converted:\n  {shown_keys}\n"
        f"nothing was changed; find the sources as they were, or {_AGAIN}"
    )
