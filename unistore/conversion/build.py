"""The build folder of an unfinished conversion: locked while somebody works in it."""

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

__all__ = ["Build"]

SOURCES = 1000
"""Sources in one record of the journal."""


class Build(ABC):
    """Entered to convert to `destination`, left when done, failed or interrupted.

    In the folder stand ``spill/``, ``journal.jsonl``, ``lock``, and what the kind of destination needs.

    Leaving it by an `InputError` removes it: the sources have to be fixed, so nothing in it would be used
    again, unless the system could not read one, which may pass. Only what an earlier run left is kept unless
    this run took it up (`take_up`): a refused command never costs work that is done. Every other way out
    keeps it, for the same command to continue.

    Attributes
    ----------
    destination
        Where the store will be, as text.
    folder
        The build folder.
    spill
        Folder of what sources spill.
    local
        Folder of those files of the store that are written here: all, or the root document alone.
    ground
        Where in the file system it writes: never among sources.
    overlap
        What to say if it would.
    """

    ground: Path
    overlap: str

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
        """Refuse a destination that is taken.

        Raises
        ------
        InputError
            If something stands there that is not a store, or a store without `overwrite`.
        """

    @abstractmethod
    def move_into_place(self) -> None:
        """Give the sealed store its final name, replacing an older one."""

    def moved(self) -> dict[str, Any] | None:
        """What a run that was killed after giving the store its final name had done; else None."""
        sealed = self.journal.of("sealed")
        report: dict[str, Any] | None = sealed[-1]["report"] if sealed else None
        return report if report is not None and self._standing() == report["digest"] else None

    def _standing(self) -> str | None:
        """Digest of the store at the destination; None: there is none, or it is not the new one."""
        try:
            digest: str = Store(self.destination).attributes["seal"]["digest"]
        except StoreError:
            return None
        return digest

    def __enter__(self) -> Self:
        self._made = [parent for parent in self.folder.parents if not parent.exists()]
        check_plain(self.folder, apart=("old",))  # a store that is replaced may hold links
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
        """Open the journal: fresh, or to be continued."""
        path = self.folder / "journal.jsonl"
        if self._restart:
            path.unlink(missing_ok=True)
        self.journal = Journal(path)
        self._discard = self.journal.is_empty
        if self.journal.is_empty:
            self._forget()

    def _forget(self) -> None:
        """Remove what stands here without a record: it is of another conversion."""
        for folder in (self.spill, self.local):
            if folder.exists():
                shutil.rmtree(folder)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.journal.close()
            if self._discard and isinstance(error, InputError) and not _may_pass(error):
                with suppress(ConversionError):  # what is wrong with the sources is the error to tell
                    self.remove()
                    _remove_empty(*self._made)
        finally:
            self._lock.release()

    def take_up(self) -> None:
        """The sources are as they were and conversion goes on: an `InputError` from here on is final."""
        self._discard = True

    def remove(self) -> None:
        """Remove the folder: what it was for is done, or will not be.

        The journal goes last, so that a kill in between leaves a folder that the same command understands.

        Raises
        ------
        ConversionError
            If something of it cannot be removed.
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
        """Record what is converted, or compare with what the journal says was begun.

        Parameters
        ----------
        identity
            What must stay the same for the conversion to be continued.
        sources
            Of each source its name, and what must stay the same of it.
        paths
            Sources as they were given; recorded for whoever looks into the folder.

        Raises
        ------
        ConversionError
            Naming every difference.
        """
        begun = self.journal.of("begin")
        if not begun:
            given = [str(Path(path).absolute()) for path in paths]
            looks = iter(sources)
            while some := dict(islice(looks, SOURCES)):
                self.journal.append({"step": "sources", "of": some})
            self.journal.append({"step": "begin", "identity": identity, "paths": given})
            return
        before = (item for record in self.journal.each("sources") for item in record["of"].items())
        pairs = zip_longest(before, sources)
        if begun[0]["identity"] == identity and all(one == other for one, other in pairs):
            return
        looks_before = {
            name: look for record in self.journal.each("sources") for name, look in record["of"].items()
        }
        differences = _differences(
            {**begun[0]["identity"], "sources": looks_before}, {**identity, "sources": dict(sources)}
        )
        if differences:
            listed = "\n  ".join(differences[:20])
            msg = (
                f"{self.folder}: an unfinished conversion was begun from something else:\n  {listed}\n"
                "run the command as it was to continue it, or add --restart to start over"
            )
            raise ConversionError(msg)


def _remove_empty(*folders: Path) -> None:
    """Remove folders, innermost first, that nobody has put anything into."""
    with suppress(OSError):
        for folder in folders:
            folder.rmdir()


def _differences(before: Any, now: Any, where: str = "") -> list[str]:
    """Every leaf in which two JSON values differ, as ``"options.tile: 32 before, 64 now"``."""
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


def _may_pass(error: InputError) -> bool:
    """Whether a source could not be read that may be read by the same command later."""
    return any(problem.kind == "unreadable" for problem in error.problems)
