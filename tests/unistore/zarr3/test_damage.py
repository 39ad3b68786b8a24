"""Damaged stores: an error that names array, shard and chunk, or a correct read; never wrong data."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest

from unistore.errors import CorruptionError, StoreError
from unistore.zarr3 import LocalStorage, StoredArray
from unistore.zarr3.codecs import Blosc, FrameError, decoder, encoder
from unistore.zarr3.metadata import decode_index, encode_index
from unistore.zarr3.writer import array_metadata

CODECS = ["fast", "balanced", "zstd", "none", "zstd noshuffle 1"]


def metadata_of(codec: str) -> Any:
    return array_metadata((12, 30), "i2", (2, 30), (6, 30), codec)


def values() -> Any:
    numbers = (np.arange(12 * 30) // 3).astype("i2").reshape(12, 30)
    numbers[8:10] = 0  # an empty chunk
    return numbers


DAMAGED = re.compile(r"array 'a': shard a/c/1/0 of .*(: .*shard index|, chunk \((3|5), 0\): )")


def read_or_message(root: Path) -> tuple[Any, str]:
    """Everything read by a reader that knows nothing yet, or the message of its error."""
    try:
        return StoredArray.open(LocalStorage(root), "a").read_box([0, 0], [12, 30]), ""
    except CorruptionError as error:
        return None, str(error)


@pytest.mark.parametrize("codec", CODECS)
def test_a_flipped_byte_anywhere_in_a_shard_is_found(tmp_path: Path, write: Any, codec: str) -> None:
    write(tmp_path, values(), metadata=metadata_of(codec))
    file = tmp_path / "a" / "c" / "1" / "0"
    whole = file.read_bytes()
    rng = np.random.default_rng(0)
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= int(rng.integers(1, 256))
        file.write_bytes(damaged)
        _, message = read_or_message(tmp_path)
        assert DAMAGED.search(message), message


@pytest.mark.parametrize("codec", CODECS)
def test_a_shard_cut_off_anywhere_is_an_error(tmp_path: Path, write: Any, codec: str) -> None:
    write(tmp_path, values(), metadata=metadata_of(codec))
    file = tmp_path / "a" / "c" / "1" / "0"
    whole = file.read_bytes()
    for size in range(0, len(whole), 7):
        file.write_bytes(whole[:size])
        with pytest.raises(CorruptionError, match=r"array 'a': shard a/c/1/0"):
            StoredArray.open(LocalStorage(tmp_path), "a").read_box([0, 0], [12, 30])


def test_a_shard_cut_off_while_it_is_open_is_an_error(tmp_path: Path, write: Any) -> None:
    array = write(tmp_path, values(), metadata=metadata_of("fast"))
    array.read_rows([0])
    file = tmp_path / "a" / "c" / "0" / "0"
    file.write_bytes(file.read_bytes()[:20])
    with pytest.raises(
        CorruptionError, match=r"chunk \(0, 0\): .*a/c/0/0: has 20 bytes, too few for \d+ bytes from"
    ):
        array.read_rows([1, 2])


@pytest.mark.parametrize("name", ["fast", "none"])
def test_rows_that_are_whole_chunks_are_checked(tmp_path: Path, write: Any, name: str) -> None:
    """Such rows are read straight into the output, and are checked all the same."""
    expected = np.arange(12 * 30, dtype="i2").reshape(12, 30) + 1
    array = write(tmp_path, expected, metadata=array_metadata((12, 30), "i2", (1, 30), (6, 30), name))
    rows = [11, 0, 7, 7]
    np.testing.assert_array_equal(array.read_rows(rows), expected[rows])
    file = tmp_path / "a" / "c" / "1" / "0"
    whole = file.read_bytes()
    index = np.frombuffer(whole[-100:-4], "<u8").reshape(6, 2)
    for position in range(int(index[1, 0]), int(index[1].sum())):
        file.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        with pytest.raises(CorruptionError, match=r"array 'a': shard a/c/1/0 of .*, chunk \(7, 0\): "):
            array.read_rows(rows)
    file.write_bytes(whole[: int(index[1, 0]) + 9])
    with pytest.raises(CorruptionError, match=r"chunk \(7, 0\): .* too few for \d+ bytes from"):
        array.read_rows(rows)


@pytest.mark.skipif(not hasattr(os, "preadv"), reason="this system has no preadv")
def test_a_short_read_is_continued(tmp_path: Path, write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = np.arange(12 * 30, dtype="i2").reshape(12, 30)
    array = write(tmp_path, expected, metadata=array_metadata((12, 30), "i2", (1, 30), (6, 30), "none"))
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, offset: 1)
    np.testing.assert_array_equal(array.read_rows([3, 9]), expected[[3, 9]])


def test_a_missing_shard_is_damage(tmp_path: Path, write: Any) -> None:
    expected = values()
    write(tmp_path, expected, metadata=metadata_of("fast"))
    (tmp_path / "a" / "c" / "1" / "0").unlink()
    array = StoredArray.open(LocalStorage(tmp_path), "a")
    np.testing.assert_array_equal(array.read_box([0, 0], [6, 30]), expected[:6])
    with pytest.raises(
        CorruptionError, match=r"array 'a': a/c/1/0 of .* is missing, although the store is sealed"
    ):
        array.read_rows([7])


def test_a_shard_that_vanishes_after_its_index_was_read(tmp_path: Path, write: Any) -> None:
    array = write(tmp_path, values(), metadata=metadata_of("fast"))
    array.read_rows([0])
    (tmp_path / "a" / "c" / "0" / "0").unlink()
    array.storage._files.open.cache_clear()
    with pytest.raises(StoreError, match=r"array 'a': shard a/c/0/0 of .*, chunk \(1, 0\): .*no such file"):
        array.read_rows([2])


def test_an_index_may_use_all_of_its_shard() -> None:
    entries = np.array([[0, 100], [100, 0], [40, 60], [-1, -1]])
    assert np.array_equal(decode_index(encode_index(entries), 100, 100), entries)
    for outside in ([1, 100], [101, 0], [0, 101], [-1, 0], [0, -1]):
        with pytest.raises(FrameError, match="beyond the shard of 100 bytes"):
            decode_index(encode_index(np.array([[0, 1], outside])), 100, 100)
    with pytest.raises(FrameError, match="a chunk of 100 bytes, but at most 99"):
        decode_index(encode_index(entries), 100, 99)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ((10**6, 10), r"index puts chunk 1 of 10 bytes at byte 1,000,000, beyond the shard of \d+ bytes"),
        ((0, 10**6), r"index puts chunk 1 of 1,000,000 bytes at byte 0"),
        ((2**63, 5), r"index puts chunk 1 of 5 bytes at byte 9,223,372,036,854,775,808"),
        ((2**64 - 1, 5), r"index puts chunk 1 of 5 bytes at byte 18,446,744,073,709,551,615"),
        ((2**63 - 1, 2**63 - 1), "index puts chunk 1"),
    ],
)
def test_an_index_that_points_outside_of_its_shard_is_an_error(
    tmp_path: Path, write: Any, entry: tuple[int, int], message: str
) -> None:
    write(tmp_path, values(), metadata=metadata_of("fast"))
    file = tmp_path / "a" / "c" / "0" / "0"
    whole = file.read_bytes()
    entries = np.frombuffer(whole[-52:-4], "<u8").reshape(3, 2).copy()
    entries[1] = entry
    file.write_bytes(whole[:-52] + encode_index(entries.view("<i8")))
    with pytest.raises(CorruptionError, match=rf"array 'a': shard a/c/0/0 .*{message}"):
        StoredArray.open(LocalStorage(tmp_path), "a").read_rows([0])


@pytest.mark.parametrize("cname", ["lz4", "zstd"])
@pytest.mark.parametrize("shuffle", ["noshuffle", "shuffle", "bitshuffle"])
def test_hostile_frames_never_crash_or_overrun(cname: str, shuffle: str) -> None:
    """A stranger can make the checksum of any bytes; sizes are checked before decoding."""
    numbers = (np.arange(3000) // 7).astype("i4")
    compressor = Blosc(cname=cname, clevel=5, shuffle=shuffle, typesize=4)
    frame = encoder(compressor)(numbers)[0]
    decode = decoder(compressor, numbers.nbytes)
    guarded = np.full(len(numbers) + 64, 77, "i4")
    out, rng = guarded[32:-32], np.random.default_rng(0)
    refused = 0
    for _ in range(2000):
        damaged = bytearray(frame)
        for position in rng.integers(0, rng.choice([20, len(frame)]), 2):
            damaged[position] = int(rng.integers(0, 256))
        if rng.random() < 0.2:
            damaged = damaged[: rng.integers(0, len(frame) + 1)]
        try:
            decode(bytes(damaged) + google_crc32c.Checksum(bytes(damaged)).digest()[::-1], out)
        except FrameError:
            refused += 1
        assert (guarded[:32] == 77).all()
        assert (guarded[-32:] == 77).all()
    assert refused > 500
