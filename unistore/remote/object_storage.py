"""Objects under a URL as the storage of a store: ranges that lie close together are fetched at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import chain, islice
from typing import TypeVar

from unistore.remote.client import ObjectClient
from unistore.remote.url import StoreLocation
from unistore.zarr3.storage import DOCUMENT_LIMIT, AbsentError
from unistore.zarr3.writer import ordered_map

T = TypeVar("T")
U = TypeVar("U")

GAP = 128 << 10
"""Unwanted bytes between two ranges that are fetched along with them: they take a millisecond or two, another
request takes tens."""
LIMIT = 4 << 20
"""Bytes of one request; larger reads are split into concurrent ones."""
CONCURRENCY = 16
"""Concurrent requests of one process."""


class ObjectStorage:
    """Objects under a URL; see `unistore.zarr3.storage.Storage`. Connects with the first read.

    Ranges that lie close together in one object are fetched by one request; up to `CONCURRENCY` requests run
    at once. Not fork-safe: a read in a forked process raises an error.
    """

    fork_safe = False

    def __init__(self, location: StoreLocation | str) -> None:
        self.client = ObjectClient(location)

    def __reduce__(self) -> tuple[type[ObjectStorage], tuple[StoreLocation]]:
        return type(self), (self.client.location,)

    def __repr__(self) -> str:
        return f"ObjectStorage({str(self.client.location)!r})"

    def get(self, key: str, limit: int = DOCUMENT_LIMIT) -> bytes:
        """Return the content of an object; see `Storage.get`."""
        document = self.client.get(key, limit)
        if document is None:
            msg = f"{self.client.location}/{key}: no such object"
            raise AbsentError(msg)
        return document

    def size(self, key: str) -> int | None:
        """Return the size of an object in bytes, or None; see `Storage.size`."""
        return self.client.size(key)

    def read_into(self, key: str, offset: int, out: memoryview) -> None:
        """Fill `out`; see `Storage.read_into`."""
        out[:] = self.client.get_range(key, offset, len(out))

    def read_many(self, keys: Sequence[str], offsets: Sequence[int], sizes: Sequence[int]) -> Iterator[bytes]:
        """Read many ranges; see `Storage.read_many`."""
        self.client.check_process()  # our thread pool does not survive a fork, either
        arriving = map_concurrently(self._fetch, coalesce(keys, offsets, sizes))
        received: dict[int, bytes] = {}
        for position in range(len(keys)):
            while position not in received:
                request, raw = next(arriving)
                for member in request.members:
                    low = offsets[member] - request.start
                    received[member] = raw[low : low + sizes[member]]  # all of it: not a copy
            yield received.pop(position)

    def read_ends(self, keys: Sequence[str], size: int) -> Iterator[tuple[int, bytes] | None]:
        """Yield sizes and ends of objects; see `Storage.read_ends`."""
        self.client.check_process()
        return map_concurrently(lambda key: self.client.get_end(key, size), keys)

    def _fetch(self, request: RangeRequest) -> tuple[RangeRequest, bytes]:
        return request, self.client.get_range(request.key, request.start, request.stop - request.start)


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

    Ranges of one object that overlap or lie at most `gap` apart share a request, up to `limit` bytes; a range
    that is larger has a request of its own. Requests are sorted by their first member, so that a consumer
    that goes in order buffers little.
    """
    first: dict[str, int] = {}
    for position, key in enumerate(keys):
        first.setdefault(key, position)
    requests: list[RangeRequest] = []
    for position in sorted(range(len(keys)), key=lambda at: (first[keys[at]], offsets[at])):
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
    """``map(work, items)`` in order, on up to `CONCURRENCY` threads; a single item runs on this thread."""
    remaining = iter(items)
    first = list(islice(remaining, 2))
    if len(first) < 2:
        return map(work, first)
    return ordered_map(_thread_pool(), work, chain(first, remaining), CONCURRENCY)


@cache
def _thread_pool() -> ThreadPoolExecutor:
    """Return the one of the process, which bounds its requests."""
    return ThreadPoolExecutor(CONCURRENCY, thread_name_prefix="unistore-requests")
