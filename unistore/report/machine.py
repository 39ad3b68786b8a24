"""Facts that loading depends on: of this machine, and of the file system that a store is on."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from unistore.remote.storage import local_path
from unistore.store.reader import Store
from unistore.system.machine import (
    available_memory,
    cgroup_version,
    cpu_quota,
    memory_limits,
    physical_memory,
    usable_cores,
)

ACCELERATORS = {"/dev/nvidiactl": "NVIDIA", "/dev/kfd": "AMD"}
"""Device files of GPU drivers and their vendors. Importing torch to ask would take seconds."""
NETWORK = ("nfs", "cifs", "smb", "lustre", "gpfs", "beegfs", "ceph", "fuse", "9p", "glusterfs", "weka", "afs")
"""Prefixes of the types of file systems on a network; FUSE may be one."""
OBJECT_STORE = "object store"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Properties of a machine that loading depends on; None where the platform does not tell.

    Attributes
    ----------
    all_cores, affinity, quota, usable_cores
        All cores, cores of the affinity mask, cores that cgroups grant, and the smallest of these.
    cgroup_version
        1 or 2; None: no cgroups.
    memory, memory_limit, available_memory
        Bytes of physical memory, the limit of cgroups, and bytes that can still be allocated.
    shared_memory, shared_memory_free
        Bytes of ``/dev/shm``, in all and free. `unistore.Loader` does not need it; torch's DataLoader does.
    memfd
        Whether memfd_create(2) works; else temporary files are used.
    descriptors
        Limit of open files of a process.
    start_methods, start_method
        Start methods of multiprocessing, none in a daemonic process, and the Loader's default.
    accelerator
        Vendor of the GPU: ``"NVIDIA"`` or ``"AMD"``; None: no GPU.
    """

    all_cores: int
    affinity: int | None
    quota: float | None
    usable_cores: float
    cgroup_version: int | None
    memory: int | None
    memory_limit: int | None
    available_memory: int
    shared_memory: int | None
    shared_memory_free: int | None
    memfd: bool
    descriptors: int | None
    start_methods: tuple[str, ...]
    start_method: str
    accelerator: str | None


def inspect_machine() -> Machine:
    """Facts of this machine, for this process."""
    shared = os.statvfs("/dev/shm") if Path("/dev/shm").is_dir() else None  # noqa: S108 - not written to
    daemonic = multiprocessing.current_process().daemon
    methods = () if daemonic else tuple(multiprocessing.get_all_start_methods())
    return Machine(
        all_cores=os.cpu_count() or 1,
        affinity=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        quota=cpu_quota(),
        usable_cores=usable_cores(),
        cgroup_version=cgroup_version(),
        memory=physical_memory(),
        memory_limit=min((limit.limit for limit in memory_limits()), default=None),
        available_memory=available_memory(),
        shared_memory=None if shared is None else shared.f_frsize * shared.f_blocks,
        shared_memory_free=None if shared is None else shared.f_frsize * shared.f_bavail,
        memfd=_has_memfd(),
        descriptors=_descriptors(),
        start_methods=methods,
        start_method="fork" if sys.platform == "linux" else "spawn",
        accelerator=next((name for path, name in ACCELERATORS.items() if Path(path).exists()), None),
    )


def _has_memfd() -> bool:
    """Some sandboxes forbid the call although the platform has it."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLocation:
    """The file system that a store is on.

    Attributes
    ----------
    file_system, mount_point
        Its type (``"ext4"``, ``"nfs4"``, ``"overlay"``), ``"object store"`` for URLs, ``"?"`` if unknown; its
        mount point, None for URLs, or if unknown.
    free
        Free bytes; None for URLs.
    network, in_memory
        Whether reads cross a network, and whether files are in memory (tmpfs).
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
    folder = local_path(store.path)
    kind, point = (OBJECT_STORE, None) if folder is None else file_system(folder)
    return StoreLocation(
        file_system=kind,
        mount_point=point,
        free=None if folder is None else shutil.disk_usage(folder).free,
        network=folder is None or kind.startswith(NETWORK),
        in_memory=kind in ("tmpfs", "ramfs"),
        stored=store.attributes["seal"].get("bytes"),
    )


def file_system(path: Path, mounts: Path = Path("/proc/mounts")) -> tuple[str, str | None]:
    """Type and mount point of a local path's file system, by proc(5); ``("?", None)`` without `mounts`."""
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
