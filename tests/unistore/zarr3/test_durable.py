"""Writing shards: the order of what reaches the disk, and failures that leave nothing behind."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from unistore.errors import ConversionError
from unistore.zarr3 import array_metadata, content_digest, durable, encode_shard, write_shard


@pytest.fixture
def operations(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What durable writing did, in order: operation and name of the file or folder."""
    done: list[tuple[str, str]] = []
    fsync, rename, writev = durable.fsync, durable.rename, durable.writev

    def name_of(fd: int) -> str:
        return Path(f"/proc/self/fd/{fd}").readlink().name

    def recorded_fsync(fd: int) -> None:
        done.append(("fsync", name_of(fd)))
        fsync(fd)

    def recorded_rename(part: Path, path: Path) -> None:
        done.append(("rename", f"{part.name} {path.name}"))
        rename(part, path)

    def recorded_writev(fd: int, buffers: Any) -> int:
        done.append(("write", name_of(fd)))
        assert writev is not None
        return int(writev(fd, buffers))

    if not Path("/proc/self/fd").exists():
        pytest.skip("needs /proc to name descriptors")
    monkeypatch.setattr(durable, "fsync", recorded_fsync)
    monkeypatch.setattr(durable, "rename", recorded_rename)
    monkeypatch.setattr(durable, "writev", recorded_writev)
    return done


def test_write_then_fsync_then_rename_then_fsync_of_every_changed_folder(
    tmp_path: Path, operations: list[tuple[str, str]]
) -> None:
    write_shard(tmp_path, "g/c/0/1", [b"ab", b"cd"])
    part = operations[0][1]
    assert part.startswith(".1.")
    assert part.endswith(durable.PART_SUFFIX)
    folders = [("fsync", name) for name in ("0", "c", "g", tmp_path.name)]
    assert operations == [("write", part), ("fsync", part), ("rename", f"{part} 1"), *folders]
    operations.clear()
    write_shard(tmp_path, "g/c/0/2", [b"ef"])
    assert [name for name, _ in operations] == ["write", "fsync", "rename", "fsync"]
    assert operations[-1] == ("fsync", "0")
    operations.clear()
    write_shard(tmp_path, "g/c/0/3", [b"ef"], durable=False)
    assert [name for name, _ in operations] == ["write", "rename"]


def test_what_is_written_is_told(tmp_path: Path) -> None:
    buffers = [bytes([number % 256]) * (number % 5) for number in range(3000)]
    written = write_shard(tmp_path, "c/0", [*buffers, memoryview(b"end")])
    content = (tmp_path / "c" / "0").read_bytes()
    assert content == b"".join(buffers) + b"end"
    assert (written.key, written.bytes, written.checksum) == (
        "c/0",
        len(content),
        xxhash.xxh3_128_hexdigest(content),
    )
    write_shard(tmp_path, "c/0", [])
    assert (tmp_path / "c" / "0").read_bytes() == b""


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable, "writev", lambda fd, buffers: os.write(fd, b"".join(buffers)[:5]))
    assert write_shard(tmp_path, "x", [b"abc", b"defgh", b"ij"]).bytes == 10
    assert (tmp_path / "x").read_bytes() == b"abcdefghij"
    monkeypatch.setattr(durable, "writev", None)
    write_shard(tmp_path, "y", [b"abc", b"defgh", b"ij"])
    assert (tmp_path / "y").read_bytes() == b"abcdefghij"


@pytest.mark.parametrize(
    ("name", "code", "cure"),
    [
        ("writev", errno.ENOSPC, "No space left on device.*; free space, then run the same command"),
        ("fsync", errno.EIO, "mend the destination"),
        ("rename", errno.EACCES, "allow writing there"),
    ],
)
def test_failures_name_the_file_and_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: int, cure: str
) -> None:
    def fail(*arguments: Any) -> None:
        raise OSError(code, os.strerror(code))

    write_shard(tmp_path, "c/0", [b"old"])
    monkeypatch.setattr(durable, name, fail)
    with pytest.raises(ConversionError, match=rf"c/0: cannot be written \(.*{cure}"):
        write_shard(tmp_path, "c/0", [b"new"])
    assert [file.name for file in (tmp_path / "c").iterdir()] == ["0"]
    assert (tmp_path / "c" / "0").read_bytes() == b"old"


def test_interrupts_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(fd: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(durable, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_shard(tmp_path, "c/0", [b"new"])
    assert not list((tmp_path / "c").iterdir())


def test_a_file_where_a_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "c").write_bytes(b"")
    with pytest.raises(ConversionError, match="c/0: cannot be written"):
        write_shard(tmp_path, "c/0", [b"x"])


def test_blocks_must_be_the_shards(tmp_path: Path) -> None:
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
    assert content_digest(values) == expected
    assert content_digest(values.astype(">i4")) == expected
    assert content_digest(np.asfortranarray(values)) == expected
    assert content_digest(np.zeros((0, 3))) == xxhash.xxh3_128_hexdigest(b"")
