"""Lifetimes of loaders leave nothing: no process, no descriptor, no shared memory, no more memory."""

from __future__ import annotations

import gc
import os
import random
from pathlib import Path

import pytest

from unistore.loader import Loader, LoaderError

pytestmark = pytest.mark.usefixtures("nothing_left")


def shared_memory():
    """Named shared memory of this process; other processes of the machine have theirs in the same folder."""
    names = (path.name for path in Path("/dev/shm").iterdir())
    return sorted(name for name in names if str(os.getpid()) in name or "unistore" in name)


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def one_life(data, rng):
    """A loader that is made, used in some way, and forgotten in some way."""
    workers = rng.choice((0, 0, 1, 2))
    bad = rng.choice((-1, -1, 30))
    how = "raise" if workers == 0 else rng.choice(("raise", "kill", "exit"))
    loader = Loader(data.Broken(bad, how), rng.choice((5, 50)), workers=workers, prefetch=rng.randrange(1, 4))
    held = []
    try:
        for batch in loader:
            if rng.random() < 0.3:
                held.append(batch["x"][1:])
            if rng.random() < 0.1:
                break
    except LoaderError:
        pass
    if rng.random() < 0.5:
        loader.close()


def test_many_lifetimes_leave_nothing(data, census):
    rng = random.Random(3)
    for _ in range(6):
        one_life(data, rng)
    gc.collect()
    before = census.descriptors(), census.children(), shared_memory(), resident()
    for _ in range(1000):
        one_life(data, rng)
    gc.collect()
    assert census.descriptors() == before[0]
    assert census.children() == before[1]
    assert shared_memory() == before[2]
    assert resident() - before[3] < 20 << 20


def test_a_long_iteration_does_not_grow(data):
    with Loader(data.Batched(20_000, 16), 4, workers=1) as loader:
        list(zip(loader, range(500), strict=False))
        before = resident()
        for _ in loader:
            pass
        assert resident() - before < 8 << 20


def test_replaced_slabs_are_given_back(data, census):
    """Batches that grow replace the slabs; what is no longer used is unmapped in the parent."""

    class Growing(data.Plain):
        def __getitem__(self, index):
            import numpy as np

            return np.zeros(1000 if index < 400 else 300_000, np.uint8)

    with Loader(Growing(800), 4, shuffle=False, workers=2) as loader:
        for number, _ in enumerate(loader):
            if number == 90:
                small = [entry for entry in census.descriptors() if entry.startswith("/memfd:unistore")]
        large = [entry for entry in census.descriptors() if entry.startswith("/memfd:unistore")]
    assert len(large) <= len(small) + 4
