"""The build folder of an unfinished conversion, locked while a process works in it."""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice, zip_longest
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from unistore.conversion.journal import Journal
from unistore.conversion.lock import Lock
from unistore.conversion.own_folder import check_own, check_plain
from unistore.conversion.target import Target
from unistore.errors import ConversionError, InputError, StoreError
from unistore.store.reader import Store
from unistore.zarr3.durable import sync_folder

SOURCES_PER_RECORD = 1000
"""Sources in one record of the journal."""


class Build(ABC):
    """Context manager of the build folder: entered to convert to `destination`.

    The folder holds ``spill/``, ``journal.jsonl``, ``lock``, and what the kind of destination needs.

    Leaving the context normally, or by an error other than `InputError`, keeps the folder, so that the same
    command can continue. An `InputError` removes it, because sources that must be fixed invalidate the work;
    not if a file could not be read, which may be transient (unless sources were left out for it, which a
    continued run would leave out again), and not if an earlier run made the folder and
    `discard_on_input_error` was not called yet: a refused command never discards finished work.

    Attributes
    ----------
    destination
        Path or URL of the store.
    folder
        The build folder.
    spill
        Folder of spilled rows.
    local
        Folder of the store's files that are written locally: all, or only the root document.
    output_path
        Path that must not overlap with a source.
    overlap_message
        Error message if it does.
    """

    output_path: Path
    overlap_message: str

    def __init__(self, destination: str, folder: Path, *, local: str, restart: bool) -> None:
        self.destination = destination
        self.folder = folder
        self.spill = folder / "spill"
        self.local = folder / local
        self._restart = restart
        self._lock = Lock(folder / "lock")

    @property
    @abstractmethod
    def target(self) -> Target:
        """Where the files of the store are written."""

    @abstractmethod
    def check(self, *, overwrite: bool) -> None:
        """Refuse a destination that exists already.

        Raises
        ------
        InputError
            If it is not a store, or `overwrite` is False.
        """

    @abstractmethod
    def move_into_place(self) -> None:
        """Give the sealed store its final name, replacing an older one."""

    def finished_report(self) -> dict[str, Any] | None:
        """Report of an earlier run that was killed after it had moved the store into place; else None."""
        sealed = self.journal.of("sealed")
        report: dict[str, Any] | None = sealed[-1]["report"] if sealed else None
        return report if report is not None and self._destination_digest() == report["digest"] else None

    def _destination_digest(self) -> str | None:
        """Seal digest of the store at the destination; None if there is none, or it is not the new one."""
        try:
            digest: str = Store(self.destination).attributes["seal"]["digest"]
        except StoreError:
            return None
        return digest

    def __enter__(self) -> Self:
        self._made = [parent for parent in self.folder.parents if not parent.exists()]
        check_plain(self.folder, ignore=("old",))  # a store that is being replaced may hold links
        try:
            self._lock.__enter__()
        except OSError:
            _remove_empty(self.folder, *self._made)
            raise
        try:
            check_own(self.folder, self.folder / "lock")
            self._open()
        except BaseException:
            self._lock.release()
            raise
        return self

    def _open(self) -> None:
        """Open the journal; without records, clear the folder."""
        path = self.folder / "journal.jsonl"
        if self._restart:
            path.unlink(missing_ok=True)
        self.journal = Journal(path)
        self._discard = self.journal.is_empty
        if self.journal.is_empty:
            self._clear_unrecorded()

    def _clear_unrecorded(self) -> None:
        """Remove files that no journal records: they are of another conversion."""
        for folder in (self.spill, self.local):
            if folder.exists():
                shutil.rmtree(folder)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.journal.close()
            if self._discard and isinstance(error, InputError) and not self._may_succeed_later(error):
                with suppress(ConversionError):  # report the problems of the sources instead
                    self.remove()
                    _remove_empty(*self._made)
        finally:
            self._lock.release()

    def _may_succeed_later(self, error: InputError) -> bool:
        """Whether the same command may succeed: a source could not be read, and none was left out for it."""
        return _is_transient(error) and not self.journal.of("skip")

    def discard_on_input_error(self) -> None:
        """Confirm that an earlier run is continued: an `InputError` from here on removes the folder."""
        self._discard = True

    def remove(self) -> None:
        """Remove the folder.

        The journal is removed last, so that the same command can continue after a kill.

        Raises
        ------
        ConversionError
            If a file cannot be removed.
        """
        try:
            self._remove()
        except OSError as error:
            finished = f"{self.destination}: the store is finished, but " if self.journal.of("sealed") else ""
            msg = (
                f"{finished}{error.filename or self.folder}: cannot be removed ({error.strerror or error}); "
                f"nothing in {self.folder} is needed any more: fix the cause, then remove that folder"
            )
            raise ConversionError(msg) from error

    def _remove(self) -> None:
        journal, lock = self.journal.path, self.folder / "lock"
        for path in self.folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path not in (journal, lock):
                path.unlink(missing_ok=True)
        journal.unlink()
        self._lock.release()
        _remove_empty(self.folder)
        sync_folder(self.folder.parent)

    def begin(
        self, identity: dict[str, Any], sources: Sequence[tuple[str, Any]], paths: Sequence[Path]
    ) -> None:
        """Record what is converted, or compare it with the record of the run that is continued.

        Parameters
        ----------
        identity
            Options and versions that must be the same to continue.
        sources
            Name of each source, and the state of its files that must be the same to continue.
        paths
            Sources as they were given; only recorded, for the report on unfinished conversions.

        Raises
        ------
        ConversionError
            Naming every difference.
        """
        begun = self.journal.of("begin")
        if not begun:
            given = [str(Path(path).absolute()) for path in paths]
            states = iter(sources)
            while some := dict(islice(states, SOURCES_PER_RECORD)):
                self.journal.append({"step": "sources", "of": some})
            self.journal.append({"step": "begin", "identity": identity, "paths": given})
            return
        before = (item for record in self.journal.each("sources") for item in record["of"].items())
        pairs = zip_longest(before, sources)
        if begun[0]["identity"] == identity and all(one == other for one, other in pairs):
            return
        states_before = {
            name: state for record in self.journal.each("sources") for name, state in record["of"].items()
        }
        differences = _differences(
            {**begun[0]["identity"], "sources": states_before}, {**identity, "sources": dict(sources)}
        )
        if differences:
            listed = "\n  ".join(differences[:20])
            msg = (
                f"{self.folder}: started with other sources or options:\n  {listed}\n"
                "run the same command as before to continue it, or add --restart to start over"
            )
            raise ConversionError(msg)


def _remove_empty(*folders: Path) -> None:
    """Remove folders, innermost first, until one is not empty."""
    with suppress(OSError):
        for folder in folders:
            folder.rmdir()


def _differences(before: Any, now: Any, where: str = "") -> list[str]:
    """Differences between two JSON values: ``"options.tile: 32 before, 64 now"``."""
    if isinstance(before, dict) and isinstance(now, dict):
        return [
            line
            for key in sorted({*before, *now})
            for line in _differences(before.get(key), now.get(key), f"{where}.{key}" if where else key)
        ]
    if before == now:
        return []
    return [f"{where}: {_short(before)} before, {_short(now)} now"]


def _short(value: Any) -> str:
    text = "absent" if value is None else str(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


def _is_transient(error: InputError) -> bool:
    """Whether the same command may succeed later: a source could not be read."""
    return any(problem.kind == "unreadable" for problem in error.problems)
