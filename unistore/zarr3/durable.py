"""Bring a file durably to disk: temporary name, write, fsync, rename, fsync of the folder.

Every call into the system that matters for durability goes through a name of this module, so that a test can
record their order (no test with SIGKILL proves an fsync).
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import xxhash

from unistore.errors import ConversionError

__all__ = ["PART_SUFFIX", "WrittenFile", "write_shard"]

PART_SUFFIX = ".part"
"""Ending of temporary names; a file that has it was left behind by a killed process."""

fsync = os.fsync
rename = os.replace
writev = getattr(os, "writev", None)

_BUFFERS_A_CALL = 512  # POSIX allows IOV_MAX: 1024 on Linux and macOS
_BYTES_A_CALL = 1 << 19  # so that what has been hashed is still in the processor's cache when it is written
_CURES = {
    errno.ENOSPC: "free space",
    errno.EDQUOT: "free space or raise the quota",
    errno.EACCES: "allow writing there",
    errno.EPERM: "allow writing there",
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


def write_shard(
    root: str | os.PathLike[str], key: str, buffers: Iterable[bytes | memoryview], *, durable: bool = True
) -> WrittenFile:
    """Write a file so that it is either absent (or as it was before) or whole, also after a crash.

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
    path = Path(root, *key.split("/"))
    part = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}{PART_SUFFIX}")
    try:
        folders = _make_folders(path.parent)
        try:
            size, checksum = _write_part(part, buffers, durable=durable)
            rename(part, path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        if durable:
            for folder in folders:
                _fsync_folder(folder)
    except OSError as error:
        raise _failed(path, error) from error
    return WrittenFile(key, size, checksum)


def _make_folders(folder: Path) -> list[Path]:
    """Make a folder and its parents; give every folder that gets a new entry, `folder` itself first."""
    changed = [folder]
    while not changed[-1].exists():
        changed.append(changed[-1].parent)
    folder.mkdir(parents=True, exist_ok=True)
    return changed


def _write_part(part: Path, buffers: Iterable[bytes | memoryview], *, durable: bool) -> tuple[int, str]:
    """Write the temporary file; give its size and checksum."""
    digest = xxhash.xxh3_128()
    size = 0
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    try:
        for group in _grouped(buffers):
            for buffer in group:
                digest.update(buffer)
            size += _write_all(fd, group)
        if durable:
            fsync(fd)
    finally:
        os.close(fd)
    return size, digest.hexdigest()


def _grouped(buffers: Iterable[bytes | memoryview]) -> Iterator[list[bytes | memoryview]]:
    group: list[bytes | memoryview] = []
    held = 0
    for buffer in buffers:
        group.append(buffer)
        held += len(buffer)
        if held >= _BYTES_A_CALL or len(group) == _BUFFERS_A_CALL:
            yield group
            group, held = [], 0
    if group:
        yield group


def _write_all(fd: int, buffers: list[bytes | memoryview]) -> int:
    """Write buffers in as few calls as the system allows; give their bytes."""
    total = sum(map(len, buffers))
    done = 0 if writev is None else writev(fd, buffers)
    if done < total:
        rest = memoryview(b"".join(buffers))[done:]
        while rest:
            rest = rest[os.write(fd, rest) :]
    return total


def _fsync_folder(folder: Path) -> None:
    if os.name == "nt":  # Windows cannot open folders
        return
    fd = os.open(folder, os.O_RDONLY)
    try:
        fsync(fd)
    finally:
        os.close(fd)


def _failed(path: Path, error: OSError) -> ConversionError:
    cure = _CURES.get(error.errno or 0, "mend the destination")
    return ConversionError(
        f"{path}: cannot be written ({error.strerror or error}); {cure}, then run the same command"
    )
