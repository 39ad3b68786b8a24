"""Chunks of HDF5 datasets beside a plain h5py read; chunks that lie about their size, in every filter."""

from __future__ import annotations

import bz2
import ctypes
import gc
import json
import random
import subprocess
import sys
import time
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support import read_hdf5_apart
from tests.support.waiting import patience
from unistore.converters.files.hdf5 import filters as filters_module
from unistore.converters.files.hdf5.file import check_dataset, open_hdf5, read_objects, read_rows
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
    "blosc": hdf5plugin.Blosc(),
    "blosc_zstd": hdf5plugin.Blosc(cname="zstd", clevel=9, shuffle=hdf5plugin.Blosc.BITSHUFFLE),
    "blosc_shuffle_fletcher": {**hdf5plugin.Blosc(cname="zlib"), "shuffle": True, "fletcher32": True},
    "zstd": hdf5plugin.Zstd(),
    "zstd_shuffle_fletcher": {**hdf5plugin.Zstd(clevel=9), "shuffle": True, "fletcher32": True},
}
"""Filters decoded here."""

LIBRARY: dict[str, Mapping[str, Any]] = {
    "lzf": {"compression": "lzf"},
    "szip": {"compression": "szip"},
    "scaleoffset": {"scaleoffset": 4},
    "blosc_snappy": hdf5plugin.Blosc(cname="snappy"),
    "blosc2": hdf5plugin.Blosc2(),
    "lz4": hdf5plugin.LZ4(),
    "bitshuffle": hdf5plugin.Bitshuffle(),
    "bitshuffle_bare": hdf5plugin.Bitshuffle(cname="none"),
    "zfp": hdf5plugin.Zfp(rate=16),
    "sz": hdf5plugin.SZ(absolute=0.01),
    "sz3": hdf5plugin.SZ3(absolute=0.01),
    "sperr": hdf5plugin.Sperr(rate=16),
}
"""Filters of the library."""

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


@pytest.mark.parametrize("seed", range(12))
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


@pytest.mark.parametrize("name", LIBRARY)
def test_every_filter_is_read_as_h5py_reads_it(tmp_path: Path, name: str) -> None:
    values = np.cumsum(np.random.default_rng(0).normal(size=(25, 20, 33)), axis=1).astype("f4")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=values, chunks=(8, 20, 33), **LIBRARY[name])
        if name != "scaleoffset":
            file.create_dataset("y", data=values, chunks=(8, 20, 33), fletcher32=True, **LIBRARY[name])
    with h5py.File(tmp_path / "a.h5") as file:
        check_like_h5py(file["x"], random.Random(1))
        check_like_h5py(file.get("y", file["x"]), random.Random(2))


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


LIES = ("less", "more", "cut", "random", "nothing")
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
        stored |= {"cut": good[: len(good) // 2], "nothing": bytes(2)}
        stored["random"] = np.random.default_rng(1).bytes(len(good))
        for name in LIES:
            dataset = file.create_dataset(name, MANY, "f4", chunks=MANY, **filters)
            dataset.id.write_direct_chunk((0, 0), stored[name], masks.get(name, masks["good"]))


@pytest.mark.timeout(300)
def test_a_chunk_of_a_wrong_size_never_shows_what_lies_in_memory(tmp_path: Path) -> None:
    """Too short or too long: refused. Random bytes: refused, or the same values whatever memory holds."""
    cases = list(product(LIBRARY, LIES))
    for name, filters in LIBRARY.items():
        lie(tmp_path / f"{name}.h5", filters)
    names = [text for name, which in cases for text in (str(tmp_path / f"{name}.h5"), which)]
    for case, first, second in zip(cases, read_apart(1, *names), read_apart(2, *names), strict=True):
        if "values" in first or "values" in second:
            assert first == second, case
            # sperr makes a whole chunk of any bytes.
            assert case[0] == "sperr" or case[1] not in ("less", "nothing"), case
        else:
            assert first.keys() <= {"refused", "died"}, case


@pytest.mark.parametrize("name", OWN)
def test_a_chunk_of_a_wrong_size_is_an_error_of_our_own_decoders(tmp_path: Path, name: str) -> None:
    lie(tmp_path / "a.h5", OWN[name])
    for which in LIES:
        first, second = (read_hdf5_apart.read(tmp_path / "a.h5", which) for _ in range(2))
        if "values" in first:
            assert first == second
            assert which not in ("less", "nothing")
        else:
            assert "rows 0:64 cannot be read: chunk (0, 0) " in first["refused"], which


def read_apart(seed: int, *names: str) -> list[dict[str, str]]:
    """Values, refusals and deaths of datasets, each read in a process of its own."""
    program = Path(read_hdf5_apart.__file__)
    command = [sys.executable, str(program), str(seed), *names]
    answers = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    outcomes: list[dict[str, str]] = json.loads(answers)
    return outcomes


@pytest.mark.parametrize("stored", [b"B", bz2.compress(bytes(4000))[:-5], bz2.compress(bytes(3999))])
def test_bzip2_that_is_too_short_is_refused_at_once(tmp_path: Path, stored: bytes) -> None:
    began = time.monotonic()
    assert "chunk (0,) " in damaged(tmp_path / "a.h5", stored, OWN["bzip2"])
    assert time.monotonic() - began < patience(5)


def damaged(path: Path, stored: bytes, filters: Mapping[str, Any], size: int = 1000) -> str:
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("x", (size,), "f4", chunks=(size,), **filters)
        dataset.id.write_direct_chunk((0,), stored)
    with open_hdf5(path, "a.h5") as file, pytest.raises(InputError) as caught:
        read_rows(file["x"], "a.h5: x")
    return str(caught.value)


def test_errors_of_chunks_name_the_chunk_and_its_sizes(tmp_path: Path) -> None:
    path, gzip = tmp_path / "a.h5", OWN["gzip"]
    assert "chunk (0,) has 40 bytes in the file, not 4,000" in damaged(path, bytes(40), {})
    short = zlib.compress(bytes(3999))
    assert "chunk (0,) decompresses to 3,999 bytes, not 4,000" in damaged(path, short, gzip)
    assert "decompresses to more than 4,000 bytes" in damaged(path, zlib.compress(bytes(4001)), gzip)
    cut = zlib.compress(np.random.default_rng(0).bytes(4000))[:-2]
    assert "is truncated" in damaged(path, cut, gzip)
    assert "does not match its checksum" in damaged(path, bytes(4003) + b"\1", OWN["fletcher"])
    assert "too few to contain a checksum" in damaged(path, b"a", OWN["fletcher"])
    huge = damaged(path, zlib.compress(bytes(10)), gzip, size=1 << 28)
    assert "decompresses to 10 bytes, not 1,073,741,824" in huge
    wrong = damaged(path, b"not bzip2", OWN["bzip2"])
    assert "chunk (0,) cannot be decompressed: Invalid data stream" in wrong
    assert "decompresses to more than 4,000 bytes" in damaged(
        path, bz2.compress(bytes(9 << 20)), OWN["bzip2"]
    )
    lzf = damaged(path, b"\x00a", LIBRARY["lzf"])
    assert "not 4,000" in lzf


def test_chunks_of_text_and_variable_length_are_checked_before_hdf5_reads_them(tmp_path: Path) -> None:
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
            with pytest.raises(InputError, match=r"chunk \(0,\) has 3 bytes .*not 576"):
                read_rows(file[name], name)
        with pytest.raises(InputError, match="16 bytes, not 1,024"):
            read_objects(file["cut"], "cut", 3)
        with pytest.raises(InputError, match="row 5 cannot be read"):
            read_objects(file["long"], "long", 5)


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_a_chunk_of_text_that_is_too_short_is_an_error(tmp_path: Path, compression: str | None) -> None:
    """The HDF5 library reads what lies behind it in memory: by chance it hangs, which is found before."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        cut = file.create_dataset("cut", (10,), h5py.string_dtype(), chunks=(10,), compression=compression)
        cut.id.write_direct_chunk((0,), zlib.compress(bytes(80)) if compression else bytes(80))
    refused = "80 bytes.* not 160|is damaged: looking at it"
    with pytest.raises(InputError, match=refused), open_hdf5(tmp_path / "a.h5") as file:
        read_objects(file["cut"], "cut", 3)


FILTERS_OF_EDGES: dict[str, Mapping[str, Any]] = {
    name: {**OWN, **LIBRARY}[name]
    for name in ("gzip", "shuffle", "fletcher", "gzip_shuffle_fletcher", "bzip2", "bitshuffle", "lzf", "zstd")
}


def library_function(name: str, *types: Any) -> Any:
    """A function of the HDF5 library that h5py does not have."""
    function = getattr(ctypes.CDLL(h5py.h5p.__file__), name)
    function.argtypes = types
    return function


def make_without_edges(
    file: h5py.File, name: str, values: NDArray[Any], chunk: tuple[int, ...], **filters: Any
) -> Any:
    """A dataset whose chunks at the edge are stored without filters."""
    draft = file.create_dataset(f"{name}.draft", values.shape, values.dtype, chunks=chunk, **filters)
    creation = draft.id.get_create_plist()
    set_options = library_function("H5Pset_chunk_opts", ctypes.c_int64, ctypes.c_uint)
    assert set_options(creation.id, 2) == 0
    space = h5py.h5s.create_simple(values.shape)
    dataset = h5py.h5d.create(file.id, name.encode(), draft.id.get_type(), space, creation)
    dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, values)
    return dataset


@pytest.mark.parametrize("name", FILTERS_OF_EDGES)
def test_edge_chunks_without_filters_are_read_as_h5py_reads_them(tmp_path: Path, name: str) -> None:
    line = np.arange(100) * 1000003
    plane = np.arange(70 * 45, dtype=">i4").reshape(70, 45) * 12345
    with h5py.File(tmp_path / "a.h5", "w", libver="latest") as file:
        filters = FILTERS_OF_EDGES[name]
        edge = make_without_edges(file, "line", line, (32,), **filters)
        assert edge.read_direct_chunk((96,)) == (0, line[96:].tobytes() + bytes(28 * 8))
        make_without_edges(file, "plane", plane, (16, 20), **filters)
    with open_hdf5(tmp_path / "a.h5") as file:
        np.testing.assert_array_equal(read_rows(file["line"], "line"), line)
        np.testing.assert_array_equal(read_rows(file["plane"], "plane"), plane)
        check_like_h5py(file["plane"], random.Random(1))


def test_an_edge_chunk_without_filters_that_is_too_short_is_an_error(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w", libver="latest") as file:
        make_without_edges(file, "x", np.arange(100), (32,), compression="gzip")
        file["x"].id.write_direct_chunk((96,), bytes(64))
    with open_hdf5(tmp_path / "a.h5") as file:
        assert read_rows(file["x"], "x", 0, 96).tolist() == list(range(96))
        with pytest.raises(InputError, match=r"chunk \(96,\) has 64 bytes, not 256"):
            read_rows(file["x"], "x", 90, 100)


@pytest.mark.parametrize("size", [24, 800, 1032, 5000, 300_000])
def test_bytes_that_a_filter_leaves_unwritten_are_refused(tmp_path: Path, size: int) -> None:
    """A filter that returns memory as it was allocated."""
    allocate = library_function("H5allocate_memory", ctypes.c_size_t, ctypes.c_bool)
    allocate.restype = ctypes.c_void_p
    release = library_function("H5free_memory", ctypes.c_void_p)

    def leave_unwritten(flags: int, _: int, _values: int, stored: int, _capacity: int, buffer: int) -> int:
        if flags & h5py.h5z.FLAG_REVERSE:
            pointer = ctypes.c_void_p.from_address(buffer)
            release(pointer.value)
            pointer.value = allocate(size, False)
            return size
        return stored

    function = filters_module._Function(leave_unwritten)
    definition = filters_module._FilterClass(1, 0xFEFE, 1, 1, b"lazy", None, None, function)
    assert library_function("H5Zregister", ctypes.c_void_p)(ctypes.addressof(definition)) >= 0
    creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    creation.set_chunk((size,))
    creation.set_filter(0xFEFE, 0, ())
    try:
        with h5py.File(tmp_path / "a.h5", "w") as file:
            space = h5py.h5s.create_simple((size,))
            dataset = h5py.h5d.create(file.id, b"x", h5py.h5t.STD_U8LE, space, creation)
            dataset.write_direct_chunk((0,), bytes(size))
        refusal = pytest.raises(InputError, match="its filter reads beyond the stored bytes")
        # Filters are not Python: a collection within this one frees blocks where it allocates.
        gc.disable()
        with h5py.File(tmp_path / "a.h5") as file, refusal:
            read_rows(file["x"], "x")
    finally:
        gc.enable()
        h5py.h5z.unregister_filter(0xFEFE)


def test_threads_decode_at_the_same_time(tmp_path: Path) -> None:
    values = np.arange(40 * 1000).reshape(40, 1000)
    for number in range(4):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file.create_dataset("x", data=values + number, chunks=(1, 1000 - number), **LIBRARY["lz4"])

    def read(number: int) -> NDArray[Any]:
        with h5py.File(tmp_path / f"{number}.h5") as file:
            return read_rows(file["x"], "x") - number

    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(read, range(4)):
            np.testing.assert_array_equal(found, values)


@pytest.mark.parametrize("filters", ["none", "gzip", "zstd"])
@pytest.mark.parametrize("fill", [None, 7])
def test_unwritten_chunks_of_a_dataset_that_is_never_filled_are_an_error(
    tmp_path: Path, filters: str, fill: int | None
) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        dataset = file.create_dataset(
            "x",
            (1000,),
            ">i4",
            chunks=(10,),
            fillvalue=fill,
            fill_time="never",
            **{**OWN, **LIBRARY}[filters],
        )
        dataset[:500] = np.arange(500)
    with h5py.File(tmp_path / "a.h5") as file:
        (problem,) = check_dataset(file["x"], "x")
        assert problem.kind == "unwritten"
        assert "has 50 of 100 chunks" in problem.message
        assert "its fill time is 'never'" in problem.message
        with pytest.raises(InputError, match="never written"):
            read_rows(file["x"], "x", 5, 600)


def test_bytes_of_an_incomplete_last_element_are_not_shuffled() -> None:
    shuffle = 2
    stored = bytes([0, 4, 1, 5, 2, 6, 3, 7, 8, 9])
    assert filters_module.decode(stored, 10, ((shuffle, (4,)),)).tolist() == list(range(10))
    assert filters_module.decode(b"abc", 3, ((shuffle, (4,)),)).tobytes() == b"abc"
