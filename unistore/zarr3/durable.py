"""Bring files durably to disk: temporary name, write, fsync, rename, fsync of the folder.

Waiting for a disk takes milliseconds a file, and hardly more for many files at once: what becomes durable
together is fsynced by several threads, while the next file is being made.

Every call into the system that matters for durability goes through a name of this module, so that a test can
record their order (no test with SIGKILL proves an fsync).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import xxhash

from unistore.errors import ConversionError

__all__ = [
    "PART_SUFFIX",
    "Together",
    "WrittenFile",
    "sync_files",
    "sync_folder",
    "sync_folders",
    "write_shard",
]

PART_SUFFIX = ".part"
"""Ending of temporary names; a file that has it was left behind by a killed process."""

fsync = os.fsync
rename = os.replace
write = os.writev if hasattr(os, "writev") else lambda fd, buffers: os.write(fd, buffers[0])

_BYTES_A_CALL = 1 << 19  # so that what was encoded is still in the processor's cache when it is written
_BUFFERS_A_CALL = 1000  # Linux takes 1024
_BYTES_A_SYNC = 16 << 20  # so that the disk is at work while a large file is still being written
_THREADS = 8
_OPEN = 64  # files that wait for their fsync
_CURES = {
    errno.ENOSPC: "free space",
    errno.EDQUOT: "free space or raise the quota",
    errno.EACCES: "allow writing there",
    errno.EPERM: "allow writing there",
    errno.EIO: "the disk fails: see the system's log (dmesg) and replace it",
    errno.EROFS: "choose a destination that can be written to",
}


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that is on disk.

    Attributes
    ----------
    key
        Its path relative to the store, with slashes.
    bytes
        Its size.
    checksum
        xxh3-128 of its content, hexadecimal.
    """

    key: str
    bytes: int
    checksum: str


@dataclass(slots=True)
class _Part:
    """A file under its temporary name, and what brings it to disk."""

    path: Path
    part: Path
    fd: int
    syncs: list[Future[None]] = field(default_factory=list)

    def settle(self) -> None:
        """Wait until it is on disk, and close it."""
        for sync in self.syncs:
            sync.result()
        self.close()

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


class Together:
    """Files of a folder that become durable together, when the ``with`` statement is left.

    Until then they stand under temporary names. Leaving waits until every file is on disk, gives all their
    names, and waits until the names are. At any moment, also of a crash, each is either absent (or as it was
    before) or whole. Left by an error, nothing is there.

    Parameters
    ----------
    root
        Folder of the store.
    durable
        False leaves out the fsyncs; the renames stay.
    """

    def __init__(self, root: str | os.PathLike[str], *, durable: bool = True) -> None:
        self._root = Path(root)
        self._parts: list[_Part] = []
        self._folders: dict[Path, None] = {}
        self._pool = _threads() if durable else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._finish()
        except BaseException:
            self._discard()
            raise
        if error is not None:
            self._discard()

    def put(self, key: str, buffers: Iterable[bytes | memoryview]) -> WrittenFile:
        """Write a file under a temporary name; folders are made as needed.

        Parameters
        ----------
        key
            Path of the file below the root, with slashes.
        buffers
            Its content, taken as it is written: a generator's buffers are never held all at once.

        Raises
        ------
        ConversionError
            If it, or one before it, cannot be written.
        """
        path = Path(self._root, *key.split("/"))
        name = path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}{PART_SUFFIX}")
        for waiting in self._parts[-_OPEN : -_OPEN + 1]:
            _settle(waiting)
        try:
            self._folders.update(dict.fromkeys(_make_folders(path.parent)))
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
            part = _Part(path, name, os.open(name, flags, 0o666))
        except OSError as error:
            raise _failed(path, error) from error
        self._parts.append(part)
        digest, size, synced = xxhash.xxh3_128(), 0, 0
        for group, length in _grouped(buffers):
            for buffer in group:
                digest.update(buffer)
            try:
                _write_all(part.fd, group, length)
            except OSError as error:
                raise _failed(path, error) from error
            size += length
            if size - synced >= _BYTES_A_SYNC:
                synced = size
                self._sync(part)
        self._sync(part)
        return WrittenFile(key, size, digest.hexdigest())

    def _sync(self, part: _Part) -> None:
        if self._pool is not None:
            part.syncs.append(self._pool.submit(fsync, part.fd))

    def _finish(self) -> None:
        for part in self._parts:
            _settle(part)
        for part in self._parts:
            try:
                rename(part.part, part.path)
            except OSError as error:
                raise _failed(part.path, error) from error
        if self._pool is not None:
            _sync_all(self._pool, self._folders)
            self._pool.shutdown()

    def _discard(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        for part in self._parts:
            part.close()
            with suppress(OSError):
                part.part.unlink()


def write_shard(
    root: str | os.PathLike[str], key: str, buffers: Iterable[bytes | memoryview], *, durable: bool = True
) -> WrittenFile:
    """Write one file so that it is either absent (or as it was before) or whole, also after a crash.

    Folders are made as needed; a folder that got a new entry is fsynced too.

    Parameters
    ----------
    root
        Folder of the store.
    key
        Path of the file in it, with slashes.
    buffers
        Its content.
    durable
        False leaves out the fsyncs; the rename stays.

    Raises
    ------
    ConversionError
        If it cannot be written; nothing is left under the temporary name.
    """
    with Together(root, durable=durable) as files:
        return files.put(key, buffers)


def sync_files(files: Iterable[IO[bytes]]) -> None:
    """Wait until all that was written to these open files is on disk."""
    with _threads() as pool:
        list(pool.map(_sync_file, files))


def _sync_file(file: IO[bytes]) -> None:
    file.flush()
    fsync(file.fileno())


def sync_folders(folders: Iterable[Path]) -> None:
    """Wait until the names in all these folders are on disk.

    Raises
    ------
    ConversionError
        Naming a folder for which that failed.
    """
    with _threads() as pool:
        _sync_all(pool, folders)


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on disk."""
    if os.name == "nt":  # Windows cannot open folders
        return
    fd = os.open(folder, os.O_RDONLY)
    try:
        fsync(fd)
    finally:
        os.close(fd)


def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, "unistore-fsync")


def _sync_all(pool: ThreadPoolExecutor, folders: Iterable[Path]) -> None:
    for folder, sync in [(folder, pool.submit(sync_folder, folder)) for folder in folders]:
        try:
            sync.result()
        except OSError as error:
            raise _failed(folder, error) from error


def _settle(part: _Part) -> None:
    try:
        part.settle()
    except OSError as error:
        raise _failed(part.path, error) from error


def _make_folders(folder: Path) -> list[Path]:
    """Make a folder and its parents; give every folder that gets a new entry, `folder` itself first."""
    changed = [folder]
    while not changed[-1].exists():
        changed.append(changed[-1].parent)
    folder.mkdir(parents=True, exist_ok=True)
    return changed


def _grouped(buffers: Iterable[bytes | memoryview]) -> Iterator[tuple[list[bytes | memoryview], int]]:
    """The same buffers in groups, and their bytes: so many that the call that takes a group costs nothing."""
    group: list[bytes | memoryview] = []
    held = 0
    for buffer in buffers:
        group.append(buffer)
        held += len(buffer)
        if held >= _BYTES_A_CALL or len(group) == _BUFFERS_A_CALL:
            yield group, held
            group, held = [], 0
    if group:
        yield group, held


def _write_all(fd: int, group: list[bytes | memoryview], length: int) -> None:
    """Write all buffers; a call may write less than it was given."""
    while (done := write(fd, group)) < length:
        length -= done
        while done >= len(group[0]):
            done -= len(group[0])
            group = group[1:]
        group = [memoryview(group[0])[done:], *group[1:]]


def _failed(path: Path, error: OSError) -> ConversionError:
    cure = _CURES.get(error.errno or 0, "fix the destination")
    return ConversionError(
        f"{path}: cannot be written ({error.strerror or error}); {cure}, then run the same command"
    )
