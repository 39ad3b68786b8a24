"""`CachedStorage`: the storage of a sealed store with a cache of local copies."""

from __future__ import annotations

import errno
import math
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import xxhash

from unistore.errors import CorruptionError, StoreError
from unistore.remote.storage import ObjectStorage
from unistore.remote.url import local_path
from unistore.store.manifest import MANIFEST_LIMIT, parse_manifest
from unistore.store.names import MANIFEST, part_folder, split_part_key
from unistore.system import own_files as file_locks
from unistore.system.caller import warn_caller
from unistore.system.machine import absolute
from unistore.system.own_files import NotOwnError, is_own, open_file_of_owner, open_folder, open_own_file
from unistore.system.progress import COUNTS, Progress
from unistore.system.types import JsonObject, PathLike
from unistore.zarr3.durable import is_there
from unistore.zarr3.storage import DOCUMENT_LIMIT, AbsentError, LocalStorage, Storage, read_parts

PART = ".part"
# Seconds between updates of a copy's modification time, which records its last use.
TOUCH_INTERVAL = 60.0
_BLOCK = 1 << 20
_OTHERS_WRITE = 0o022
_OTHERS_READ = 0o044
_COPY_NAME = re.compile(rf"[0-9a-f]{{32}}({re.escape(PART)})?")


class ShardCache:
    """Verified local copies of objects, by checksum. Safe with processes, threads and forks.

    `limit` bounds the size of all copies, including those being fetched. The least recently used ones are
    removed first, even if another process reads them: open files stay readable. In a folder of another
    user, copies are read and nothing is written.
    """

    def __init__(self, folder: PathLike, limit: int) -> None:
        self.folder = Path(absolute(folder))
        self.limit = limit
        self._verified_at: dict[str, float] = {}

    def __reduce__(self) -> tuple[type[ShardCache], tuple[Path, int]]:
        return type(self), (self.folder, self.limit)

    def ensure(
        self, checksum: str, size: int | None, fetch: Callable[[], Iterable[bytes]], name: str
    ) -> bool:
        """Make sure that there is a copy, and fetch it if needed.

        Parameters
        ----------
        checksum : str
            Checksum of the object.
        size : int or None
            Size in bytes. None: it is known after fetching, and the object is then held in memory.
        fetch : callable
            Returns the bytes in pieces.
        name : str
            Name of the object, for messages.

        Returns
        -------
        bool
            False: there is no space for it.
        """
        if time.monotonic() - self._verified_at.get(checksum, -math.inf) < TOUCH_INTERVAL:
            COUNTS["shard_hits"] += 1
            return True
        try:
            with self._open_folder() as folder:
                kept = self._ensure(folder, checksum, size, fetch, name)
        except NotOwnError as error:
            where = "" if error.path == str(self.folder) else f"{self.folder / error.path} "
            fix = "choose a folder of your own that others cannot write to"
            fix = f"remove it, or {fix}" if where else fix
            msg = f"cache_dir {self.folder}: cannot be used: {where or 'it '}{error}. Fix: {fix}"
            raise StoreError(msg) from error
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                warn_caller(
                    f"cache_dir {self.folder}: the disk is full, although cache_limit is not reached, so "
                    "shards are read from the store itself. Fix: free space, or lower cache_limit"
                )
                return False
            msg = f"cache_dir {self.folder}: cannot be used: {error.strerror}. Fix: choose another folder"
            raise StoreError(msg) from error
        if kept:
            self._verified_at[checksum] = time.monotonic()
        return kept

    def holds(self, checksum: str) -> bool:
        """Return whether there is a copy, which `ensure` verifies, False where the system cannot tell."""
        try:
            return is_there(self.folder / checksum)
        except OSError:  # `ensure` meets the same, and names the folder
            return False

    def invalidate(self, checksum: str) -> None:
        """Check again whether a copy exists before its next use."""
        self._verified_at.pop(checksum, None)

    @contextmanager
    def _open_folder(self) -> Iterator[int]:
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            self.folder.mkdir(mode=0o700)
        descriptor = open_folder(self.folder, _OTHERS_WRITE)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _ensure(
        self, folder: int, checksum: str, size: int | None, fetch: Callable[[], Iterable[bytes]], name: str
    ) -> bool:
        if self._has_valid_copy(folder, checksum, size):
            COUNTS["shard_hits"] += 1
            return True
        COUNTS["shard_misses"] += 1
        if not is_own(folder) or (size is not None and size > self.limit):
            return False
        with _locked_part(folder, checksum + PART) as part:
            if self._has_valid_copy(folder, checksum, size):  # another process fetched it meanwhile
                return True
            pieces = [*fetch()] if size is None else ()
            size = sum(map(len, pieces)) if size is None else size
            if size > self.limit or not self._reserve(folder, part, size):
                return False
            _write_verified(part, checksum, size, pieces or fetch(), name)
            os.fchmod(part, 0o600 | (os.fstat(folder).st_mode & _OTHERS_READ))
            # or who evicts meanwhile may list one name and look for the other
            with _locked_file("lock", folder):
                os.replace(checksum + PART, checksum, src_dir_fd=folder, dst_dir_fd=folder)
        return True

    def _has_valid_copy(self, folder: int, checksum: str, size: int | None) -> bool:
        # The first check of this process reads all of the copy
        may_write = is_own(folder)
        try:
            if may_write:
                copy = open_own_file(checksum, folder)
            else:
                copy = open_file_of_owner(checksum, folder, _OTHERS_WRITE)
        except FileNotFoundError:
            self.invalidate(checksum)
            return False
        try:
            if checksum not in self._verified_at and not _matches(copy, checksum, size):
                if may_write:
                    with suppress(FileNotFoundError):
                        os.unlink(checksum, dir_fd=folder)
                return False
            if may_write:
                os.utime(copy)
        finally:
            os.close(copy)
        return True

    def _reserve(self, folder: int, part: int, size: int) -> bool:
        with _locked_file("lock", folder):
            if not self._evict(folder, size):
                return False
            free = os.fstatvfs(part)  # to reserve the blocks would double the time of writing them
            if free.f_bavail * free.f_frsize < size:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.ftruncate(part, size)
        return True

    def _evict(self, folder: int, size: int) -> bool:
        copies: list[tuple[float, int, str]] = []
        total = 0
        for name in filter(_COPY_NAME.fullmatch, os.listdir(folder)):
            with suppress(FileNotFoundError):  # renamed by the process that fetched it
                state = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if not stat.S_ISREG(state.st_mode) or (name.endswith(PART) and _is_abandoned(name, folder)):
                    continue
                total += state.st_size
                if not name.endswith(PART):
                    copies.append((state.st_mtime, state.st_size, name))
        copies.sort()
        for _, nbytes, name in copies:
            if total + size <= self.limit:
                break
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)
            total -= nbytes
        return total + size <= self.limit


def _is_abandoned(part: str, folder: int) -> bool:
    # Removed unless a living process has it locked
    descriptor = open_own_file(part, folder)
    try:
        if not file_locks.lock(descriptor, wait=False):
            return False
        if _is_current(descriptor, part, folder):
            os.unlink(part, dir_fd=folder)
        return True
    finally:
        file_locks.close(descriptor)


@contextmanager
def _locked_part(folder: int, part: str) -> Iterator[int]:
    # Waits while another process fetches the copy
    while True:
        with _locked_file(part, folder) as descriptor:
            if not _is_current(descriptor, part, folder):  # renamed or removed by its last owner
                continue
            try:
                yield descriptor
            finally:
                if _is_current(descriptor, part, folder):
                    os.unlink(part, dir_fd=folder)
            return


@contextmanager
def _locked_file(name: str, folder: int) -> Iterator[int]:
    descriptor = open_own_file(name, folder, os.O_CREAT)
    try:
        file_locks.lock(descriptor)
        yield descriptor
    finally:
        file_locks.close(descriptor)


def _write_verified(descriptor: int, checksum: str, size: int, pieces: Iterable[bytes], name: str) -> None:
    digest = xxhash.xxh3_128()
    done = 0
    for piece in pieces:
        digest.update(piece)
        view = memoryview(piece)
        while view:
            written = os.pwrite(descriptor, view, done)
            done += written
            view = view[written:]
    if done != size or digest.hexdigest() != checksum:
        msg = (
            f"{name}: does not match its checksum in the manifest ({done:,} of {size:,} bytes read). "
            "Fix: restore it from a copy"
        )
        raise CorruptionError(msg)


def _matches(copy: int, checksum: str, size: int | None) -> bool:
    if size is not None and os.fstat(copy).st_size != size:
        return False
    return _has_checksum(_blocks(copy), checksum)


def _blocks(copy: int) -> Iterator[bytes]:
    done = 0
    while block := os.pread(copy, _BLOCK, done):
        yield block
        done += len(block)


def _has_checksum(pieces: Iterable[bytes], checksum: str) -> bool:
    digest = xxhash.xxh3_128()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest() == checksum


def _is_current(descriptor: int, name: str, folder: int) -> bool:
    try:
        state = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(state, os.fstat(descriptor))


# Attempts to read a copy that other processes keep evicting; then the store is read instead.
MAX_ATTEMPTS = 5


class CachedStorage:
    """Reads objects from local copies. Each is fetched as a whole and verified on first use.

    Objects that do not fit into the cache are read from the store directly.
    """

    def __init__(self, inner: Storage, cache: ShardCache, manifest: str | None) -> None:
        self.fork_safe = inner.fork_safe
        self.inner = inner
        self._cache = cache
        # Checksum of the manifest. None: keys begin with the folders of parts of a version
        self._manifest = manifest
        self._size_and_checksum: dict[str, dict[str, tuple[int, str]]] = {}  # by manifest and key
        self.documents: dict[str, bytes] = getattr(inner, "documents", {})  # that were read before

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.inner, self._cache, self._manifest)

    def __repr__(self) -> str:
        return repr(self.inner)

    def get(self, key: str, limit: int = DOCUMENT_LIMIT) -> bytes:
        if key in self.documents:
            return self.documents[key]
        size, _ = self._entry(key) or (math.inf, "")
        if size > limit:
            return self.inner.get(key, limit)
        return next(self.read_many([key], [0], [int(size)]))

    def size(self, key: str) -> int | None:
        entry = self._entry(key)
        return self.inner.size(key) if entry is None else entry[0]

    def read_many(self, keys: Sequence[str], offsets: Sequence[int], sizes: Sequence[int]) -> Iterator[bytes]:
        local = LocalStorage(self._cache.folder)  # for this call only: an open copy keeps its disk space
        for key, group in groupby(range(len(keys)), keys.__getitem__):
            positions = list(group)
            part = slice(positions[0], positions[-1] + 1)
            yield from self._read(local, key, offsets[part], sizes[part])

    def fetch(self, keys: Sequence[str]) -> Iterator[bool]:
        """Copy objects whole, many at once. Yield for each whether it is what the manifest says."""
        entries = self._own_entries
        missing = {key: entries[key][0] for key in keys if not self._cache.holds(entries[key][1])}
        contents = self._contents(missing)
        for key in keys:
            size, checksum = entries[key]
            content = next(contents) if key in missing else iter(self._fetch(key, size))
            try:
                yield self._cache.ensure(checksum, size, partial(iter, content), key) or _has_checksum(
                    content, checksum
                )
            except StoreError:  # told by whoever reads the object
                yield False

    def _contents(self, sizes: Mapping[str, int]) -> Iterator[Iterator[bytes]]:
        if isinstance(self.inner, ObjectStorage):
            return self.inner.read_objects(sizes)
        return (read_parts(self.inner, key, size) for key, size in sizes.items())

    def fetch_all(self, progress: Progress) -> None:
        """Copy all objects if there is room for them."""
        sizes = {key: size for key, (size, _) in self._own_entries.items()}
        total = sum(sizes.values())
        if total > self._cache.limit:
            return
        progress.begin("fetching", total)
        for size, _ in zip(sizes.values(), self.fetch(list(sizes)), strict=True):
            progress.advance(size)

    def _read(
        self, local: LocalStorage, key: str, offsets: Sequence[int], sizes: Sequence[int]
    ) -> Iterator[bytes]:
        entry = self._entry(key)
        for _ in range(MAX_ATTEMPTS):
            if entry is None:
                break
            size, checksum = entry
            name = f"{self.inner!r}: {key}"
            if not self._cache.ensure(checksum, size, partial(self._fetch, key, size), name):
                break
            copies = local.read_many([checksum] * len(sizes), offsets, sizes)
            try:
                first = next(copies)
            except AbsentError:  # evicted by another process before it was opened
                self._cache.invalidate(checksum)
                continue
            yield first
            yield from copies
            return
        yield from self.inner.read_many([key] * len(sizes), offsets, sizes)

    def _fetch(self, key: str, size: int) -> Iterable[bytes]:
        return next(self._contents({key: size}))

    @property
    def _own_entries(self) -> dict[str, tuple[int, str]]:
        assert self._manifest is not None
        return self._entries(self._manifest)

    def _entry(self, key: str) -> tuple[int, str] | None:
        """Return the size and checksum of an object, None if no manifest lists it."""
        if self._manifest is not None:
            return self._own_entries.get(key)
        manifest, own_key = split_part_key(key)
        return self._entries(manifest, part_folder(manifest)).get(own_key)

    def _entries(self, manifest: str, folder: str = "") -> dict[str, tuple[int, str]]:
        if manifest not in self._size_and_checksum:
            entries = parse_manifest(self._read_manifest(manifest, folder), repr(self.inner))
            by_key = {entry.key: (entry.bytes, entry.checksum) for entry in entries}
            self._size_and_checksum[manifest] = by_key
        return self._size_and_checksum[manifest]

    def _read_manifest(self, checksum: str, folder: str) -> bytes:
        # Fetched by one process of the machine, if there is room for a copy
        fetched: list[bytes] = []

        def fetch() -> list[bytes]:
            key = f"{folder}{MANIFEST}"
            raw = self.documents.get(key) or self.inner.get(key, MANIFEST_LIMIT)
            if xxhash.xxh3_128_hexdigest(raw) != checksum:
                msg = f"{self.inner!r}: {MANIFEST} differs from the sealed one. Fix: unistore verify STORE"
                raise CorruptionError(msg)
            fetched.append(raw)
            return fetched

        if self._cache.ensure(checksum, None, fetch, MANIFEST) and not fetched:
            with suppress(AbsentError):  # evicted by another process before it was opened
                return LocalStorage(self._cache.folder).get(checksum, MANIFEST_LIMIT)
        return (fetched or fetch())[0]


@contextmanager
def temporary_copies(path: PathLike, *, wanted: bool = True) -> Iterator[JsonObject]:
    """Yield arguments for `Store` with which objects of a bucket are fetched once, and kept until the end."""
    if not wanted or local_path(path) is not None:
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="unistore-copies-") as folder:
        yield {"cache_dir": folder, "cache_limit": max(1, shutil.disk_usage(folder).free // 2)}
