"""The file system that a store is on: its type, its free space, whether reads cross a network."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from unistore.remote.storage import local_path
from unistore.store.reader import Store

NETWORK = ("nfs", "cifs", "smb", "lustre", "gpfs", "beegfs", "ceph", "fuse", "9p", "glusterfs", "weka", "afs")
"""Prefixes of the types of file systems on a network; FUSE may be one."""
OBJECT_STORE = "object store"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLocation:
    """The file system that a store is on.

    Attributes
    ----------
    file_system
        Its type (``"ext4"``, ``"nfs4"``, ``"overlay"``), ``"object store"`` for URLs, ``"?"`` if unknown.
    mount_point
        Its mount point; None for URLs, or if unknown.
    free
        Free bytes; None for URLs.
    network
        Whether reads cross a network.
    in_memory
        Whether files are in memory (tmpfs).
    stored
        Bytes of the store's files, as sealed; None if the seal does not say.
    """

    file_system: str
    mount_point: str | None
    free: int | None
    network: bool
    in_memory: bool
    stored: int | None


def locate_store(store: Store) -> StoreLocation:
    """Look up the file system of a store."""
    seal = store.attributes["seal"]
    stored = seal.get("bytes") if isinstance(seal, dict) else None
    folder = local_path(store.path)
    kind, point = (OBJECT_STORE, None) if folder is None else file_system(folder)
    return StoreLocation(
        file_system=kind,
        mount_point=point,
        free=None if folder is None else shutil.disk_usage(folder).free,
        network=folder is None or kind.startswith(NETWORK),
        in_memory=kind in ("tmpfs", "ramfs"),
        stored=stored,
    )


def file_system(path: Path, mounts: Path = Path("/proc/mounts")) -> tuple[str, str | None]:
    """Type and mount point of the file system of a path; ``("?", None)`` without ``/proc/mounts``.

    Parameters
    ----------
    path
        A local path.
    mounts
        The kernel's list of mounts, proc(5).
    """
    try:
        lines = mounts.read_text().splitlines()
    except OSError:
        return "?", None
    resolved = path.resolve()
    depth, kind, mount_point = -1, "?", None
    for line in lines:
        _, point, name, *_ = line.split(" ")
        mounted = Path(point.replace("\\040", " "))
        if resolved.is_relative_to(mounted) and len(mounted.parts) >= depth:
            depth, kind, mount_point = len(mounted.parts), name, str(mounted)
    return kind, mount_point
