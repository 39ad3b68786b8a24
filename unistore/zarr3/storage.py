"""Objects of a store by key: the `Storage` protocol, and `LocalStorage` of a folder that follows no link."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
import xxhash

from unistore.errors import CorruptionError, StoreError
from unistore.system.machine import absolute
from unistore.system.types import AnyArray, PathLike

# Bytes of one object that is read whole, where the reader names no other limit.
DOCUMENT_LIMIT = 256 << 20
# The document that a store is opened with, which is written last.
ROOT = "zarr.json"
# Bytes of a large object that are read at a time.
PART_BYTES = 4 << 20


T = TypeVar("T")

# Of a file: device, inode, size and times of the last changes.
Identity = tuple[int, ...]


class AbsentError(StoreError):
    """There is no such object."""


class FailedReadError(StoreError):
    """The system could not read an object, which says nothing of what it holds."""


class Storage(Protocol):
    """Objects by key (``"points/xyz/c/0/0"``), without a handle when made, pickled small.

    ``str(storage)`` names the place in errors: a folder or a URL.
    """

    # Whether a child forked from a process that has used it can use it too.
    fork_safe: bool

    def get(self, key: str, limit: int = DOCUMENT_LIMIT) -> bytes:
        """Return a whole object, or raise a `StoreError` if it has more than `limit` bytes."""

    def size(self, key: str) -> int | None:
        """Return bytes of an object, or None where there is none."""

    def read_many(self, keys: Sequence[str], offsets: Sequence[int], sizes: Sequence[int]) -> Iterator[bytes]:
        """Yield many ranges in the order given, which keeps those of one object together where possible."""


@runtime_checkable
class SupportsReadEnds(Protocol):
    """A storage with high latency, which reads the ends of many objects concurrently."""

    def read_ends(self, keys: Sequence[str], size: int) -> Iterator[tuple[int, bytes] | None]:
        """Yield the bytes of each object and its last `size` bytes (all where it has fewer), or None."""


def read_parts(storage: Storage, key: str, size: int) -> Iterator[bytes]:
    """Yield the first `size` bytes of an object in parts."""
    starts = range(0, size, PART_BYTES)
    sizes = [min(PART_BYTES, size - start) for start in starts]
    return storage.read_many([key] * len(starts), starts, sizes)


# Files inside a store: regular ones. No link is followed, no pipe waited for, no device read.

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NOFOLLOW | os.O_NONBLOCK

_KINDS = {
    stat.S_IFLNK: "a link",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class NotRegularError(StoreError):
    """Where a store should have a regular file, or a folder, something else stands."""

    def __init__(self, path: PathLike, mode: int) -> None:
        kind = _KINDS.get(stat.S_IFMT(mode), "not a file")
        fix = ". Fix: copy the store with 'cp -rL', which follows links, and open the copy"
        msg = f"{os.fspath(path)}: is {kind}, but a store has only regular files and folders"
        super().__init__(msg + (fix if kind == "a link" else ""))


def open_regular(path: PathLike) -> tuple[int, int]:
    """Return the descriptor of a regular file, open for reading, and its size in bytes."""
    try:
        descriptor = os.open(path, _FLAGS)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EOPNOTSUPP):  # a link; a socket
            raise NotRegularError(path, os.lstat(path).st_mode) from error
        raise
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise NotRegularError(path, status.st_mode)
    return descriptor, status.st_size


def read_regular(path: PathLike, limit: int) -> bytes:
    """Read a whole regular file of at most `limit` bytes. Raises as `open_regular`, or `StoreError`."""
    descriptor, size = open_regular(path)
    with os.fdopen(descriptor, "rb") as file:
        if size > limit:
            raise _too_large(path, size, limit)
        return file.read(size)


def check_tree(root: PathLike, documents: frozenset[str], limit: int) -> None:
    """Look at everything below a folder, for readers that open files by themselves."""
    folders = [os.fspath(root)]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif not entry.is_file(follow_symlinks=False):
                    raise NotRegularError(entry.path, entry.stat(follow_symlinks=False).st_mode)
                elif entry.name in documents and (size := entry.stat().st_size) > limit:
                    raise _too_large(entry.path, size, limit)


def _too_large(path: PathLike, size: int, limit: int) -> StoreError:
    return StoreError(f"{os.fspath(path)}: has {size:,} bytes, but at most {limit:,} are allowed")


# `LocalStorage`: objects of a store in a local folder.

_CAN_PREFETCH = hasattr(os, "posix_fadvise")  # macOS has no such call
# Most bytes that are prefetched for one batch.
PREFETCH_BYTES = 256 << 20
# Files that one `LocalStorage` keeps open.
MAX_OPEN_FILES = 64
# Files that storages which share an `OpenFiles` keep open together.
MAX_SHARED_FILES = 256
_MAX_CHECKED_FOLDERS = 65536


class OpenFiles:
    """The files that one storage, or several together, keep open, and the folders known to be no links.

    A file is closed with the last reference to it, so files that are being read stay open.
    """

    # `pread` lets threads and forked children share them

    def __init__(self, most: int) -> None:
        self._most = most
        self._checked_folders: set[str] = set()
        self._roots = _Roots()
        self.open = lru_cache(most)(partial(_open_object, self._checked_folders, self._roots))

    def __reduce__(self) -> tuple[type[OpenFiles], tuple[int]]:
        return type(self), (self._most,)

    def path(self, root: str, key: str) -> str:
        """Return the path of an object, or raise `NotRegularError` if a folder above it is a link."""
        return _checked_path(self._checked_folders, self._roots.folder(root), key)

    def get(self, root: str, key: str, limit: int) -> bytes:
        """Return a whole object. With the root document a store is opened, of which all others must be."""
        if key != ROOT or root in self._roots:
            return self._roots.read(root, lambda folder: read_regular(self._checked(folder, key), limit))
        path = self.path(root, key)
        identity = _identity(os.stat(path))  # noqa: PTH116
        raw = read_regular(path, limit)
        self._roots.keep(root, identity, raw)
        return raw

    def status(self, root: str, key: str) -> os.stat_result:
        """Return the status of an object, without following a link."""
        return self._roots.read(root, lambda folder: os.lstat(self._checked(folder, key)))

    def folder(self, root: str) -> str:
        """Return the folder in which a store is now."""
        with contextlib.suppress(StoreError):  # raised by what is read there
            self._roots.check(root)
        return self._roots.folder(root)

    def moves_to(self, root: str, folder: str) -> None:
        """Go on reading a store in a folder that another process may move it to."""
        self._roots.move_targets[root] = folder

    def _checked(self, folder: str, key: str) -> str:
        return _checked_path(self._checked_folders, folder, key)


class LocalStorage:
    """A folder of regular files and folders, or a link to one, with at most `MAX_OPEN_FILES` open.

    Links, pipes and devices inside raise `NotRegularError`.
    """

    fork_safe = True

    def __init__(
        self,
        root: PathLike,
        files: OpenFiles | None = None,  # that it shares with others; None: files of its own
        shown: str | None = None,  # the folder as messages name it; None: as `root`
    ) -> None:
        given = os.fspath(root).rstrip("/") or "/"
        self._shown = given if shown is None else shown
        self._folder = absolute(given)
        self._blocks_read = -1
        self._shared_files = files
        self._files = OpenFiles(MAX_OPEN_FILES) if files is None else files
        self._open = partial(self._files.open, self._folder)

    @property
    def root(self) -> Path:
        """Return the folder in which the store is now."""
        return Path(self._files.folder(self._folder))

    def moves_to(self, folder: str) -> None:
        """Go on reading in a folder that another process may move the store to."""
        self._files.moves_to(self._folder, folder)

    def __reduce__(self) -> tuple[type[LocalStorage], tuple[str, OpenFiles | None, str]]:
        return type(self), (self._folder, self._shared_files, self._shown)

    def __repr__(self) -> str:
        return f"LocalStorage({self._shown!r})"

    def __str__(self) -> str:
        return self._shown

    def get(self, key: str, limit: int = DOCUMENT_LIMIT) -> bytes:
        path = self.path(key)
        try:
            return self._files.get(self._folder, key, limit)
        except OSError as error:
            raise _read_error(path, error) from error

    def size(self, key: str) -> int | None:
        path = self.path(key)
        try:
            status = self._files.status(self._folder, key)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise _read_error(path, error) from error
        if not stat.S_ISREG(status.st_mode):
            raise NotRegularError(path, status.st_mode)
        return status.st_size

    def identity(self, key: str) -> Identity:
        return _identity(os.fstat(self._open(key).fd))

    def read_many(self, keys: Sequence[str], offsets: Sequence[int], sizes: Sequence[int]) -> Iterator[bytes]:
        self._prefetch(keys, offsets, sizes)
        held: str | None = None
        for key, offset, size in zip(keys, offsets, sizes, strict=True):
            if key is not held:
                # this reference keeps the file open while it is read
                file = self._open(key)
                read = file.read
                held = key
            try:
                raw = read(size, offset)
                if len(raw) != size:
                    raw = file.read_on(raw, size, offset)
            except OSError as error:
                raise _read_error(file.path, error) from error
            yield raw
            del raw

    def read_many_into(
        self, keys: Sequence[str], offsets: Sequence[int], targets: Sequence[AnyArray], tail: int
    ) -> Iterator[bytearray]:
        """Fill each target (C-contiguous). Yield the `tail` bytes that follow, valid until the next."""
        self._prefetch(keys, offsets, (target.nbytes + tail for target in targets))
        held: str | None = None
        behind = bytearray(tail)
        for key, offset, target in zip(keys, offsets, targets, strict=True):
            if key is not held:
                file = self._open(key)
                held = key
            try:
                file.read_into(target, behind, offset)
            except OSError as error:
                raise _read_error(file.path, error) from error
            yield behind

    def _prefetch(self, keys: Sequence[str], offsets: Sequence[int], sizes: Iterable[int]) -> None:
        # The kernel's own readahead reads more than twice the bytes for random chunks, one chunk after the
        # other. Errors are raised when the ranges are read
        # Prefetching is a waste if all of a store is in the page cache
        if len(keys) < 2 or not _CAN_PREFETCH or not self.reads_disk:
            return
        self._blocks_read = resource.getrusage(resource.RUSAGE_SELF).ru_inblock
        left = PREFETCH_BYTES
        with contextlib.suppress(StoreError, OSError):
            for key, offset, size in zip(keys, offsets, sizes, strict=True):
                left -= size
                if left < 0:
                    return
                os.posix_fadvise(self._open(key).fd, offset, size, os.POSIX_FADV_WILLNEED)

    @property
    def reads_disk(self) -> bool:
        """Return whether this process read from a disk since ranges were prefetched last."""
        return self._blocks_read != resource.getrusage(resource.RUSAGE_SELF).ru_inblock

    def file(self, key: str) -> _FileHandle:
        """Return an object, open while it is referenced."""
        return self._open(key)

    def path(self, key: str) -> str:
        return self._files.path(self._folder, key)


def _checked_path(checked_folders: set[str], root: str, key: str) -> str:
    below = key.rpartition("/")[0]
    folder = f"{root}/{below}"
    if below and folder not in checked_folders:
        path = root
        for part in below.split("/"):
            path = os.path.join(path, part)  # noqa: PTH118
            try:
                mode = os.lstat(path).st_mode
            except OSError:
                break  # raised when the object is opened
            if stat.S_ISLNK(mode):
                raise NotRegularError(path, mode)
        else:
            if len(checked_folders) >= _MAX_CHECKED_FOLDERS:
                checked_folders.clear()
            checked_folders.add(folder)
    return os.path.join(root, key)  # noqa: PTH118 - a quarter of the time of pathlib


def _identity(status: os.stat_result) -> Identity:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


class _Root(NamedTuple):
    """The root document of a store that was opened."""

    folder: str  # where it is now
    identity: Identity
    digest: bytes


class _Roots:
    """The root documents of stores that were opened, by the folders at which they were."""

    # A store is replaced whole: what was opened while its root was the same is of the same store

    def __init__(self) -> None:
        self.move_targets: dict[str, str] = {}
        self._opened: dict[str, _Root] = {}

    def __contains__(self, root: str) -> bool:
        return root in self._opened

    def keep(self, root: str, identity: Identity, document: bytes) -> None:
        self._opened[root] = _Root(root, identity, xxhash.xxh3_128_digest(document))

    def folder(self, root: str) -> str:
        """Return the folder in which a store is now."""
        opened = self._opened.get(root)
        return root if opened is None else opened.folder

    def read(self, root: str, read: Callable[[str], T]) -> T:
        """Read something in the folder of a store, and again if the store moved meanwhile.

        Raises `StoreError` where another store, or none, took its place.
        """
        folder = self.folder(root)
        try:
            result = read(folder)
        except (OSError, StoreError):
            self.check(root)  # a file that is gone may be of a store that is gone
            if self.folder(root) == folder:
                raise
            return read(self.folder(root))
        self.check(root)
        return result

    def check(self, root: str) -> None:
        """Look where a store is now. Raises `StoreError` where another one, or none, took its place."""
        opened = self._opened.get(root)
        if opened is None:
            return
        with contextlib.suppress(OSError):
            # twice as fast as Path.stat
            if _identity(os.stat(f"{opened.folder}/{ROOT}")) == opened.identity:  # noqa: PTH116
                return
        # repaired, copied back or linked; or moved on
        for folder in (opened.folder, self.move_targets.get(root)):
            found = None if folder is None else _read_root(folder)
            if found is not None and found.digest == opened.digest:
                self._opened[root] = found
                return
        raise replaced(root)


def _read_root(folder: str) -> _Root | None:
    path = f"{folder}/{ROOT}"
    try:
        identity = _identity(os.stat(path))  # noqa: PTH116
        return _Root(folder, identity, xxhash.xxh3_128_digest(read_regular(path, DOCUMENT_LIMIT)))
    except (FileNotFoundError, NotADirectoryError, StoreError):
        return None
    except OSError as error:  # whether the store is there is not known
        raise _read_error(path, error) from error


def _open_object(checked_folders: set[str], roots: _Roots, root: str, key: str) -> _FileHandle:
    return roots.read(root, lambda folder: _FileHandle(_checked_path(checked_folders, folder, key)))


def replaced(store: str) -> StoreError:
    """Return the error of a reader whose store is another one by now."""
    return StoreError(f"{store}: was replaced or moved since it was opened. Fix: open it again")


class _FileHandle:
    # Closed with its last reference: eviction never closes a file that is being read
    __slots__ = ("fd", "path", "read")

    def __init__(self, path: str) -> None:
        self.fd = -1
        self.path = path
        try:
            self.fd, _ = open_regular(path)
        except OSError as error:
            raise _read_error(path, error) from error
        self.read = partial(os.pread, self.fd)  # read(size, offset): up to `size` bytes

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)

    def read_into(self, target: AnyArray, behind: bytearray, offset: int) -> None:
        size = target.nbytes + len(behind)
        done = os.preadv(self.fd, [target.data, behind], offset)
        if done != size:
            raw = self.read_on(b"", size, offset)
            target.reshape(-1).view(np.uint8)[:] = np.frombuffer(raw, np.uint8, target.nbytes)
            behind[:] = raw[target.nbytes :]

    def read_on(self, raw: bytes, size: int, offset: int) -> bytes:
        parts = [raw]
        done = len(raw)
        while done < size:
            part = self.read(size - done, offset + done)
            if not part:
                length = os.fstat(self.fd).st_size
                msg = f"{self.path}: has {length:,} bytes, too few for {size:,} bytes from {offset:,}"
                raise CorruptionError(msg)
            parts.append(part)
            done += len(part)
        return b"".join(parts)


def _read_error(path: str, error: OSError) -> StoreError:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return AbsentError(f"{path}: no such file")
    return FailedReadError(f"{path}: cannot be read: {error.strerror or error}")
