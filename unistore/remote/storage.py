"""`ObjectStorage`: reads the files of a store from objects, many ranges by few requests at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain, islice
from typing import Any, TypeVar

from unistore.errors import StoreError
from unistore.remote.client import ObjectClient, whole_range
from unistore.remote.faults import Fault
from unistore.zarr3.storage import DOCUMENT_LIMIT, AbsentError
from unistore.zarr3.writer import ordered_map

T = TypeVar("T")
U = TypeVar("U")

# Unwanted bytes between two ranges that are fetched along with them: they take a millisecond or two, another
# request takes tens.
GAP = 128 << 10
# Bytes of one request; larger reads are split into concurrent ones.
LIMIT = 4 << 20
# Bytes of one request for a part of an object that is read whole.
PART = 8 << 20
# Concurrent requests of one process.
CONCURRENCY = 16


class ObjectStorage(ObjectClient):
    """Objects under a URL, for reading.

    Ranges that are close together in one object are fetched by one request, up to `CONCURRENCY` requests
    at once. It is not fork-safe: a read in a forked process raises an error.
    """

    fork_safe = False
    documents_read = 0

    @cached_property
    def documents(self) -> dict[str, bytes]:
        """Return documents that were read before, by key."""
        return {}

    @cached_property
    def shards(self) -> set[str]:
        """Return the keys of the objects whose ends were read."""
        return set()

    def get(self, key: str, limit: int = DOCUMENT_LIMIT) -> bytes:
        if key in self.documents:
            return self.documents[key]
        self.documents_read += 1
        document = super().get(key, limit)
        if document is None:
            msg = f"{self.location}/{key}: no such object"
            raise AbsentError(msg)
        return document

    def read_many(self, keys: Sequence[str], offsets: Sequence[int], sizes: Sequence[int]) -> Iterator[bytes]:
        self.check_process()  # our thread pool does not survive a fork, either
        confirming = None if self.is_confirmed else _thread_pool().submit(self.confirm)
        arriving = map_concurrently(self._fetch, coalesce(keys, offsets, sizes))
        received: dict[int, bytes] = {}
        for position in range(len(keys)):
            while position not in received:
                request, raw = next(arriving)
                for member in request.members:
                    low = offsets[member] - request.start
                    received[member] = raw[low : low + sizes[member]]  # all of it: not a copy
            if confirming is not None:
                confirming.result()
                confirming = None
            if not self.is_confirmed:
                self.confirm()
            yield received.pop(position)

    def read_ends(self, keys: Sequence[str], size: int) -> Iterator[tuple[int, bytes] | None]:
        self.check_process()
        self.shards.update(keys)
        return map_concurrently(lambda key: self.get_end(key, size), keys)

    def read_objects(self, sizes: Mapping[str, int]) -> Iterator[Iterator[bytes]]:
        """Yield the content of each object in parts, the next ones being read meanwhile."""
        self.check_process()
        parts: list[tuple[str, int, int]] = []
        for key, size in sizes.items():
            parts += [(key, size, start) for start in range(0, size, PART)]
        arriving = map_concurrently(self._part, parts)
        for size in sizes.values():
            of_object = islice(arriving, -(-size // PART))
            yield map(_raise_error, of_object)
            deque(of_object, 0)  # those that the caller left

    def _part(self, part: tuple[str, int, int]) -> bytes | StoreError:
        # Errors are returned, as they concern one object of many
        key, size, start = part
        stop = min(size, start + PART)

        def read(obs: Any, handle: Any) -> bytes:
            options = {} if stop - start == size else {"range": (start, stop)}
            answer = obs.get(handle, key, options=options)
            total = int(answer.meta["size"])
            if total != size:
                raise self.error(key, Fault(f"has {total:,} bytes, not {size:,}", damaged=True))
            return whole_range(answer, start, stop - start)

        try:
            return self._require(read, key)
        except StoreError as error:
            return error

    def _fetch(self, request: RangeRequest) -> tuple[RangeRequest, bytes]:
        return request, self.get_range(request.key, request.start, request.stop - request.start)


def _raise_error(part: bytes | StoreError) -> bytes:
    if isinstance(part, StoreError):
        raise part
    return part


@dataclass(slots=True)
class RangeRequest:
    """One request for the bytes ``start:stop`` of an object.

    `members` are the positions, in the requested list, of the ranges inside.
    """

    key: str
    start: int
    stop: int
    members: list[int]


def coalesce(
    keys: Sequence[str], offsets: Sequence[int], sizes: Sequence[int], *, gap: int = GAP, limit: int = LIMIT
) -> list[RangeRequest]:
    """Plan the requests for ranges ``offsets[i] : offsets[i] + sizes[i]`` of the objects ``keys[i]``.

    Ranges of one object that are at most `gap` bytes apart share a request, up to `limit` bytes. Requests
    are sorted by their first member.
    """
    # A consumer that goes in order then buffers little
    first: dict[str, int] = {}
    for position, key in enumerate(keys):
        first.setdefault(key, position)
    requests: list[RangeRequest] = []
    for position in sorted(range(len(keys)), key=lambda number: (first[keys[number]], offsets[number])):
        key = keys[position]
        begin = offsets[position]
        end = offsets[position] + sizes[position]
        last = requests[-1] if requests and requests[-1].key == key else None
        if last and begin - last.stop <= gap and max(last.stop, end) - last.start <= limit:
            last.stop = max(last.stop, end)
            last.members.append(position)
        else:
            requests.append(RangeRequest(key, begin, end, [position]))
    return sorted(requests, key=lambda request: min(request.members))


def map_concurrently(work: Callable[[T], U], items: Iterable[T]) -> Iterator[U]:
    """Return ``map(work, items)`` in order, on up to `CONCURRENCY` threads, for one item on this thread."""
    remaining = iter(items)
    first = list(islice(remaining, 2))
    if len(first) < 2:
        return map(work, first)
    return ordered_map(_thread_pool(), work, chain(first, remaining), CONCURRENCY)


@cache
def _thread_pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(CONCURRENCY, thread_name_prefix="unistore-requests")
