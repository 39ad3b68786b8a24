"""`CachedStorage`: the storage of a sealed store with a cache of local copies."""

from __future__ import annotations

import errno
import math
import os
import re
import stat
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import xxhash

from unistore.errors import CorruptionError, StoreError
from unistore.store.manifest import MANIFEST_LIMIT, parse_manifest
from unistore.store.names import MANIFEST
from unistore.system import own_files as file_locks
from unistore.system.own_files import NotOwnError, open_own_file, open_own_folder
from unistore.zarr3.storage import DOCUMENT_LIMIT, AbsentError, LocalStorage, Storage

PART = ".part"
TOUCH_INTERVAL = 60.0
"""Seconds between updates of a copy's modification time, which records its last use."""
_BLOCK = 1 << 20
_OTHERS_WRITE = 0o022
_SUBFOLDER = re.compile(r"[0-9a-f]{2}")
_COPY_NAME = re.compile(rf"[0-9a-f]{{32}}({re.escape(PART)})?")


class ShardCache:
    """Verified copies by checksum. Pickles as its arguments; safe with processes, threads and forks.

    The folder is on a local disk, and created with the first copy. `limit` bounds the bytes of all copies,
    those being fetched included. The least recently used are evicted first, even if another process reads
    them: open files stay readable.
    """

    def __init__(self, folder: str | os.PathLike[str], limit: int) -> None:
        self.folder = Path(folder)
        self.limit = limit
        self._verified_at: dict[str, float] = {}

    def __reduce__(self) -> tuple[type[ShardCache], tuple[Path, int]]:
        return type(self), (self.folder, self.limit)

    def path(self, checksum: str) -> str:
        """Return the path of a copy below the folder."""
        return f"{checksum[:2]}/{checksum}"

    def ensure(
        self, checksum: str, size: int | None, fetch: Callable[[], Iterable[bytes]], name: str
    ) -> bool:
        """Make sure that there is a copy, fetching it if needed; False if there is no room for it.

        `checksum` is the object's xxh3-128, hexadecimal, `size` its bytes (None: known once fetched, and
        held in memory then); ``fetch()`` returns the content in pieces; errors name the object as `name`.
        """
        if time.monotonic() - self._verified_at.get(checksum, -math.inf) < TOUCH_INTERVAL:
            return True
        try:
            return self._ensure(checksum, size, fetch, name)
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

    def invalidate(self, checksum: str) -> None:
        """Check again whether a copy exists before its next use."""
        self._verified_at.pop(checksum, None)

    def _ensure(
        self, checksum: str, size: int | None, fetch: Callable[[], Iterable[bytes]], name: str
    ) -> bool:
        with self._subfolder(checksum) as subfolder:
            if self._has_valid_copy(subfolder, checksum, size):
                return True
            if size is not None and size > self.limit:
                return False
            with self._locked_part(subfolder, checksum) as part:
                if self._has_valid_copy(subfolder, checksum, size):  # another process fetched it meanwhile
                    return True
                pieces = [*fetch()] if size is None else ()
                size = sum(map(len, pieces)) if size is None else size
                if size > self.limit or not self._reserve(part, size):
                    return False
                _write_verified(part, checksum, size, pieces or fetch(), name)
                part_name = checksum + PART
                os.replace(part_name, checksum, src_dir_fd=subfolder, dst_dir_fd=subfolder)  # the lock stays
        self._verified_at[checksum] = time.monotonic()
        return True

    def _has_valid_copy(self, subfolder: int, checksum: str, size: int | None) -> bool:
        """Return whether there is a valid copy; the first check of this process reads all of it."""
        try:
            copy = self._open_file(checksum, subfolder, checksum[:2])
        except FileNotFoundError:
            self.invalidate(checksum)
            return False
        try:
            if checksum not in self._verified_at and not _matches(copy, checksum, size):
                with suppress(FileNotFoundError):
                    os.unlink(checksum, dir_fd=subfolder)
                return False
            os.utime(copy)
        finally:
            os.close(copy)
        self._verified_at[checksum] = time.monotonic()
        return True

    @contextmanager
    def _root_folder(self) -> Iterator[int]:
        """Descriptor of the cache's folder, which is created if needed."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            self.folder.mkdir(mode=0o700)
        with self._open_folder(self.folder) as root:
            yield root

    @contextmanager
    def _subfolder(self, checksum: str) -> Iterator[int]:
        """Descriptor of the folder of a copy, which is created if needed."""
        name = checksum[:2]
        with self._root_folder() as root:
            with suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=root)
            with self._open_folder(name, root) as subfolder:
                yield subfolder

    @contextmanager
    def _open_folder(self, path: str | Path, inside: int | None = None) -> Iterator[int]:
        try:
            descriptor = open_own_folder(path, _OTHERS_WRITE, inside=inside)
        except NotOwnError as error:
            raise self._unusable(self.folder / path, error) from error
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _open_file(self, name: str, folder: int, parent: str, flags: int = 0) -> int:
        try:
            return open_own_file(name, folder, flags)
        except NotOwnError as error:
            raise self._unusable(self.folder / parent / name, error) from error

    def _unusable(self, path: Path, error: NotOwnError) -> StoreError:
        file, cure = ("", "") if path == self.folder else (f"{path} ", "remove it, or ")
        cure += "choose another folder, of your own, that others cannot write to"
        return StoreError(f"cache_dir {self.folder}: cannot be used ({file}{error}); {cure}")

    def _reserve(self, part: int, size: int) -> bool:
        """Allocate an object's part file before it is fetched, evicting copies; False if there is no room."""
        with self._root_folder() as root, self._locked_file("lock", root, ""):
            if not self._evict(root, size):
                return False
            if hasattr(os, "posix_fallocate") and size:
                os.posix_fallocate(part, 0, size)
            os.ftruncate(part, size)
        return True

    def _evict(self, root: int, size: int) -> bool:
        """Remove least recently used copies until `size` more bytes fit; False if they do not."""
        copies: list[tuple[float, int, str]] = []
        total = 0
        for name in filter(_SUBFOLDER.fullmatch, os.listdir(root)):
            with self._open_folder(name, root) as subfolder:
                for copy in filter(_COPY_NAME.fullmatch, os.listdir(subfolder)):  # noqa: PTH208 - a descriptor
                    with suppress(FileNotFoundError):  # renamed by the process that fetched it
                        state = os.stat(copy, dir_fd=subfolder, follow_symlinks=False)
                        if not stat.S_ISREG(state.st_mode):
                            continue
                        if copy.endswith(PART):
                            total += 0 if self._remove_if_abandoned(copy, subfolder, name) else state.st_size
                        else:
                            total += state.st_size
                            copies.append((state.st_mtime, state.st_size, copy))
        copies.sort()
        for _, nbytes, copy in copies:
            if total + size <= self.limit:
                break
            with self._open_folder(copy[:2], root) as subfolder, suppress(FileNotFoundError):
                os.unlink(copy, dir_fd=subfolder)
            total -= nbytes
        return total + size <= self.limit

    def _remove_if_abandoned(self, part: str, subfolder: int, parent: str) -> bool:
        """Remove a part file unless a living process has it locked; return whether it was abandoned."""
        descriptor = self._open_file(part, subfolder, parent)
        try:
            if not file_locks.lock(descriptor, wait=False):
                return False
            if _is_current(descriptor, part, subfolder):
                os.unlink(part, dir_fd=subfolder)
            return True
        finally:
            file_locks.close(descriptor)

    @contextmanager
    def _locked_part(self, subfolder: int, checksum: str) -> Iterator[int]:
        """Descriptor of a copy's ``.part`` file, locked by us; waits while another process fetches it."""
        part = checksum + PART
        while True:
            with self._locked_file(part, subfolder, checksum[:2]) as descriptor:
                if not _is_current(descriptor, part, subfolder):  # renamed or removed by its last owner
                    continue
                try:
                    yield descriptor
                finally:
                    if _is_current(descriptor, part, subfolder):
                        os.unlink(part, dir_fd=subfolder)
                return

    @contextmanager
    def _locked_file(self, name: str, folder: int, parent: str) -> Iterator[int]:
        """Descriptor of a file, created if needed and locked; waits while another process has the lock."""
        descriptor = self._open_file(name, folder, parent, os.O_CREAT)
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
        msg = f"{name}: does not match its checksum in the manifest ({done} bytes of {size}); restore it"
        raise CorruptionError(msg)


def _matches(copy: int, checksum: str, size: int | None) -> bool:
    if size is not None and os.fstat(copy).st_size != size:
        return False
    digest = xxhash.xxh3_128()
    done = 0
    while block := os.pread(copy, _BLOCK, done):
        digest.update(block)
        done += len(block)
    return digest.hexdigest() == checksum


def _is_current(descriptor: int, name: str, folder: int) -> bool:
    """Return whether a name in a folder still refers to an open file."""
    try:
        state = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(state, os.fstat(descriptor))


MAX_ATTEMPTS = 5
"""Attempts to read a copy that other processes keep evicting; then the store is read instead."""


class CachedStorage:
    """Reads objects from local copies; an object is fetched whole and verified on first use.

    Sizes and checksums come from the store's manifest, which is read on first use and kept like them. Objects
    that do not fit into the cache are read from the store directly. `manifest` is the manifest's checksum,
    from the seal.
    """

    def __init__(self, inner: Storage, cache: ShardCache, manifest: str) -> None:
        self.fork_safe = inner.fork_safe
        self._inner = inner
        self._cache = cache
        self._manifest_checksum = manifest
        self._size_and_checksum: dict[str, tuple[int, str]] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._inner, self._cache, self._manifest_checksum)

    def __repr__(self) -> str:
        return repr(self._inner)

    def get(self, key: str, limit: int = DOCUMENT_LIMIT) -> bytes:
        """Return the content of an object; see `Storage.get`."""
        size = self._listed_size(key)
        if size is None or size > limit:
            return self._inner.get(key, limit)
        return next(self.read_many([key], [0], [size]))

    def size(self, key: str) -> int | None:
        """Return the size of an object in bytes, or None; see `Storage.size`."""
        size = self._listed_size(key)
        return self._inner.size(key) if size is None else size

    def read_into(self, key: str, offset: int, out: memoryview) -> None:
        """Fill `out`; see `Storage.read_into`."""
        for raw in self.read_many([key], [offset], [len(out)]):
            out[:] = raw

    def read_many(self, keys: Sequence[str], offsets: Sequence[int], sizes: Sequence[int]) -> Iterator[bytes]:
        """Read many ranges; see `Storage.read_many`."""
        local = LocalStorage(self._cache.folder)  # for this call only: an open copy keeps its disk space
        for key, group in groupby(range(len(keys)), keys.__getitem__):
            positions = list(group)
            part = slice(positions[0], positions[-1] + 1)
            yield from self._read(local, key, offsets[part], sizes[part])

    def _read(
        self, local: LocalStorage, key: str, offsets: Sequence[int], sizes: Sequence[int]
    ) -> Iterator[bytes]:
        entry = self._entries().get(key)
        for _ in range(MAX_ATTEMPTS):
            if entry is None:
                break
            size, checksum = entry
            name = f"{self._inner!r}: {key}"
            if not self._cache.ensure(checksum, size, partial(self._fetch, key, size), name):
                break
            copies = local.read_many([self._cache.path(checksum)] * len(sizes), offsets, sizes)
            try:
                first = next(copies)
            except AbsentError:  # evicted by another process before it was opened
                self._cache.invalidate(checksum)
                continue
            yield first
            yield from copies
            return
        yield from self._inner.read_many([key] * len(sizes), offsets, sizes)

    def _fetch(self, key: str, size: int) -> Iterable[bytes]:
        """Return the content of an object in pieces of one request each."""
        from unistore.remote.client import LIMIT

        starts = range(0, size, LIMIT)
        sizes = [min(LIMIT, size - start) for start in starts]
        return self._inner.read_many([key] * len(starts), starts, sizes)

    def _listed_size(self, key: str) -> int | None:
        entry = self._entries().get(key)
        return None if entry is None else entry[0]

    def _entries(self) -> dict[str, tuple[int, str]]:
        """Return the size and checksum of every object that the manifest lists."""
        if self._size_and_checksum is None:
            entries = parse_manifest(self._manifest(), repr(self._inner))
            self._size_and_checksum = {entry.key: (entry.bytes, entry.checksum) for entry in entries}
        return self._size_and_checksum

    def _manifest(self) -> bytes:
        """Return the manifest; fetched by one process of the machine, if there is room for a copy."""
        fetched: list[bytes] = []

        def fetch() -> list[bytes]:
            raw = self._inner.get(MANIFEST, MANIFEST_LIMIT)
            if xxhash.xxh3_128_hexdigest(raw) != self._manifest_checksum:
                msg = f"{self._inner!r}: {MANIFEST} is not the one that was sealed; run 'unistore verify'"
                raise CorruptionError(msg)
            fetched.append(raw)
            return fetched

        checksum = self._manifest_checksum
        if self._cache.ensure(checksum, None, fetch, MANIFEST) and not fetched:
            with suppress(AbsentError):  # evicted by another process before it was opened
                return LocalStorage(self._cache.folder).get(self._cache.path(checksum), MANIFEST_LIMIT)
        return (fetched or fetch())[0]
