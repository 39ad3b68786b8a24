"""The build folder of an unfinished conversion: beside the destination, locked while somebody works in it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from unistore.errors import ConversionError, InputError, StoreError
from unistore.execute.journal import Journal, sync_folder
from unistore.execute.lock import Lock
from unistore.store.names import build_folder
from unistore.store.reader import Store

__all__ = ["Build", "check_destination"]


class Build:
    """Entered to convert to `destination`, left when done, failed or interrupted.

    What stands in the folder: ``store/`` (the tree that becomes the destination), ``spill/``,
    ``journal.jsonl``, ``lock``, and ``old/`` for the moment in which a store is replaced.

    Leaving it by an `InputError` removes it: the sources have to be mended, so nothing in it would be used
    again. Only what an earlier run left is kept unless this run took it up (`take_up`): a refused command
    never costs work that is done. Every other way out keeps it, for the same command to continue.
    """

    def __init__(self, destination: Path, *, restart: bool = False) -> None:
        self.destination = destination
        self.folder = build_folder(destination)
        self.store = self.folder / "store"
        self.spill = self.folder / "spill"
        self._old = self.folder / "old"
        self._restart = restart
        self._lock = Lock(self.folder / "lock")

    def __enter__(self) -> Self:
        self._made = [parent for parent in self.folder.parents if not parent.exists()]
        try:
            self._lock.__enter__()
        except OSError:
            _remove_empty(self.folder, *self._made)
            raise
        try:
            self._open()
        except BaseException:
            self._lock.release()
            raise
        return self

    def _open(self) -> None:
        """Recover from a kill between two renames, and open the journal: fresh, or to be continued."""
        if self._old.exists():
            if not os.path.lexists(self.destination):
                self._old.rename(self.destination)
            elif _is_store(self.destination):
                shutil.rmtree(self._old)
            else:
                msg = (
                    f"{self._old}: the store that was to be replaced, and {self.destination} holds something "
                    "else now: move one of them away"
                )
                raise ConversionError(msg)
        path = self.folder / "journal.jsonl"
        if self._restart:
            path.unlink(missing_ok=True)
        self.journal = Journal(path)
        self._discard = not self.journal.records
        if not self.journal.records:  # whatever stands here without a record is of another conversion
            for folder in (self.store, self.spill):
                if folder.exists():
                    shutil.rmtree(folder)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.journal.close()
            if self._discard and isinstance(error, InputError):
                self.remove()
                _remove_empty(*self._made)
        finally:
            self._lock.release()

    def take_up(self) -> None:
        """The sources are as they were and conversion goes on: an `InputError` from here on is final."""
        self._discard = True

    def move_into_place(self) -> None:
        """Give the sealed store its final name, setting an older one aside first."""
        if self.destination.exists():
            self.destination.rename(self._old)
        self.store.rename(self.destination)
        sync_folder(self.folder)
        sync_folder(self.destination.parent)

    def remove(self) -> None:
        """Remove the folder: what it was for is done, or will not be.

        The journal goes last, so that a kill in between leaves a folder that the same command understands.
        """
        journal, lock = self.journal.path, self.folder / "lock"
        for path in self.folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path not in (journal, lock):
                path.unlink(missing_ok=True)
        journal.unlink()
        self._lock.release()
        _remove_empty(self.folder)
        sync_folder(self.destination.parent)

    def moved(self) -> dict[str, Any] | None:
        """What a run that was killed after giving the store its final name had done; else None."""
        sealed = self.journal.of("sealed")
        if not sealed or self.store.exists() or not self.destination.exists():
            return None
        report: dict[str, Any] = sealed[-1]["report"]
        try:
            digest = Store(self.destination).attributes["seal"]["digest"]
        except StoreError:
            return None
        return report if digest == report["digest"] else None

    def begin(self, identity: dict[str, Any], paths: Sequence[Path]) -> None:
        """Record what is converted, or compare with what the journal says was begun.

        Parameters
        ----------
        identity
            What must stay the same for the conversion to be continued.
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
            self.journal.append({"step": "begin", "identity": identity, "paths": given})
            return
        differences = _differences(begun[0]["identity"], identity)
        if differences:
            listed = "\n  ".join(differences[:20])
            msg = (
                f"{self.folder}: an unfinished conversion was begun from something else:\n  {listed}\n"
                "run the command as it was to continue it, or add --restart to start over"
            )
            raise ConversionError(msg)


def check_destination(destination: Path, *, overwrite: bool) -> None:
    """Refuse a destination that is taken. An empty folder is not.

    Raises
    ------
    InputError
        If something stands there that is not a store, or a store without `overwrite`.
    """
    if not os.path.lexists(destination):
        return
    if destination.is_symlink():
        msg = f"{destination}: is a link and will not be touched: give the place it leads to"
        raise InputError(msg)
    if destination.is_dir() and not any(destination.iterdir()):
        return
    if _is_store(destination):
        if overwrite:
            return
        msg = f"{destination}: a finished store stands there; --overwrite replaces it"
        raise InputError(msg)
    msg = f"{destination}: exists, is not a unistore store and will not be touched: choose another place"
    raise InputError(msg)


def _remove_empty(*folders: Path) -> None:
    """Remove folders, innermost first, that nobody has put anything into."""
    with suppress(OSError):
        for folder in folders:
            folder.rmdir()


def _is_store(path: Path) -> bool:
    try:
        Store(path)
    except (StoreError, OSError):
        return False
    return True


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
