"""Locks and checks of a working folder: one process at a time, of this user, without links."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import stat
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Self

from unistore.errors import ConversionError, writing_failed

BEAT = 5.0  # Seconds between heartbeats
DEAD_AFTER = 60.0  # An owner on another machine whose heartbeat is older than this many seconds is dead

_STARTING = "just starting"
_PAUSE = 0.05  # Seconds between two looks at a lock that is being written


class LockedError(ConversionError):
    """Another process that is alive has the lock."""


class Lock:
    """Context manager that locks while converting, and takes over the lock of a dead owner.

    ``flock`` ends with its owner. On a file system that keeps such locks from other machines, or has none,
    an owner is alive while the modification time of the file is recent, by the clock of the file system.
    """

    # The clocks of two machines may differ

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._descriptor = -1

    def __enter__(self) -> Self:
        patience = time.monotonic() + 2 * BEAT
        try:
            while not self._try_lock():
                self._remove_dead(patience)
        except OSError as error:
            raise writing_failed(error, self._path) from error
        self._thread = threading.Thread(target=self._beat, name="unistore-lock", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def take(self) -> bool:
        """Lock, or return False if a living owner has it."""
        try:
            self.__enter__()
        except LockedError:
            return False
        return True

    def release(self) -> None:
        """Stop the heartbeat and remove the file if it is still this owner's. May be called again."""
        if self._thread is None:
            return
        self._stop.set()
        self._thread.join()
        self._thread = None
        # What it kept others from is done. A file that stays is of an owner without its lock: the next
        # one takes it
        with suppress(OSError, ConversionError), _opened(self._path, os.O_RDONLY) as file:
            if file.read() == _own_text().encode():
                self._path.unlink()
        with suppress(OSError):
            os.close(self._descriptor)

    def _beat(self) -> None:
        while not self._stop.wait(BEAT):
            with suppress(OSError):
                os.utime(self._path)

    def _try_lock(self) -> bool:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            if os.path.lexists(self._path.parent):
                raise
            return False  # its last owner removed the folder meanwhile
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except (FileExistsError, FileNotFoundError):  # locked, or its last owner just removed the folder
            return False
        try:
            with suppress(OSError):  # of file systems without such locks
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            os.write(descriptor, _own_text().encode())
        except BaseException:
            self._path.unlink(missing_ok=True)
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        return True

    def _remove_dead(self, patience: float) -> None:
        with suppress(FileNotFoundError), _opened(self._path, os.O_RDWR) as file:
            with tempfile.TemporaryFile(dir=self._path.parent) as new_file:
                now = os.fstat(new_file.fileno()).st_mtime
            owner = _live_owner(file.fileno(), now)
            if owner == _STARTING and time.monotonic() < patience:  # or killed before it wrote its name
                time.sleep(_PAUSE)
                return
            if owner:
                msg = (
                    f"{self._path.parent}: {owner} is working on this conversion. "
                    "Fix: wait for it, or stop it and run the same command"
                )
                raise LockedError(msg)
            if os.path.samestat(os.fstat(file.fileno()), self._path.stat()):  # not the lock of a newer owner
                self._path.unlink()


def _opened(path: Path, access: int) -> BinaryIO:
    """Open a lock. A pipe, which could wait for ever, a link or a folder in its place is an error."""
    try:
        descriptor = os.open(path, access | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise
        descriptor = None
    if descriptor is not None and stat.S_ISREG(os.fstat(descriptor).st_mode):
        return os.fdopen(descriptor, "rb" if access == os.O_RDONLY else "r+b")
    if descriptor is not None:
        os.close(descriptor)
    msg = f"{path}: is a link or a special file, but a lock file is expected. Fix: remove it"
    raise ConversionError(msg)


def owner_of(path: Path) -> str | None:
    """Return the owner of a lock, ``"process 12 on host"``, None if there is none or its owner is dead."""
    try:
        with _opened(path, os.O_RDONLY) as file:
            return _live_owner(file.fileno(), time.time())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise writing_failed(error, path) from error


def _live_owner(descriptor: int, now: float) -> str | None:
    # None: the owner is dead, and this process holds the lock. Invalid text is of a lock being written if
    # it is young, else left by a crash
    try:
        owner = json.loads(os.pread(descriptor, 4096, 0))
        name = f"process {owner['pid']} on {owner['host']}"
        machine = owner["machine"]
        lives = DEAD_AFTER
    except (ValueError, KeyError, TypeError):
        name = _STARTING
        machine = ""
        lives = BEAT
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return name
    except OSError:
        machine = ""
    is_young = now - os.fstat(descriptor).st_mtime < lives
    return name if machine != _machine() and is_young else None


def _own_text() -> str:
    return json.dumps({"host": socket.gethostname(), "machine": _machine(), "pid": os.getpid()})


def _machine() -> str:
    # An identity of this boot, as host names are not unique
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


_FIX = "remove it, or choose another destination"


def check_plain(
    folder: Path,
    *,
    ignore: tuple[str, ...] = (),  # folders in it that may hold links
) -> None:
    """Refuse a folder that is a link, or holds anything but files and folders."""
    # So nothing is written or removed outside of it
    if not os.path.lexists(folder):
        return
    if folder.is_symlink() or not folder.is_dir():
        msg = f"{folder}: unistore did not make this folder, and does not touch it. Fix: {_FIX}"
        raise ConversionError(msg)
    ignored = {os.fspath(folder / name) for name in ignore}
    todo = [os.fspath(folder)]
    while todo:
        with suppress(FileNotFoundError), os.scandir(todo.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    todo += [] if entry.path in ignored else [entry.path]
                elif not entry.is_file(follow_symlinks=False) and os.path.lexists(entry.path):
                    reason = "is a link or a special file, which unistore never makes"
                    msg = f"{entry.path}: {reason}. Fix: remove it"
                    raise ConversionError(msg)


def check_own(
    folder: Path,
    new_file: Path,  # a file that was just made in it; its owner is this user as the file system maps it
) -> None:
    """Refuse a folder of another user, whose files would become part of the result."""
    owner = folder.stat().st_uid
    user = new_file.stat().st_uid
    if owner != user:
        msg = f"{folder}: belongs to another user, with uid {owner} instead of {user}. Fix: {_FIX}"
        raise ConversionError(msg)
