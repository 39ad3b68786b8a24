"""Where the files of a store are written: a folder, or a prefix of an object store."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from unistore.zarr3.durable import AtomicFiles, WrittenFile, sync_folders, write_file


class Files(Protocol):
    """Writes files; each appears complete or not at all."""

    def put(self, key: str, buffers: Iterable[bytes | memoryview]) -> WrittenFile:
        """Write a file.

        Raises
        ------
        ConversionError
            If it cannot be written.
        """
        ...


class Target(Files, Protocol):
    """Writes the files of a store; `put` returns once the file is durable (fsynced). Can be pickled."""

    def together(self) -> AbstractContextManager[Files]:
        """Context in which several files are written; all are durable once it is left."""
        ...

    def sizes(self) -> Mapping[str, int]:
        """Sizes in bytes of all files, by key."""
        ...

    def keep_only(self, keys: AbstractSet[str]) -> None:
        """Remove all files but `keys`, and make the names of these durable."""
        ...


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder of the file system."""

    root: Path

    def put(self, key: str, buffers: Iterable[bytes | memoryview]) -> WrittenFile:
        """Write a file durably; see `Files.put`."""
        return write_file(self.root, key, buffers)

    def together(self) -> AtomicFiles:
        """Write several files and fsync them together; see `Target.together`."""
        return AtomicFiles(self.root)

    def sizes(self) -> Mapping[str, int]:
        """Keys and sizes; see `Target.sizes`."""
        return {
            path.relative_to(self.root).as_posix(): path.stat().st_size
            for folder, _, names in os.walk(self.root)
            for path in (Path(folder, name) for name in names)
        }

    def keep_only(self, keys: AbstractSet[str]) -> None:
        """Remove files left by killed writers, and fsync every folder; see `Target.keep_only`."""
        folders = []
        for folder, _, names in os.walk(self.root, topdown=False):
            folders.append(Path(folder))
            for name in names:
                path = Path(folder, name)
                if path.relative_to(self.root).as_posix() not in keys:
                    path.unlink()
        sync_folders(folders)
