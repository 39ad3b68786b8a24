"""Stores of strangers: nothing outside is touched, nothing hangs, and what is wrong is told in one line."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import unistore
from tests.support.strategies import manifests, roots
from unistore import verify
from unistore.errors import CorruptionError, NoStoreError, StoreError
from unistore.store.manifest import Entry, manifest_bytes, parse_manifest, sign_root
from unistore.store.names import MANIFEST
from unistore.store.reader import Store

CANARY = b"the user's own"
VALUES = np.arange(60, dtype=np.float32).reshape(20, 3)


def tree(folder: Path) -> dict[str, bytes | None]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


def reseal(path: Path, manifest: bytes | None = None) -> None:
    """Seal a store again: with a manifest of its files, or another."""
    if manifest is None:
        files = {
            key: content
            for key, content in tree(path).items()
            if content is not None and key not in ("zarr.json", MANIFEST)
        }
        manifest = manifest_bytes(
            Entry(key=key, bytes=len(content), checksum=xxhash.xxh3_128_hexdigest(content))
            for key, content in files.items()
        )
    (path / MANIFEST).write_bytes(manifest)
    document = json.loads((path / "zarr.json").read_text())
    seal = document["attributes"]["unistore"]["seal"]
    seal.update(digest=xxhash.xxh3_128_hexdigest(manifest), root="0" * 32)
    (path / "zarr.json").write_bytes(sign_root(json.dumps(document).encode()))


@pytest.fixture
def path(make_store: Any) -> Path:
    store: Path = make_store("rows", {"rows/data": VALUES, "rows/name_utf8": ["a", "b"] * 10}, count=20)
    reseal(store)
    return store


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A folder of the user with files that nothing may touch."""
    folder = tmp_path / "home"
    (folder / "deep").mkdir(parents=True)
    for name in ("victim", "deep/victim", "ab"):
        (folder / name).write_bytes(CANARY)
    before = tree(folder)
    yield folder
    assert tree(folder) == before


@pytest.mark.parametrize("checksum", ["../../home/victim", "../../../x/victim", "/etc/victim", "ab/../../x"])
def test_a_checksum_that_is_a_path_deletes_no_file(
    path: Path, home: Path, tmp_path: Path, checksum: str
) -> None:
    key = "rows/data/zarr.json"
    lines = (path / MANIFEST).read_bytes().splitlines()
    checksum = checksum.replace("/etc", str(home))
    hostile = [
        json.dumps(json.loads(line) | {"checksum": checksum}).encode() if key.encode() in line else line
        for line in lines
    ]
    reseal(path, b"\n".join(hostile) + b"\n")
    cache = tmp_path / "cache" / "here"
    before = tree(tmp_path)
    with pytest.raises(CorruptionError, match=r"line \d is damaged: 'checksum' is .*unistore verify"):
        unistore.Dataset(path, cache_dir=cache).read_batch([0])
    kept = [each.name for each in cache.rglob("*") if each.is_file() and each.name != "lock"]
    assert len(kept) == 1, "the manifest, by its own checksum"
    found = verify(path)
    assert "is damaged: 'checksum' is" in "\n".join(map(str, found.problems))
    after = {each: data for each, data in tree(tmp_path).items() if not each.startswith("cache")}
    assert after == before


@pytest.mark.parametrize("member", ["rows/data/c/../../../../home/victim", "/etc/victim", "rows//data"])
@pytest.mark.parametrize("where", ["manifest", "fields"])
def test_a_key_that_leads_out_is_refused(path: Path, home: Path, member: str, where: str) -> None:
    member = member.replace("/etc", str(home))
    if where == "manifest":
        entry = {"key": member, "bytes": len(CANARY), "checksum": xxhash.xxh3_128_hexdigest(CANARY)}
        reseal(path, json.dumps(entry).encode() + b"\n")
        assert {problem.kind for problem in verify(path).problems} >= {"manifest"}
        with pytest.raises(CorruptionError, match="'key' is"):
            parse_manifest((path / MANIFEST).read_bytes(), "store")
        return
    document = json.loads((path / "zarr.json").read_text())
    document["attributes"]["unistore"]["fields"][member] = {"axes": []}
    (path / "zarr.json").write_text(json.dumps(document))
    with pytest.raises(CorruptionError, match=r"a path in 'fields' is .*Fix: unistore verify"):
        Store(path)


READERS: dict[str, Callable[[Path], Any]] = {
    "Dataset": lambda path: unistore.Dataset(path).read_batch([0]),
    "cached": lambda path: unistore.Dataset(path, cache_dir=path.parent / "cache").read_batch([0]),
    "inspect": unistore.inspect,
    "verify": verify,
    "open": unistore.open_zarr,
}


def refusal(reader: str, path: Path) -> str:
    """What a reader says of a store; it must find something wrong."""
    if reader == "verify":
        try:
            return "\n".join(str(problem) for problem in verify(path).problems if problem.kind != "extra")
        except StoreError as error:
            return str(error)
    with pytest.raises(StoreError) as raised:
        READERS[reader](path)
    assert len(str(raised.value).splitlines()) == 1
    return str(raised.value)


PLACES = ["zarr.json", "rows/data/zarr.json", "rows/data/c/0/0", MANIFEST]


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", ["pipe", "socket", "device", "zeros", "folder"])
def test_a_file_that_is_not_regular_hangs_no_reader(
    path: Path, place: str, kind: str, reader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = path / place
    file.unlink()
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "socket":
        monkeypatch.chdir(file.parent)  # names of sockets are short
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(file.name)
    elif kind == "zeros":
        file.symlink_to("/dev/zero")
    elif kind == "device":
        try:
            os.mknod(file, 0o20666, os.makedev(1, 5))
        except PermissionError:
            pytest.skip("making a device needs root")
    else:
        file.mkdir()
    unread = {("Dataset", MANIFEST), ("inspect", MANIFEST), ("inspect", "rows/data/c/0/0")}
    if (reader, place) in unread or (
        reader == "open" and kind == "folder"
    ):  # zarr takes it for what is not there
        with suppress(NoStoreError):
            READERS[reader](path)
        return
    told = refusal(reader, path)
    names = {"zeros": "link"}
    assert f"{place}: is a {names.get(kind, kind)}" in told


@pytest.mark.parametrize("reader", READERS)
def test_a_folder_that_is_a_link_is_not_followed(path: Path, home: Path, reader: str) -> None:
    outside = home.parent / "outside"
    (path / "rows" / "data").rename(outside)
    (path / "rows" / "data").symlink_to(outside)
    assert "rows/data: is a link" in refusal(reader, path)


def test_a_store_is_read_through_a_link_to_it(path: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(path)
    assert np.array_equal(Store(tmp_path / "link").array("rows/data").read(), VALUES)
    assert verify(tmp_path / "link").problems == verify(path).problems
    assert unistore.open_zarr(tmp_path / "link")["rows/data"].shape == VALUES.shape


@pytest.mark.parametrize("place", ["zarr.json", "rows/data/zarr.json", MANIFEST])
def test_a_document_of_a_terabyte_is_not_read(path: Path, place: str) -> None:
    """It takes no room on disk; read whole, it takes all memory."""
    os.truncate(path / place, 1 << 40)
    cache = path.parent / "cache"
    with pytest.raises(StoreError, match=rf"{place}: has 1,099,511,627,776 bytes, but at most"):
        unistore.Dataset(path, cache_dir=cache if place == MANIFEST else None).read_batch([0])
    if place != MANIFEST:
        with pytest.raises(StoreError, match=rf"{place}: has 1,099,511,627,776 bytes, but at most"):
            unistore.open_zarr(path)


JSON = {
    "deep list": b"[" * 100_000 + b"]" * 100_000,
    "deep object": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "65 levels": b'{"attributes":{"x":' + b"[" * 63 + b"]" * 63 + b"}}",
    "NaN": b'{"attributes":{"x":NaN}}',
    "Infinity": b'{"attributes":{"x":-Infinity}}',
    "too large for float64": b'{"attributes":{"x":1e999}}',
    "huge integer": b'{"attributes":{"x":' + b"9" * 100_000 + b"}}",
    "twice": b'{"attributes":{},"attributes":{"x":1}}',
    "a list": b"[]",
    "a text": b'"x"',
    "UTF-16": '{"attributes":{}}'.encode("utf-16"),
    "empty": b"",
}


@pytest.mark.parametrize("what", JSON)
def test_a_document_that_is_not_strict_json_is_an_error_in_one_line(path: Path, what: str) -> None:
    for place in ("rows/data/zarr.json", "zarr.json"):
        (path / place).write_bytes(JSON[what])
        with pytest.raises(CorruptionError, match=r"zarr\.json is damaged: .*Fix: unistore verify") as raised:
            unistore.Dataset(path).read_batch([0])
        assert str(path) in str(raised.value)
        assert len(str(raised.value)) < 600
        assert len(str(raised.value).splitlines()) == 1
        with pytest.raises(StoreError):
            unistore.inspect(path)
        assert verify(path).problems


ROOT_CHANGES: list[tuple[tuple[str, ...], Any]] = [
    (("family",), "../rows"),
    (("family",), "Arrays"),
    (("family",), ["rows"]),
    (("samples", "count"), -1),
    (("samples", "count"), True),
    (("samples", "count"), 1.5),
    (("samples", "count"), 2**63),
    (("samples", "table"), "../x"),
    (("main_table",), 7),
    (("skipped",), "x"),
    (("fields", "rows/data", "axes"), "xy"),
    (("fields", "rows/data", "unit"), 5),
    (("statistics",), {"rows/data": 5}),
    (("seal", "manifest"), "../../etc/passwd"),
    (("seal", "digest"), "0" * 31),
    (("seal", "digest"), "../" + "0" * 29),
    (("seal", "content_digest"), None),
    (("seal", "files"), -1),
    (("seal", "bytes"), "many"),
]


@pytest.mark.parametrize(("members", "value"), ROOT_CHANGES)
def test_a_root_member_that_breaks_the_format_is_an_error(
    path: Path, members: tuple[str, ...], value: Any
) -> None:
    document = json.loads((path / "zarr.json").read_text())
    *above, last = members
    inner = document["attributes"]["unistore"]
    for name in above:
        inner = inner[name]
    inner[last] = value
    (path / "zarr.json").write_text(json.dumps(document))
    for read in (Store, unistore.inspect):
        with pytest.raises(
            CorruptionError, match=rf"zarr\.json is damaged: .*{members[0][:5]}.*expected.*verify"
        ):
            read(path)


@pytest.mark.parametrize("names", [{"train": 0}, ["a", 5], ["a", "a"], ["x"] * 300, "ab"])
def test_invalid_names_of_splits_are_an_error(make_store: Any, names: Any) -> None:
    path = make_store("rows", {"rows/data": VALUES}, count=20, splits={"a": range(10), "b": range(10, 20)})
    group = path / "splits" / "zarr.json"
    group.write_text(json.dumps(json.loads(group.read_text()) | {"attributes": {"names": names}}))
    for read in (lambda: Store(path).splits(), lambda: unistore.Dataset(path, split="a")):
        with pytest.raises(
            CorruptionError, match=r"splits/zarr\.json is damaged: 'names' is .*unistore verify"
        ):
            read()


SIZES: list[dict[str, Any]] = [
    {"shape": [2**62, 3]},
    {"shape": [2**40, 2**40]},
    {"shape": [10**30, 3]},
    {"chunk": [2**40, 3]},
    {"inner": [1, 1], "chunk": [2**30, 3]},
    {"shape": [1] * 40},
]


@pytest.mark.parametrize("sizes", SIZES)
def test_sizes_that_no_memory_holds_are_an_error(path: Path, sizes: dict[str, Any]) -> None:
    file = path / "rows" / "data" / "zarr.json"
    document = json.loads(file.read_text())
    document["shape"] = sizes.get("shape", document["shape"])
    sharding = document["codecs"][0]["configuration"]
    if "chunk" in sizes:
        document["chunk_grid"]["configuration"]["chunk_shape"] = sizes["chunk"]
        sharding["chunk_shape"] = sizes.get("inner", sizes["chunk"])
    file.write_text(json.dumps(document))
    with pytest.raises(CorruptionError, match="unistore verify"):
        Store(path).array("rows/data").read()
    reseal(path)
    found = verify(path).problems
    assert any(problem.location.startswith("rows/data") for problem in found)


def test_rows_that_no_memory_holds_are_an_error(path: Path) -> None:
    """A shape that 64 bits can count; the files hold nothing of it."""
    file = path / "rows" / "data" / "zarr.json"
    document = json.loads(file.read_text())
    document["shape"] = [2**59, 3]
    file.write_text(json.dumps(document))
    with pytest.raises(StoreError, match=r"rows/data: has 576,460,752,303,423,488 rows, expected 20"):
        Store(path).array("rows/data").read()
    reseal(path)
    assert any("but the manifest has" in problem.message for problem in verify(path).problems)


QUIET = settings(suppress_health_check=list(HealthCheck), deadline=None, max_examples=50)


@QUIET
@given(data=manifests())
def test_any_manifest_parses_or_is_refused(data: bytes) -> None:
    try:
        entries = parse_manifest(data, "store")
    except CorruptionError as error:
        assert len(str(error).splitlines()) == 1  # noqa: PT017
        assert len(str(error)) < 1000  # noqa: PT017
        return
    for entry in entries:
        assert set(entry.checksum) <= set("0123456789abcdef")
        assert len(entry.checksum) == 32
        assert not entry.key.startswith("/")
        assert ".." not in entry.key.split("/")
        assert 0 <= entry.bytes < 2**63
    assert len({entry.key for entry in entries}) == len(entries)
    assert parse_manifest(manifest_bytes(entries), "store") == sorted(entries, key=lambda entry: entry.key)


@QUIET
@given(data=st.data())
def test_any_root_opens_or_is_refused(data: st.DataObject, path: Path, home: Path) -> None:
    good = json.loads((path / "zarr.json").read_bytes())
    root = data.draw(roots(good))
    store = home.parent / "hostile"
    store.mkdir(exist_ok=True)
    (store / "zarr.json").write_bytes(root)
    try:
        found = Store(store)
    except StoreError as error:
        assert len(str(error).splitlines()) == 1  # noqa: PT017
        assert len(str(error)) < 1000  # noqa: PT017
        return
    assert found.family == "rows"
    assert 0 <= found.sample_count < 2**63
    assert all(".." not in each.split("/") for each in found.paths())


@QUIET
@given(data=st.data())
def test_any_sealed_manifest_leaves_other_files_alone(data: st.DataObject, path: Path, home: Path) -> None:
    manifest = (path / MANIFEST).read_bytes()
    lines = manifest.splitlines(keepends=True)
    hostile = data.draw(manifests())
    cache = home.parent / "cache" / "here"
    try:
        reseal(path, hostile + b"\n" + b"".join(lines[: data.draw(st.integers(0, len(lines)))]))
        values = Store(path, cache_dir=cache).array("rows/data").read()
    except StoreError as error:
        assert len(str(error).splitlines()) == 1  # noqa: PT017
    else:
        assert np.array_equal(values, VALUES)
    finally:
        reseal(path, manifest)
    beside = {each.name for each in home.parent.iterdir()} - {"home", "cache", path.name}
    assert not beside
    assert {each.name for each in (home.parent / "cache").glob("*")} <= {"here"}
