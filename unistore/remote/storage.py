"""Storage of a store, from its path or URL; `ObjectStorage` reads object stores and web servers."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import chain, islice
from pathlib import Path
from typing import TypeVar

from unistore.remote.client import ObjectClient
from unistore.remote.url import Location, file_path, is_url
from unistore.zarr3.local import LocalStorage
from unistore.zarr3.storage import DOCUMENT_LIMIT, AbsentError, Storage


def local_path(path: str | os.PathLike[str]) -> Path | None:
    """Local path of a path or ``file://`` URL; None if it is the URL of an object store.

    Raises
    ------
    InputError
        If it is not a valid URL.
    """
    text = os.fspath(path)
    folder = file_path(text) if is_url(text) else text
    return None if folder is None else Path(folder)


def open_storage(path: str | os.PathLike[str]) -> Storage:
    """Storage of a folder or URL; nothing is opened yet. Raises as `local_path`."""
    folder = local_path(path)
    return ObjectStorage(os.fspath(path)) if folder is None else LocalStorage(folder)


GAP = 128 << 10
"""Unwanted bytes between two ranges that are fetched along with them: they take a millisecond or two, another
request takes tens."""
LIMIT = 4 << 20
"""Bytes of one request; larger reads are split into concurrent ones."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request for the bytes ``start:stop`` of an object.

    `members` are the positions, in the requested list, of the ranges inside.
    """

    key: str
    start: int
    stop: int
    members: tuple[int, ...]


def coalesce(
    keys: Sequence[str], offsets: Sequence[int], sizes: Sequence[int], *, gap: int = GAP, limit: int = LIMIT
) -> list[Request]:
    """Plan the requests for ranges ``offsets[i] : offsets[i] + sizes[i]`` of the objects ``keys[i]``.

    Ranges of one object that overlap or lie at most `gap` apart share a request, up to `limit` bytes; a range
    that is larger has a request of its own. Requests are sorted by their first member, so that a consumer
    that goes in order buffers little.
    """
    first: dict[str, int] = {}
    for position, key in enumerate(keys):
        first.setdefault(key, position)
    order = sorted(range(len(keys)), key=lambda position: (first[keys[position]], offsets[position]))
    requests: list[Request] = []
    members: list[int] = []
    key, start, stop = "", 0, 0
    for position in order:
        begin, end = offsets[position], offsets[position] + sizes[position]
        joined = max(stop, end)
        if members and keys[position] == key and begin - stop <= gap and joined - start <= limit:
            members.append(position)
            stop = joined
            continue
        if members:
            requests.append(Request(key, start, stop, tuple(members)))
        key, start, stop, members = keys[position], begin, end, [position]
    if members:
        requests.append(Request(key, start, stop, tuple(members)))
    return sorted(requests, key=lambda request: min(request.members))


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
