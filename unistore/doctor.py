"""What a machine, and a store on it, let a Loader do: facts, and one line to start from."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unistore.inspection.blocks import Block, plain, size
from unistore.loader.machine import available_memory
from unistore.samples.locality import samples_of_a_chunk
from unistore.store.reader import Store
from unistore.workers import plan, usable_cores

__all__ = ["Checkup", "Machine", "StoreFacts", "check_up", "file_system"]

NETWORK = ("nfs", "cifs", "smb", "lustre", "gpfs", "beegfs", "ceph", "fuse", "9p", "glusterfs", "weka", "afs")
"""Beginnings of the names of file systems whose reads cross a network."""
FEW_DESCRIPTORS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The machine, as far as loading depends on it.

    Attributes
    ----------
    cores, all_cores
        Usable ones, after affinity and quotas; and those there are.
    memory
        Bytes that can still be allocated, in this cgroup.
    shm
        Bytes of ``/dev/shm``, None without one. Loader does not need it; torch's DataLoader does.
    memfd
        Whether shared memory without a name exists; else temporary files are used.
    descriptors
        Open files that a process may have.
    start_method
        Of workers, unless a store needs another one.
    """

    cores: float
    all_cores: int
    memory: int
    shm: int | None
    memfd: bool
    descriptors: int | None
    start_method: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFacts:
    """A store, as far as loading depends on it.

    Attributes
    ----------
    path
        Of the store.
    samples
        Their number.
    stored
        Bytes on disk; None where it is remote.
    file_system
        Its type; ``"object store"`` for URLs.
    network
        Whether reads cross a network.
    together
        Samples of a chunk of the largest array.
    fork_safe
        Whether workers may be forked.
    """

    path: str
    samples: int
    stored: int | None
    file_system: str
    network: bool
    together: float
    fork_safe: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkup:
    """Facts, remarks, and what to do.

    Attributes
    ----------
    machine, store
        The facts; without a store None.
    remarks
        Sentences about what stands in the way, most important first.
    line
        A line of Python.
    """

    machine: Machine
    store: StoreFacts | None
    remarks: Sequence[str]
    line: str

    def blocks(self) -> list[Block]:
        """What to show."""
        machine, store = self.machine, self.store
        facts = [
            ("usable cores", f"{machine.cores:g} of {machine.all_cores}"),
            ("available memory", size(machine.memory)),
            ("/dev/shm", "none" if machine.shm is None else f"{size(machine.shm)} (not needed)"),  # noqa: S108 - a name
            ("shared memory", "memfd" if machine.memfd else "temporary files"),
            ("open files", "?" if machine.descriptors is None else f"{machine.descriptors:,}"),
            ("start method", machine.start_method),
        ]
        found = [Block(title="machine", facts=facts)]
        if store is not None:
            fits = "?" if store.stored is None else ("yes" if store.stored < machine.memory else "no")
            facts = [
                ("path", store.path),
                ("samples", f"{store.samples:,}"),
                ("on disk", size(store.stored)),
                ("file system", store.file_system + (" (network)" if store.network else "")),
                ("fits the page cache", fits),
                ("samples a chunk", f"{store.together:.3g}"),
            ]
            found.append(Block(title="store", facts=facts))
        if self.remarks:
            found.append(Block(title="remarks", lines=self.remarks))
        return [*found, Block(title="recommended", code=self.line)]

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        from dataclasses import asdict

        return asdict(self)

    def __str__(self) -> str:
        return plain(self.blocks())


def check_up(path: str | os.PathLike[str] | None = None) -> Checkup:
    """Look at this machine, and at a store from it.

    Parameters
    ----------
    path
        Folder or URL of a store; None: the machine alone.

    Raises
    ------
    StoreError
        There is no finished store at `path`.
    """
    machine = _machine()
    store = None if path is None else _store(os.fspath(path))
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    workers = plan("auto", ranks, None if store is None else store.samples, quiet=True).train
    options = ["batch_size=64"]
    if store is not None and _wants_blocks(store, machine):
        options.append('shuffle="blocks"')
    options.append(f"workers={workers}")
    if store is not None and not store.fork_safe:
        options.append('start_method="spawn"')
    dataset = "dataset" if store is None else f"unistore.Dataset({store.path!r})"
    line = f"unistore.Loader({dataset}, {', '.join(options)})"
    return Checkup(machine=machine, store=store, remarks=_remarks(machine, store), line=line)


def _machine() -> Machine:
    descriptors = None
    if sys.platform != "win32":
        import resource

        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    shm = Path("/dev/shm")  # noqa: S108 - looked at, not written to
    room = None
    if shm.is_dir():
        found = os.statvfs(shm)
        room = found.f_frsize * found.f_blocks
    fork = sys.platform == "linux" and "fork" in multiprocessing.get_all_start_methods()
    return Machine(
        cores=usable_cores(),
        all_cores=os.cpu_count() or 1,
        memory=available_memory(),
        shm=room,
        memfd=hasattr(os, "memfd_create"),
        descriptors=descriptors,
        start_method="fork" if fork else "spawn",
    )


def _store(path: str) -> StoreFacts:
    store = Store(path)
    remote = "://" in path and not path.startswith("file://")
    kind = "object store" if remote else file_system(Path(path.removeprefix("file://")))
    stored = None
    if not remote:
        folder = Path(path.removeprefix("file://"))
        stored = sum(entry.stat().st_size for entry in folder.rglob("*") if entry.is_file())
    return StoreFacts(
        path=path,
        samples=store.sample_count,
        stored=stored,
        file_system=kind,
        network=remote or kind.startswith(NETWORK),
        together=samples_of_a_chunk(store, store.sample_count)[0],
        fork_safe=store.fork_safe,
    )


def file_system(path: Path, mounts: Path = Path("/proc/mounts")) -> str:
    """Type of the file system that a path lies on, ``"?"`` where the kernel does not tell.

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
        return "?"
    resolved = path.resolve()
    best, kind = -1, "?"
    for line in lines:
        _, point, found, *_ = line.split(" ")
        mounted = Path(point.replace("\\040", " "))
        if resolved.is_relative_to(mounted) and len(mounted.parts) >= best:
            best, kind = len(mounted.parts), found
    return kind


def _wants_blocks(store: StoreFacts, machine: Machine) -> bool:
    """Whether a full shuffle would read and decode many times what it delivers, from something slow."""
    cached = store.stored is not None and store.stored < machine.memory
    return store.together >= 2 and not cached


def _remarks(machine: Machine, store: StoreFacts | None) -> list[str]:
    found = []
    if machine.cores < machine.all_cores:
        found.append(
            f"only {machine.cores:g} of {machine.all_cores} cores may be used (affinity or cgroup quota)"
        )
    if machine.descriptors is not None and machine.descriptors < FEW_DESCRIPTORS:
        found.append(f"few open files are allowed ({machine.descriptors}): ulimit -n {FEW_DESCRIPTORS}")
    if store is None:
        return found
    if store.stored is not None and store.stored >= machine.memory:
        found.append("the store does not fit into the page cache: samples come from the disk in every epoch")
    if store.network:
        found.append(
            'reads cross a network: Dataset(…, cache_dir="…") keeps copies of shards on a local disk'
        )
    if store.together >= 2:
        found.append(
            f"{store.together:.3g} samples share a chunk: a full shuffle decodes each chunk as many times an "
            'epoch, shuffle="blocks" once'
        )
    return found
