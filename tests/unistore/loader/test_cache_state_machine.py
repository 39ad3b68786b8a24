"""Any history of the Loader's shared cache: users join, add, leave and are killed; what is found is whole.

The model knows what was admitted; the content of a sample follows from its number.
"""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.machines import run_machine
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
    """One name, and users that share what lies under it.

    Attributes
    ----------
    users
        Those that have joined; each stands for a process.
    admitted
        Samples that are found.
    """

    folder: Path

    def __init__(self) -> None:
        super().__init__()
        self.users: list[tuple[CacheFile, CacheRegion]] = []
        self.admitted: set[int] = set()

    def teardown(self) -> None:
        while self.users:
            self.leave(0)

    @initialize(capacity=st.sampled_from((1, 500, 2000, 1 << 20)))
    def choose(self, capacity: int) -> None:
        self.capacity = capacity
        self.join()

    def _joined(self) -> tuple[CacheFile, CacheRegion]:
        file = CacheFile(SAMPLES, self.capacity, "shared")
        return file, file.region(file.descriptor)

    @precondition(lambda self: len(self.users) < 4)
    @rule()
    def join(self) -> None:
        self.users.append(self._joined())

    @precondition(lambda self: self.users)
    @rule(number=st.integers(0, 3))
    def leave(self, number: int) -> None:
        """With the last user all is gone."""
        file, region = self.users.pop(number % len(self.users))
        file.close()
        del file, region
        if not self.users:
            self.admitted.clear()
            assert [path.name for path in self.folder.iterdir()] == ["lock"]

    @precondition(lambda self: self.users)
    @rule(number=st.integers(0, 3), chosen=st.lists(samples, min_size=1, max_size=8))
    def add(self, number: int, chosen: list[int]) -> None:
        """As a loader does: what is not there, until it is full."""
        _, region = self.users[number % len(self.users)]
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
            _, region = self.users[number % len(self.users)]
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
        if self.users:
            found = np.flatnonzero(self.users[0][1].find(np.arange(SAMPLES)))
            assert set(found.tolist()) - self.admitted <= {*chosen}
            self.admitted |= set(found.tolist())
        else:
            self.join()  # removes what nobody uses

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
        _, region = self._joined()
        for sample in chosen:
            region.add(sample, content(sample))
        os.kill(os.getpid(), signal.SIGKILL)

    def _given(self) -> int:
        """Bytes that are given away."""
        file, _ = self.users[0]
        return int(np.frombuffer(os.pread(file.descriptor, 8, 0), np.int64)[0])

    @invariant()
    def what_was_admitted_is_found_whole(self) -> None:
        for file, region in self.users:
            places = region.find(np.arange(SAMPLES))
            assert set(np.flatnonzero(places).tolist()) == self.admitted
            for sample in self.admitted:
                place = int(places[sample])
                for part in content(sample):
                    assert bytes(region.view(place, len(part))) == part
                    place += -(-len(part) // ALIGNMENT) * ALIGNMENT
                assert place <= file.start + self.capacity

    @invariant()
    def the_capacity_holds(self) -> None:
        if self.users:
            file, _ = self.users[0]
            assert sum(map(room_of, self.admitted)) <= self._given() <= self.capacity
            assert os.fstat(file.descriptor).st_size == file.start + self.capacity


def test_any_history_of_the_cache_finds_what_was_admitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    machine = type("Shared", (Cache,), {"folder": tmp_path / f"unistore-cache-{os.geteuid()}"})
    run_machine(machine, histories=30, steps=25)
