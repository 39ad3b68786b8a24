"""Write files durably: temporary name, write, fsync, rename, fsync of the folder."""

# An fsync takes milliseconds, and hardly longer when many run at once: the files of one commit are fsynced
# on several threads while the next file is written. Every call into the system that matters for durability
# goes through a name of this module, so that a test can record their order (no test with SIGKILL proves an
# fsync)

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, NamedTuple, Protocol, Self

import xxhash

from unistore.errors import ConversionError, writing_fix
from unistore.system.types import Buffer, PathLike

# Ending of temporary names; a file that has it was left behind by a killed process.
PART_SUFFIX = ".part"

fsync = os.fsync
rename = os.replace
link = os.link
write = os.writev

_BYTES_A_CALL = 1 << 19  # so that what was encoded is still in the processor's cache when it is written
_BUFFERS_A_CALL = 1000  # Linux takes 1024
_BYTES_A_SYNC = 16 << 20  # so that the disk is at work while a large file is still being written
_THREADS = 8
_MAX_PENDING = 64  # files that wait for their fsync


class WrittenFile(NamedTuple):
    """A file that was written: its key, its size in bytes, and xxh3-128 of its content, hexadecimal."""

    key: str
    bytes: int
    checksum: str


@dataclass(slots=True)
class _PartFile:
    path: Path
    temporary: Path
    fd: int
    fsyncs: list[Future[None]] = field(default_factory=list)

    def wait(self) -> None:
        with _naming(self.path):
            for sync in self.fsyncs:
                sync.result()
            self.close()

    def close(self) -> None:
        fd = self.fd
        self.fd = -1
        if fd >= 0:
            os.close(fd)


class AtomicFiles:
    """Files of a folder, committed together when the ``with`` block ends.

    Until then they have temporary names. The end waits for the fsync of every file, renames all of them,
    and fsyncs their folders. At any moment, also after a crash, each file is either absent (or as it was
    before) or whole. If the block raises, the temporary files are deleted.
    """

    def __init__(
        self,
        root: PathLike,  # folder of the store
    ) -> None:
        self._root = Path(root)
        self._parts: list[_PartFile] = []
        self._folders: dict[Path, None] = {}
        self._pool = _sync_pool()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._finish()
                self._parts.clear()
        finally:
            self._pool.shutdown(cancel_futures=True)
            for part in self._parts:
                part.close()
                with suppress(OSError):
                    part.temporary.unlink()

    def put(
        self,
        key: str,  # path of the file below the root, with slashes
        # its content, taken as it is written: a generator's buffers are never held all at once
        buffers: Iterable[Buffer],
    ) -> WrittenFile:
        """Write a file under a temporary name. Folders are made as needed."""
        path = Path(self._root, *key.split("/"))
        temporary = _temporary(path)
        for waiting in self._parts[-_MAX_PENDING : -_MAX_PENDING + 1]:
            waiting.wait()
        with _naming(path):
            self._folders.update(dict.fromkeys(_make_folders(path.parent)))
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            part = _PartFile(path, temporary, os.open(temporary, flags, 0o666))
        self._parts.append(part)
        digest = xxhash.xxh3_128()
        size = 0
        synced = 0
        for group, length in _group_buffers(buffers):
            for buffer in group:
                digest.update(buffer)
            with _naming(path):
                _write_all(part.fd, group, length)
            size += length
            if size - synced >= _BYTES_A_SYNC:
                synced = size
                part.fsyncs.append(self._pool.submit(fsync, part.fd))
        part.fsyncs.append(self._pool.submit(fsync, part.fd))
        return WrittenFile(key, size, digest.hexdigest())

    def _finish(self) -> None:
        for part in self._parts:
            part.wait()
        for part in self._parts:
            with _naming(part.path):
                rename(part.temporary, part.path)
        _sync_all(self._pool, self._folders)


def write_file(root: PathLike, key: str, buffers: Iterable[Buffer]) -> WrittenFile:
    """Write one file so that it is either absent (or as it was before) or whole, also after a crash."""
    with AtomicFiles(root) as files:
        return files.put(key, buffers)


def create_file(root: PathLike, key: str, data: bytes) -> None:
    """Write one file that must not exist, whole or not at all, though another process does the same."""
    path = Path(root, *key.split("/"))
    temporary = _temporary(path)
    write_file(path.parent, temporary.name, [data])
    try:
        with _naming(path):
            link(temporary, path)
    finally:
        temporary.unlink()
    sync_folder(path.parent)


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}{PART_SUFFIX}")


def is_there(path: Path) -> bool:
    """Return whether something is at a path. OSError if the system cannot tell: that is no absence."""
    # `Path.exists` says False for every error from Python 3.14 on
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def sync_files(files: Iterable[IO[bytes]]) -> None:
    """Flush and fsync open files."""
    with _sync_pool() as pool:
        list(pool.map(_sync_file, files))


def _sync_file(file: IO[bytes]) -> None:
    file.flush()
    fsync(file.fileno())


def sync_folders(folders: Iterable[Path]) -> None:
    """Fsync folders. The `ConversionError` names the one for which that fails."""
    with _sync_pool() as pool:
        _sync_all(pool, folders)


def sync_folder(folder: Path) -> None:
    """Fsync one folder."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        fsync(fd)
    finally:
        os.close(fd)


def _sync_pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, "unistore-fsync")


def _sync_all(pool: ThreadPoolExecutor, folders: Iterable[Path]) -> None:
    for folder, sync in [(folder, pool.submit(sync_folder, folder)) for folder in folders]:
        with _naming(folder):
            sync.result()


def _make_folders(folder: Path) -> list[Path]:
    # Returns the folders that get a new entry, `folder` itself first
    changed = [folder]
    while not changed[-1].exists():
        changed.append(changed[-1].parent)
    folder.mkdir(parents=True, exist_ok=True)
    return changed


def _group_buffers(buffers: Iterable[Buffer]) -> Iterator[tuple[list[Buffer], int]]:
    group: list[Buffer] = []
    nbytes = 0
    for buffer in buffers:
        group.append(buffer)
        nbytes += len(buffer)
        if nbytes >= _BYTES_A_CALL or len(group) == _BUFFERS_A_CALL:
            yield group, nbytes
            group = []
            nbytes = 0
    if group:
        yield group, nbytes


def _write_all(fd: int, group: list[Buffer], length: int) -> None:
    # A call may write less than it was given
    while (done := write(fd, group)) < length:
        length -= done
        while done >= len(group[0]):
            done -= len(group[0])
            group = group[1:]
        group = [memoryview(group[0])[done:], *group[1:]]


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = f"cannot be written: {error.strerror or error}"
        msg = f"{path}: {reason}. Fix: {writing_fix(error)}, then run the same command"
        raise ConversionError(msg) from error


class Files(Protocol):
    """Writes files, so that each appears complete or not at all."""

    def put(self, key: str, buffers: Iterable[Buffer]) -> WrittenFile:
        """Write a file."""
        ...


class Target(Files, Protocol):
    """Writes the files of a store. `put` returns once the file is durable (fsynced). Can be pickled."""

    def together(self) -> AbstractContextManager[Files]:
        """Return a context in which several files are written. All are durable once it is left."""
        ...

    def sizes(self) -> Mapping[str, int]:
        """Return sizes in bytes of all files, by key."""
        ...

    def keep_only(self, keys: AbstractSet[str]) -> None:
        """Remove all files but `keys`, and make the names of these durable."""
        ...


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder of the file system."""

    root: Path

    def put(self, key: str, buffers: Iterable[Buffer]) -> WrittenFile:
        return write_file(self.root, key, buffers)

    def together(self) -> AtomicFiles:
        return AtomicFiles(self.root)

    def sizes(self) -> Mapping[str, int]:
        sizes = {}
        for folder, _, names in os.walk(self.root):
            for name in names:
                path = Path(folder, name)
                with suppress(FileNotFoundError):  # a temporary name of another part of a conversion
                    sizes[path.relative_to(self.root).as_posix()] = path.stat().st_size
        return sizes

    def keep_only(self, keys: AbstractSet[str]) -> None:
        folders = []
        for folder, _, names in os.walk(self.root, topdown=False):
            folders.append(Path(folder))
            for name in names:
                path = Path(folder, name)
                if path.relative_to(self.root).as_posix() not in keys:
                    path.unlink()
        sync_folders(folders)
