"""The manifest's bytes and the seal, recomputed by hand."""

from __future__ import annotations

import json
import random

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from unistore.errors import CorruptionError
from unistore.store.manifest import (
    Entry,
    manifest_bytes,
    parse_manifest,
    root_is_intact,
    seal_of,
    sign_root,
)

ENTRIES = st.lists(
    st.builds(
        Entry,
        key=st.text(min_size=1),
        bytes=st.integers(0, 2**40),
        checksum=st.text("0123456789abcdef", min_size=32, max_size=32),
        rows=st.none() | st.tuples(st.integers(0, 2**40), st.integers(0, 2**40)),
        content=st.none() | st.text("0123456789abcdef", min_size=32, max_size=32),
    ),
    unique_by=lambda entry: entry.key,
    max_size=8,
)


@given(ENTRIES)
def test_what_is_written_is_read(entries: list[Entry]) -> None:
    data = manifest_bytes(entries)
    assert parse_manifest(data, "s") == sorted(entries, key=lambda entry: entry.key)
    assert data.isascii()
    assert data.count(b"\n") == len(entries)


@given(ENTRIES, st.randoms(use_true_random=False))
def test_the_order_of_writing_plays_no_part(entries: list[Entry], chance: random.Random) -> None:
    shuffled = chance.sample(entries, len(entries))
    assert manifest_bytes(shuffled) == manifest_bytes(entries)
    assert seal_of(shuffled, b"x") == seal_of(entries, b"x")


def test_lines() -> None:
    shard = Entry(key="a/c/0", bytes=7, checksum="11", rows=(0, 5), content="22")
    meta = Entry(key="a/zarr.json", bytes=3, checksum="33")
    assert manifest_bytes([meta, shard]) == (
        b'{"key":"a/c/0","bytes":7,"checksum":"11","rows":[0,5],"content":"22"}\n'
        b'{"key":"a/zarr.json","bytes":3,"checksum":"33"}\n'
    )


def test_seal() -> None:
    entries = [
        Entry(key="b/c/0", bytes=7, checksum="11", rows=(0, 5), content="22"),
        Entry(key="a/c/1", bytes=8, checksum="44", rows=(5, 9), content="55"),
        Entry(key="a/zarr.json", bytes=3, checksum="33"),
    ]
    manifest = manifest_bytes(entries)
    assert seal_of(entries, manifest) == {
        "manifest": "unistore-manifest.jsonl",
        "digest": xxhash.xxh3_128_hexdigest(manifest),
        "files": 3,
        "bytes": 18,
        "content_digest": xxhash.xxh3_128_hexdigest(b"a/c/1 (5, 9) 55\nb/c/0 (0, 5) 22\n"),
        "root": "0" * 32,
    }


def test_content_digest_ignores_how_values_are_encoded() -> None:
    one = Entry(key="a/c/0", bytes=7, checksum="11", rows=(0, 5), content="22")
    other = Entry(key="a/c/0", bytes=9, checksum="99", rows=(0, 5), content="22")
    first, second = seal_of([one], b"1"), seal_of([other], b"2")
    assert first["content_digest"] == second["content_digest"]
    assert first["digest"] != second["digest"]


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"[]",
        b"null",
        b"{}",
        b'{"key":"a","bytes":1}',
        b"\xff\xfe",
        b'{"key":"a","bytes":1,"checksum":"","rows":[1]}',
        b'{"key":["a"],"bytes":1,"checksum":""}',
        b'{"key":"a","bytes":"1","checksum":""}',
        b'{"key":"a","bytes":1,"checksum":7}',
        b'{"key":"a","bytes":1,"checksum":"","rows":[0,1],"content":[]}',
    ],
)
def test_a_damaged_line_is_named(line: bytes) -> None:
    good = b'{"key":"a","bytes":1,"checksum":"0"}\n'
    with pytest.raises(CorruptionError, match=r"^store/unistore-manifest\.jsonl: line 2 is damaged"):
        parse_manifest(good + line + b"\n" + good, "store")


@pytest.mark.parametrize("option", ["7", "0" * 32, "f" * 32])
def test_the_root_signs_itself(option: str) -> None:
    """Also with an option that looks like a signature."""
    plain = {"options": {"root": option}, "seal": {"digest": "1", "root": "0" * 32}}
    unsigned = json.dumps(plain, indent=1).encode()
    signed = sign_root(unsigned)
    assert json.loads(signed)["options"] == plain["options"]
    assert json.loads(signed)["seal"]["root"] == xxhash.xxh3_128_hexdigest(unsigned)
    assert root_is_intact(signed)
    assert not root_is_intact(unsigned)
    for at in range(len(signed)):
        assert not root_is_intact(signed[:at] + bytes([signed[at] ^ 1]) + signed[at + 1 :])


def test_a_document_without_signature_is_not_intact() -> None:
    assert not root_is_intact(b"{}")
