"""A folder of verified copies of objects, bounded in bytes, shared by the processes of one user on a machine.

A copy is named by the checksum of its content: stores that hold the same shard share it, and a store that
was replaced never finds the copies of the old one. While an object is fetched, its ``.part`` file has its
final size and is locked by the process that fetches it: the limit holds at every moment, others wait for the
result, and a part whose lock is free was left by a process that died.

Folder and files must be this user's own, and no links: what another user planted is refused, and whatever has
another name than a copy is left alone.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import xxhash

from unistore.errors import CorruptionError, StoreError
from unistore.system import file_locks
from unistore.system.own_files import NotOwnError, open_own_file, open_own_folder

__all__ = ["ShardCache"]

PART = ".part"
TOUCH_EVERY = 60.0
"""Seconds after which a use of a copy is recorded again (in its modification time)."""
_BLOCK = 1 << 20
_OTHERS_WRITE = 0o022
_SHELF = re.compile(r"[0-9a-f]{2}")
_COPY = re.compile(rf"[0-9a-f]{{32}}({re.escape(PART)})?")


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
        if self._was_used(checksum):
            return True
        if not file_locks.available:
            raise StoreError("cache_dir needs file locks that this system lacks; leave it out")
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

    def _was_used(self, checksum: str) -> bool:
        seen = self._seen.get(checksum)
        return seen is not None and time.monotonic() - seen < TOUCH_EVERY

    def _ensure(self, checksum: str, size: int, fetch: Callable[[], Iterable[bytes]], what: str) -> bool:
        with self._shelf(checksum) as shelf:
            if self._usable(shelf, checksum, size):
                return True
            if size > self.limit:
                return False
            with self._part(shelf, checksum) as part:
                if self._usable(shelf, checksum, size):  # another process brought it meanwhile
                    return True
                if not self._reserve(part, size):
                    return False
                _fill(part, checksum, size, fetch(), what)
                os.replace(checksum + PART, checksum, src_dir_fd=shelf, dst_dir_fd=shelf)  # the lock stays
        self._seen[checksum] = time.monotonic()
        return True

    def _usable(self, shelf: int, checksum: str, size: int) -> bool:
        """Whether a whole copy is there; the first look of this process reads and checks all of it."""
        try:
            copy = self._open(checksum, shelf, checksum[:2])
        except FileNotFoundError:
            self.forget(checksum)
            return False
        try:
            if checksum not in self._seen and not _intact(copy, checksum, size):
                with suppress(FileNotFoundError):
                    os.unlink(checksum, dir_fd=shelf)
                return False
            os.utime(copy)
        finally:
            os.close(copy)
        self._seen[checksum] = time.monotonic()
        return True

    @contextmanager
    def _base(self) -> Iterator[int]:
        """Descriptor of the cache's folder, which is made where there is none."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            self.folder.mkdir(mode=0o700)
        with self._opened(self.folder) as base:
            yield base

    @contextmanager
    def _shelf(self, checksum: str) -> Iterator[int]:
        """Descriptor of the folder of a copy, which is made where there is none."""
        name = checksum[:2]
        with self._base() as base:
            with suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=base)
            with self._opened(name, base) as shelf:
                yield shelf

    @contextmanager
    def _opened(self, path: str | Path, inside: int | None = None) -> Iterator[int]:
        try:
            descriptor = open_own_folder(path, _OTHERS_WRITE, inside=inside)
        except NotOwnError as error:
            raise self._refused(self.folder / path, error) from error
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _open(self, name: str, folder: int, below: str, flags: int = 0) -> int:
        try:
            return open_own_file(name, folder, flags)
        except NotOwnError as error:
            raise self._refused(self.folder / below / name, error) from error

    def _refused(self, path: Path, error: NotOwnError) -> StoreError:
        where = "" if path == self.folder else f"{path} "
        cure = "remove it, or " if where else ""
        rule = "of your own, that others cannot write to"
        return StoreError(
            f"cache_dir {self.folder}: cannot be used ({where}{error}); {cure}choose another folder, {rule}"
        )

    def _reserve(self, part: int, size: int) -> bool:
        """Make room and take it, so that the limit holds while the object arrives."""
        with self._base() as base, self._locked(base):
            if not self._evict(base, size):
                return False
            if hasattr(os, "posix_fallocate") and size:
                os.posix_fallocate(part, 0, size)
            os.ftruncate(part, size)
        return True

    def _evict(self, base: int, size: int) -> bool:
        """Remove least recently used copies until `size` more bytes fit; whether they do."""
        copies: list[tuple[float, int, str]] = []
        total = 0
        for name in filter(_SHELF.fullmatch, os.listdir(base)):
            with self._opened(name, base) as shelf:
                for copy in filter(_COPY.fullmatch, os.listdir(shelf)):  # noqa: PTH208 - a descriptor
                    with suppress(FileNotFoundError):  # renamed by the process that fetched it
                        found = os.stat(copy, dir_fd=shelf, follow_symlinks=False)
                        if not stat.S_ISREG(found.st_mode):
                            continue
                        if copy.endswith(PART):
                            total += 0 if self._abandoned(copy, shelf, name) else found.st_size
                        else:
                            total += found.st_size
                            copies.append((found.st_mtime, found.st_size, copy))
        copies.sort()
        for _, nbytes, copy in copies:
            if total + size <= self.limit:
                break
            with self._opened(copy[:2], base) as shelf, suppress(FileNotFoundError):
                os.unlink(copy, dir_fd=shelf)
            total -= nbytes
        return total + size <= self.limit

    def _abandoned(self, part: str, shelf: int, below: str) -> bool:
        """Remove a part that no living process holds."""
        descriptor = self._open(part, shelf, below)
        try:
            if not file_locks.lock(descriptor, wait=False):
                return False
            if _is_at(descriptor, part, shelf):
                os.unlink(part, dir_fd=shelf)
            return True
        finally:
            file_locks.close(descriptor)

    @contextmanager
    def _part(self, shelf: int, checksum: str) -> Iterator[int]:
        """The locked ``.part`` of a copy, ours until the end; waits while another process fetches."""
        part = checksum + PART
        while True:
            descriptor = self._open(part, shelf, checksum[:2], os.O_CREAT)
            try:
                file_locks.lock(descriptor)
                if not _is_at(descriptor, part, shelf):  # its last owner finished it, or gave up
                    continue
                try:
                    yield descriptor
                finally:
                    if _is_at(descriptor, part, shelf):
                        os.unlink(part, dir_fd=shelf)
                return
            finally:
                file_locks.close(descriptor)

    @contextmanager
    def _locked(self, base: int) -> Iterator[None]:
        descriptor = self._open("lock", base, "", os.O_CREAT)
        try:
            file_locks.lock(descriptor)
            yield
        finally:
            file_locks.close(descriptor)


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


def _intact(copy: int, checksum: str, size: int) -> bool:
    if os.fstat(copy).st_size != size:
        return False
    digest, done = xxhash.xxh3_128(), 0
    while block := os.pread(copy, _BLOCK, done):
        digest.update(block)
        done += len(block)
    return digest.hexdigest() == checksum


def _is_at(descriptor: int, name: str, folder: int) -> bool:
    """Whether an open file is the one of a name."""
    try:
        at = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(at, os.fstat(descriptor))
