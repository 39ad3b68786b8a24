"""Datasets to load from: one that reads whole batches, and plain map-style ones."""

from __future__ import annotations

import gc
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from unistore.data.packed import Packed, offsets_from_lengths


class Batched:
    """Reads whole batches: ``x`` dense and known from the index, ``points`` ragged, ``draw`` by epoch."""

    def __init__(self, length: int = 200, width: int = 64) -> None:
        self.length = length
        self.width = width

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: Any) -> Any:
        batch = self.read_batch([index if isinstance(index, tuple) else (index, 0)])
        return {key: packed[0] for key, packed in batch.items()}

    def read_batch(self, indices: Any, allocate: Any = np.empty) -> Any:
        index = np.array([each[0] for each in indices])
        epoch = np.array([each[1] for each in indices])
        x = allocate((len(index), self.width), np.dtype(np.int64))
        x[:] = index[:, None] * 1000 + np.arange(self.width)
        offsets = offsets_from_lengths(index % 5)
        points = allocate((int(offsets[-1]), 3), np.dtype(np.float32))
        points[:] = np.repeat(index, index % 5)[:, None]
        return {
            "index": Packed(index),
            "x": Packed(x),
            "points": Packed(points, offsets),
            "draw": Packed(index * 31 + epoch),
        }

    def source_of(self, index: int) -> str:
        return f"file_{index // 100}.h5: row {index % 100}"


class Plain:
    """Any map-style dataset, whose samples are of mixed kinds."""

    def __init__(self, length: int = 200, shape: tuple[int, ...] = (3, 8)) -> None:
        self.length = length
        self.shape = shape

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        import torch

        return {
            "image": torch.full(self.shape, float(index)),
            "array": np.full(4, index, np.int32),
            "label": index,
            "name": f"sample {index}",
            "pair": (index, float(index)),
        }


class Broken(Batched):
    """Fails at one sample, in a way of its own."""

    def __init__(self, bad: int, how: str = "raise") -> None:
        super().__init__()
        self.bad = bad
        self.how = how

    def read_batch(self, indices: Any, allocate: Any = np.empty) -> Any:
        if any(each[0] == self.bad for each in indices):
            if self.how == "raise":
                raise OSError(5, "the disk says no")
            if self.how == "kill":
                os.kill(os.getpid(), 9)
            if self.how == "exit":
                os._exit(3)
            if self.how == "hang":
                time.sleep(600)
        return super().read_batch(indices, allocate)


class Random(Plain):
    """Draws from the global generators."""

    def __getitem__(self, index: int) -> Any:
        import torch

        return {
            "index": index,
            "python": random.random(),
            "numpy": np.random.random(),  # noqa: NPY002 - what is tested
            "torch": torch.rand(()),
        }


class Informed(Plain):
    """Says what a sample can know about its worker."""

    def __getitem__(self, index: int) -> Any:
        import torch
        from torch.utils.data import get_worker_info

        info = get_worker_info()
        assert info is not None
        return index, info.id, info.num_workers, torch.get_num_threads(), os.getpid(), len(info.dataset)


@pytest.fixture
def data() -> SimpleNamespace:
    """The datasets, by name."""
    return SimpleNamespace(Batched=Batched, Plain=Plain, Broken=Broken, Random=Random, Informed=Informed)


def descriptors() -> list[str]:
    """What this process has open: descriptors of shared memory, sockets and pipes, and mapped memfds."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = str(entry.readlink())
        except OSError:
            continue
        if target.startswith(("socket:", "pipe:", "/memfd:", "/dev/shm")):
            found.append(target.split(":", maxsplit=1)[0])
    maps = Path("/proc/self/maps").read_text().splitlines()
    return sorted(found) + [line.split()[-2] for line in maps if "memfd:unistore" in line]


def children() -> list[int]:
    """Processes that this one has started and that still exist, zombies too."""
    text = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    return [int(pid) for pid in text.split()]


@pytest.fixture(scope="session")
def servers() -> None:
    """Have the processes of multiprocessing itself running, which stay until this one ends."""
    from multiprocessing import forkserver, resource_tracker

    resource_tracker.ensure_running()
    forkserver.ensure_running()


@pytest.fixture(scope="session")
def frozen() -> None:
    """Have collections leave out what torch and other tests have made."""
    import torch  # noqa: F401  at the first use of a loader otherwise
    import zarr

    zarr.create_group(zarr.storage.MemoryStore())  # starts zarr's event loop, whose sockets stay

    gc.collect()
    gc.freeze()


@pytest.fixture
def nothing_left(frozen: None) -> Iterator[None]:
    """Fail if a test leaves processes, descriptors or shared memory behind.

    Collections leave out what was there before the test, so that they take no time.
    """
    for name in ("last_exc", "last_type", "last_value", "last_traceback"):  # of a test that failed before
        if hasattr(sys, name):
            delattr(sys, name)
    gc.collect()
    gc.freeze()
    before = Counter([*descriptors(), *children()])
    yield
    gc.collect()
    # On a busy machine the end of an earlier test may come late, and what it had closes in this one.
    left = Counter([*descriptors(), *children()]) - before
    assert not left


@pytest.fixture
def census() -> SimpleNamespace:
    """``descriptors()`` and ``children()``."""
    return SimpleNamespace(descriptors=descriptors, children=children)
