"""Export a store: every file under a temporary name first, all of them or nothing at the destination."""

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
from unistore.exporting.naming import Names
from unistore.exporting.workplace import workplace
from unistore.exporting.writing import write
from unistore.remote.storage import local_path
from unistore.remote.url import local_only
from unistore.schemas.indices import whole
from unistore.store.reader import Store
from unistore.system.arguments import Arguments
from unistore.system.progress import SILENT, Progress

__all__ = ["Exported", "export"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What an export wrote: how many files and bytes, of how many sources, in which layout."""

    destination: str
    family: str
    sources: int
    files: int
    bytes: int


def export(
    store: str | os.PathLike[str], destination: str | os.PathLike[str], *, progress: Progress = SILENT
) -> Exported:
    """Give a store back as files of its source family's main layout.

    Values are those of the sources, exactly; see ``docs/verify-and-export.md`` for what each family's files
    are and what of a source a store does not hold.

    Parameters
    ----------
    store
        Folder or URL of a sealed store.
    destination
        Folder to make; must not exist.
    progress
        Told how far it is.

    Raises
    ------
    InputError
        If an argument has a value that it cannot have, or the destination exists, lies in the store, or is a
        URL.
    StoreError
        If the store cannot be read or names files that would lie elsewhere; nothing is left behind.
    ConversionError
        If writing failed; nothing is left behind.
    """
    check = Arguments()
    check.path("store", store)
    check.path("destination", destination)
    check.settle()
    target = Path(os.path.abspath(local_only(destination, "DST")))  # noqa: PTH100  keeps links
    opened = Store(store)
    _check(target, local_path(store))
    files = _exporter(opened)
    try:
        with workplace(target, "unistore-export") as work:
            done = _write_all(opened, files(opened), work / "files", progress)
            _check(target, local_path(store))
            os.sync()
            (work / "files").rename(target)
    except OSError as error:
        raise ConversionError(refusal(named(error, target), "then export again: nothing was left")) from error
    return Exported(destination=str(target), family=opened.family, **done)


def _write_all(store: Store, files: Iterator[File], work: Path, progress: Progress) -> dict[str, int]:
    """Write every file; returns the counts of `Exported`."""
    names = Names(store.path)
    work.mkdir()
    sizes = whole(store, "sources/bytes").tolist()
    progress.begin("writing", sum(sizes))
    count = total = 0
    current = 0
    for file in _described(store, files):
        if file.source != current:
            progress.advance(sum(sizes[current : file.source]))
        current = file.source
        path = work.joinpath(*names.take(file.name))
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with _agreeing(store):
                write(file, path)
        except OSError as error:
            raise named(error, path) from error
        count += 1
        total += path.stat().st_size
    progress.advance(sum(sizes[current:]))
    return {"sources": len(sizes), "files": count, "bytes": total}


def _described(store: Store, files: Iterator[File]) -> Iterator[File]:
    """The files that a store describes."""
    while True:
        with _agreeing(store):
            file = next(files, None)
        if file is None:
            return
        yield file


@contextmanager
def _agreeing(store: Store) -> Iterator[None]:
    """Tell a description of the sources that arrays contradict: options, attributes, texts are free JSON."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        told = f"{type(error).__name__}: {error}".rstrip(": ")
        msg = (
            f"{store.path}: cannot be exported: what it says of its sources contradicts its arrays ({told}); "
            f"run 'unistore verify {store.path}'"
        )
        raise StoreError(msg) from error


def _exporter(store: Store) -> Callable[[Store], Iterator[File]]:
    try:
        found: Callable[[Store], Iterator[File]] = get_family(store.family).part("export")
    except InputError as error:
        msg = f"{store.path}: cannot be exported: {error}"
        raise StoreError(msg) from error
    return found


def _check(target: Path, store: Path | None) -> None:
    """Refuse a destination that is taken, or that lies in the store."""
    if os.path.lexists(target):
        msg = f"{target}: exists; an export never writes into what is there, choose another place"
        raise InputError(msg)
    real = target.parent.resolve() / target.name
    if store is not None and real.is_relative_to(store.resolve()):
        msg = f"{target}: lies in the store; choose another place"
        raise InputError(msg)
