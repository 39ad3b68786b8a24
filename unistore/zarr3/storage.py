"""Where the objects of a store lie: the Storage protocol, and a local folder."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from unistore.errors import CorruptionError, StoreError
from unistore.zarr3.forks import renew_after_fork

__all__ = ["LocalStorage", "Storage"]

MAX_OPEN_FILES = 64
"""Files that one `LocalStorage` keeps open."""


class Storage(Protocol):
    """Objects by key (``"points/xyz/c/0/0"``); holds no handle when made and pickles small."""

    def get(self, key: str) -> bytes:
        """Whole object.

        Raises
        ------
        StoreError
            If there is none; the message names it.
        """

    def size(self, key: str) -> int | None:
        """Bytes of an object, or None where there is none."""

    def read_into(self, key: str, offset: int, out: memoryview) -> None:
        """Fill `out` (bytes) from `offset` of an object.

        Raises
        ------
        CorruptionError
            If the object ends before `out` is full.
        """

    def read_many(self, keys: Sequence[str], offsets: Sequence[int], sizes: Sequence[int]) -> Iterator[bytes]:
        """Read many ranges, yielded in the order given; equal keys should stand together.

        Raises
        ------
        CorruptionError
            If an object ends before its range does.
        """


class LocalStorage:
    """A folder. Files are opened on first read, positionally read, and at most `MAX_OPEN_FILES` stay open.

    Parameters
    ----------
    root
        The folder; it need not exist yet.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)
        self._folder = os.fspath(root)
        self.renew()
        renew_after_fork(self)

    def __reduce__(self) -> tuple[type[LocalStorage], tuple[str]]:
        return type(self), (self._folder,)

    def __repr__(self) -> str:
        return f"LocalStorage({self._folder!r})"

    def renew(self) -> None:
        """Forget open files and take a fresh lock."""
        self._lock = threading.Lock()
        self._files: OrderedDict[str, _OpenFile] = OrderedDict()

    def get(self, key: str) -> bytes:
        """Whole object; see `Storage.get`."""
        try:
            return self._path(key).read_bytes()
        except (FileNotFoundError, NotADirectoryError) as error:
            raise _missing(self._path(key)) from error
        except OSError as error:
            raise _unreadable(self._path(key), error) from error

    def size(self, key: str) -> int | None:
        """Bytes of an object, or None; see `Storage.size`."""
        try:
            return self._path(key).stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise _unreadable(self._path(key), error) from error

    def read_into(self, key: str, offset: int, out: memoryview) -> None:
        """Fill `out`; see `Storage.read_into`."""
        file = self._open(key)
        done = 0
        while done < len(out):
            part = file.read(len(out) - done, offset + done)
            if not part:
                raise _ends_early(file.path, offset, len(out), done)
            out[done : done + len(part)] = part
            done += len(part)

    def read_many(self, keys: Sequence[str], offsets: Sequence[int], sizes: Sequence[int]) -> Iterator[bytes]:
        """Read many ranges; see `Storage.read_many`."""
        held: str | None = None
        for key, offset, size in zip(keys, offsets, sizes, strict=True):
            if key is not held:
                file = self._open(key)  # this reference keeps the file open while it is read
                read, held = file.read, key
            raw = read(size, offset)
            if len(raw) != size:
                raw = _rest(file, raw, offset, size)
            yield raw

    def _path(self, key: str) -> Path:
        return self.root / key

    def _open(self, key: str) -> _OpenFile:
        with self._lock:
            file = self._files.get(key)
            if file is not None:
                self._files.move_to_end(key)
                return file
        file = _OpenFile(os.path.join(self._folder, key))  # noqa: PTH118 - hot, and str is what os.open takes
        with self._lock:
            file = self._files.setdefault(key, file)
            while len(self._files) > MAX_OPEN_FILES:
                self._files.popitem(last=False)  # closed when its last reader lets go of it
        return file


class _OpenFile:
    """An open file; closed with its last reference, so that eviction never closes under a reader."""

    __slots__ = ("_lock", "fd", "path")

    def __init__(self, path: str) -> None:
        self.fd = -1
        self.path = path
        self._lock = threading.Lock()
        try:
            self.fd = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise _missing(path) from error
        except OSError as error:
            raise _unreadable(path, error) from error

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)

    if hasattr(os, "pread"):

        def read(self, size: int, offset: int) -> bytes:
            """Read up to `size` bytes from `offset`."""
            return os.pread(self.fd, size, offset)

    else:

        def read(self, size: int, offset: int) -> bytes:
            """Read up to `size` bytes from `offset`."""
            with self._lock:
                os.lseek(self.fd, offset, os.SEEK_SET)
                return os.read(self.fd, size)


def _rest(file: _OpenFile, raw: bytes, offset: int, size: int) -> bytes:
    """Read on after a short read."""
    parts = [raw]
    done = len(raw)
    while done < size:
        part = file.read(size - done, offset + done)
        if not part:
            raise _ends_early(file.path, offset, size, done)
        parts.append(part)
        done += len(part)
    return b"".join(parts)


def _missing(path: object) -> StoreError:
    return StoreError(f"{path}: no such file")


def _unreadable(path: object, error: OSError) -> StoreError:
    return StoreError(f"{path}: cannot be read ({error.strerror or error})")


def _ends_early(path: str, offset: int, size: int, done: int) -> CorruptionError:
    return CorruptionError(
        f"{path}: ends at byte {offset + done}, inside a range of {size} bytes from {offset}"
    )
