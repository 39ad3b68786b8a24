"""The build folder of an unfinished conversion: beside the destination, locked while somebody works in it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from unistore.errors import ConversionError, InputError, StoreError
from unistore.execute.journal import Journal
from unistore.execute.lock import Lock
from unistore.store.names import ROOT, build_folder
from unistore.store.reader import Store

__all__ = ["Build", "check_destination"]


class Build:
    """Entered to convert to `destination`, left when done, failed or interrupted.

    What stands in the folder: ``store/`` (the tree that becomes the destination), ``spill/``,
    ``journal.jsonl``, ``lock``, and ``old/`` for the moment in which a store is replaced.

    Leaving it by an `InputError` removes it: the sources have to be mended, so nothing in it would be used
    again. Every other way out keeps it, for the same command to continue.
    """

    def __init__(self, destination: Path, *, restart: bool = False) -> None:
        self.destination = destination
        self.folder = build_folder(destination)
        self.store = self.folder / "store"
        self.spill = self.folder / "spill"
        self._restart = restart
        self._lock = Lock(self.folder / "lock")

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock.__enter__()
        set_aside = self.folder / "old"
        if set_aside.exists() and not self.destination.exists():
            set_aside.rename(self.destination)  # killed between the two renames of an exchange
        if self._restart:
            for path in (self.store, self.spill):
                shutil.rmtree(path, ignore_errors=True)
            (self.folder / "journal.jsonl").unlink(missing_ok=True)
        self.journal = Journal(self.folder / "journal.jsonl")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.journal.close()
        if isinstance(error, InputError):
            shutil.rmtree(self.folder)
        self._lock.__exit__(kind, error, trace)

    def move_into_place(self) -> None:
        """Give the sealed store its final name, setting an older one aside first."""
        if self.destination.exists():
            self.destination.rename(self.folder / "old")
        self.store.rename(self.destination)
        _sync(self.destination.parent)

    def remove(self) -> None:
        """Remove the folder: the store stands under its final name."""
        shutil.rmtree(self.folder)
        _sync(self.destination.parent)

    def moved(self) -> dict[str, Any] | None:
        """What a run that was killed after giving the store its final name had done; else None."""
        sealed = self.journal.of("sealed")
        if not sealed or self.store.exists() or not self.destination.exists():
            return None
        same = Store(self.destination).attributes["seal"]["digest"] == sealed[-1]["report"]["digest"]
        return dict(sealed[-1]["report"]) if same else None

    def begin(self, identity: dict[str, Any]) -> None:
        """Record what is converted, or compare with what the journal says was begun.

        Raises
        ------
        ConversionError
            Naming every difference.
        """
        begun = self.journal.of("begin")
        if not begun:
            self.journal.append({"step": "begin", "identity": identity})
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
    """Refuse a destination that is taken.

    Raises
    ------
    InputError
        If something stands there that is not a store, or a store without `overwrite`.
    """
    if not os.path.lexists(destination):
        return
    if destination.is_dir() and not destination.is_symlink():
        if not any(destination.iterdir()):
            destination.rmdir()
            return
        if (destination / ROOT).exists():
            try:
                Store(destination)
            except StoreError:
                pass
            else:
                if overwrite:
                    return
                msg = f"{destination}: a finished store stands there; --overwrite replaces it"
                raise InputError(msg)
    msg = f"{destination}: exists, is not a unistore store and will not be touched: choose another place"
    raise InputError(msg)


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


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
