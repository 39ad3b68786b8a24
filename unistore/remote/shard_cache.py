"""A folder of verified copies of objects, bounded in bytes, shared by the processes of one machine.

A copy is named by the checksum of its content: stores that hold the same shard share it, and a store that
was replaced never finds the copies of the old one. While an object is fetched, its ``.part`` file has its
final size and is locked by the process that fetches it: the limit holds at every moment, others wait for the
result, and a part whose lock is free was left by a process that died.
"""

from __future__ import annotations

import errno
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import xxhash

from unistore.errors import CorruptionError, StoreError

__all__ = ["ShardCache"]

PART = ".part"
TOUCH_EVERY = 60.0
"""Seconds after which a use of a copy is recorded again (in its modification time)."""
_BLOCK = 1 << 20


class ShardCache:
    """Verified copies by checksum. Pickles as its arguments; safe with processes, threads and forks.

    Parameters
    ----------
    folder
        On a local disk; made with the first copy.
    limit
        Bytes of all copies together, those being fetched included. The least recently used go first; a copy
        in use by another process may go, too: what is open stays readable.
    """

    def __init__(self, folder: str | os.PathLike[str], limit: int) -> None:
        self.folder = Path(folder)
        self.limit = limit
        self._seen: dict[str, float] = {}

    def __reduce__(self) -> tuple[type[ShardCache], tuple[Path, int]]:
        return type(self), (self.folder, self.limit)

    def name(self, checksum: str) -> str:
        """Path of a copy below the folder."""
        return f"{checksum[:2]}/{checksum}"

    def ensure(self, checksum: str, size: int, fetch: Callable[[], Iterable[bytes]], what: str) -> bool:
        """Have a copy, fetched unless it is there; False: there is no room for it.

        Parameters
        ----------
        checksum
            xxh3-128 of the object, hexadecimal.
        size
            Its bytes.
        fetch
            Gives its content, in pieces.
        what
            Its name, for errors.

        Raises
        ------
        CorruptionError
            If what was fetched has another checksum.
        StoreError
            If the folder cannot be used.
        """
        try:
            return self._ensure(checksum, size, fetch, what)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                warnings.warn(
                    f"cache_dir {self.folder}: the disk is full before cache_limit is reached; "
                    "shards are read from the store instead: free space or lower cache_limit",
                    stacklevel=2,
                )
                return False
            msg = f"cache_dir {self.folder}: cannot be used ({error.strerror}); choose another folder"
            raise StoreError(msg) from error

    def forget(self, checksum: str) -> None:
        """Look at a copy again before its next use."""
        self._seen.pop(checksum, None)

    def _ensure(self, checksum: str, size: int, fetch: Callable[[], Iterable[bytes]], what: str) -> bool:
        path = self.folder / self.name(checksum)
        if self._usable(path, checksum, size):
            return True
        if size > self.limit:
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._part(path) as part:
            if self._usable(path, checksum, size):  # another process brought it meanwhile
                return True
            if not self._reserve(part, size):
                return False
            _fill(part, checksum, size, fetch(), what)
            os.replace(_part_of(path), path)  # noqa: PTH105 - the lock stays with the file
        self._seen[checksum] = time.monotonic()
        return True

    def _usable(self, path: Path, checksum: str, size: int) -> bool:
        """Whether a whole copy is there; the first look of this process reads and checks all of it."""
        seen = self._seen.get(checksum)
        now = time.monotonic()
        if seen is not None and now - seen < TOUCH_EVERY:
            return True
        try:
            if seen is None and not _intact(path, checksum, size):
                path.unlink(missing_ok=True)
                return False
            os.utime(path)
        except FileNotFoundError:
            self.forget(checksum)
            return False
        self._seen[checksum] = now
        return True

    def _reserve(self, part: int, size: int) -> bool:
        """Make room and take it, so that the limit holds while the object arrives."""
        with _locked(self.folder / "lock"):
            if not self._evict(size):
                return False
            if hasattr(os, "posix_fallocate") and size:
                os.posix_fallocate(part, 0, size)
            os.ftruncate(part, size)
        return True

    def _evict(self, size: int) -> bool:
        """Remove least recently used copies until `size` more bytes fit; whether they do."""
        copies: list[tuple[float, int, Path]] = []
        total = 0
        for path in self.folder.glob("??/*"):
            with suppress(FileNotFoundError):  # renamed by the process that fetched it
                stat = path.stat()
                if path.suffix == PART:
                    total += 0 if _abandoned(path) else stat.st_size
                else:
                    total += stat.st_size
                    copies.append((stat.st_mtime, stat.st_size, path))
        copies.sort()
        for _, nbytes, path in copies:
            if total + size <= self.limit:
                break
            path.unlink(missing_ok=True)
            total -= nbytes
        return total + size <= self.limit

    @contextmanager
    def _part(self, path: Path) -> Iterator[int]:
        """The locked ``.part`` of a copy, ours until the end; waits while another process fetches."""
        part = _part_of(path)
        while True:
            descriptor = os.open(part, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                _lock(descriptor)
                if not _is_at(descriptor, part):  # its last owner finished it, or gave up
                    continue
                try:
                    yield descriptor
                finally:
                    if _is_at(descriptor, part):
                        part.unlink()
                return
            finally:
                _close(descriptor)


def _part_of(path: Path) -> Path:
    return path.with_name(path.name + PART)


def _fill(descriptor: int, checksum: str, size: int, pieces: Iterable[bytes], what: str) -> None:
    digest, done = xxhash.xxh3_128(), 0
    for piece in pieces:
        digest.update(piece)
        view = memoryview(piece)
        while view:
            written = os.pwrite(descriptor, view, done)
            done += written
            view = view[written:]
    if done != size or digest.hexdigest() != checksum:
        msg = f"{what}: what arrived is not what the manifest says ({done} bytes of {size}); restore it"
        raise CorruptionError(msg)


def _intact(path: Path, checksum: str, size: int) -> bool:
    if path.stat().st_size != size:
        return False
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest() == checksum


def _abandoned(part: Path) -> bool:
    """Remove a part that no living process holds."""
    descriptor = os.open(part, os.O_RDWR)
    try:
        if not _lock(descriptor, wait=False):
            return False
        if _is_at(descriptor, part):
            part.unlink()
        return True
    finally:
        _close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether an open file is the one at a path."""
    try:
        at = path.stat()
    except FileNotFoundError:
        return False
    mine = os.fstat(descriptor)
    return (at.st_dev, at.st_ino) == (mine.st_dev, mine.st_ino)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        _lock(descriptor)
        yield
    finally:
        _close(descriptor)


def _close(descriptor: int) -> None:
    """Unlock and close: a child forked meanwhile has the file open, too, and would keep the lock."""
    with suppress(ImportError):
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def _lock(descriptor: int, *, wait: bool = True) -> bool:
    try:
        import fcntl
    except ImportError as error:
        msg = "cache_dir needs file locks that this system lacks; leave it out"
        raise StoreError(msg) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
