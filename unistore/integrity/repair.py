"""``repair``: write damaged and missing files of a store again from its sources, byte for byte."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import xxhash

from unistore.conversion.convert import source_paths
from unistore.conversion.executors.local import Executor
from unistore.conversion.failure import named, refusal
from unistore.conversion.finish import merged_statistics, root_document
from unistore.errors import ConversionError, InputError, StoreError, first_few
from unistore.exporting.temporary_folder import temporary_folder, temporary_folder_path
from unistore.integrity.files import CheckedFiles, check_file, check_files
from unistore.integrity.recorded import (
    RecordedConversion,
    differences,
    encoder_differences,
    plan_recorded_conversion,
)
from unistore.integrity.regenerate import Regenerated, StoreFile, entry_of_file, regenerate, store_files
from unistore.integrity.root_repair import repaired_root
from unistore.integrity.steps import make_executor
from unistore.integrity.verify import Verified, verify_with
from unistore.progress import resolve_progress
from unistore.remote.storage import local_path
from unistore.store.manifest import MANIFEST_LIMIT, Entry, make_seal, manifest_bytes
from unistore.store.names import MANIFEST, REPAIR, ROOT
from unistore.store.reader import Store
from unistore.system.arguments import MAX_WORKERS, Arguments
from unistore.system.progress import Progress
from unistore.zarr3.durable import sync_folder, write_file
from unistore.zarr3.local import LocalStorage

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
    with resolve_progress(progress) as told, make_executor(workers) as executor:
        checked = check_files(str(folder), told, executor)
        keys: list[str] = []
        # a repair that was killed after its last step left an intact store, and its folder
        if not checked.is_intact or temporary_folder_path(folder, REPAIR).exists():
            try:
                with temporary_folder(folder, REPAIR) as work:
                    job = _Repair(folder, checked, work, told, executor)
                    keys = [] if checked.is_intact else job.run(paths)
            except OSError as error:
                raise ConversionError(refusal(named(error, folder), "then repair again")) from error
        verified = verify_with(executor, str(folder), progress=told)
        found = {field.name: getattr(verified, field.name) for field in fields(verified)}
        return Repaired(**found, repaired=tuple(keys))


@dataclass(frozen=True, slots=True)
class _Repair:
    folder: Path
    checked: CheckedFiles
    work: Path
    progress: Progress
    executor: Executor

    def run(self, sources: Sequence[Path]) -> list[str]:
        """Write what is damaged and move it into place; returns its keys."""
        known = self._with_repaired_root()
        if known.is_intact:
            return self._move([], None, known.root.document)
        conversion = self._planned_conversion(known, sources)
        files = store_files(conversion)
        # A store of an older unistore has not all files that one has now.
        own = known.entries if known.manifest_intact else files
        damaged = sorted(key for key in files if key in own and key not in known.sound)
        root_lost = not known.root.intact
        work = self.work / "store"
        result = regenerate(
            conversion, files, set(damaged), work, self.progress, self.executor, run_all=root_lost
        )
        entries = self._entries(known, files, result)
        manifest = manifest_bytes(entries.values())
        document = None if self.checked.root.intact else known.root.document
        if root_lost:
            statistics = merged_statistics(conversion.planned.plan, result.records)
            documents = {key: file.document for key, file in files.items() if file.array is None}
            sealed = make_seal(entries.values(), manifest)
            document = root_document(conversion.planned.attributes, statistics, sealed, documents)
        elif xxhash.xxh3_128_hexdigest(manifest) != known.root.seal["digest"]:
            raise _values_differ(damaged)
        storage = LocalStorage(self.folder)
        damaged = [key for key in damaged if check_file(storage, result.entries[key]) is not None]
        return self._move(damaged, None if known.manifest_intact else manifest, document)

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

    def _planned_conversion(self, known: CheckedFiles, sources: Sequence[Path]) -> RecordedConversion:
        """The conversion that made the store; refuses sources that would give another store."""
        attributes = known.root.attributes or {}
        if not isinstance(attributes.get("plan_digest"), str):
            msg = f"{self.folder}: {ROOT} is damaged so that it does not say how the store was made; {_AGAIN}"
            raise StoreError(msg)
        conversion = plan_recorded_conversion(attributes, sources, self.work, self.progress, self.executor)
        if conversion.planned.plan.digest != attributes["plan_digest"]:
            lines = encoder_differences(attributes)
            if self.checked.root.intact:
                lines += differences(Store(self.folder), conversion.planned)
            # Without a difference, an older unistore described the same arrays in other words: what is
            # written again is compared with the manifest.
            if lines or not (self.checked.root.intact and known.manifest_intact):
                listed = "\n  ".join(lines or ["options or descriptions in the root, which is damaged"])
                msg = f"{self.folder}: these sources, read by this unistore, would not become it:\n  {listed}"
                raise InputError(msg)
        return conversion

    def _entries(
        self, known: CheckedFiles, files: Mapping[str, StoreFile], result: Regenerated
    ) -> dict[str, Entry]:
        """Entries of the manifest, or of a new one if the manifest is damaged."""
        if known.manifest_intact:
            entries = dict(known.entries)
        else:
            entries = {
                key: result.entries.get(key) or entry_of_file(self.folder, file, known.entries[key])
                for key, file in files.items()
            }
        differing = [key for key, entry in result.entries.items() if entries.get(key) != entry]
        differing += [
            key
            for key, content in result.content_digests.items()
            if key in entries and entries[key].content != content
        ]
        if differing:
            raise _values_differ(differing)
        return entries

    def _move(self, keys: Sequence[str], manifest: bytes | None, document: bytes | None) -> list[str]:
        """Move the files into the store: data, then the manifest, and the root last. Returns their keys."""
        storage = LocalStorage(self.folder)
        for key in keys:
            storage.path(key)  # raises if a folder on the way is a link out of the store
        for key in keys:
            target = self.folder.joinpath(*key.split("/"))
            target.parent.mkdir(parents=True, exist_ok=True)
            (self.work / "store").joinpath(*key.split("/")).replace(target)
        parents = {"/".join(key.split("/")[:depth]) for key in keys for depth in range(key.count("/") + 1)}
        for parent in sorted(parents, reverse=True):
            sync_folder(self.folder / parent)
        done = list(keys)
        for key, content in ((MANIFEST, manifest), (ROOT, document)):
            if content is not None:
                write_file(self.folder, key, [content])
                done.append(key)
        return done


def _values_differ(keys: Sequence[str]) -> ConversionError:
    listed = first_few(keys, 10, "\n  ")
    return ConversionError(
        f"the sources no longer give the same values as when they were converted:\n  {listed}\n"
        f"nothing was changed; find the sources as they were, or {_AGAIN}"
    )
