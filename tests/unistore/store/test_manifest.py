"""The manifest's bytes and the seal, recomputed by hand."""

from __future__ import annotations

import json
import random

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from unistore.errors import CorruptionError
from unistore.schemas.tables import name_problem
from unistore.store.manifest import (
    Entry,
    make_seal,
    manifest_bytes,
    parse_manifest,
    root_digest,
    sign_root,
)

NAMES = st.text("abcC_.-: 0179Äö字🗻'\"", min_size=1, max_size=9)
KEYS = (
    st.lists(NAMES, min_size=1, max_size=3)
    .map(lambda names: "/".join(["rows", *names]))
    .filter(lambda key: name_problem(key) is None)
)
ENTRIES = st.lists(
    st.builds(
        Entry,
        key=KEYS,
        bytes=st.integers(0, 2**40),
        checksum=st.text("0123456789abcdef", min_size=32, max_size=32),
        rows=st.none() | st.tuples(st.integers(0, 2**40), st.integers(0, 2**40)).map(sorted).map(tuple),
        content=st.none() | st.text("0123456789abcdef", min_size=32, max_size=32),
    ),
    unique_by=lambda entry: entry.key,
    max_size=8,
)

SUM = b"0123456789abcdef" * 2
LINE = b'{"key":"b/c/0","bytes":7,"checksum":"%b"}' % SUM
BAD_KEYS = [
    b"",
    b"/etc/passwd",
    b"../x",
    b"a/../../x",
    b"a//x",
    b"a/.",
    b"a/",
    b"a\\\\x",
    b"a\\u0000x",
    b"a\\nx",
    b"a\\u202ex",
    b"a\\ud800x",
    b"C:/x",
    b"__x",
    b"x" * 256,
    b"/".join([b"x" * 250] * 20),
    b"zarr.json",
    b"unistore-manifest.jsonl",
]


@given(ENTRIES)
def test_a_written_manifest_is_parsed_to_the_same_entries(entries: list[Entry]) -> None:
    data = manifest_bytes(entries)
    assert parse_manifest(data, "s") == sorted(entries, key=lambda entry: entry.key)
    assert data.isascii()
    assert data.count(b"\n") == len(entries)


@given(ENTRIES, st.randoms(use_true_random=False))
def test_the_bytes_of_a_manifest_do_not_depend_on_the_order_of_writing(
    entries: list[Entry], chance: random.Random
) -> None:
    shuffled = chance.sample(entries, len(entries))
    assert manifest_bytes(shuffled) == manifest_bytes(entries)
    assert make_seal(shuffled, b"x") == make_seal(entries, b"x")


def test_a_manifest_is_one_json_line_per_file_sorted_by_key() -> None:
    shard = Entry(key="a/c/0", bytes=7, checksum="11", rows=(0, 5), content="22")
    meta = Entry(key="a/zarr.json", bytes=3, checksum="33")
    assert manifest_bytes([meta, shard]) == (
        b'{"key":"a/c/0","bytes":7,"checksum":"11","rows":[0,5],"content":"22"}\n'
        b'{"key":"a/zarr.json","bytes":3,"checksum":"33"}\n'
    )


def test_a_seal_records_digests_files_and_bytes_of_the_manifest() -> None:
    entries = [
        Entry(key="b/c/0", bytes=7, checksum="11", rows=(0, 5), content="22"),
        Entry(key="a/c/1", bytes=8, checksum="44", rows=(5, 9), content="55"),
        Entry(key="a/zarr.json", bytes=3, checksum="33"),
    ]
    manifest = manifest_bytes(entries)
    members = make_seal(entries, manifest).to_json()
    assert [*members.items()] == [
        ("manifest", "unistore-manifest.jsonl"),
        ("digest", xxhash.xxh3_128_hexdigest(manifest)),
        ("files", 3),
        ("bytes", 18),
        ("content_digest", xxhash.xxh3_128_hexdigest(b"a/c/1 (5, 9) 55\nb/c/0 (0, 5) 22\n")),
        ("root", "0" * 32),
    ]


def test_content_digest_ignores_how_values_are_encoded() -> None:
    one = Entry(key="a/c/0", bytes=7, checksum="11", rows=(0, 5), content="22")
    other = Entry(key="a/c/0", bytes=9, checksum="99", rows=(0, 5), content="22")
    first, second = make_seal([one], b"1"), make_seal([other], b"2")
    assert first.content_digest == second.content_digest
    assert first.digest != second.digest


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"[]",
        b"null",
        b"{}",
        b"\xff\xfe",
        LINE.replace(b',"checksum":"%b"' % SUM, b""),
        LINE.replace(b"}", b',"rows":[1]}'),
        LINE.replace(b"}", b',"rows":[2,1]}'),
        LINE.replace(b"}", b',"rows":[-1,1]}'),
        LINE.replace(b"}", b',"rows":[0,true]}'),
        LINE.replace(b"}", b',"rows":[0,9223372036854775808]}'),
        LINE.replace(b'"b/c/0"', b'["b"]'),
        LINE.replace(b"7", b'"7"'),
        LINE.replace(b"7", b"-7"),
        LINE.replace(b"7", b"true"),
        LINE.replace(b"7", b"7.0"),
        LINE.replace(b"7", b"NaN"),
        LINE.replace(b"7", b"9" * 5000),
        LINE.replace(b"7", b"[" * 50_000 + b"]" * 50_000),
        LINE.replace(b'"%b"' % SUM, b"7"),
        LINE.replace(SUM, b""),
        LINE.replace(SUM, SUM.upper()),
        LINE.replace(SUM, SUM + b"\\n"),
        LINE.replace(SUM, b"../../../victim"),
        LINE.replace(b"}", b',"content":[]}'),
        LINE.replace(b"}", b',"content":"../x"}'),
        LINE.replace(b"}", b',"bytes":8}'),
        *(LINE.replace(b"b/c/0", key) for key in BAD_KEYS),
    ],
)
def test_a_damaged_line_is_named(line: bytes) -> None:
    good = manifest_bytes([Entry(key="a", bytes=1, checksum="0" * 32)])
    with pytest.raises(
        CorruptionError,
        match=r"^store/unistore-manifest\.jsonl: line 2 is damaged: .{9,400}\. Fix: unistore verify store$",
    ):
        parse_manifest(good + line + b"\n" + good, "store")


def test_a_key_that_occurs_twice_is_an_error() -> None:
    with pytest.raises(CorruptionError, match=r"line 2 is damaged: the key 'b/c/0' occurs twice"):
        parse_manifest(LINE + b"\n" + LINE + b"\n", "store")


@pytest.mark.parametrize("option", ["7", "0" * 32, "f" * 32])
def test_the_signature_of_a_root_covers_every_byte(option: str) -> None:
    """Also with an option that looks like a signature."""
    plain = {"options": {"root": option}, "seal": {"digest": "1", "root": "0" * 32}}
    unsigned = json.dumps(plain, indent=1).encode()
    signed = sign_root(unsigned)
    assert json.loads(signed)["options"] == plain["options"]
    assert json.loads(signed)["seal"]["root"] == xxhash.xxh3_128_hexdigest(unsigned)
    assert root_digest(signed)
    assert not root_digest(unsigned)
    for at in range(len(signed)):
        assert not root_digest(signed[:at] + bytes([signed[at] ^ 1]) + signed[at + 1 :])
