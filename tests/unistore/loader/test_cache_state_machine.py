"""Any history of the Loader's shared cache: users map it, add, leave and are killed; what is found is whole.

The model knows what was admitted; the content of a sample follows from its number.
"""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.support.state_machines import run_machine
from tests.support.store_files import full_disk
from unistore.errors import InputError
from unistore.loader.cache import ALIGNMENT, CacheFile, CacheRegion

pytestmark = pytest.mark.usefixtures("nothing_left")
SAMPLES = 30
samples = st.integers(0, SAMPLES - 1)


def content(sample: int) -> list[bytes]:
    """Two buffers, of lengths that say nothing about where the next one begins."""
    return [bytes([sample]) * (sample * 7 + 1), bytes([255 - sample]) * (sample % 5)]


def room_of(sample: int) -> int:
    """Bytes that a sample takes."""
    return sum(-(-len(part) // ALIGNMENT) * ALIGNMENT for part in content(sample))


class Cache(RuleBasedStateMachine):
    """One file, and users that share it.

    Attributes
    ----------
    users
        Those that have mapped it; each stands for a process.
    admitted
        Samples that are found.
    """

    file: CacheFile

    def __init__(self) -> None:
        super().__init__()
        self.users: list[CacheRegion] = []
        self.admitted: set[int] = set()

    def teardown(self) -> None:
        self.users.clear()
        self.file.close()

    @initialize(capacity=st.sampled_from((1, 500, 2000, 1 << 20)))
    def choose(self, capacity: int) -> None:
        self.capacity = capacity
        self.file = CacheFile(SAMPLES, capacity)
        self.join()

    @precondition(lambda self: len(self.users) < 4)
    @rule()
    def join(self) -> None:
        self.users.append(self.file.region(self.file.descriptor))

    @precondition(lambda self: len(self.users) > 1)
    @rule(number=st.integers(0, 3))
    def leave(self, number: int) -> None:
        del self.users[number % len(self.users)]

    @precondition(lambda self: self.users)
    @rule(number=st.integers(0, 3), chosen=st.lists(samples, min_size=1, max_size=8))
    def add(self, number: int, chosen: list[int]) -> None:
        """As a loader does: what is not there, until it is full."""
        region = self.users[number % len(self.users)]
        for sample in chosen:
            if region.full or region.find(np.array([sample]))[0]:
                continue
            region.add(sample, content(sample))
            if region.full:
                assert self._given() + room_of(sample) > self.capacity
            else:
                self.admitted.add(sample)

    @precondition(lambda self: self.users)
    @rule(first=st.integers(0, 3), second=st.integers(0, 3), sample=samples)
    def add_at_once(self, first: int, second: int, sample: int) -> None:
        """Two users have read the same sample: it is stored twice and found once."""
        for number in (first, second):
            region = self.users[number % len(self.users)]
            region.add(sample, content(sample))
            if not region.full:
                self.admitted.add(sample)

    @rule(chosen=st.lists(samples, min_size=1, max_size=6), writes=st.integers(0, 12))
    def be_killed(self, chosen: list[int], writes: int) -> None:
        """Another process adds, and is killed before one of its writes."""
        pid = os.fork()
        if pid == 0:
            try:
                self._add_and_die(chosen, writes)
            finally:
                os._exit(1)
        assert os.waitpid(pid, 0)[1] == signal.SIGKILL
        found = np.flatnonzero(self.users[0].find(np.arange(SAMPLES)))
        assert set(found.tolist()) - self.admitted <= {*chosen}
        self.admitted |= set(found.tolist())

    def _add_and_die(self, chosen: list[int], writes: int) -> None:
        left, write = writes, os.pwrite

        def strike(descriptor: int, data: bytes, place: int) -> int:
            nonlocal left
            left -= 1
            if left < 0:
                half = len(data) // 2 if len(data) > 8 else 0  # a number is written at once
                write(descriptor, data[:half], place)
                os.kill(os.getpid(), signal.SIGKILL)
            return write(descriptor, data, place)

        signal.alarm(30)
        os.pwrite = strike
        region = self.file.region(self.file.descriptor)
        for sample in chosen:
            region.add(sample, content(sample))
        os.kill(os.getpid(), signal.SIGKILL)

    def _given(self) -> int:
        """Bytes that are given away."""
        return int(np.frombuffer(os.pread(self.file.descriptor, 8, 0), np.int64)[0])

    @invariant()
    def what_was_admitted_is_found_whole(self) -> None:
        for region in self.users:
            places = region.find(np.arange(SAMPLES))
            assert set(np.flatnonzero(places).tolist()) == self.admitted
            for sample in self.admitted:
                place = int(places[sample])
                for part in content(sample):
                    assert bytes(region.view(place, len(part))) == part
                    place += -(-len(part) // ALIGNMENT) * ALIGNMENT
                assert place <= self.file.start + self.capacity

    @invariant()
    def the_capacity_holds(self) -> None:
        assert sum(map(room_of, self.admitted)) <= self._given() <= self.capacity
        assert os.fstat(self.file.descriptor).st_size == self.file.start + self.capacity


def test_any_history_of_the_cache_finds_what_was_admitted() -> None:
    run_machine(Cache, histories=8, steps=25)


def adds(file: CacheFile, writer: int) -> None:
    region = file.region(file.descriptor)
    for sample in range(writer, 400, 4):
        region.add(sample, [np.full(sample % 50 + 1, sample, np.int64).tobytes()])
    os._exit(0)


def test_processes_that_add_at_once_do_not_write_over_each_other() -> None:
    file = CacheFile(400, 400 * 8 * 64)
    children = []
    for writer in range(4):
        pid = os.fork()
        if pid == 0:
            adds(file, writer)
        children.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 4
    region = file.region(file.descriptor)
    places = region.find(np.arange(400))
    assert np.all(places > 0)
    for sample, place in enumerate(places.tolist()):
        assert np.all(region.array(place, (sample % 50 + 1,), np.dtype(np.int64)) == sample)
    file.close()


def test_a_cache_without_room_for_its_index_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a hole would be read through the map, which ends in SIGBUS on a full file system in memory."""

    monkeypatch.setattr(os, "posix_fallocate", full_disk)
    with pytest.raises(InputError, match=r"No space left on device.*free space there, set TMPDIR"):
        CacheFile(9, 1 << 20)
