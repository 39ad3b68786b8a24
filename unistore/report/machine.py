"""What loading depends on: this machine, and the file system that a store is on."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from unistore.remote.storage import local_path
from unistore.store.reader import Store
from unistore.system import machine

# Importing torch to find a GPU would take seconds; the drivers' device files take none.
_ACCELERATORS = {"/dev/nvidiactl": "NVIDIA", "/dev/kfd": "AMD"}
_NETWORK = (
    "nfs",
    "cifs",
    "smb",
    "lustre",
    "gpfs",
    "beegfs",
    "ceph",
    "fuse",
    "9p",
    "glusterfs",
    "weka",
    "afs",
)
"""Prefixes of the types of file systems on a network; FUSE may be one."""
OBJECT_STORE = "object store"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine as this process may use it; None where the platform does not tell."""

    all_cores: int
    affinity: int | None  # cores of the affinity mask
    quota: float | None  # cores that cgroups grant
    usable_cores: float  # the smallest of these
    cgroup_version: int | None  # 1 or 2; None: no cgroups
    memory: int | None  # bytes
    memory_limit: int | None  # bytes that cgroups grant
    available_memory: int  # bytes that can still be allocated
    shared_memory: int | None  # bytes of /dev/shm, which torch's DataLoader needs
    shared_memory_free: int | None
    memfd: bool  # whether memfd_create(2) works; else temporary files are used
    descriptors: int | None  # limit of open files
    start_methods: tuple[str, ...]  # of multiprocessing; none in a daemonic process
    start_method: str  # the Loader's default
    accelerator: str | None  # vendor of the GPU


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLocation:
    """The file system that a store is on."""

    file_system: str  # "ext4", "nfs4", "overlay", "object store"; "?": unknown
    mount_point: str | None
    free: int | None  # bytes; None for object stores
    network: bool  # whether reads cross a network
    in_memory: bool
    stored: int | None  # bytes of the store's files; None if the seal does not say


def inspect_machine() -> Machine:
    """Look at this machine."""
    shared = os.statvfs("/dev/shm") if Path("/dev/shm").is_dir() else None  # noqa: S108 - not written to
    daemonic = multiprocessing.current_process().daemon
    return Machine(
        all_cores=os.cpu_count() or 1,
        affinity=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        quota=machine.cpu_quota(),
        usable_cores=machine.usable_cores(),
        cgroup_version=machine.cgroup_version(),
        memory=machine.physical_memory(),
        memory_limit=min((group.limit for group in machine.memory_limits()), default=None),
        available_memory=machine.available_memory(),
        shared_memory=None if shared is None else shared.f_frsize * shared.f_blocks,
        shared_memory_free=None if shared is None else shared.f_frsize * shared.f_bavail,
        memfd=_has_memfd(),
        descriptors=_descriptors(),
        start_methods=() if daemonic else tuple(multiprocessing.get_all_start_methods()),
        start_method="fork" if sys.platform == "linux" else "spawn",
        accelerator=next((name for path, name in _ACCELERATORS.items() if Path(path).exists()), None),
    )


def _has_memfd() -> bool:
    # Some sandboxes forbid the call although the platform has it.
    try:
        os.close(os.memfd_create("unistore-doctor", os.MFD_CLOEXEC))
    except (AttributeError, OSError):
        return False
    return True


def _descriptors() -> int | None:
    if sys.platform == "win32":
        return None
    import resource

    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def locate_store(store: Store) -> StoreLocation:
    """Look up the file system of a store."""
    folder = local_path(store.path)
    kind, mount_point = (OBJECT_STORE, None) if folder is None else file_system(folder)
    return StoreLocation(
        file_system=kind,
        mount_point=mount_point,
        free=None if folder is None else shutil.disk_usage(folder).free,
        network=folder is None or kind.startswith(_NETWORK),
        in_memory=kind in ("tmpfs", "ramfs"),
        stored=store.attributes["seal"].get("bytes"),
    )


def file_system(path: Path, mounts: Path = Path("/proc/mounts")) -> tuple[str, str | None]:
    """Return type and mount point of a local path's file system; ``("?", None)`` without `mounts`."""
    try:
        lines = mounts.read_text().splitlines()
    except OSError:
        return "?", None
    resolved = path.resolve()
    points = {}
    for line in lines:
        _, point, kind, *_ = line.split(" ")
        mounted = Path(point.replace("\\040", " "))
        if resolved.is_relative_to(mounted):
            points[mounted] = kind  # a later mount hides an earlier one at the same place
    deepest = max(points, key=lambda point: len(point.parts), default=None)
    return ("?", None) if deepest is None else (points[deepest], str(deepest))
