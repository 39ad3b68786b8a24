"""Where the files of a store are written: a folder of its own, or a prefix of an object store."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from unistore.zarr3.durable import AtomicFiles, WrittenFile, sync_folders, write_shard

__all__ = ["Files", "Folder", "Target"]


class Files(Protocol):
    """Takes files, each of them whole or not at all."""

    def put(self, key: str, buffers: Iterable[bytes | memoryview]) -> WrittenFile:
        """Write a file.

        Raises
        ------
        ConversionError
            If it cannot be written.
        """
        ...


class Target(Files, Protocol):
    """Takes the files of a store; ``put`` waits until one would survive a crash. Pickles small."""

    def together(self) -> AbstractContextManager[Files]:
        """Take files that are all there, and would survive a crash, once the context is left."""
        ...

    def sizes(self) -> Mapping[str, int]:
        """Keys and sizes of all files that are there."""
        ...

    def keep_only(self, keys: AbstractSet[str]) -> None:
        """Remove whatever is none of `keys`, and make sure that all others would survive a crash."""
        ...


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder of the file system."""

    root: Path

    def put(self, key: str, buffers: Iterable[bytes | memoryview]) -> WrittenFile:
        """Write a file durably; see `Files.put`."""
        return write_shard(self.root, key, buffers)

    def together(self) -> AtomicFiles:
        """Files that are fsynced together; see `Target.together`."""
        return AtomicFiles(self.root)

    def sizes(self) -> Mapping[str, int]:
        """Keys and sizes; see `Target.sizes`."""
        return {
            path.relative_to(self.root).as_posix(): path.stat().st_size
            for folder, _, names in os.walk(self.root)
            for path in (Path(folder, name) for name in names)
        }

    def keep_only(self, keys: AbstractSet[str]) -> None:
        """Remove what killed writers left, and bring every folder's names to disk, theirs included."""
        folders = []
        for folder, _, names in os.walk(self.root, topdown=False):
            folders.append(Path(folder))
            for name in names:
                path = Path(folder, name)
                if path.relative_to(self.root).as_posix() not in keys:
                    path.unlink()
        sync_folders(folders)
