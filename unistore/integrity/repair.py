"""``repair``: what is damaged in a store made again from its sources, byte for byte."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import xxhash

from unistore.conversion.convert import source_paths
from unistore.conversion.executors.local import Executor
from unistore.conversion.failure import named, refusal
from unistore.conversion.finish import merged_statistics, root_document
from unistore.errors import ConversionError, InputError, StoreError
from unistore.exporting.temporary_folder import temporary_folder, temporary_folder_path
from unistore.integrity.files import Checked, check_file, check_files
from unistore.integrity.rebuilt import Rebuilt, differences, encoder_differences, rebuild
from unistore.integrity.remaking import Part, Remade, parts_of, read_entry, remake
from unistore.integrity.roots import repaired_root
from unistore.integrity.run import Verified, verify_with
from unistore.integrity.steps import workers_of
from unistore.progress import shown
from unistore.remote.storage import local_path
from unistore.store.manifest import MANIFEST_LIMIT, Entry, make_seal, manifest_bytes
from unistore.store.names import MANIFEST, REPAIR, ROOT
from unistore.store.reader import Store
from unistore.system.arguments import Arguments
from unistore.system.progress import Progress
from unistore.system.workers import MAX_WORKERS
from unistore.zarr3.durable import sync_folder
from unistore.zarr3.local import LocalStorage
from unistore.zarr3.writer import write_shard

__all__ = ["Repaired", "repair"]

_SHOWN = 10
_AGAIN = "convert the sources again with --overwrite"


@dataclass(frozen=True, slots=True, kw_only=True)
class Repaired(Verified):
    """What a repair made again, and what verifying the store found afterwards.

    Attributes
    ----------
    repaired
        Files that were made again, by key.
    """

    repaired: tuple[str, ...]


def repair(
    store: str | os.PathLike[str],
    sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    workers: int = 0,
    progress: Progress | bool | None = None,
) -> Repaired:
    """Make the damaged and missing files of a store again, each exactly as it was, and verify the store.

    What is re-made is written beside the store first, and held against the manifest, or, where the manifest
    is damaged, against the seal; only then does it take the place of what is damaged. A sound file is never
    touched. A root of which one byte was changed is set right from its own digest.

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
        If there is no store, or its root is damaged so that it does not say how the store was made.
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
    with shown(progress) as told, workers_of(workers) as executor:
        checked = check_files(str(folder), told, executor)
        keys: list[str] = []
        if (
            not checked.is_whole or temporary_folder_path(folder, REPAIR).exists()
        ):  # a killed repair may have been done
            try:
                with temporary_folder(folder, REPAIR) as work:
                    job = _Repair(folder, checked, work, told, executor)
                    keys = [] if checked.is_whole else job.run(paths)
            except OSError as error:
                raise ConversionError(refusal(named(error, folder), "then repair again")) from error
        verified = verify_with(executor, str(folder), progress=told)
        found = {field.name: getattr(verified, field.name) for field in fields(verified)}
        return Repaired(**found, repaired=tuple(keys))


@dataclass(frozen=True, slots=True)
class _Repair:
    """One repair: what was found of the store, and where to work beside it."""

    folder: Path
    checked: Checked
    work: Path
    progress: Progress
    executor: Executor

    def run(self, sources: Sequence[Path]) -> list[str]:
        """Make what is damaged again and move it into place; returns its keys."""
        known = self._with_repaired_root()
        if known.is_whole:
            return self._move([], None, known.root.document)
        made = self._rebuilt(known, sources)
        parts = parts_of(made)
        damaged = sorted(key for key in parts if key not in known.sound)
        root_lost = not known.root.intact
        place = self.work / "store"
        remade = remake(made, parts, set(damaged), place, self.progress, self.executor, whole=root_lost)
        entries = self._entries(known, parts, remade)
        manifest = manifest_bytes(entries.values())
        document = None if self.checked.root.intact else known.root.document
        if root_lost:
            statistics = merged_statistics(made.planned.plan, remade.records)
            documents = {key: part.document for key, part in parts.items() if part.array is None}
            sealed = make_seal(entries.values(), manifest)
            document = root_document(made.planned.attributes, statistics, sealed, documents)
        elif xxhash.xxh3_128_hexdigest(manifest) != known.root.seal["digest"]:
            raise _unlike(damaged)
        storage = LocalStorage(self.folder)
        damaged = [key for key in damaged if check_file(storage, remade.entries[key]) is not None]
        return self._move(damaged, None if known.manifest_intact else manifest, document)

    def _with_repaired_root(self) -> Checked:
        """What was checked, with the root as it was signed if one byte of it was changed."""
        root = self.checked.root
        if root.intact:
            return self.checked
        storage = LocalStorage(self.folder)
        keys = [path.relative_to(self.folder).as_posix() for path in self.folder.rglob(f"*/{ROOT}")]
        document = repaired_root(root.document, {key: storage.get(key) for key in keys})
        if document is None:
            return self.checked
        write_shard(self.work / "root", ROOT, [document])
        attributes = Store(self.work / "root").attributes
        digest = attributes["seal"]["digest"]
        try:
            manifest = storage.get(MANIFEST, MANIFEST_LIMIT)
            intact = xxhash.xxh3_128_hexdigest(manifest) == digest
        except StoreError:
            intact = False
        repaired = replace(root, document=document, attributes=attributes, intact=True)
        return replace(self.checked, root=repaired, manifest_intact=intact)

    def _rebuilt(self, known: Checked, sources: Sequence[Path]) -> Rebuilt:
        """The conversion, from sources that would become this store and no other."""
        attributes = known.root.attributes or {}
        if not isinstance(attributes.get("plan_digest"), str):
            msg = f"{self.folder}: {ROOT} is damaged so that it does not say how the store was made; {_AGAIN}"
            raise StoreError(msg)
        made = rebuild(attributes, sources, self.work, self.progress, self.executor)
        if made.planned.plan.digest != attributes["plan_digest"]:
            lines = encoder_differences(attributes)
            if self.checked.root.intact:
                lines += differences(Store(self.folder), made.planned)
            listed = "\n  ".join(lines or ["options or descriptions in the root, which is damaged"])
            msg = f"{self.folder}: these sources, read by this unistore, would not become it:\n  {listed}"
            raise InputError(msg)
        return made

    def _entries(self, known: Checked, parts: Mapping[str, Part], remade: Remade) -> dict[str, Entry]:
        """The manifest's lines: as they were, or, where it is damaged, made again."""
        if known.manifest_intact:
            lines = dict(known.entries)
        else:
            lines = {
                key: remade.entries.get(key) or read_entry(self.folder, part, known.entries[key])
                for key, part in parts.items()
            }
        unlike = [key for key, entry in remade.entries.items() if lines.get(key) != entry]
        unlike += [key for key, content in remade.contents.items() if lines[key].content != content]
        if unlike:
            raise _unlike(unlike)
        return lines

    def _move(self, keys: Sequence[str], manifest: bytes | None, document: bytes | None) -> list[str]:
        """Put re-made files into place: data, then the manifest, and the root last."""
        storage = LocalStorage(self.folder)
        for key in keys:
            storage.path(key)  # no folder on the way is a link out of the store
        for key in keys:
            target = self.folder.joinpath(*key.split("/"))
            target.parent.mkdir(parents=True, exist_ok=True)
            (self.work / "store").joinpath(*key.split("/")).replace(target)
        depths = {"/".join(key.split("/")[:depth]) for key in keys for depth in range(key.count("/") + 1)}
        for parent in sorted(depths, reverse=True):
            sync_folder(self.folder / parent)
        documents: Mapping[str, Any] = {MANIFEST: manifest, ROOT: document}
        done = list(keys)
        for key, content in documents.items():
            if content is not None:
                write_shard(self.folder, key, [content])
                done.append(key)
        return done


def _unlike(keys: Sequence[str]) -> ConversionError:
    shown = "\n  ".join(keys[:_SHOWN])
    more = f"\n  and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
    return ConversionError(
        f"the sources no longer give the same values as when they were converted:\n  {shown}{more}\n"
        f"nothing was changed; find the sources as they were, or {_AGAIN}"
    )
