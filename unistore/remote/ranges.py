"""Coalesces reads of many byte ranges into few requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
