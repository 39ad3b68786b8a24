"""Any history of local copies: read, evicted, damaged, fetched in vain, shared by readers that come and go.

The model is the objects themselves, and how often each had to be fetched.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import xxhash
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.support.state_machines import run_machine
from unistore.errors import CorruptionError, StoreError
from unistore.store.manifest import Entry, manifest_bytes
from unistore.store.names import MANIFEST
from unistore.store.shard_cache import PART, CachedStorage, ShardCache

OBJECTS = {f"rows/data/c/{n}": bytes([n]) * (n * 100) + b"end" for n in range(10)}
CHECKSUMS = {key: xxhash.xxh3_128_hexdigest(content) for key, content in OBJECTS.items()}
ENTRIES = [Entry(key=key, bytes=len(OBJECTS[key]), checksum=CHECKSUMS[key]) for key in OBJECTS]
STORED = {**OBJECTS, MANIFEST: manifest_bytes(ENTRIES)}
CHECKSUMS[MANIFEST] = xxhash.xxh3_128_hexdigest(STORED[MANIFEST])
SIZE = sum(map(len, STORED.values()))
keys = st.sampled_from(sorted(OBJECTS))


class Bucket:
    """A store far away; `fault` says how the next whole object arrives.

    Attributes
    ----------
    fetched
        How often each object was asked for as a whole.
    """

    fork_safe = True

    def __init__(self) -> None:
        self.fetched: Counter[str] = Counter()
        self.fault = ""

    def get(self, key: str, limit: int = 0) -> bytes:
        self.fetched[key] += 1
        return STORED[key]

    def size(self, key: str) -> int | None:
        return len(STORED[key])

    def read_many(self, keys: Sequence[str], offsets: Sequence[int], sizes: Sequence[int]) -> Iterator[bytes]:
        for key, offset, size in zip(keys, offsets, sizes, strict=True):
            data = STORED[key][offset : offset + size]
            if size == len(STORED[key]):
                self.fetched[key] += 1
                fault, self.fault = self.fault, ""
                if fault == "lost":
                    yield data[: size // 2]
                    raise StoreError("the connection was lost")
                data = {"": data, "short": data[:-1], "other": data[:-1] + b"?"}[fault]
            yield data


class Copies(RuleBasedStateMachine):
    """One folder of copies, and readers that share it.

    Attributes
    ----------
    readers
        Each stands for a process.
    under_way
        Reads that have begun: the key, what was read of it, and the rest.
    lost
        How often a copy of an object was damaged or an object arrived in vain.
    """

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="unistore-copies-"))
        self.bucket = Bucket()
        self.readers: list[CachedStorage] = []
        self.under_way: list[tuple[str, bytes, Iterator[bytes]]] = []
        self.lost: Counter[str] = Counter()
        (self.folder / "ab").mkdir(mode=0o700)
        self.foreign = self.folder / "ab" / "notes.txt"
        self.foreign.write_bytes(b"the user's own" * 1000)

    def teardown(self) -> None:
        assert self.foreign.exists()
        assert not list(self.folder.glob(f"*{PART}"))
        shutil.rmtree(self.folder)

    @initialize(limit=st.sampled_from((1, 500, 1500, SIZE // 2, SIZE)))
    def choose(self, limit: int) -> None:
        self.limit = limit
        self.come()

    @precondition(lambda self: len(self.readers) < 3)
    @rule()
    def come(self) -> None:
        copies = ShardCache(self.folder, self.limit)
        self.readers.append(CachedStorage(self.bucket, copies, CHECKSUMS[MANIFEST]))

    @precondition(lambda self: len(self.readers) > 1)
    @rule(number=st.integers(0, 2))
    def go(self, number: int) -> None:
        self.readers.pop(number % len(self.readers))

    @rule(number=st.integers(0, 2), chosen=st.lists(keys, min_size=1, max_size=6))
    def read(self, number: int, chosen: list[str]) -> None:
        """Parts of objects, in any order."""
        reader = self.readers[number % len(self.readers)]
        offsets = [len(key) % len(OBJECTS[key]) for key in chosen]
        sizes = [len(OBJECTS[key]) - offset for key, offset in zip(chosen, offsets, strict=True)]
        found = list(reader.read_many(chosen, offsets, sizes))
        assert found == [OBJECTS[key][at:] for key, at in zip(chosen, offsets, strict=True)]

    @precondition(lambda self: len(self.under_way) < 4)
    @rule(number=st.integers(0, 2), key=keys)
    def begin_to_read(self, number: int, key: str) -> None:
        """The copy may be evicted before the rest is read."""
        reader = self.readers[number % len(self.readers)]
        parts = reader.read_many([key] * 3, [0, 1, 2], [1, 1, len(OBJECTS[key]) - 2])
        self.under_way.append((key, next(parts), parts))

    @precondition(lambda self: self.under_way)
    @rule()
    def read_on(self) -> None:
        key, first, rest = self.under_way.pop(0)
        assert first + b"".join(rest) == OBJECTS[key]

    @rule(number=st.integers(0, 2), key=keys, fault=st.sampled_from(("lost", "short", "other")))
    def fetch_in_vain(self, number: int, key: str, fault: str) -> None:
        """What arrives wrong never enters, and is asked for again by the next read."""
        reader = self.readers[number % len(self.readers)]
        before = self.bucket.fetched[key]
        self.bucket.fault = fault
        failed: StoreError | None = None
        try:
            found = b"".join(reader.read_many([key], [0], [len(OBJECTS[key])]))
        except StoreError as error:
            failed = error
        if failed is None:
            assert found == OBJECTS[key] or len(OBJECTS[key]) > self.limit, "no copy: read as it stands there"
        else:
            assert isinstance(failed, CorruptionError) == (fault != "lost")
        self.bucket.fault = ""
        self.lost[key] += self.bucket.fetched[key] - before

    @rule(key=st.sampled_from(sorted(STORED)), how=st.sampled_from(("bit", "cut", "empty", "gone")))
    def damage(self, key: str, how: str) -> None:
        """A copy on the disk, of which no living process has read anything."""
        path = self.folder / CHECKSUMS[key]
        if not path.exists() or not path.stat().st_size:
            return
        self.under_way.clear()
        self.readers.clear()
        self.come()
        content = path.read_bytes()
        damaged = {"bit": bytes([content[0] ^ 1]) + content[1:], "cut": content[:-1], "empty": b""}
        if how == "gone":
            path.unlink()
        else:
            path.write_bytes(damaged[how])
        self.lost[key] += 1

    @rule(key=keys, size=st.integers(0, SIZE))
    def leave_a_part(self, key: str, size: int) -> None:
        """What a process leaves that is killed while it fetches: nobody holds its lock."""
        (self.folder / (CHECKSUMS[key] + PART)).write_bytes(b"?" * size)
        self._fetch_something()

    def _fetch_something(self) -> None:
        """Removes what nobody holds: the next fetch makes room."""
        other = b"something else"
        checksum = xxhash.xxh3_128_hexdigest(other)
        if len(other) <= self.limit:
            cache = ShardCache(self.folder, self.limit)
            assert cache.ensure(checksum, len(other), lambda: [other], "something else")
            (self.folder / checksum).unlink()
            self.lost.update(list(STORED))  # it may have taken the room of any
        for part in self.folder.glob(f"*{PART}"):
            assert len(other) > self.limit
            part.unlink()

    @invariant()
    def the_limit_holds(self) -> None:
        assert sum(path.stat().st_size for path in self.folder.glob(f"{'[0-9a-f]' * 32}*")) <= self.limit

    @invariant()
    def with_room_for_all_each_is_fetched_once(self) -> None:
        if getattr(self, "limit", 0) >= SIZE:
            for key, count in self.bucket.fetched.items():
                assert count <= 1 + self.lost[key], key


@pytest.mark.skipif(os.name == "nt", reason="needs file locks")
def test_any_history_of_copies_reads_what_the_store_holds() -> None:
    run_machine(Copies, histories=40, steps=30)
