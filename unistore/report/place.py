"""Where a store lies: the file system, what is free on it, whether reads cross a network."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from unistore.remote.storage import local_path
from unistore.store.reader import Store

__all__ = ["Place", "file_system", "look_at_place"]

NETWORK = ("nfs", "cifs", "smb", "lustre", "gpfs", "beegfs", "ceph", "fuse", "9p", "glusterfs", "weka", "afs")
"""Beginnings of the names of file systems whose reads cross a network, or a process that may."""
OBJECT_STORE = "object store"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a store lies.

    Attributes
    ----------
    file_system
        Its type (``"ext4"``, ``"nfs4"``, ``"overlay"``), ``"object store"`` for URLs, ``"?"`` if unknown.
    mount_point
        Where it is mounted; None for URLs, or if unknown.
    free
        Bytes free on it; None for URLs.
    network
        Whether reads cross a network.
    in_memory
        Whether the files lie in memory (tmpfs).
    stored
        Bytes of the store's files, as sealed; None if the seal does not say.
    """

    file_system: str
    mount_point: str | None
    free: int | None
    network: bool
    in_memory: bool
    stored: int | None


def look_at_place(store: Store) -> Place:
    """Where a store lies."""
    seal = store.attributes["seal"]
    stored = seal.get("bytes") if isinstance(seal, dict) else None
    folder = local_path(store.path)
    kind, point = (OBJECT_STORE, None) if folder is None else file_system(folder)
    return Place(
        file_system=kind,
        mount_point=point,
        free=None if folder is None else shutil.disk_usage(folder).free,
        network=folder is None or kind.startswith(NETWORK),
        in_memory=kind in ("tmpfs", "ramfs"),
        stored=stored,
    )


def file_system(path: Path, mounts: Path = Path("/proc/mounts")) -> tuple[str, str | None]:
    """Type and mount point of the file system that a path lies on; ``"?"`` where the kernel does not tell.

    Parameters
    ----------
    path
        The path.
    mounts
        Where the kernel lists what is mounted.
    """
    try:
        lines = mounts.read_text().splitlines()
    except OSError:
        return "?", None
    resolved = path.resolve()
    best, kind, found = -1, "?", None
    for line in lines:
        _, point, name, *_ = line.split(" ")
        mounted = Path(point.replace("\\040", " "))
        if resolved.is_relative_to(mounted) and len(mounted.parts) >= best:
            best, kind, found = len(mounted.parts), name, str(mounted)
    return kind, found
