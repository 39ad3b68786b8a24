"""`ObjectStorage`: a store in an object store or on a web server, for reading."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from typing import TypeVar

from unistore.remote.client import ObjectClient
from unistore.remote.ranges import Request, coalesce
from unistore.remote.url import Location
from unistore.zarr3.storage import DOCUMENT_LIMIT, AbsentError

__all__ = ["ObjectStorage", "ahead"]

T = TypeVar("T")
U = TypeVar("U")

CONCURRENCY = 16
"""Requests under way at once in one process."""

_pool: ThreadPoolExecutor | None = None


class ObjectStorage:
    """Objects under a URL; see `unistore.zarr3.storage.Storage`. Connects with the first read.

    Ranges that lie close together in one object are fetched by one request, and up to `CONCURRENCY` requests
    are under way at once. Not usable in a forked process: a read there is an error at once.

    Parameters
    ----------
    location
        URL of the store.

    Attributes
    ----------
    client
        What carries out the requests.
    """

    fork_safe = False

    def __init__(self, location: Location | str) -> None:
        self.client = ObjectClient(location)

    def __reduce__(self) -> tuple[type[ObjectStorage], tuple[Location]]:
        return type(self), (self.client.location,)

    def __repr__(self) -> str:
        return f"ObjectStorage({str(self.client.location)!r})"

    def get(self, key: str, limit: int = DOCUMENT_LIMIT) -> bytes:
        """Whole object; see `Storage.get`."""
        found = self.client.get(key, limit)
        if found is None:
            msg = f"{self.client.location}/{key}: no such object"
            raise AbsentError(msg)
        return found

    def size(self, key: str) -> int | None:
        """Bytes of an object, or None; see `Storage.size`."""
        return self.client.size(key)

    def read_into(self, key: str, offset: int, out: memoryview) -> None:
        """Fill `out`; see `Storage.read_into`."""
        out[:] = self.client.get_range(key, offset, len(out))

    def read_many(self, keys: Sequence[str], offsets: Sequence[int], sizes: Sequence[int]) -> Iterator[bytes]:
        """Read many ranges; see `Storage.read_many`."""
        self.client.check_process()  # the threads would not answer, either
        requests = coalesce(keys, offsets, sizes)
        arriving = ahead(self._fetch, requests)
        waiting: dict[int, bytes] = {}
        for position in range(len(keys)):
            while position not in waiting:
                request, raw = next(arriving)
                waiting.update(_cut(request, raw, offsets, sizes))
            yield waiting.pop(position)

    def read_ends(self, keys: Sequence[str], size: int) -> Iterator[tuple[int, bytes] | None]:
        """Sizes and ends of objects; see `Storage.read_ends`."""
        self.client.check_process()
        return ahead(lambda key: self.client.get_end(key, size), keys)

    def _fetch(self, request: Request) -> tuple[Request, bytes]:
        raw = self.client.get_range(request.key, request.start, request.stop - request.start)
        return request, raw


def _cut(
    request: Request, raw: bytes, offsets: Sequence[int], sizes: Sequence[int]
) -> Iterator[tuple[int, bytes]]:
    """Each range of a request, by its position."""
    if len(request.members) == 1:
        yield request.members[0], raw
        return
    for at in request.members:
        low = offsets[at] - request.start
        yield at, raw[low : low + sizes[at]]


def ahead(work: Callable[[T], U], items: Iterable[T]) -> Iterator[U]:
    """``map(work, items)`` with up to `CONCURRENCY` items under way; a lone item is worked on right here."""
    queue = iter(items)
    first = list(islice(queue, CONCURRENCY))
    if len(first) < 2:
        yield from map(work, chain(first, queue))
        return
    pool = _threads()
    running: deque[Future[U]] = deque(pool.submit(work, item) for item in first)
    try:
        while running:
            done = running.popleft().result()
            running.extend(pool.submit(work, item) for item in islice(queue, 1))
            yield done
    finally:
        for future in running:
            future.cancel()


def _threads() -> ThreadPoolExecutor:
    global _pool  # noqa: PLW0603 - one a process, so that its requests are bounded whatever is read
    if _pool is None:
        _pool = ThreadPoolExecutor(CONCURRENCY, thread_name_prefix="unistore-requests")
    return _pool
