"""`repair`: write damaged and missing files of a store again from its sources, byte for byte."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from itertools import chain
from pathlib import Path

import numpy as np
import xxhash

from unistore.conversion.convert import source_paths
from unistore.conversion.executors.local import Executor
from unistore.conversion.job import shard_key
from unistore.conversion.new_store import NewStore
from unistore.conversion.sealing import metadata_documents, write_index_and_documents
from unistore.conversion.steps import Conversion
from unistore.errors import (
    ConversionError,
    InputError,
    NoStoreError,
    StoreError,
    first_few,
    named,
    refusal,
)
from unistore.exporting.run import temporary_folder
from unistore.integrity.compare import (
    RecordedConversion,
    differences,
    encoder_differences,
    fix_of_sources,
    plan_recorded_conversion,
)
from unistore.integrity.files import CheckedFiles, RootDocument, check_file, check_files
from unistore.integrity.verify import (
    Verified,
    listed_stores,
    make_executor,
    source_names,
    verify_version,
)
from unistore.progress import resolve_progress
from unistore.remote.url import local_path
from unistore.store.manifest import MANIFEST_LIMIT, Entry, parse_manifest, root_digest, root_head
from unistore.store.names import MANIFEST, PARTS, REPAIR, ROOT, folder_beside
from unistore.store.reader import Store
from unistore.store.versions import OpenedStores
from unistore.system.arguments import MAX_WORKERS, Arguments
from unistore.system.progress import Progress, ProgressLike
from unistore.system.types import PathLike, VersionLike
from unistore.zarr3.documents import DocumentError
from unistore.zarr3.durable import sync_folder, write_file
from unistore.zarr3.storage import LocalStorage

# Repair one wrong byte of a root document: try values until the document has the digest that it carries.
#
# No other file has the options of a store, so that the root cannot be made again from the sources alone.

_SIGNATURE = re.compile(rb'"root": "([0-9a-f]{32})"')
_AFTER_HEAD = b' "attributes": {'
_ZEROS = b"0" * 32
# The signature is within so many bytes of the end
_TAIL = 80
# Bytes to hash at most: about ten seconds
_MAX_HASHED = 2 * 10**11
# What a byte may have been changed by: one bit, or any
_ONE_BIT = tuple(1 << bit for bit in range(8))
_ANY_BITS = range(1, 256)


def repaired_root(document: bytes, documents: Mapping[str, bytes]) -> bytes | None:
    """Return the original root document. None: more than one byte was changed."""
    head = _head(document, documents)
    document = head + document[len(head) :]
    if root_digest(document):
        return document
    repaired = _repaired_before(document, len(head), _ONE_BIT) or _repaired_signature(document)
    return repaired or _repaired_before(document, len(head), _ANY_BITS)


def _head(document: bytes, documents: Mapping[str, bytes]) -> bytes:
    # Empty if it does not fit what follows it
    try:
        head = root_head(documents)
    except DocumentError:
        return b""
    follows = document[len(head) :][: len(_AFTER_HEAD)]
    return head if sum(a != b for a, b in zip(follows, _AFTER_HEAD, strict=False)) <= 1 else b""


def _repaired_before(document: bytes, first: int, changes: Sequence[int]) -> bytes | None:
    signatures = list(_SIGNATURE.finditer(document, first))
    if not signatures or (len(document) - first) ** 2 * len(changes) > _MAX_HASHED:
        return None
    lo, hi = signatures[-1].span(1)
    unsigned = bytearray(document[first:lo] + _ZEROS + document[hi:])
    signed_digest = bytes.fromhex(document[lo:hi].decode())
    head = xxhash.xxh3_128(document[:first])
    for position, value in enumerate(unsigned):
        for change in changes:
            unsigned[position] = value ^ change
            digest = head.copy()
            digest.update(unsigned)
            if digest.digest() == signed_digest:
                whole = document[:first] + unsigned
                return whole[:lo] + document[lo:hi] + whole[hi:]
        unsigned[position] = value
    return None


def _repaired_signature(document: bytes) -> bytes | None:
    for position in range(max(0, len(document) - _TAIL), len(document)):
        for value in range(256):
            changed = document[:position] + bytes([value]) + document[position + 1 :]
            if root_digest(changed):
                return changed
    return None


_AGAIN = "convert all sources of the store again with --overwrite and the same options"


@dataclass(frozen=True, slots=True, kw_only=True)
class Repaired(Verified):
    """Result of a repair, and of the verification after it.

    Attributes
    ----------
    repaired : tuple of str
        Keys of the files that were written.
    """

    repaired: tuple[str, ...]


def repair(
    store: PathLike,
    sources: PathLike | Sequence[PathLike],
    *,
    version: VersionLike = None,
    workers: int = 0,
    progress: ProgressLike = None,
) -> Repaired:
    """Write damaged and missing files of a store again, byte for byte, and verify the store.

    The files are written to a staging folder first, and compared with the manifest, or with the seal if
    the manifest is damaged. Only then do they replace damaged files. Intact files are never touched. A
    root document with one changed byte is repaired from its own checksum.

    Parameters
    ----------
    store : path
        Folder of a sealed store.
    sources : path or sequence of paths
        The sources, as they were given to the conversion; for a versioned store, the sources of all parts.
    version : int or str, optional
        Number or name of the version of a versioned store whose parts are repaired. None: the newest.
    workers : int, default 0
        Number of worker processes. 0: this process. The files are the same.
    progress : optional
        As in `unistore.convert`.

    Returns
    -------
    Repaired
        The written files, and the result of the verification.

    Raises
    ------
    StoreError
        If there is no store in a local folder, or its root does not state how it was converted.
    InputError
        If an argument is invalid, the sources cannot be read, or they would not become this store. The
        message names the difference.
    ConversionError
        If the sources do not give the same bytes any more, or writing failed. The store does not change.

    Examples
    --------
    >>> repaired = unistore.repair("train.zarr", "recordings/")  # doctest: +SKIP
    >>> repaired.ok, repaired.repaired  # doctest: +SKIP
    (True, ('points/xyz/c/0/0',))
    """
    check = Arguments()
    check.path("store", store)
    check.integer("workers", workers, most=MAX_WORKERS)
    check.raise_problems()
    paths = source_paths(sources)
    folder = local_path(store)
    if folder is None:
        msg = f"{os.fspath(store)}: only a store in a local folder can be repaired. Fix: repair a local copy"
        raise StoreError(msg)
    folder = folder.absolute()
    with resolve_progress(progress) as callbacks, make_executor(workers) as executor:
        opened = listed_stores(str(folder), version)
        if opened is None:
            keys = _repair_store(folder, paths, callbacks, executor)
        else:
            keys = _repair_parts(opened, paths, callbacks, executor)
        verified = verify_version(executor, str(folder), version, progress=callbacks)
        fields_of_verified = {field.name: getattr(verified, field.name) for field in fields(verified)}
        return Repaired(**fields_of_verified, repaired=tuple(keys))


def _repair_parts(
    opened: OpenedStores, sources: Sequence[Path], progress: Progress, executor: Executor
) -> list[str]:
    names = source_names(opened)
    every = frozenset[str]().union(*names)
    repaired: list[str] = []
    # those of which the names of sources are damaged come first: the others are told apart by these
    for store, own in sorted(zip(opened.stores, names, strict=True), key=lambda part: bool(part[1])):
        folder = Path(store.path)
        with suppress(NoStoreError):  # which `verify_version` tells
            own_keys = _repair_store(folder, sources, progress, executor, every - own)
            repaired += [f"{PARTS}/{folder.name}/{key}" for key in own_keys]
        if not own:
            every |= frozenset(Store(folder).text("sources/path"))
    return repaired


def _repair_store(
    folder: Path,
    sources: Sequence[Path],
    progress: Progress,
    executor: Executor,
    others: frozenset[str] = frozenset(),
) -> list[str]:
    checked = check_files(str(folder), progress, executor)
    # a repair that was killed after its last step left an intact store, and its folder
    if checked.is_intact and not folder_beside(folder, REPAIR).exists():
        return []
    try:
        with temporary_folder(folder, REPAIR) as work:
            job = _Repair(folder, checked, work, progress, executor, others)
            return [] if checked.is_intact else job.run(sources)
    except OSError as error:
        raise ConversionError(refusal(named(error, folder), "then repair again")) from error


@dataclass(frozen=True, slots=True)
class _Repair:
    folder: Path
    checked: CheckedFiles
    work: Path
    progress: Progress
    executor: Executor
    others: frozenset[str]  # names of sources that are not the store's

    def run(self, sources: Sequence[Path]) -> list[str]:
        checked = self._with_repaired_root()
        document = None if self.checked.root.intact else checked.root.document
        if checked.is_intact:
            return self._move(Path(), [], document)
        conversion, new_store = self._recorded_conversion(checked, sources)
        with conversion.build as build:
            self._convert(conversion, new_store, checked)
        new_files = build.local
        damaged = self._damaged_files(checked, new_files)
        if not checked.root.intact:
            document = (new_files / ROOT).read_bytes()
        return self._move(new_files, damaged, document)

    def _convert(self, conversion: Conversion, new_store: NewStore, checked: CheckedFiles) -> None:
        # All shards where those of damaged tasks cannot be known
        plan = new_store.plan
        build = conversion.build
        digests = {key for key in checked.entries if key.startswith("sources/hash/c/")}
        # Manifest, statistics and digests of sources are made of all shards.
        every = not (checked.manifest_intact and digests <= checked.sound)
        todo = []
        for task in plan.tasks():
            written = [array for array in plan.table(task.table).arrays if not array.is_empty]
            keys = [shard_key(array, task.number) for array in written]
            if every or not checked.sound.issuperset(keys):
                todo.append(task)
        conversion.run_steps("writing", conversion.job(new_store), todo, plan.task_bytes, lambda _: {})
        if every:
            new_store.seal(build.target, build.journal, new_store.source_digests(build.journal))
            return
        unused_digests = np.zeros((len(plan.sources), 16), np.uint8)
        documents = metadata_documents(plan, new_store.attributes, new_store.groups)
        write_index_and_documents(build.target, plan, new_store.index(unused_digests), documents)

    def _damaged_files(self, checked: CheckedFiles, new_files: Path) -> list[str]:
        # The manifest comes last
        if checked.manifest_intact:
            damaged = [key for key in checked.entries if key not in checked.sound]
            new = LocalStorage(new_files)
            differing = [key for key in damaged if check_file(new, checked.entries[key]) is not None]
        else:
            manifest = (new_files / MANIFEST).read_bytes()
            digest = xxhash.xxh3_128_hexdigest(manifest)
            own = Entry(key=MANIFEST, bytes=len(manifest), checksum=digest)
            entries = [*parse_manifest(manifest, str(new_files)), own]
            now = LocalStorage(self.folder)
            damaged = [entry.key for entry in entries if check_file(now, entry) is not None]
            # A file that is as its own line said before was written so, whatever else is damaged.
            differing = [key for key in damaged if key in checked.sound]
            if checked.root.intact and digest != checked.root.seal_digest:
                differing = damaged
        if differing:
            raise _values_differ(differing)
        return damaged

    def _with_repaired_root(self) -> CheckedFiles:
        root = self.checked.root
        if root.intact:
            return self.checked
        storage = LocalStorage(self.folder)
        keys = [path.relative_to(self.folder).as_posix() for path in self.folder.rglob(f"*/{ROOT}")]
        document = repaired_root(root.document, {key: storage.get(key) for key in keys})
        if document is None:
            return self.checked
        write_file(self.work / "root", ROOT, [document])
        new_root = Store(self.work / "root").root
        try:
            manifest = storage.get(MANIFEST, MANIFEST_LIMIT)
            intact = xxhash.xxh3_128_hexdigest(manifest) == new_root.seal.digest
        except StoreError:
            intact = False
        repaired = RootDocument(document=document, attributes=new_root.document, root=new_root)
        return replace(self.checked, root=repaired, manifest_intact=intact)

    def _recorded_conversion(
        self, checked: CheckedFiles, sources: Sequence[Path]
    ) -> tuple[Conversion, NewStore]:
        if not isinstance(checked.root.attributes.get("plan_digest"), str):
            msg = f"{self.folder}: {ROOT} is damaged and does not state how the store was made. Fix: {_AGAIN}"
            raise StoreError(msg)
        recorded = RecordedConversion.from_json(checked.root.attributes)
        conversion, new_store = plan_recorded_conversion(
            recorded, sources, self.work, self.progress, self.executor, self.others
        )
        if new_store.plan.digest != recorded.plan_digest:
            lines = encoder_differences(recorded.created_with)
            fix = _AGAIN
            if self.checked.root.intact:
                store = Store(self.folder)
                lines += differences(store, new_store)
                fix = fix_of_sources(store, new_store.scan.sources.names) or _AGAIN
            # Without a difference, an older unistore described the same arrays in other words: what is
            # written again is compared with the manifest.
            if lines or not (self.checked.root.intact and checked.manifest_intact):
                root_differs = "options or descriptions in the root, which is damaged"
                reasons = "\n  ".join(lines or [root_differs])
                message = f"converting these sources now would give another store:\n  {reasons}"
                raise InputError.at(str(self.folder), message, fix, "source")
        return conversion, new_store

    def _move(self, new_files: Path, keys: Sequence[str], document: bytes | None) -> list[str]:
        # The root is written last
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
        f"the sources do not have the values any more that were converted:\n  {shown_keys}\n"
        f"The store was not changed. Fix: give the unchanged sources, or {_AGAIN}"
    )
