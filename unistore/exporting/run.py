"""Exports a store: all files are written to a temporary folder, which is then renamed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from unistore.conversion.failure import named, refusal
from unistore.converters.common.exported import File
from unistore.converters.registry import get_family
from unistore.errors import ConversionError, InputError, StoreError
from unistore.exporting.naming import FileNames
from unistore.exporting.temporary_folder import temporary_folder
from unistore.exporting.writing import write
from unistore.progress import shown
from unistore.remote.storage import local_path
from unistore.remote.url import require_local_path
from unistore.schemas.indices import whole
from unistore.store.reader import Store
from unistore.system.arguments import Arguments
from unistore.system.progress import Progress

__all__ = ["Exported", "export"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """Result of an export: where it is, its family, and the number of sources, files and bytes."""

    destination: str
    family: str
    sources: int
    files: int
    bytes: int


def export(
    store: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    progress: Progress | bool | None = None,
) -> Exported:
    """Export a store as files in the main layout of its source family.

    Values are exactly those of the sources; ``docs/verify-and-export.md`` lists the files of each family, and
    what of a source is not in a store.

    Parameters
    ----------
    store
        Folder or URL of a sealed store.
    destination
        Folder to create; must not exist.
    progress
        As of `unistore.convert`.

    Raises
    ------
    InputError
        If an argument is invalid, or the destination exists, lies in the store, or is a URL.
    StoreError
        If the store cannot be read, or names files outside the destination; nothing is left behind.
    ConversionError
        If writing failed; nothing is left behind.
    """
    check = Arguments()
    check.path("store", store)
    check.path("destination", destination)
    check.raise_problems()
    target = Path(os.path.abspath(require_local_path(destination, "DST")))  # noqa: PTH100  does not resolve links
    opened = Store(store)
    _check_destination(target, local_path(store))
    files = _exporter(opened)
    try:
        with shown(progress) as told, temporary_folder(target, "unistore-export") as work:
            done = _write_all(opened, files(opened), work / "files", told)
            _check_destination(target, local_path(store))
            os.sync()
            (work / "files").rename(target)
    except OSError as error:
        raise ConversionError(refusal(named(error, target), "then export again: nothing was left")) from error
    return Exported(destination=str(target), family=opened.family, **done)


def _write_all(store: Store, files: Iterator[File], work: Path, progress: Progress) -> dict[str, int]:
    """Write all files; returns the counts of `Exported`."""
    names = FileNames(store.path)
    work.mkdir()
    sizes = whole(store, "sources/bytes").tolist()
    progress.begin("writing", sum(sizes))
    count = total = 0
    current = 0
    for file in _checked(store, files):
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
        count += 1
        total += path.stat().st_size
    progress.advance(sum(sizes[current:]))
    return {"sources": len(sizes), "files": count, "bytes": total}


def _checked(store: Store, files: Iterator[File]) -> Iterator[File]:
    """The same files, with the exceptions of `_store_errors`."""
    while True:
        with _store_errors(store):
            file = next(files, None)
        if file is None:
            return
        yield file


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


def _exporter(store: Store) -> Callable[[Store], Iterator[File]]:
    try:
        found: Callable[[Store], Iterator[File]] = get_family(store.family).part("export")
    except InputError as error:
        msg = f"{store.path}: cannot be exported: {error}"
        raise StoreError(msg) from error
    return found


def _check_destination(target: Path, store: Path | None) -> None:
    """Refuse a destination that exists or lies in the store."""
    if os.path.lexists(target):
        msg = f"{target}: exists; an export never writes into an existing folder, choose another place"
        raise InputError(msg)
    real = target.parent.resolve() / target.name
    if store is not None and real.is_relative_to(store.resolve()):
        msg = f"{target}: lies in the store; choose another place"
        raise InputError(msg)
