"""Locks and checks of a working folder: one process at a time, of this user, without links."""

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
from typing import Self

from unistore.errors import ConversionError
from unistore.system import own_files as file_locks

BEAT = 5.0
"""Seconds between heartbeats."""
DEAD_AFTER = 60.0
"""An owner on another machine whose heartbeat is older than this many seconds is dead."""


class Lock:
    """Context manager that locks while converting; the lock of a dead owner is taken over.

    On the same machine an owner is alive while its process is (same pid and start time). On another machine,
    or in another container, it is alive while its heartbeat, the file's modification time, is recent. Its age
    is measured with the file system's clock, as those of two machines may differ.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        while not self._try_lock():
            self._remove_dead()
        self._thread = threading.Thread(target=self._beat, name="unistore-lock", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Stop the heartbeat and remove the file if it is still this owner's; may be called again."""
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

    def _try_lock(self) -> bool:
        """Create the lock file with its content atomically (by a hard link, if possible)."""
        mine = self._path.with_name(f"{self._path.name}.{socket.gethostname()}.{os.getpid()}.{get_ident()}")
        self._path.parent.mkdir(parents=True, exist_ok=True)
        try:
            mine.write_text(_owner(os.getpid()))
            self._path.hardlink_to(mine)
        except (FileExistsError, FileNotFoundError):  # locked, or its last owner just removed the folder
            return False
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
                raise
            return self._try_create()
        finally:
            mine.unlink(missing_ok=True)
        return True

    def _try_create(self) -> bool:
        try:
            with self._path.open("x") as file:
                file.write(_owner(os.getpid()))
        except FileExistsError:
            return False
        except OSError:
            self._path.unlink(missing_ok=True)
            raise
        return True

    def _remove_dead(self) -> None:
        """Remove the lock of a dead owner, or raise; one process at a time, to spare newer locks."""
        clearing = self._path.with_name(f"{self._path.name}.clearing")
        with suppress(FileNotFoundError), _exclusive(clearing):
            text = self._path.read_text()
            os.utime(clearing)
            age = clearing.stat().st_mtime - self._path.stat().st_mtime
            if owner := _live_owner(text, age):
                msg = (
                    f"{self._path.parent}: another converter is at work ({owner}); "
                    "wait for it, or stop it and run the same command again"
                )
                raise ConversionError(msg)
            self._path.unlink()


def owner_of(path: Path) -> str | None:
    """Return the owner of a lock, ``"process 12 on host"``; None if there is none or its owner is dead."""
    try:
        text = path.read_text()
        age = time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return None
    return _live_owner(text, age)


@contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    """Exclusive ``flock`` on a file, if its file system has such locks; the file stays."""
    with path.open("a") as file:
        with suppress(OSError):
            file_locks.lock(file.fileno())
        yield


def _live_owner(text: str, age: float) -> str | None:
    """Return the owner in a lock's text, or None if it is dead; `age` is in seconds since the last heartbeat.

    Invalid text is of a lock being written if it is young, else left by a crash.
    """
    try:
        owner = json.loads(text)
        host = owner["host"]
        pid = owner["pid"]
    except (ValueError, KeyError, TypeError):
        return "just starting" if age < BEAT else None
    alive = text == _owner(pid) if owner.get("machine") == _machine() else age < DEAD_AFTER
    return f"process {pid} on {host}" if alive else None


def _owner(pid: int) -> str:
    owner = {"host": socket.gethostname(), "machine": _machine(), "pid": pid, "started": _started(pid)}
    return json.dumps(owner)


def _machine() -> str:
    """Return an identity of boot and pid namespace: pids compare within it; host names are not unique."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return socket.gethostname()


def _started(pid: int) -> str | None:
    """Start time of a process (field 22 of /proc/PID/stat, proc(5)); None if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return None if Path("/proc/self").exists() else _alive(pid)
    return None if fields[0] in "ZX" else fields[19]


def _alive(pid: int) -> str | None:
    """Return "alive" if the process exists, else None; for systems without /proc."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        return "alive"
    return "alive"


_CURE = "remove it, or choose another destination"


def check_plain(
    folder: Path,
    *,
    ignore: tuple[str, ...] = (),  # folders in it that may hold links
) -> None:
    """Refuse a folder that is a link, or holds anything but files and folders; it may be absent.

    So nothing is written or removed outside of it.
    """
    if not os.path.lexists(folder):
        return
    if folder.is_symlink() or not folder.is_dir():
        msg = f"{folder}: is not a folder that unistore made, and will not be touched: {_CURE}"
        raise ConversionError(msg)
    ignored = {os.fspath(folder / name) for name in ignore}
    todo = [os.fspath(folder)]
    while todo:
        with suppress(FileNotFoundError), os.scandir(todo.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    todo += [] if entry.path in ignored else [entry.path]
                elif not entry.is_file(follow_symlinks=False) and os.path.lexists(entry.path):
                    msg = (
                        f"{entry.path}: is a link or a special file, which unistore does not make: remove it"
                    )
                    raise ConversionError(msg)


def check_own(
    folder: Path,
    new_file: Path,  # a file that was just made in it; its owner is this user as the file system maps it
) -> None:
    """Refuse a folder of another user, whose files would become part of the result."""
    owner = folder.stat().st_uid
    user = new_file.stat().st_uid
    if owner != user:
        msg = f"{folder}: belongs to another user (uid {owner}, not {user}): {_CURE}"
        raise ConversionError(msg)
