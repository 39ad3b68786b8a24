"""Which requests fetch many ranges: neighbours in one object are asked for together. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["LIMIT", "Request", "coalesce"]

GAP = 128 << 10
"""Bytes between two ranges that are fetched along with them: what a connection brings in about a millisecond
or two, against the tens of milliseconds that one more request takes."""
LIMIT = 4 << 20
"""Bytes of one request; more are fetched by several at once."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request for consecutive bytes of an object.

    Attributes
    ----------
    key
        The object.
    start, stop
        Bytes.
    members
        Positions, in the list that was asked for, of the ranges inside.
    """

    key: str
    start: int
    stop: int
    members: tuple[int, ...]


def coalesce(
    keys: Sequence[str],
    offsets: Sequence[int],
    sizes: Sequence[int],
    *,
    gap: int = GAP,
    limit: int = LIMIT,
) -> list[Request]:
    """Plan the requests for ranges ``offsets[i] : offsets[i] + sizes[i]`` of the objects ``keys[i]``.

    Ranges of one object that overlap or lie at most `gap` apart share a request, up to `limit` bytes; a range
    that is larger than that has one of its own. Requests come in the order in which their first members were
    asked for, so that those who consume in order need not hold much.
    """
    first: dict[str, int] = {}
    for position, key in enumerate(keys):
        first.setdefault(key, position)
    order = sorted(range(len(keys)), key=lambda at: (first[keys[at]], offsets[at]))
    requests: list[Request] = []
    members: list[int] = []
    key, start, stop = "", 0, 0
    for at in order:
        low, high = offsets[at], offsets[at] + sizes[at]
        joined = max(stop, high)
        if members and keys[at] == key and low - stop <= gap and joined - start <= limit:
            members.append(at)
            stop = joined
            continue
        if members:
            requests.append(Request(key, start, stop, tuple(members)))
        key, start, stop, members = keys[at], low, high, [at]
    if members:
        requests.append(Request(key, start, stop, tuple(members)))
    return sorted(requests, key=lambda request: min(request.members))
