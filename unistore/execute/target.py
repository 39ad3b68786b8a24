"""Where the files of a store are written: a folder of its own, or a prefix of an object store."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from unistore.execute.journal import sync_folder
from unistore.zarr3.durable import WrittenFile, write_shard

__all__ = ["Folder", "Target"]


class Target(Protocol):
    """Takes the files of a store, each of them whole or not at all. Pickles small: workers write, too."""

    def put(self, key: str, buffers: Sequence[bytes | memoryview]) -> WrittenFile:
        """Write a file and wait until it would survive a crash.

        Raises
        ------
        ConversionError
            If it cannot be written.
        """
        ...

    def held(self) -> Mapping[str, int]:
        """Keys and sizes of all files that are there."""
        ...

    def tidy(self, keys: AbstractSet[str]) -> None:
        """Remove whatever is none of `keys`, and make sure that all others would survive a crash."""
        ...


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder of the file system."""

    root: Path

    def put(self, key: str, buffers: Sequence[bytes | memoryview]) -> WrittenFile:
        """Write a file durably; see `Target.put`."""
        return write_shard(self.root, key, buffers)

    def held(self) -> Mapping[str, int]:
        """Keys and sizes; see `Target.held`."""
        return {
            path.relative_to(self.root).as_posix(): path.stat().st_size
            for folder, _, names in os.walk(self.root)
            for path in (Path(folder, name) for name in names)
        }

    def tidy(self, keys: AbstractSet[str]) -> None:
        """Remove what killed writers left, and bring every folder's names to disk, theirs included."""
        for folder, _, names in os.walk(self.root, topdown=False):
            for name in names:
                path = Path(folder, name)
                if path.relative_to(self.root).as_posix() not in keys:
                    path.unlink()
            sync_folder(Path(folder))
