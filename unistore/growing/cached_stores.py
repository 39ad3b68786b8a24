"""List, pin and remove the stores in the cache of source files."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from unistore.conversion.lock import Lock, LockedError, owner_of
from unistore.errors import ConversionError, InputError, Problem, RunCommand, UnistoreError, writing_failed
from unistore.store.names import folder_beside
from unistore.store.versions import open_stores
from unistore.system.machine import absolute
from unistore.zarr3.durable import write_file

FOLDER = "UNISTORE_CACHE"

State: TypeAlias = Literal["finished", "unfinished", "damaged"]

# Files beside a store. The time of the record is when the store was last opened
_RECORD = "unistore-cached.json"
_PIN = "unistore-pinned"
# A store has the name of its request and a number
_STORE = r"(?P<request>[A-Za-z0-9_][A-Za-z0-9_-]{0,39}-[0-9a-f]{16})-[1-9][0-9]*\.zarr"
_MEMBER = re.compile(rf"(?P<store>{_STORE})(\.unistore-[a-z0-9.-]+)?")
_DAY = 86_400.0  # Seconds
_LOCKS = ("lock*", ".*.lock")  # of conversions and versions, of side tables


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedStore:
    """A store in the cache, finished or not.

    Attributes
    ----------
    name : str
        Name in the cache.
    path : str
        Path of the store.
    sources : tuple of str
        Absolute paths of its files, folders and patterns. Empty: they are not recorded.
    convert : mapping
        Options of its conversion.
    state : str
        ``"unfinished"``: its conversion or its removal did not end. ``"damaged"``: it cannot be opened.
    samples : int or None
        Number of rows of the sample table of its newest version. None: it is not finished.
    sample_table : str
        Name of that table: ``"episodes"``. Empty: it is not finished.
    bytes : int
        Size on disk, with added columns and staging folders.
    opened : float
        When a Dataset of its sources last opened it, in seconds since 1970.
    pinned : bool
        Whether it is never removed.
    in_use : str
        Process that converts these sources or changes the store. Empty: none.
    """

    name: str
    path: str
    sources: tuple[str, ...]
    convert: Mapping[str, Any]
    state: State
    samples: int | None
    sample_table: str
    bytes: int
    opened: float
    pinned: bool
    in_use: str


def cache_folder() -> Path:
    """Return the folder of the stores: ``$UNISTORE_CACHE/stores``, else ``~/.cache/unistore/stores``.

    Raises
    ------
    InputError
        If neither is known.
    """
    folder = os.environ.get(FOLDER)
    if not folder:
        try:
            folder = os.fspath(Path.home() / ".cache" / "unistore")
        except RuntimeError as error:
            message = "this user has no home folder, where the stores of source files are kept"
            fix = f"set {FOLDER} to a folder with space that you may write to"
            raise InputError.at("~", message, fix, kind="missing") from error
    return Path(absolute(folder), "stores")


def record_opened(store: Path, sources: Sequence[str], convert: Mapping[str, Any]) -> None:
    """Record the sources of a store, and that it is opened now. Does nothing if the cache is read-only."""
    record = folder_beside(store, _RECORD)
    with suppress(OSError, ConversionError):
        if record.is_file() and not record.is_symlink():
            os.utime(record, follow_symlinks=False)
            return
        document = json.dumps({"sources": list(sources), "convert": dict(convert)}, default=str)
        write_file(record.parent, record.name, [document.encode()])


def forget_opened(store: Path) -> None:
    """Remove the record of a store whose conversion failed."""
    with suppress(OSError):
        folder_beside(store, _RECORD).unlink()


def cached_stores() -> list[CachedStore]:
    """Return the stores in the cache, the last opened first. Links are ignored.

    Raises
    ------
    InputError
        If the cache cannot be listed.
    """
    folder = cache_folder()
    stores = [_describe(folder / name, members) for name, members in _members(folder).items()]
    return sorted(stores, key=lambda store: (-store.opened, store.name))


def pin_stores(names: Sequence[str], *, pinned: bool = True) -> list[CachedStore]:
    """Pin stores so that they are never removed, or unpin them.

    Parameters
    ----------
    names : sequence of str
        Names in the cache.
    pinned : bool, default True
        False: unpin them.

    Returns
    -------
    list of CachedStore
        The stores, as they were before.

    Raises
    ------
    InputError
        If there is no such store in the cache.
    ConversionError
        If the cache cannot be written.
    """
    stores = _named(names)
    for store in stores:
        pin = folder_beside(Path(store.path), _PIN)
        try:
            if pinned:
                os.close(os.open(pin, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666))
            else:
                pin.unlink(missing_ok=True)
        except OSError as error:
            raise writing_failed(error, pin) from error
    return stores


def remove_stores(names: Sequence[str]) -> list[CachedStore]:
    """Remove stores with their added columns and staging folders, and return them.

    If one of the names is an error, no store is removed.

    Raises
    ------
    InputError
        If there is no such store in the cache, it is pinned, or a process uses it.
    ConversionError
        If files cannot be removed, or a process begins to use a store meanwhile.
    """
    stores = _named(names)
    problems = [_kept_problem(store) for store in stores if store.pinned or store.in_use]
    if problems:
        raise InputError(problems)
    for store in stores:
        _remove(store)
    return stores


def remove_least_recent(*, older_than: float | None = None, limit: int | None = None) -> list[CachedStore]:
    """Remove stores, the least recently opened first, and return them.

    Pinned stores, and stores that a process uses, are kept.

    Parameters
    ----------
    older_than : float, optional
        Remove stores that were not opened for this many days. None: of any age.
    limit : int, optional
        Remove stores until the others have at most this many bytes. None: no limit.
    """
    stores = cached_stores()
    left = sum(store.bytes for store in stores)
    oldest = -float("inf") if older_than is None else time.time() - older_than * _DAY
    removed = []
    for store in reversed(stores):
        is_over = limit is not None and left > limit
        if store.pinned or store.in_use or not (is_over or store.opened < oldest):
            continue
        try:
            _remove(store)
        except LockedError:  # a process began to work on it meanwhile
            continue
        left -= store.bytes
        removed.append(store)
    return removed


def _members(folder: Path) -> dict[str, list[Path]]:
    """Return the folders and files of each store by its name. A store has a folder at least."""
    try:
        paths = sorted(folder.iterdir())
    except FileNotFoundError:
        return {}
    except OSError as error:
        fix = f"set {FOLDER} to the folder of the cache"
        raise InputError.at(
            str(folder), f"cannot be listed: {error.strerror}", fix, kind="unreadable"
        ) from error
    members: dict[str, list[Path]] = {}
    for path in paths:
        match = _MEMBER.fullmatch(path.name)
        if match is not None and not path.is_symlink():
            members.setdefault(match["store"], []).append(path)
    return {name: found for name, found in members.items() if any(path.is_dir() for path in found)}


def _describe(store: Path, members: Sequence[Path]) -> CachedStore:
    sources, convert = _read_record(folder_beside(store, _RECORD))
    state: State = "unfinished"
    samples = None
    sample_table = ""
    if store in members:
        try:
            opened = open_stores(str(store))
            samples, sample_table = sum(opened.counts), opened.stores[0].sample_table
            state = "finished"
        except (UnistoreError, OSError):
            state = "damaged"
    return CachedStore(
        name=store.name,
        path=str(store),
        sources=sources,
        convert=convert,
        state=state,
        samples=samples,
        sample_table=sample_table,
        bytes=sum(map(_bytes_in, members)),
        opened=_opened(store, members),
        pinned=folder_beside(store, _PIN) in members,
        in_use=next(_owners(store, members), ""),
    )


def _read_record(record: Path) -> tuple[tuple[str, ...], Mapping[str, Any]]:
    try:
        descriptor = os.open(record, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            document = json.load(file)
        sources = document["sources"]
        convert = document["convert"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return (), {}
    is_valid = isinstance(sources, list) and isinstance(convert, dict)
    return (tuple(map(str, sources)), convert) if is_valid else ((), {})


def _opened(store: Path, members: Sequence[Path]) -> float:
    # A store of an earlier release has no record
    record = folder_beside(store, _RECORD)
    for path in (record, store, *members):
        with suppress(OSError):
            return path.lstat().st_mtime
    return 0.0


def _owners(store: Path, members: Sequence[Path]) -> Iterator[str]:
    """Yield the processes that hold locks of a store."""
    locks = [_request_lock(store)]
    for folder in members:
        if folder != store and folder.is_dir():
            locks += [path for pattern in _LOCKS for path in folder.glob(pattern)]
    for path in locks:
        if path.is_file() and not path.is_symlink() and (owner := owner_of(path)):
            yield owner


def _request_lock(store: Path) -> Path:
    # All stores of one request share the lock of its conversion
    return store.parent / f"{store.name.rpartition('-')[0]}.lock"


def _bytes_in(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder that are no links."""
    total = 0
    todo = [os.fspath(path)]
    with suppress(OSError):
        if not path.is_dir():
            return path.lstat().st_size
    while todo:
        with suppress(OSError), os.scandir(todo.pop()) as entries:  # others may remove files meanwhile
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    todo.append(entry.path)
                elif entry.is_file(follow_symlinks=False):
                    total += entry.stat(follow_symlinks=False).st_size
    return total


def _named(names: Sequence[str]) -> list[CachedStore]:
    """Return the stores of these names, each once. A name is compared with the listing, and never opened."""
    folder = cache_folder()
    members = _members(folder)
    distinct = list(dict.fromkeys(names))
    fix = RunCommand(("cache", "list"), "to see the names")
    message = f"is not the name of a store in {folder}"
    problems = [Problem(name, message, fix, "missing") for name in distinct if name not in members]
    if problems:
        raise InputError(problems)
    return [_describe(folder / name, members[name]) for name in distinct]


def _kept_problem(store: CachedStore) -> Problem:
    if store.pinned:
        unpin = RunCommand(("cache", "pin", store.name, "--unpin"), "to allow its removal")
        return Problem(store.name, "is pinned", unpin, "option")
    return Problem(store.name, f"{store.in_use} is using it", "wait for it, or stop it", "option")


def _remove(store: CachedStore) -> None:
    """Remove a store and all beside it, while no process converts its sources."""
    path = Path(store.path)
    with Lock(_request_lock(path)):
        members = _members(path.parent).get(store.name, [])
        # Renamed first: a removal that was killed leaves no half store for a Dataset to find. The name is
        # new, so that it is no link that was put there
        leaving = folder_beside(path, f"unistore-removed-{secrets.token_hex(4)}")
        try:
            leaving.mkdir()
            for member in members:
                if member.is_dir():
                    member.rename(leaving / member.name)
            shutil.rmtree(leaving)
            for member in members:
                member.unlink(missing_ok=True)
        except OSError as error:
            msg = f"{error.filename or path}: cannot be removed: {error.strerror or error}"
            raise ConversionError(msg) from error
