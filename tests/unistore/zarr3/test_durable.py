"""Writing shards: the order of what reaches the disk, and failures that leave nothing behind."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from unistore.errors import ConversionError
from unistore.zarr3 import durable
from unistore.zarr3.durable import PART_SUFFIX, AtomicFiles, write_file
from unistore.zarr3.writer import array_metadata, encode_shard, little_endian_bytes


@pytest.fixture(autouse=True)
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that wait for the disk, which tests elsewhere do without."""
    monkeypatch.setattr(durable, "ThreadPoolExecutor", ThreadPoolExecutor)


@pytest.fixture
def operations(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What durable writing did, in order: operation and name of the file or folder."""
    done: list[tuple[str, str]] = []
    fsync, rename, write = durable.fsync, durable.rename, durable.write

    def name_of(fd: int) -> str:
        return Path(f"/proc/self/fd/{fd}").readlink().name

    def recorded_fsync(fd: int) -> None:
        done.append(("fsync", name_of(fd)))
        fsync(fd)

    def recorded_rename(part: Path, path: Path) -> None:
        done.append(("rename", f"{part.name} {path.name}"))
        rename(part, path)

    def recorded_write(fd: int, data: list[bytes | memoryview]) -> int:
        done.append(("write", name_of(fd)))
        return write(fd, data)

    if not Path("/proc/self/fd").exists():
        pytest.skip("needs /proc to name descriptors")
    monkeypatch.setattr(durable, "fsync", recorded_fsync)
    monkeypatch.setattr(durable, "rename", recorded_rename)
    monkeypatch.setattr(durable, "write", recorded_write)
    return done


def test_write_then_fsync_then_rename_then_fsync_of_every_changed_folder(
    tmp_path: Path, operations: list[tuple[str, str]]
) -> None:
    write_file(tmp_path, "g/c/0/1", [b"ab", b"cd"])
    part = operations[0][1]
    assert part.startswith(".1.")
    assert part.endswith(durable.PART_SUFFIX)
    assert operations[:3] == [("write", part), ("fsync", part), ("rename", f"{part} 1")]
    assert sorted(operations[3:]) == sorted(("fsync", name) for name in ("0", "c", "g", tmp_path.name))
    operations.clear()
    write_file(tmp_path, "g/c/0/2", [b"ef"])
    assert [name for name, _ in operations] == ["write", "fsync", "rename", "fsync"]
    assert operations[-1] == ("fsync", "0")


def test_the_disk_is_at_work_while_a_large_file_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operations: list[tuple[str, str]]
) -> None:
    monkeypatch.setattr(durable, "_BYTES_A_SYNC", 1 << 20)
    written = write_file(tmp_path, "x", [bytes(1 << 19)] * 5)
    assert written.bytes == (tmp_path / "x").stat().st_size == 5 << 19
    part = operations[0][1]
    assert operations.count(("fsync", part)) == 3, "twice before the end"


def test_files_written_together_get_their_names_once_all_are_synced(
    tmp_path: Path, operations: list[tuple[str, str]]
) -> None:
    keys = [f"{group}/c/{number}" for group in "ab" for number in range(50)]
    with AtomicFiles(tmp_path) as files:
        written = [files.put(key, [key.encode()]) for key in keys]
        assert not [path for path in tmp_path.rglob("*") if path.suffix != PART_SUFFIX and path.is_file()]
    what = [name for name, _ in operations]
    named = what.index("rename")
    parts = {name for operation, name in operations if operation == "write"}
    assert {name for operation, name in operations[:named] if operation == "fsync"} == parts
    assert what[named : named + len(keys)] == ["rename"] * len(keys)
    folders = [name for _, name in operations[named + len(keys) :]]
    assert sorted(folders) == sorted(["a", "b", "c", "c", tmp_path.name]), "each once"
    assert [(file.key, (tmp_path / file.key).read_bytes()) for file in written] == [
        (key, key.encode()) for key in keys
    ]


@pytest.mark.parametrize("name", ["write", "fsync", "rename"])
def test_files_that_fail_together_leave_no_partial_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    original, calls = getattr(durable, name), []

    def fail_second(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return original(*arguments)

    monkeypatch.setattr(durable, name, fail_second)
    before = sorted(path.name for path in Path("/proc/self/fd").iterdir())
    with pytest.raises(ConversionError, match=r"[ab]: cannot be written"), AtomicFiles(tmp_path) as files:  # noqa: PT012
        files.put("a", [b"a"])
        files.put("b", [b"b"])
    assert [file.name for file in tmp_path.iterdir()] == (["a"] if name == "rename" else [])
    assert sorted(path.name for path in Path("/proc/self/fd").iterdir()) == before, "all closed"


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable, "write", lambda fd, data: os.write(fd, b"".join(data)[:4]))
    assert write_file(tmp_path, "x", [b"abc", b"defgh", b"ij"]).bytes == 10
    assert (tmp_path / "x").read_bytes() == b"abcdefghij"


@pytest.mark.parametrize(
    ("name", "code", "fix"),
    [
        ("write", errno.ENOSPC, "No space left on device.*Fix: free space there, then run the same command"),
        ("fsync", errno.EIO, "this one fails"),
        ("rename", errno.EACCES, "change the permissions"),
    ],
)
def test_failures_name_the_file_and_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: int, fix: str
) -> None:
    def fail(*arguments: Any) -> None:
        raise OSError(code, os.strerror(code))

    write_file(tmp_path, "c/0", [b"old"])
    monkeypatch.setattr(durable, name, fail)
    with pytest.raises(ConversionError, match=rf"c/0: cannot be written: .*{fix}"):
        write_file(tmp_path, "c/0", [b"new"])
    assert [file.name for file in (tmp_path / "c").iterdir()] == ["0"]
    assert (tmp_path / "c" / "0").read_bytes() == b"old"


def test_a_block_that_is_not_a_shard_is_an_error(tmp_path: Path) -> None:
    metadata = array_metadata((10, 3), "f4", (2, 3), (4, 3), "fast")
    assert encode_shard(metadata, (2, 0), np.ones((2, 3), "f4"))
    for coordinates, block in [
        ((2, 0), np.ones((4, 3), "f4")),
        ((0, 0), np.ones((4, 3), "f8")),
        ((0, 0), np.ones((4, 3), ">f4")),
        ((3, 0), np.ones((0, 3), "f4")),
        ((0,), np.ones((4, 3), "f4")),
    ]:
        with pytest.raises(ValueError, match="shard"):
            encode_shard(metadata, coordinates, block)


def test_content_digests_do_not_depend_on_byte_order_or_layout() -> None:
    values = np.arange(12, dtype="<i4").reshape(3, 4)
    expected = xxhash.xxh3_128_hexdigest(values.tobytes())
    assert xxhash.xxh3_128_hexdigest(little_endian_bytes(values)) == expected
    assert xxhash.xxh3_128_hexdigest(little_endian_bytes(values.astype(">i4"))) == expected
    assert xxhash.xxh3_128_hexdigest(little_endian_bytes(np.asfortranarray(values))) == expected
    assert xxhash.xxh3_128_hexdigest(little_endian_bytes(np.zeros((0, 3)))) == xxhash.xxh3_128_hexdigest(b"")


def test_files_that_vanish_while_sizes_are_read(tmp_path: Path) -> None:
    """As temporary names of others do: a link that leads nowhere stands for one."""
    (tmp_path / "whole").write_bytes(b"four")
    (tmp_path / ".whole.1-ab.part").symlink_to("gone")
    assert durable.Folder(tmp_path).sizes() == {"whole": 4}
