"""Chunks of HDF5 datasets beside a plain h5py read; chunks that lie about their size, in every filter."""

from __future__ import annotations

import bz2
import math
import random
import time
import zlib
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np
import pytest
from isal import isal_zlib
from numpy.typing import NDArray

from unistore.converters.files.hdf5 import decoder as hdf5_decoder
from unistore.converters.files.hdf5.file import open_hdf5, read_objects, read_rows
from unistore.errors import InputError

OWN: dict[str, Mapping[str, Any]] = {
    "none": {},
    "gzip": {"compression": "gzip"},
    "gzip_shuffle": {"compression": "gzip", "shuffle": True},
    "gzip_shuffle_fletcher": {"compression": "gzip", "shuffle": True, "fletcher32": True},
    "shuffle": {"shuffle": True},
    "fletcher": {"fletcher32": True},
    "bzip2": hdf5plugin.BZip2(),
    "bzip2_shuffle_fletcher": {**hdf5plugin.BZip2(), "shuffle": True, "fletcher32": True},
}
"""Filters decoded in this process."""

APART: dict[str, Mapping[str, Any]] = {
    "lzf": {"compression": "lzf"},
    "szip": {"compression": "szip"},
    "scaleoffset": {"scaleoffset": 4},
    "blosc": hdf5plugin.Blosc(),
    "blosc2": hdf5plugin.Blosc2(),
    "lz4": hdf5plugin.LZ4(),
    "zstd": hdf5plugin.Zstd(),
    "bitshuffle": hdf5plugin.Bitshuffle(),
    "bitshuffle_bare": hdf5plugin.Bitshuffle(cname="none"),
    "zfp": hdf5plugin.Zfp(rate=16),
    "sz": hdf5plugin.SZ(absolute=0.01),
    "sz3": hdf5plugin.SZ3(absolute=0.01),
    "sperr": hdf5plugin.Sperr(rate=16),
}
"""Filters decoded in a process apart."""

IMAGES = {"fcidecomp": hdf5plugin.FciDecomp(), "htj2k": hdf5plugin.Htj2k()}
"""Filters of images of integers."""

DTYPES = ["u1", "<i2", ">i4", "<i8", "<f2", ">f4", "<f8", "?", "c8", [("a", "u1"), ("b", ">f4", (2,))], "S5"]


def some(dtype: Any, shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[Any]:
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape) > 0
    if dtype.kind == "S":
        return np.char.mod("%d", rng.integers(0, 9999, shape)).astype(dtype)
    if dtype.kind == "V":
        values = np.zeros(shape, dtype)
        values["a"], values["b"] = rng.integers(0, 9, shape), rng.integers(0, 9, (*shape, 2))
        return values
    return np.asarray(rng.integers(0, 100, shape)).astype(dtype)


def check_like_h5py(dataset: h5py.Dataset, rng: random.Random) -> None:
    """Whole, in parts one after the other, and any rows: bit for bit what h5py reads."""
    expected = dataset[()]
    rows = len(expected)
    marks = sorted({0, rows, *(rng.randrange(rows + 1) for _ in range(4))})
    first, last = sorted(rng.randrange(rows + 1) for _ in range(2))
    for lo, hi in [(0, rows), *pairwise(marks), (first, last)]:
        found = read_rows(dataset, "here", lo, hi)
        assert found.dtype.isnative or found.dtype.kind == "V"
        assert found.shape == expected[lo:hi].shape
        assert found.tobytes() == expected[lo:hi].astype(found.dtype).tobytes()


@pytest.mark.parametrize("seed", range(60))
def test_structures_are_read_as_h5py_reads_them(tmp_path: Path, seed: int) -> None:
    """Any dtype, byte order, shape, chunk shape, filters, filter mask, missing chunks, format version."""
    rng, numbers = random.Random(seed), np.random.default_rng(seed)
    shape = tuple(rng.randrange(1, 30) for _ in range(rng.randrange(1, 4)))
    chunks = tuple(rng.randrange(1, size + 1) for size in shape)
    maxshape = tuple(rng.choice((size, None, size + 7)) for size in shape)
    libver = rng.choice(("earliest", "v108", "latest"))
    filters = rng.choice(list(OWN.values()))
    dtype = rng.choice(DTYPES)
    values = some(dtype, shape, numbers)
    with h5py.File(tmp_path / "a.h5", "w", libver=libver, userblock_size=rng.choice((0, 512))) as file:
        group = file.create_group("a/b")
        dataset = group.create_dataset(
            "x", shape, dtype, chunks=chunks, maxshape=maxshape, fillvalue=values.flat[0], **filters
        )
        if rng.random() < 0.2:
            dataset[: rng.randrange(1, shape[0] + 1)] = values[:1]
        else:
            dataset[...] = values
        if rng.random() < 0.3 and filters:
            every = (1 << dataset.id.get_create_plist().get_nfilters()) - 1
            raw = some(dtype, chunks, numbers).tobytes()
            dataset.id.write_direct_chunk((0,) * len(shape), raw, every)
    with h5py.File(tmp_path / "a.h5") as file:
        check_like_h5py(file["a/b/x"], rng)


@pytest.mark.parametrize("name", APART)
def test_every_filter_is_read_as_h5py_reads_it(tmp_path: Path, name: str) -> None:
    values = np.cumsum(np.random.default_rng(0).normal(size=(50, 40, 33)), axis=1).astype("f4")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=values, chunks=(16, 40, 33), **APART[name])
        if name != "scaleoffset":
            file.create_dataset("y", data=values, chunks=(16, 40, 33), fletcher32=True, **APART[name])
    with h5py.File(tmp_path / "a.h5") as file:
        check_like_h5py(file["x"], random.Random(1))
        check_like_h5py(file.get("y", file["x"]), random.Random(2))


@pytest.mark.parametrize("name", IMAGES)
def test_filters_of_images_are_read_as_h5py_reads_them(tmp_path: Path, name: str) -> None:
    values = np.arange(3 * 64 * 48, dtype="u2").reshape(3, 64, 48) // 7
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=values, chunks=(1, 64, 48), **IMAGES[name])
    with h5py.File(tmp_path / "a.h5") as file:
        check_like_h5py(file["x"], random.Random(1))


def test_n_bit_is_read_as_h5py_reads_it(tmp_path: Path) -> None:
    values = np.arange(1000, dtype="i4")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        kind = h5py.h5t.STD_I32LE
        creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        creation.set_chunk((300,))
        creation.set_filter(h5py.h5z.FILTER_NBIT, 0, ())
        space = h5py.h5s.create_simple((1000,))
        created = h5py.h5d.create(file.id, b"x", kind, space, creation)
        created.write(h5py.h5s.ALL, h5py.h5s.ALL, values)
    with h5py.File(tmp_path / "a.h5") as file:
        np.testing.assert_array_equal(file["x"][()], values)
        check_like_h5py(file["x"], random.Random(1))


LIES = ("less", "more", "cut", "random", "one", "nothing")
MANY = (64, 100)


def lie(path: Path, filters: Mapping[str, Any]) -> None:
    """A dataset for each lie: its only chunk holds too few or too many values, is cut, random, or tiny."""
    values = np.cumsum(np.random.default_rng(0).normal(size=MANY), axis=1).astype("f4")
    with h5py.File(path, "w") as file:
        stored, masks = {}, {}
        for name, rows in (("good", 64), ("less", 16), ("more", 128)):
            part = np.resize(values, (rows, 100))
            file.create_dataset(name, data=part, chunks=part.shape, **filters)
            masks[name], stored[name] = file[name].id.read_direct_chunk((0, 0))
            del file[name]
        good = stored["good"]
        stored |= {"cut": good[: len(good) // 2], "one": good[:1], "nothing": bytes(2)}
        stored["random"] = np.random.default_rng(1).bytes(len(good))
        for name in LIES:
            dataset = file.create_dataset(name, MANY, "f4", chunks=MANY, **filters)
            dataset.id.write_direct_chunk((0, 0), stored[name], masks.get(name, masks["good"]))


@pytest.mark.timeout(300)
def test_chunks_that_lie_are_refused_or_have_one_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too short or too long: refused. Random bytes: refused, or the same in two processes."""
    monkeypatch.setattr(hdf5_decoder, "_TIMEOUT", 5.0)
    for name, filters in {**OWN, **APART}.items():
        lie(tmp_path / f"{name}.h5", filters)
    first: dict[tuple[str, str], bytes | str] = {}
    for name in [*OWN, *APART]:
        for which in LIES:
            first[name, which] = read_or_refused(tmp_path / f"{name}.h5", which)
    hdf5_decoder.stop()
    for (name, which), found in first.items():
        if isinstance(found, bytes):
            assert name == "sperr" or which not in ("less", "nothing")  # sperr makes a whole chunk of any
            assert read_or_refused(tmp_path / f"{name}.h5", which) == found
        elif "its filter crashed" not in found and "its filter ended" not in found:  # a new process is slow
            assert isinstance(read_or_refused(tmp_path / f"{name}.h5", which), str)


def read_or_refused(path: Path, which: str) -> bytes | str:
    """Bytes of a dataset, or why there are none."""
    location = f"a.h5: {which}"
    with open_hdf5(path, "a.h5") as file:
        try:
            return read_rows(file[which], location).tobytes()
        except InputError as error:
            (problem,) = error.problems
            assert problem.location == location
            assert "rows 0:64 cannot be read: " in problem.message
            return problem.message


@pytest.mark.timeout(60)
def test_a_filter_that_prints_and_exits_spoils_no_other_chunk(tmp_path: Path) -> None:
    lie(tmp_path / "bad.h5", APART["sz"])
    with h5py.File(tmp_path / "good.h5", "w") as file:
        file.create_dataset("x", data=np.arange(1000, dtype="f4"), chunks=(1000,), **APART["sz"])
    with open_hdf5(tmp_path / "bad.h5") as bad, open_hdf5(tmp_path / "good.h5") as good:
        for _ in range(2):
            with pytest.raises(InputError, match="its filter ended the process"):
                read_rows(bad["cut"], "bad.h5: cut")
            np.testing.assert_array_equal(read_rows(good["x"], "good.h5: x"), good["x"][()])


@pytest.mark.parametrize("stored", [b"B", bz2.compress(bytes(4000))[:-5], bz2.compress(bytes(3999))])
def test_bzip2_that_is_too_short_is_refused_at_once(tmp_path: Path, stored: bytes) -> None:
    began = time.monotonic()
    assert "chunk (0,) " in damaged(tmp_path / "a.h5", stored, OWN["bzip2"])
    assert time.monotonic() - began < 5


def damaged(path: Path, stored: bytes, filters: Mapping[str, Any], size: int = 1000) -> str:
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("x", (size,), "f4", chunks=(size,), **filters)
        dataset.id.write_direct_chunk((0,), stored)
    with open_hdf5(path, "a.h5") as file, pytest.raises(InputError) as caught:
        read_rows(file["x"], "a.h5: x")
    return str(caught.value)


def test_messages(tmp_path: Path) -> None:
    path, gzip = tmp_path / "a.h5", OWN["gzip"]
    assert "chunk (0,) is stored in 40 bytes, expected 4000" in damaged(path, bytes(40), {})
    short = zlib.compress(bytes(3999))
    assert "chunk (0,) decompresses to 3999 bytes, expected 4000" in damaged(path, short, gzip)
    assert "decompresses to more than 4000 bytes" in damaged(path, zlib.compress(bytes(4001)), gzip)
    cut = zlib.compress(np.random.default_rng(0).bytes(4000))[:-2]
    assert "is truncated" in damaged(path, cut, gzip)
    assert "does not match its checksum" in damaged(path, bytes(4003) + b"\1", OWN["fletcher"])
    assert "too few for a checksum" in damaged(path, b"a", OWN["fletcher"])
    huge = damaged(path, zlib.compress(bytes(10)), gzip, size=1 << 28)
    assert "which cannot be 1073741824 when decompressed" in huge
    wrong = damaged(path, b"not bzip2", OWN["bzip2"])
    assert "chunk (0,) cannot be decompressed: Invalid data stream" in wrong
    assert "decompresses to more than 4000 bytes" in damaged(path, bz2.compress(bytes(9 << 20)), OWN["bzip2"])
    lzf = damaged(path, b"\x00a", APART["lzf"])
    assert "expected 4000" in lzf


def test_a_checksum_of_an_odd_number_of_bytes(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 256, 12345).astype("u1")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=values, chunks=(12345,), fletcher32=True)
    with h5py.File(tmp_path / "a.h5") as file:
        np.testing.assert_array_equal(read_rows(file["x"], "x"), values)


def test_chunks_before_text_and_variable_length_are_checked(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        ragged = file.create_dataset(
            "ragged", (64,), h5py.vlen_dtype(np.uint8), chunks=(64,), compression="gzip"
        )
        for row in range(64):
            ragged[row] = np.arange(row)
        long = file.create_dataset("long", (64,), h5py.vlen_dtype(np.uint8), chunks=(64,))
        long[...] = ragged[...]
        mask, stored = long.id.read_direct_chunk((0,))
        wrong = bytearray(stored)
        wrong[16 * 5] += 100
        long.id.write_direct_chunk((0,), bytes(wrong), mask)
        cut = file.create_dataset("cut", (64,), h5py.vlen_dtype(np.uint8), chunks=(64,), compression="gzip")
        cut.id.write_direct_chunk((0,), zlib.compress(bytes(16)))
        text = file.create_dataset("text", (64,), "S9", chunks=(64,))
        text.id.write_direct_chunk((0,), b"abc")
        padded = h5py.h5t.C_S1.copy()
        padded.set_size(9)
        padded.set_strpad(h5py.h5t.STR_SPACEPAD)
        creation = text.id.get_create_plist()
        spaced = h5py.h5d.create(file.id, b"spaced", padded, h5py.h5s.create_simple((64,)), creation)
        spaced.write_direct_chunk((0,), b"abc")
    with h5py.File(tmp_path / "a.h5") as file:
        for row in range(64):
            np.testing.assert_array_equal(read_objects(file["ragged"], "ragged", row), np.arange(row))
        for name in ("text", "spaced"):
            with pytest.raises(InputError, match="is stored in 3 bytes, expected 576"):
                read_rows(file[name], name)
        with pytest.raises(InputError, match="decompresses to 16 bytes, expected 1024"):
            read_objects(file["cut"], "cut", 3)
        with pytest.raises(InputError, match="row 5 cannot be read"):
            read_objects(file["long"], "long", 5)


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_text_in_chunks(tmp_path: Path, compression: str | None) -> None:
    texts = [f"{number} ä" for number in range(25)]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=texts, chunks=(10,), maxshape=(None,), compression=compression)
    with open_hdf5(tmp_path / "a.h5") as file:
        assert [read_objects(file["x"], "x", row).decode() for row in range(25)] == texts
        assert [text.decode() for text in read_objects(file["x"], "x")] == texts


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_text_in_a_chunk_that_is_too_short(tmp_path: Path, compression: str | None) -> None:
    """The HDF5 library reads what lies behind it in memory: by chance it hangs, which is found before."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        cut = file.create_dataset("cut", (10,), h5py.string_dtype(), chunks=(10,), compression=compression)
        cut.id.write_direct_chunk((0,), zlib.compress(bytes(80)) if compression else bytes(80))
    refused = "80 bytes, expected 160|is damaged: looking at it"
    with pytest.raises(InputError, match=refused), open_hdf5(tmp_path / "a.h5") as file:
        read_objects(file["cut"], "cut", 3)


def test_rows_that_follow_are_not_decoded_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=np.arange(20000).reshape(1000, 20), chunks=(100, 7), compression="gzip")
    decoded = []
    real = isal_zlib.decompressobj
    monkeypatch.setattr(isal_zlib, "decompressobj", lambda: decoded.append(1) or real())
    with h5py.File(tmp_path / "a.h5") as file:
        dataset = file["x"]
        for lo in range(0, 1000, 37):
            read_rows(dataset, "x", lo, min(lo + 37, 1000))
    assert len(decoded) == 10 * math.ceil(20 / 7)


@pytest.mark.timeout(30)
def test_a_shuffle_wider_than_its_chunk_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.arange(100, dtype="i4"), chunks=(50,), shuffle=True)
    stored = path.read_bytes()
    name = b"shuffle\0"
    assert stored.count(name + b"\4\0\0\0") == 1
    path.write_bytes(stored.replace(name + b"\4\0\0\0", name + b"\0\0\0\xff"))
    with h5py.File(path) as file:
        expected = file["x"][()]
        assert expected.tolist() != list(range(100))
        assert read_rows(file["x"], "x").tolist() == expected.tolist()


def test_missing_chunks_are_the_fill_value_even_if_hdf5_would_not_fill(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        creation.set_chunk((10,))
        creation.set_fill_value(np.array(7, ">i4"))
        creation.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        creation.set_deflate(4)
        space = h5py.h5s.create_simple((1000,))
        h5py.h5d.create(file.id, b"x", h5py.h5t.STD_I32BE, space, creation)
    with h5py.File(tmp_path / "a.h5") as file:
        assert read_rows(file["x"], "x", 5, 500).tolist() == [7] * 495
