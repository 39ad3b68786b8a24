"""One converter a destination: a lock file with its owner and a heartbeat."""

from __future__ import annotations

import errno
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import get_ident
from types import TracebackType
from typing import Self

from unistore.errors import ConversionError
from unistore.system import file_locks

__all__ = ["Lock", "owner_of"]

BEAT = 5.0
"""Seconds between heartbeats."""
DEAD_AFTER = 60.0
"""An owner on another machine whose heartbeat is older than this many seconds is dead."""


class Lock:
    """Held while converting; a dead owner's lock is taken over.

    On one machine an owner is alive while its process is (same number and same start time). On another
    machine, or in another container, it is alive while its heartbeat, the file's modification time, keeps
    coming. The file system's clock tells how old that is: those of two machines may differ.

    Raises
    ------
    ConversionError
        On entering, if another converter lives; names its machine and process.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        while not self._taken():
            self._clear_away()
        self._thread = threading.Thread(target=self._beat, name="unistore-lock", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def release(self) -> None:
        """Stop the heartbeat and remove the file, once, and only if it is still this owner's."""
        if self._thread is None:
            return
        self._stop.set()
        self._thread.join()
        self._thread = None
        with suppress(FileNotFoundError):
            if self._path.read_text() == _owner(os.getpid()):
                self._path.unlink()

    def _beat(self) -> None:
        while not self._stop.wait(BEAT):
            with suppress(OSError):
                os.utime(self._path)

    def _taken(self) -> bool:
        """Make the lock appear whole, or not at all; where there are no hard links, alone at least."""
        mine = self._path.with_name(f"{self._path.name}.{socket.gethostname()}.{os.getpid()}.{get_ident()}")
        self._path.parent.mkdir(parents=True, exist_ok=True)
        try:
            mine.write_text(_owner(os.getpid()))
            self._path.hardlink_to(mine)
        except (FileExistsError, FileNotFoundError):  # taken, or its last owner just cleared the folder
            return False
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
                raise
            return self._made()
        finally:
            mine.unlink(missing_ok=True)
        return True

    def _made(self) -> bool:
        try:
            with self._path.open("x") as file:
                file.write(_owner(os.getpid()))
        except FileExistsError:
            return False
        except OSError:
            self._path.unlink(missing_ok=True)
            raise
        return True

    def _clear_away(self) -> None:
        """Remove the lock of a dead owner, or refuse; one at a time, so that no newer lock is removed."""
        clearing = self._path.with_name(f"{self._path.name}.clearing")
        with suppress(FileNotFoundError), _alone(clearing):
            text = self._path.read_text()
            os.utime(clearing)
            age = clearing.stat().st_mtime - self._path.stat().st_mtime
            if owner := _living(text, age):
                msg = (
                    f"{self._path.parent}: another converter is at work ({owner}); "
                    "wait for it, or stop it and run the same command again"
                )
                raise ConversionError(msg)
            self._path.unlink()


def owner_of(path: Path) -> str | None:
    """Who holds a lock, as text (``"process 12 on host"``); None if nobody living does."""
    try:
        text, age = path.read_text(), time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return None
    return _living(text, age)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Wait until nobody else is inside; where there is no ``flock``, go on without. The file stays."""
    with path.open("a") as file:
        if file_locks.available:
            with suppress(OSError):
                file_locks.lock(file.fileno())
        yield


def _living(text: str, age: float) -> str | None:
    """Who holds a lock with this text and so many seconds since its last heartbeat; None if nobody lives.

    A text that is no owner is one being written, or one that a power cut left: its age tells.
    """
    try:
        owner = json.loads(text)
        host, pid = owner["host"], owner["pid"]
    except (ValueError, KeyError, TypeError):
        return "just starting" if age < BEAT else None
    alive = text == _owner(pid) if owner.get("machine") == _machine() else age < DEAD_AFTER
    return f"process {pid} on {host}" if alive else None


def _owner(pid: int) -> str:
    owner = {"host": socket.gethostname(), "machine": _machine(), "pid": pid, "started": _started(pid)}
    return json.dumps(owner)


def _machine() -> str:
    """Where process numbers mean the same: a boot and a namespace; many machines are called localhost."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return socket.gethostname()


def _started(pid: int) -> str | None:
    """Start time of a living process as text (field 22 of /proc/PID/stat, proc(5)), or None if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return None if Path("/proc/self").exists() else _alive(pid)
    return None if fields[0] in "ZX" else fields[19]


def _alive(pid: int) -> str | None:
    """Where there is no /proc: whether a signal could be sent."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        return "alive"
    return "alive"
