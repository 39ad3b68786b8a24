"""`ObjectStorage`: a store in an object store or on a web server, for reading."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from itertools import chain, islice
from typing import TypeVar

from unistore.remote.client import ObjectClient
from unistore.remote.ranges import Request, coalesce
from unistore.remote.url import Location
from unistore.zarr3.storage import DOCUMENT_LIMIT, AbsentError

T = TypeVar("T")
U = TypeVar("U")

CONCURRENCY = 16
"""Concurrent requests of one process."""


class ObjectStorage:
    """Objects under a URL; see `unistore.zarr3.storage.Storage`. Connects with the first read.

    Ranges that lie close together in one object are fetched by one request; up to `CONCURRENCY` requests run
    at once. Not fork-safe: a read in a forked process raises an error.
    """

    fork_safe = False

    def __init__(self, location: Location | str) -> None:
        self.client = ObjectClient(location)

    def __reduce__(self) -> tuple[type[ObjectStorage], tuple[Location]]:
        return type(self), (self.client.location,)

    def __repr__(self) -> str:
        return f"ObjectStorage({str(self.client.location)!r})"

    def get(self, key: str, limit: int = DOCUMENT_LIMIT) -> bytes:
        """Content of an object; see `Storage.get`."""
        found = self.client.get(key, limit)
        if found is None:
            msg = f"{self.client.location}/{key}: no such object"
            raise AbsentError(msg)
        return found

    def size(self, key: str) -> int | None:
        """Size of an object in bytes, or None; see `Storage.size`."""
        return self.client.size(key)

    def read_into(self, key: str, offset: int, out: memoryview) -> None:
        """Fill `out`; see `Storage.read_into`."""
        out[:] = self.client.get_range(key, offset, len(out))

    def read_many(self, keys: Sequence[str], offsets: Sequence[int], sizes: Sequence[int]) -> Iterator[bytes]:
        """Read many ranges; see `Storage.read_many`."""
        self.client.check_process()  # our thread pool does not survive a fork, either
        requests = coalesce(keys, offsets, sizes)
        arriving = map_concurrently(self._fetch, requests)
        received: dict[int, bytes] = {}
        for position in range(len(keys)):
            while position not in received:
                request, raw = next(arriving)
                received.update(_split_response(request, raw, offsets, sizes))
            yield received.pop(position)

    def read_ends(self, keys: Sequence[str], size: int) -> Iterator[tuple[int, bytes] | None]:
        """Sizes and ends of objects; see `Storage.read_ends`."""
        self.client.check_process()
        return map_concurrently(lambda key: self.client.get_end(key, size), keys)

    def _fetch(self, request: Request) -> tuple[Request, bytes]:
        raw = self.client.get_range(request.key, request.start, request.stop - request.start)
        return request, raw


def _split_response(
    request: Request, raw: bytes, offsets: Sequence[int], sizes: Sequence[int]
) -> Iterator[tuple[int, bytes]]:
    """Position and bytes of each range of a request."""
    for position in request.members:
        low = offsets[position] - request.start
        yield position, raw[low : low + sizes[position]]  # all of it: the same object, not a copy


def map_concurrently(work: Callable[[T], U], items: Iterable[T]) -> Iterator[U]:
    """``map(work, items)`` in order, on up to `CONCURRENCY` threads; a single item runs on this thread."""
    queue = iter(items)
    first = list(islice(queue, CONCURRENCY))
    if len(first) < 2:
        yield from map(work, chain(first, queue))
        return
    pool = _thread_pool()
    running: deque[Future[U]] = deque(pool.submit(work, item) for item in first)
    try:
        while running:
            done = running.popleft().result()
            running.extend(pool.submit(work, item) for item in islice(queue, 1))
            yield done
    finally:
        for future in running:
            future.cancel()


@cache
def _thread_pool() -> ThreadPoolExecutor:
    """One for the process, which bounds its requests."""
    return ThreadPoolExecutor(CONCURRENCY, thread_name_prefix="unistore-requests")
