"""The build folder of an unfinished conversion, locked while a process works in it, and that of a folder."""

from __future__ import annotations

import os
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from itertools import islice, zip_longest
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self

from unistore.conversion.journal import BEGIN, BeginRecord, Journal, PartJournal, journals
from unistore.conversion.lock import Lock, check_own, check_plain, owner_of
from unistore.conversion.parts import SEALING, JobPart, check_begun_parts, sealing_part
from unistore.conversion.report import Report
from unistore.converters.files.paths import real_path
from unistore.errors import (
    AddOptions,
    ConversionError,
    Fix,
    InputError,
    Problem,
    StoreError,
)
from unistore.store.names import build_folder
from unistore.system.progress import COUNTS
from unistore.system.types import JsonObject, PathLike
from unistore.zarr3.durable import Folder, Target, is_there, sync_folder
from unistore.zarr3.storage import FailedReadError

if TYPE_CHECKING:
    from unistore.schemas.recorded_rules import Seal

SEALED = "sealed"  # Step of the journal
TURN_MS = 200  # Between attempts of a part to do alone what is done once
SOURCES_PER_RECORD = 1000  # Sources in one record of the journal


def wait_turn() -> None:
    """Wait for another job, and count the time."""
    COUNTS["waited_ms"] += TURN_MS
    time.sleep(TURN_MS / 1000)


class Build(ABC):
    """Context manager of the build folder, entered to convert to `destination`.

    Leaving it keeps the folder, so that the same command can continue. Only an `InputError` removes it,
    because sources that must be fixed invalidate the work. The folder is kept nevertheless if a file could
    not be read, which may be transient, unless sources were skipped for it: a continued run would skip them
    again. It is also kept if an earlier run made it, until `discard_on_input_error` is called, so that a
    wrong command never discards finished work.
    """

    output_path: Path
    overlap_message: str
    overlap_fix: str
    sources: Sequence[str] = ()  # as they were given, for messages
    in_bucket: ClassVar[bool] = False  # whether the store is written to an object store

    def __init__(
        self, destination: str, folder: Path, *, local: str, restart: bool, part: JobPart | None = None
    ) -> None:
        self.destination = destination
        self.folder = folder
        self.spill = folder / "spill"
        self.local = folder / local
        self.part = part
        if part is SEALING:
            self.part = sealing_part(folder, is_sealed=is_store(destination))
        self.suffix = "" if self.part is None else self.part.suffix
        self._restart = restart
        self._lock_path = folder / f"lock{self.suffix}"
        self._lock = Lock(self._lock_path)

    @property
    @abstractmethod
    def target(self) -> Target:
        """Return where the files of the store are written."""

    @abstractmethod
    def check(self, *, overwrite: bool) -> None:
        """Refuse a destination that exists already."""

    def check_early(self, *, overwrite: bool) -> None:
        """Refuse a destination before sources are scanned: a part may be late, the store that of others."""
        if self.folder.exists() or (self.part is not None and is_store(self.destination)):
            return
        self.check(overwrite=overwrite)

    def check_no_overlap(self, paths: Sequence[Path]) -> None:
        """Refuse a destination that is inside a source, and a source that is inside the destination."""
        target = self.output_path.resolve()
        for path in map(real_path, paths):
            if path == target or target in path.parents or path in target.parents:
                message = f"{self.overlap_message} {path}"
                raise InputError.at(str(self.output_path), message, self.overlap_fix, "target")

    @abstractmethod
    def move_into_place(self) -> None:
        """Give the sealed store its final name, replacing an older one."""

    def finish(self, report: Report) -> None:
        """Record the report of the sealed store, move it into place, and remove the folder."""
        self.journal.append({"step": SEALED, "report": asdict(report)})
        self.move_into_place()
        self.remove()

    def finished_before(self) -> Report | None:
        """Return the report of an earlier run that was killed after its store was in place, and clean up."""
        sealed = self.journal.of(SEALED)
        if not sealed or self._destination_digest() != sealed[-1]["report"]["digest"]:
            return None
        self.remove()
        return Report.from_json(sealed[-1]["report"])

    def _destination_digest(self) -> str | None:
        # None: there is no store, or it is not the new one
        try:
            return self.seal().digest
        except StoreError:
            return None

    def seal(self) -> Seal:
        """Return the seal of the store at the destination."""
        from unistore.store.reader import Store

        return Store(self.destination).root.seal

    def __enter__(self) -> Self:
        self._made = [parent for parent in self.folder.parents if not parent.exists()]
        check_plain(self.folder, ignore=("old",))  # a store that is being replaced may hold links
        while not self._enter_folder():
            self._lock = Lock(self._lock_path)
        try:
            with self.turn():
                self._open()
        except BaseException:
            self._lock.release()
            raise
        return self

    def _enter_folder(self) -> bool:
        """Lock the folder, or return False if the part that sealed the store removed the lock meanwhile."""
        try:
            self._lock.__enter__()
        except OSError:
            _remove_empty(self.folder, *self._made)
            raise
        try:
            check_own(self.folder, self._lock_path)
        except FileNotFoundError:
            self._lock.release()
            return False
        except BaseException:
            self._lock.release()
            raise
        return True

    def _open(self) -> None:
        check_begun_parts(self.folder, self.part)
        path = self.folder / f"journal{self.suffix}.jsonl"
        if self._restart:
            path.unlink(missing_ok=True)
        is_first = not journals(self.folder)
        self.journal = Journal(path) if self.part is None else PartJournal(path)
        self._discard = is_first or (self.journal.is_empty and self.part is None)
        if self._discard:
            self._clear_unrecorded()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Do alone what parts must not do at once. A conversion without parts is alone anyway."""
        if self.part is None:
            yield
            return
        lock = Lock(self.folder / "lock")
        while not lock.take():
            check_begun_parts(self.folder, self.part)
            wait_turn()
        try:
            yield
        finally:
            lock.release()
            _remove_empty(self.folder)

    @contextmanager
    def reading(self, part: JobPart) -> Iterator[bool]:
        """Read the sources of a part, or yield False while another job does."""
        lock = Lock(self.folder / f"lock{part.suffix}-reading")
        is_free = lock.take()
        try:
            yield is_free
        finally:
            lock.release()

    def parts_at_work(self) -> list[int]:
        """Return the numbers of other parts that are at work."""
        parts = self.part.all() if self.part else []
        paths = {part.number: self.folder / f"lock{part.suffix}" for part in parts if part != self.part}
        return sorted(number for number, path in paths.items() if owner_of(path))

    def leave(self) -> None:
        """End this part in its turn, so that the last of the others sees it."""
        self._lock.release()

    @property
    def begun(self) -> BeginRecord | None:
        """The record of the first part that began. None: none has."""
        return next(map(BeginRecord.from_json, self.journal.each(BEGIN)), None)

    @property
    def scanned(self) -> int:
        """Return when the first scan of the sources began, in ns since 1970, 0 if that is not recorded."""
        return 0 if self.begun is None else self.begun.scanned

    @property
    def is_begun(self) -> bool:
        """Return whether any part has begun."""
        return self.begun is not None

    def withdraw(self) -> None:
        """End what was not begun, in its turn: parts that wait for theirs keep the folder."""
        if self.parts_at_work():
            self.journal.path.unlink(missing_ok=True)
        else:
            self.remove()

    @property
    def is_removed(self) -> bool:
        """Return whether another part has sealed the store, and removed the folder."""
        return not self.journal.path.exists()

    def _clear_unrecorded(self) -> None:
        # Files that no journal records are of another conversion
        for folder in (self.spill, self.local):
            if folder.exists():
                shutil.rmtree(folder)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.journal.close()
            is_alone = len(journals(self.folder)) == 1
            if self._discard and is_alone and isinstance(error, InputError) and not self._may_succeed(error):
                with suppress(ConversionError):  # report the problems of the sources instead
                    self.remove()
                    _remove_empty(*self._made)
        finally:
            self._lock.release()

    def _may_succeed(self, error: InputError) -> bool:
        # The same command may succeed: a source could not be read, and none was left out for it
        is_transient = any(problem.kind == "unreadable" for problem in error.problems)
        return is_transient and not self.journal.of("skip")

    def discard_on_input_error(self) -> None:
        """Confirm that an earlier run is continued: an `InputError` from here on removes the folder."""
        self._discard = self._discard or self.part is None

    def remove(self) -> None:
        """Remove the folder."""
        # The journal goes last, so that the same command can continue after a kill
        try:
            self._remove()
        except OSError as error:
            finished = f"{self.destination}: the store is finished, but " if self.journal.of(SEALED) else ""
            msg = (
                f"{finished}{error.filename or self.folder}: cannot be removed: {error.strerror or error}. "
                f"Fix: remove the folder {self.folder} yourself, which is not needed any more"
            )
            raise ConversionError(msg) from error

    def _remove(self) -> None:
        journal = self.journal.path
        kept = (journal, self.folder / "lock", self._lock_path)
        for path in self.folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path not in kept:
                path.unlink(missing_ok=True)
        journal.unlink(missing_ok=True)  # of a part that another one took for dead
        self._lock.release()
        _remove_empty(self.folder)
        sync_folder(self.folder.parent)

    def begin(
        self,
        identity: JsonObject,  # options and versions that must be the same to continue
        # name of each source, and the state of its files that must be the same to continue
        sources: Sequence[tuple[str, Any]],
        # sources as they were given; only recorded, for the report on unfinished conversions
        paths: Sequence[Path],
        scanned: int,  # when the scan of the sources began, in ns since 1970
    ) -> None:
        """Record what is converted, or compare it with the record of the run that is continued."""
        begun = self.begun
        if begun is None:
            absolute_paths = [str(Path(path).absolute()) for path in paths]
            states = iter(sources)
            while states_of_record := dict(islice(states, SOURCES_PER_RECORD)):
                self.journal.append({"step": "sources", "of": states_of_record})
            begin = BeginRecord(identity=identity, paths=absolute_paths, scanned=scanned)
            self.journal.append(begin.to_json())
            return
        pairs = zip_longest(self._recorded_sources(), sources)
        if begun.identity == identity and all(recorded == other for recorded, other in pairs):
            return
        before = {**begun.identity, "sources": dict(self._recorded_sources())}
        changed = differences(before, {**identity, "sources": dict(sources)})
        if changed:
            lines = "\n  ".join(changed[:20])
            msg = (
                f"{self.folder}: an unfinished conversion used other sources or options:\n  {lines}\n"
                "Fix: run the earlier command to continue it, or add --restart to start over"
            )
            raise ConversionError(msg)

    def _recorded_sources(self) -> Iterator[tuple[str, Any]]:
        for record in self.journal.each("sources"):
            yield from record["of"].items()


def _remove_empty(*folders: Path) -> None:
    with suppress(OSError):
        for folder in folders:
            folder.rmdir()


def differences(before: Any, now: Any, where: str = "") -> list[str]:
    """Return how two JSON documents differ, a line a member: ``"options.tile: 32 before, 64 now"``."""
    if isinstance(before, dict) and isinstance(now, dict):
        lines = []
        for key in sorted({*before, *now}):
            inner = f"{where}.{key}" if where else key
            lines += differences(before.get(key), now.get(key), inner)
        return lines
    if before == now:
        return []
    return [f"{where}: {_short(before)} before, {_short(now)} now"]


def _short(value: Any) -> str:
    text = "absent" if value is None else str(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


class FolderBuild(Build):
    """Build folder of a conversion to a folder.

    ``store/`` becomes the destination; ``old/`` exists while a store is being replaced.
    """

    overlap_message = "overlaps with the source"
    overlap_fix = "choose another destination"

    def __init__(self, destination: Path, *, restart: bool = False, part: JobPart | None = None) -> None:
        folder = build_folder(destination)
        super().__init__(str(destination), folder, local="store", restart=restart, part=part)
        self.output_path = destination
        self._old = self.folder / "old"

    @property
    def target(self) -> Folder:
        """Return the folder that becomes the destination."""
        return Folder(self.local)

    def check(self, *, overwrite: bool) -> None:
        """Refuse a destination that exists, unless it is an empty folder."""
        destination = self.output_path
        if not os.path.lexists(destination):
            return
        if destination.is_symlink():
            message = "is a link, which unistore does not replace"
            raise InputError.at(str(destination), message, "give the path that it points to", "target")
        if destination.is_dir() and not any(destination.iterdir()):
            return
        if is_store(destination):
            if overwrite:
                return
            raise FinishedStoreError(str(destination), self.sources)
        from unistore.store.versions import find_grown

        if find_grown(str(destination)) is not None:
            raise FinishedStoreError(str(destination), self.sources, is_grown=True)
        message = "exists and is not a unistore store, so unistore does not touch it"
        raise InputError.at(str(destination), message, "choose another path", "target")

    def move_into_place(self) -> None:
        """Rename the sealed store to the destination, moving an older one to ``old/`` first."""
        if is_there(self.output_path):
            self.output_path.rename(self._old)
        self.local.rename(self.output_path)
        sync_folder(self.folder)
        sync_folder(self.output_path.parent)

    def _destination_digest(self) -> str | None:
        return None if is_there(self.local) else super()._destination_digest()

    def _open(self) -> None:
        self._recover()
        super()._open()

    def _recover(self) -> None:
        # A kill may have come between the two renames
        if not is_there(self._old):
            return
        if not os.path.lexists(self.output_path):
            self._old.rename(self.output_path)
        elif is_store(self.output_path):
            shutil.rmtree(self._old)
        else:
            msg = (
                f"{self._old}: this is the store that an earlier run was replacing, and meanwhile something "
                f"else was written to {self.output_path}. Fix: move one of them away"
            )
            raise ConversionError(msg)


class FinishedStoreError(InputError):
    """The destination is a finished store.

    Attributes
    ----------
    destination
        The store.
    sources
        What was given to convert, as it was given.
    """

    def __init__(self, destination: str, sources: Sequence[str], *, is_grown: bool = False) -> None:
        self.destination = destination
        self.sources = sources
        self.is_grown = is_grown
        message = "a finished store exists here"
        fix: Fix = AddOptions(("--overwrite",), "to replace it")
        if is_grown:
            message = "a versioned store exists here"
            fix = "choose another path, because no conversion replaces a versioned store"
        super().__init__(Problem(destination, message, fix, "exists"))

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), is_grown=self.is_grown), (self.destination, self.sources)


def is_store(path: PathLike) -> bool:
    """Return whether there is a sealed store at a path or URL. A read that fails is raised."""
    from unistore.store.reader import Store

    try:
        Store(path)
    except FailedReadError:
        raise
    except StoreError:
        return False
    return True
