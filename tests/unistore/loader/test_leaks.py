"""Lifetimes of loaders leave nothing: no process, no descriptor, no shared memory, no more memory."""

from __future__ import annotations

import gc
import os
import random
import re
from pathlib import Path

import numpy as np
import pytest

import unistore
from unistore.loader import Loader, LoaderError

pytestmark = pytest.mark.usefixtures("nothing_left")


def shared_memory():
    """Named shared memory of this process; other processes have theirs, and folders, in the same place.

    Names hold the number of their process between others (``torch_1234_567_8``).
    """
    names = (path.name for path in Path("/dev/shm").iterdir() if path.is_file())
    return sorted(name for name in names if str(os.getpid()) in re.split(r"\D+", name))


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.fixture
def store(make_store):
    """50 rows."""
    rows = np.arange(150).reshape(50, 3)
    return make_store("rows", {"rows/data": rows, "sources/path": ["a.h5"]}, count=50)


ENDS = ("whole", "left", "raise", "kill", "exit")
"""Of a loader's only epoch: to its end, left by the consumer, or what a sample does."""


def one_life(data, store, rng, workers, end, method="fork"):
    """A loader that is made, used, and forgotten in some way."""
    if workers == 0 and end in ("kill", "exit"):
        end = "raise"  # there is nobody else to die
    fails = end not in ("whole", "left")
    cache = None if fails else rng.choice((None, "1MB"))
    loader = Loader(
        unistore.Dataset(store) if cache else data.Broken(30 if fails else -1, end),
        rng.choice((5, 50)),
        shuffle=True,
        num_workers=workers,
        multiprocessing_context=method,
        prefetch_factor=rng.randrange(1, 4),
        cache=cache,
    )
    held, failed = [], False
    try:
        for batch in loader:
            if rng.random() < 0.3:
                held.append(next(iter(batch.values()))[1:])
            if end == "left" and rng.random() < 0.2:
                break
    except LoaderError:
        failed = True
    assert failed == fails
    if rng.random() < 0.5:
        loader.close()


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_many_loaders_leave_no_process_descriptor_or_memory(data, store, census):
    rng = random.Random(3)
    for number in range(8):
        one_life(data, store, rng, number % 3, ENDS[number % 5])
    gc.collect()
    before = census.descriptors(), census.children(), shared_memory(), resident()
    for number in range(40):  # each end once with one worker, and with two
        one_life(data, store, rng, (0, 0, 0, 1, 0, 0, 0, 2)[number % 8], ENDS[number % 5])
    gc.collect()
    assert census.descriptors() == before[0]
    assert census.children() == before[1]
    assert shared_memory() == before[2]
    assert resident() - before[3] < 8 << 20


@pytest.mark.nightly
def test_a_long_iteration_does_not_grow_in_memory(data):
    with Loader(data.Batched(4_000, 16), 4, shuffle=True, num_workers=1) as loader:
        list(zip(loader, range(250), strict=False))
        before = resident()
        for _ in loader:
            pass
        assert resident() - before < 6 << 20
