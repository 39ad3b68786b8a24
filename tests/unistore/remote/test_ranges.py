"""Requests cover what was asked for, and no more than is allowed."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from unistore.remote.client import ObjectStorage, coalesce

RANGES = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 400), st.integers(1, 60)), max_size=40)


@settings(max_examples=200)
@given(ranges=RANGES, gap=st.integers(0, 50), limit=st.integers(1, 200))
def test_requests_cover_the_ranges(ranges: list[tuple[str, int, int]], gap: int, limit: int) -> None:
    keys, offsets, sizes = ([each[part] for each in ranges] for part in range(3))
    requests = coalesce(keys, offsets, sizes, gap=gap, limit=limit)  # type: ignore[arg-type]
    members = [at for request in requests for at in request.members]
    assert sorted(members) == list(range(len(ranges))), "each range once"
    for request in requests:
        inside = [ranges[at] for at in request.members]
        assert {key for key, _, _ in inside} == {request.key}
        assert request.start == min(low for _, low, _ in inside)
        assert request.stop == max(low + size for _, low, size in inside)
        assert request.stop - request.start <= limit or len(inside) == 1
        wanted = {byte for _, low, size in inside for byte in range(low, low + size)}
        wasted = [byte for byte in range(request.start, request.stop) if byte not in wanted]
        assert len(wasted) <= gap * (len(inside) - 1)
    assert [min(request.members) for request in requests] == sorted(min(r.members) for r in requests)


@settings(max_examples=60)
@given(ranges=RANGES)
def test_ranges_come_in_the_order_asked_for(ranges: list[tuple[str, int, int]]) -> None:
    content = {key: bytes((number * 7 + ord(key)) % 251 for number in range(500)) for key in "abc"}
    storage = ObjectStorage("s3://bucket/prefix")
    asked: list[str] = []

    def get_range(key: str, start: int, size: int) -> bytes:
        asked.append(key)
        return content[key][start : start + size]

    storage.get_range = get_range  # type: ignore[method-assign]
    keys, offsets, sizes = ([each[part] for each in ranges] for part in range(3))
    found = list(storage.read_many(keys, offsets, sizes))  # type: ignore[arg-type]
    assert found == [content[key][low : low + size] for key, low, size in ranges]
    assert len(asked) == len({key for key, _, _ in ranges}), "all of one object lie close together"


def test_neighbours_share_a_request_up_to_the_limit() -> None:
    kib = 1 << 10
    keys = ["a"] * 6
    offsets = [0, 64 * kib, 512 * kib, 600 * kib, 4 << 20, 4200 * kib]
    found = coalesce(keys, offsets, [64 * kib] * 6)
    assert [request.members for request in found] == [[0, 1], [2, 3], [4, 5]]
    alone = coalesce(keys, offsets, [64 * kib] * 6, gap=0, limit=64 * kib)
    assert len(alone) == 6
