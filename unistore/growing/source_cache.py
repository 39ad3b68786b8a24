"""Stores of source files that a Dataset was given: found in a cache, converted once, or appended to."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from unistore.conversion.convert import (
    convert_with,
    detect_family,
    implied_family,
    make_converter,
    recorded_converter,
)
from unistore.conversion.finished import SourceChanges, source_changes
from unistore.conversion.lock import Lock, LockedError, owner_of
from unistore.conversion.plan import versions
from unistore.conversion.settings import Settings
from unistore.converters.common.faults import is_unreadable
from unistore.converters.detection import Detection
from unistore.converters.source_scan import NOTHING_LEFT
from unistore.errors import (
    ConversionError,
    InputError,
    StoreError,
    WritingError,
    first_few,
    printable,
    writing_failed,
    writing_fix,
)
from unistore.growing.append import append
from unistore.growing.cached_stores import FOLDER, cache_folder, forget_opened, record_opened
from unistore.growing.growth import growing
from unistore.growing.skipped_sources import still_skipped, with_mended
from unistore.progress import resolve_progress
from unistore.store.names import build_folder, growth_folder
from unistore.store.versions import open_stores
from unistore.system.arguments import wrong_argument
from unistore.system.extras import EXTRAS
from unistore.system.sizes import count_of
from unistore.system.types import JsonObject, PathLike
from unistore.zarr3.storage import FailedReadError

_PAUSE = 0.5  # Seconds between two looks at the lock of another process
# Settings that decide how a conversion runs, and not what it writes
_RUNS = frozenset({"workers", "scheduler", "memory", "wait"})
# Errors of a folder that cannot be a cache
_WRONG_PLACE = {errno.EACCES, errno.ENOENT, errno.ENOTDIR, errno.EPERM, errno.EROFS}
# Settings of a destination, which is the cache's own
_REFUSED = frozenset({"overwrite", "restart", "work", "part", "seal"})


def store_of_sources(sources: Sequence[PathLike], paths: Sequence[str], options: Mapping[str, Any]) -> str:
    """Return the path of the store of source files. It is converted unless it is in the cache.

    Processes that ask for the same sources and options at the same time wait for the one that converts.
    One line on standard error names the store.

    Parameters
    ----------
    sources : sequence of path
        Files, folders and patterns, as the user gave them. They determine which store it is.
    paths : sequence of str
        Absolute paths of the files and folders that these are now.
    options : mapping
        Options of the conversion, including ``family``.

    Raises
    ------
    InputError
        As in `unistore.convert`, and for options that a conversion into the cache does not have.
    ConversionError
        If the cache cannot be written.
    """
    request = _Request(sources, paths, options)
    try:
        found = request.find()
        if found is None:
            with _alone(cache_folder() / f"{request.name}.lock"):
                found = request.make()
    except WritingError as error:
        raise ConversionError(_cannot_write(error.error)) from error
    store, how = found
    request.record(store)
    left_out, _ = still_skipped(open_stores(str(store)).stores)
    without = f" without {first_few([*left_out])}, skipped because of errors" if left_out else ""
    _say(f"{request.shown}: {how}{without}: {store}")
    return str(store)


class _Request:
    """Sources and options whose store is wanted."""

    def __init__(self, sources: Sequence[PathLike], paths: Sequence[str], options: Mapping[str, Any]) -> None:
        names = {field.name for field in fields(Settings)}
        if refused := sorted(_REFUSED & options.keys()):
            fix = "run unistore convert SRC DST with this option, and open DST"
            message = f"{', '.join(refused)} cannot be used for a store in the cache"
            raise wrong_argument("convert", message, fix)
        chosen = dict(options)
        self._family: str | None = chosen.pop("family", None)
        self._settings = Settings(**{name: chosen.pop(name) for name in names & chosen.keys()})
        self._options = chosen
        self._paths = list(map(Path, paths))
        self._damage = ""  # of the newest store
        self.shown = ", ".join(os.fspath(source) for source in sources)
        self._places = [os.path.realpath(source) for source in sources]
        self._content = {name: value for name, value in options.items() if name not in _RUNS}
        if not self._settings.skips:
            self._content.pop("on_error", None)
        request: list[Any] = [self._places, self._content]
        if self._settings.skips and (missing := _missing_libraries()):
            request.append(
                missing
            )  # files that they read may be left out: once installed, all are asked again
        identity = json.dumps(request, sort_keys=True, default=str)
        key = hashlib.sha256(identity.encode("utf-8", "surrogateescape")).hexdigest()[:16]
        readable = re.sub(r"[^A-Za-z0-9_-]+", "-", Path(self._places[0]).name).strip("-")[:40]
        self.name = f"{readable or 'sources'}-{key}"

    def record(self, store: Path) -> None:
        """Record that a store of these sources is opened now."""
        record_opened(store, self._places, self._content)

    def find(self) -> tuple[Path, str] | None:
        """Return the newest store, ``"found"``. None: there is none, or sources have changed."""
        store = self._newest()
        # A conversion that was killed at its very end has a build folder beside its store, and continues
        if store is None or build_folder(store).exists():
            return None
        changes = self._changes(store)
        return None if changes is None or changes.are_any else (store, "found")

    def make(self) -> tuple[Path, str]:
        """Return the store and how it was made: appended to if sources only came, else converted."""
        store = self._newest() or self._path(1)
        if os.path.lexists(store) and not build_folder(store).exists():
            changes = self._changes(store)
            if changes is not None and not changes.are_any:  # another process has made it meanwhile
                return store, "found"
            if self._damage:
                _say(f"{self._damage}; to remove it: unistore cache remove {store.name}")
            if changes is not None and changes.new and not changes.changed and not changes.missing:
                appended = self._append(store, len(changes.new))
                if appended is not None:
                    return appended
            store = self._path(self._number(store) + 1)
        _say(f"{self.shown}: converting into {store}")
        family: str | Detection | None = self._family or implied_family(self._options)
        if family is None:
            with resolve_progress(progress=True) as callbacks:
                family = detect_family(self._paths, progress=callbacks)
        self.record(store)  # so that the sources of an unfinished conversion are known
        try:
            report = convert_with(
                self._settings, self._paths, store, family, self._options, progress=True, is_chosen=False
            )
        except InputError:
            if not store.exists() and not build_folder(store).exists():
                forget_opened(store)
            raise
        _say_notes(report.notes)
        return store, "converted"

    def _append(self, store: Path, new: int) -> tuple[Path, str] | None:
        """Append the new sources. None: they cannot be added to the store."""
        _say(f"{self.shown}: adding {count_of(new, 'source')} to {store}")
        settings = self._settings
        try:
            done = append(
                self._paths,
                store,
                workers=settings.workers,
                scheduler=settings.scheduler,
                memory=settings.memory,
                on_error=settings.on_error,
                progress=True,
            )
        except InputError as error:
            if is_unreadable(error):
                raise
            kinds = {problem.kind for problem in error.problems}
            if kinds == {NOTHING_LEFT}:
                return store, "found"
            if settings.skips and NOTHING_LEFT in kinds:
                return store, f"found; no source can be added ({str(error).splitlines()[0]})"
            if growth_folder(store).exists():
                with growing(store):  # removes what the append has left
                    pass
            reason = str(error).splitlines()[0]
            _say(f"{self.shown}: converting all sources, because some cannot be appended: {reason}")
            return None
        return store, f"version {done.version}"

    def _changes(self, store: Path) -> SourceChanges | None:
        """Return how the sources differ from those of a store.

        None: it is damaged or made with other options, or the sources cannot be listed. Conversion tells why.
        """
        try:
            opened = open_stores(str(store))
            first = opened.stores[0]
            root = first.read_root()
            if root.created_with != versions():
                return None
            options = root.options
            converter = recorded_converter(first.family, options)
            given = make_converter(first.family, self._options)
            # A scan adds to the excluded what others show, and what was given has its own store
            if converter.excluding(given.exclude) != given or self._split_list() != options.get("split_from"):
                return None
            skipped, added = still_skipped(opened.stores)
            converter = converter.excluding(tuple(name for name in converter.exclude if name not in added))
            changes = source_changes(str(store), converter, self._paths)
            return with_mended(changes, converter, self._paths, skipped) if skipped else changes
        except FailedReadError:
            raise
        except StoreError as error:
            self._damage = str(error)
        except InputError:
            pass
        return None

    def _split_list(self) -> JsonObject | None:
        rule = self._settings.rule
        return None if rule is None else rule.to_json().get("split_from")

    def _path(self, number: int) -> Path:
        return cache_folder() / f"{self.name}-{number}.zarr"

    @staticmethod
    def _number(path: Path) -> int:
        return int(path.name.removesuffix(".unistore-build").removesuffix(".zarr").rpartition("-")[2])

    def _newest(self) -> Path | None:
        # The number of an unfinished conversion counts, which the next call continues
        pattern = re.compile(rf"{re.escape(self.name)}-\d+\.zarr(\.unistore-build)?")
        try:
            names = [path.name for path in cache_folder().iterdir() if pattern.fullmatch(path.name)]
        except FileNotFoundError:
            return None
        except OSError as error:
            raise writing_failed(error, cache_folder()) from error
        numbers = [self._number(Path(name)) for name in names]
        return self._path(max(numbers)) if numbers else None


def _missing_libraries() -> list[str]:
    """Return the libraries of extras that are not installed."""
    return sorted({module for extra in EXTRAS.values() for module in extra.missing})


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold a lock, and wait for the process that has it."""
    lock = Lock(path)
    is_told = False
    while True:
        try:
            lock.__enter__()
            break
        except LockedError:
            if not is_told:
                _say(f"waiting: {owner_of(path) or 'another process'} is converting these sources")
            is_told = True
            time.sleep(_PAUSE)
    try:
        yield
    finally:
        lock.release()


def _cannot_write(error: OSError) -> str:
    """Return one line: the file in the cache, the reason, and where to put the cache."""
    fix = f"set {FOLDER} to a folder with space that you may write to"
    if error.errno not in _WRONG_PLACE:
        fix = f"{writing_fix(error)}, or {fix}"
    return f"{error.filename}: {error.strerror or error}. Fix: {fix}, then start again, which continues"


def _say_notes(notes: Sequence[str]) -> None:
    for note in notes:
        _say(f"note: {note}")


def _say(line: str) -> None:
    print(f"unistore: {printable(line)}", file=sys.stderr, flush=True)
