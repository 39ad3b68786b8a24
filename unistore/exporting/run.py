"""Exports a store: all files are written to a temporary folder, which is then renamed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unistore.conversion.failure import named, refusal
from unistore.converters.common.exported import File
from unistore.converters.registry import get_family
from unistore.errors import ConversionError, InputError, Problem, StoreError
from unistore.exporting.writing import FileNames, temporary_folder, write
from unistore.progress import resolve_progress
from unistore.remote.storage import local_path
from unistore.remote.url import require_local_path
from unistore.schemas.indices import whole
from unistore.store.reader import Store
from unistore.system.arguments import Arguments
from unistore.system.progress import Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """Result of an export.

    Attributes
    ----------
    destination, family
        Folder that was made, and family of the store.
    sources, files, bytes
        Numbers of sources and of files written, and bytes of these files.
    notes
        Sentences on what differs from the sources, such as cameras of another size.
    """

    destination: str
    family: str
    sources: int
    files: int
    bytes: int
    notes: tuple[str, ...]


def export(
    store: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    to: str | None = None,
    progress: Progress | bool | None = None,
) -> Exported:
    """Export a store as files in the main layout of its source family, or in another format.

    Values are exactly those of the sources; ``docs/verify-and-export.md`` lists the files of each family, and
    what of a source is not in a store.

    Parameters
    ----------
    store
        Folder or URL of a sealed store.
    destination
        Folder to create; must not exist.
    to
        ``"ome-zarr"``: CT volumes as OME-NGFF 0.5 images. None: the layout of the sources.
    progress
        See `unistore.convert`.

    Raises
    ------
    InputError
        If an argument is invalid, the destination exists, is inside the store or is a URL, or the store
        cannot be exported in that format.
    StoreError
        If the store cannot be read, its family is not installed, or it names files outside the destination;
        nothing is left behind.
    ConversionError
        If writing failed; nothing is left behind.
    """
    check = Arguments()
    check.path("store", store)
    check.path("destination", destination)
    check.text("to", to, none=True)
    check.raise_problems()
    target = Path(os.path.abspath(require_local_path(destination, "DST")))  # noqa: PTH100  does not resolve links
    opened = Store(store)
    _check_destination(target, local_path(store))
    files = _exporter(opened, to)
    try:
        with resolve_progress(progress) as callbacks, temporary_folder(target, "unistore-export") as work:
            done = _write_all(opened, files(opened), work / "files", callbacks)
            _check_destination(target, local_path(store))
            os.sync()
            (work / "files").rename(target)
    except OSError as error:
        raise ConversionError(refusal(named(error, target), "then export again: nothing was left")) from error
    return Exported(destination=str(target), family=opened.family, **done)


def _write_all(store: Store, files: Iterator[File], work: Path, progress: Progress) -> dict[str, Any]:
    """Write all files; returns the counts and notes of `Exported`."""
    names = FileNames(store.path)
    work.mkdir()
    sizes = whole(store, "sources/bytes").tolist()
    progress.begin("writing", sum(sizes))
    notes: dict[str, None] = {}
    count = total = current = 0
    while True:
        with _store_errors(store):
            file = next(files, None)
        if file is None:
            break
        if file.source != current:
            progress.advance(sum(sizes[current : file.source]))
        current = file.source
        path = work.joinpath(*names.take(file.name))
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with _store_errors(store):
                write(file, path)
        except OSError as error:
            raise named(error, path) from error
        written = [each for each in path.rglob("*") if each.is_file()] or [path]
        count += len(written)
        total += sum(each.stat().st_size for each in written)
        notes |= dict.fromkeys(file.notes)
    progress.advance(sum(sizes[current:]))
    return {"sources": len(sizes), "files": count, "bytes": total, "notes": (*notes,)}


@contextmanager
def _store_errors(store: Store) -> Iterator[None]:
    """Turn exceptions that a store's free-form metadata (options, attributes) may cause into a StoreError."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}".rstrip(": ")
        msg = (
            f"{store.path}: cannot be exported: the description of its sources contradicts its arrays "
            f"({reason}); run 'unistore verify {store.path}'"
        )
        raise StoreError(msg) from error


def _exporter(store: Store, to: str | None) -> Callable[[Store], Iterator[File]]:
    try:
        family = get_family(store.family)
        found: Callable[[Store], Iterator[File]]
        if to is None or to in family.export_to:
            found = family.part("export") if to is None else family.part("export_to", to)
            return found
    except InputError as error:
        msg = f"{store.path}: cannot be exported: {error}"
        raise StoreError(msg) from error
    others = f" or as {', '.join(family.export_to)}" if family.export_to else ""
    message = f"{family.command} stores are not exported as {to!r}"
    cure = f"they are in the layout of their sources{others}: leave --to out, or change it"
    raise InputError(Problem(store.path, message, cure, "option"))


def _check_destination(target: Path, store: Path | None) -> None:
    """Refuse a destination that exists or is inside the store."""
    if os.path.lexists(target):
        msg = f"{target}: exists; an export never writes into an existing folder, choose another folder"
        raise InputError(msg)
    real = target.parent.resolve() / target.name
    if store is not None and real.is_relative_to(store.resolve()):
        msg = f"{target}: is inside the store; choose another folder"
        raise InputError(msg)
