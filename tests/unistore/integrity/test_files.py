"""Every file against the manifest, the manifest and the root against their digests."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zarr

from tests.support.store_files import flip
from unistore import verify
from unistore.errors import StoreError
from unistore.integrity.files import check_file
from unistore.store.manifest import Entry
from unistore.zarr3.storage import PART_BYTES, LocalStorage

Copy = Callable[[str], Any]


def found(store: Path) -> list[tuple[str, str]]:
    return [(problem.kind, problem.location) for problem in verify(store).problems]


def test_a_flipped_bit_in_a_shard_names_its_rows(copy_case: Copy) -> None:
    _, store = copy_case("cloud_real")
    flip(store / "points" / "source_row" / "c" / "0", 100)
    (problem,) = verify(store).problems
    assert problem.kind == "checksum"
    assert problem.location == "points/source_row/c/0"
    (rows,) = zarr.open_array(store / "points/source_row", mode="r").shape
    assert problem.message.endswith(f", in rows 0:{rows}")
    assert "--repair" in problem.advice


def test_missing_short_long_and_extra_files_are_problems(copy_case: Copy) -> None:
    _, store = copy_case("rows_real")
    data = store / "rows" / "data"
    shards = sorted((store / "rows").rglob("c/0*"))
    shard = next(path for path in shards if path.is_file())
    key = shard.relative_to(store).as_posix()
    content = shard.read_bytes()
    shard.unlink()
    assert found(store) == [("missing", key)]
    shard.write_bytes(content[:-1])
    assert found(store) == [("size", key)]
    shard.write_bytes(content + b"\0")
    assert found(store) == [("size", key)]
    shard.write_bytes(content)
    (store / "rows" / "notes.txt").write_text("mine")
    left = shard.with_name(".0.1-abc.part")
    left.write_text("half")
    verified = verify(store)
    assert [problem.kind for problem in verified.problems] == ["extra", "extra"]
    assert "killed" in next(p for p in verified.problems if p.location.endswith(".part")).message
    assert verified.ok, "what is beside the store takes nothing from it"
    assert not data.is_file()


@pytest.mark.parametrize(
    ("name", "kind", "step"), [("zarr.json", "root", 149), ("unistore-manifest.jsonl", "manifest", 293)]
)
def test_a_flipped_bit_of_root_or_manifest_is_found(copy_case: Copy, name: str, kind: str, step: int) -> None:
    _, store = copy_case("rows_real")
    data = (store / name).read_bytes()
    for at in range(0, len(data), step):
        changed = bytearray(data)
        changed[at] ^= 1 << at % 8
        (store / name).write_bytes(changed)
        kinds = {problem.kind for problem in verify(store).problems}
        assert kind in kinds, f"byte {at} of {name}"


def test_a_missing_manifest_is_a_problem(copy_case: Copy) -> None:
    _, store = copy_case("rows_real")
    (store / "unistore-manifest.jsonl").unlink()
    assert found(store) == [("missing", "unistore-manifest.jsonl")]


def test_manifest_lines_that_lead_outside_are_problems_and_not_followed(
    copy_case: Copy, forge: Callable[..., None], tmp_path: Path
) -> None:
    """A manifest that is sealed and names files outside the store."""
    _, store = copy_case("rows_real")
    manifest = store / "unistore-manifest.jsonl"
    secret = tmp_path / "secret"
    secret.write_text("x")
    lines = [
        {"key": "../secret", "bytes": 1, "checksum": "0" * 32},
        {"key": str(secret), "bytes": 1, "checksum": "0" * 32},
        {"key": ["a"], "bytes": 1, "checksum": "0" * 32},
        {"key": "a", "bytes": -1, "checksum": "0" * 32},
        {"key": "b", "bytes": 1, "checksum": "0" * 32, "rows": [1]},
    ]
    import xxhash

    from unistore.store.manifest import sign_root

    data = manifest.read_bytes() + "".join(f"{json.dumps(line)}\n" for line in lines).encode()
    manifest.write_bytes(data)
    root = json.loads((store / "zarr.json").read_text())
    seal = root["attributes"]["unistore"]["seal"]
    seal["digest"], seal["root"] = xxhash.xxh3_128_hexdigest(data), "0" * 32
    (store / "zarr.json").write_bytes(sign_root(json.dumps(root, indent=1).encode()))
    problems = [p for p in verify(store).problems if p.location.startswith("unistore-manifest.jsonl: line")]
    assert len(problems) == len(lines)


def test_large_files_are_read_in_pieces(tmp_path: Path) -> None:
    import xxhash

    data = os.urandom(2 * PART_BYTES + 12345)
    (tmp_path / "big").write_bytes(data)
    entry = Entry(key="big", bytes=len(data), checksum=xxhash.xxh3_128_hexdigest(data))
    assert check_file(LocalStorage(tmp_path), entry) is None
    for at in (0, PART_BYTES - 1, PART_BYTES, len(data) - 1):
        flip(tmp_path / "big", at)
        problem = check_file(LocalStorage(tmp_path), entry)
        assert problem is not None
        flip(tmp_path / "big", at)


@pytest.mark.parametrize(
    ("what", "message"),
    [("nothing", "no such store"), ("empty", "not a unistore store"), ("group", "not a unistore store")],
)
def test_a_path_that_is_not_a_store_is_an_error(what: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.zarr"
    if what != "nothing":
        path.mkdir()
    if what == "group":
        (path / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group", "attributes": {}}')
    with pytest.raises(StoreError, match=message):
        verify(path)
