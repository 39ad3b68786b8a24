"""Every way in which an HDF5 file deceives."""

from __future__ import annotations

import ctypes
import fcntl
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from unistore.converters.files.hdf5.chunks import native
from unistore.converters.files.hdf5.file import (
    check_dataset,
    open_hdf5,
    read_objects,
    read_reversed,
    read_rows,
)
from unistore.converters.files.hdf5.tree import follow, walk
from unistore.errors import InputError, Location, Problem


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    path = tmp_path / "whole.h5"
    with h5py.File(path, "w") as file:
        file["a/x"] = np.arange(1000.0)
        file["b"] = np.arange(5)
    return path


def refused(path: Path) -> Problem:
    with pytest.raises(InputError) as caught, open_hdf5(path, path.name):
        pass
    (problem,) = caught.value.problems
    return problem


def test_a_file_that_another_program_has_open_for_writing_is_an_error_that_says_so(whole: Path) -> None:
    with h5py.File(whole.with_name("virtual.h5"), "w") as file:
        layout = h5py.VirtualLayout((5,), "i8")
        layout[:] = h5py.VirtualSource(whole, "b", (5,))
        file.create_virtual_dataset("b", layout)
    with whole.open("rb") as writer, open_hdf5(whole.with_name("virtual.h5")) as virtual:
        fcntl.flock(writer, fcntl.LOCK_EX)  # as HDF5 does while it writes
        with pytest.raises(BlockingIOError, match="unable to lock file"):
            h5py.File(whole)
        with pytest.raises(InputError) as caught:
            read_rows(virtual["b"], Location("virtual.h5"), 0, 5)
        problems = [refused(whole), *caught.value.problems]
    for problem in problems:
        assert problem.kind == "unreadable"
        assert "another program has it open for writing" in problem.message
        assert problem.fix == "wait until that program has closed the file, or stop it, then run again"


@pytest.mark.parametrize(
    ("content", "kind", "message"),
    [
        (b"", "empty", "is empty (0 bytes)"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "format", "Git LFS pointer"),
        (b"PK\x03\x04 something else", "format", "it begins with b'PK"),
        (bytes(4096), "format", "it begins with zeros"),
    ],
)
def test_a_file_of_another_format_is_an_error_that_says_what_it_is(
    tmp_path: Path, content: bytes, kind: str, message: str
) -> None:
    path = tmp_path / "a.h5"
    path.write_bytes(content)
    problem = refused(path)
    assert problem.location == "a.h5"
    assert problem.kind == kind
    assert message in problem.message


def test_a_missing_truncated_or_damaged_file_is_an_error_of_its_kind(tmp_path: Path, whole: Path) -> None:
    assert refused(tmp_path / "absent.h5").kind == "missing"
    assert "is a folder" in refused(tmp_path).message
    content = whole.read_bytes()
    (tmp_path / "cut.h5").write_bytes(content[: len(content) // 2])
    cut = refused(tmp_path / "cut.h5")
    assert cut.kind == "truncated"
    assert cut.message == f"the file is truncated: it has {len(content) // 2:,} of {len(content):,} bytes"
    assert "stored_eof" in cut.trace  # the words of HDF5, for --debug
    damaged = bytearray(content)
    damaged[96:200] = b"\xff" * 104
    (tmp_path / "damaged.h5").write_bytes(damaged)
    problem = refused(tmp_path / "damaged.h5")
    assert problem.kind == "truncated"
    assert "its writer was killed" in problem.message


def test_walk_finds_each_group_once(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(3)
        group = file.create_group("g")
        group["y"] = np.arange(2)
        group["again"] = h5py.SoftLink("/g")
        group["root"] = h5py.SoftLink("/")
        group["x"] = h5py.SoftLink("/x")
        file["g/deep/z"] = 1.0
    with open_hdf5(tmp_path / "a.h5") as file:
        tree = walk(file, "a.h5", [tmp_path])
        assert list(tree.datasets) == ["g/deep/z", "g/x", "g/y", "x"]
        assert not tree.problems
        assert not tree.files
        skipped = walk(file, "a.h5", [tmp_path], skip={"g"})
        assert list(skipped.datasets) == ["x"]
        assert skipped.groups == ["g"]


def links(tmp_path: Path) -> dict[str, str]:
    """Problems by member of a file full of links."""
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.mkdir()
    for folder in (inside, outside):
        with h5py.File(folder / "other.h5", "w") as file:
            file["x"] = np.arange(3)
            file["further"] = h5py.ExternalLink(str(outside / "other.h5"), "/x")
    with h5py.File(inside / "a.h5", "w") as file:
        file["near"] = h5py.ExternalLink("other.h5", "/x")
        file["up"] = h5py.ExternalLink("../out/other.h5", "/x")
        file["absolute"] = h5py.ExternalLink("/etc/hostname", "/x")
        file["chain"] = h5py.ExternalLink("other.h5", "/further")
        file["soft_chain"] = h5py.SoftLink("/up")
        file["gone"] = h5py.ExternalLink("gone.h5", "/x")
        file["nowhere"] = h5py.SoftLink("/nothing")
        file.create_dataset("raw", (4,), "u1", external=[(str(outside / "raw.bin"), 0, 4)])
        layout = h5py.VirtualLayout((3,), "i8")
        layout[:] = h5py.VirtualSource(str(outside / "other.h5"), "x", (3,))
        file.create_virtual_dataset("virtual", layout)
        near = h5py.VirtualLayout((3,), "i8")
        near[:] = h5py.VirtualSource(str(inside / "other.h5"), "x", (3,))
        file.create_virtual_dataset("virtual_near", near)
    with open_hdf5(inside / "a.h5") as file:
        tree = walk(file, "a.h5", [inside])
        assert sorted(set(tree.datasets) - {"raw", "virtual"}) == ["near", "virtual_near"]
        np.testing.assert_array_equal(read_rows(tree.datasets["near"], "near"), np.arange(3))
        np.testing.assert_array_equal(read_rows(tree.datasets["virtual_near"], "v"), np.arange(3))
        assert inside / "other.h5" in tree.files
        assert not check_dataset(tree.datasets["virtual_near"], "v")
    with open_hdf5(inside / "a.h5") as file:
        assert (
            not walk(file, "a.h5", [inside, outside]).datasets.keys().isdisjoint({"up", "chain", "virtual"})
        )
    return {problem.location.split(": ")[1]: problem.message for problem in tree.problems}


def test_links_are_followed_inside_the_roots_only(tmp_path: Path) -> None:
    problems = links(tmp_path)
    assert sorted(problems) == ["absolute", "chain", "gone", "nowhere", "raw", "soft_chain", "up", "virtual"]
    for name in ("absolute", "chain", "raw", "soft_chain", "up", "virtual"):
        assert "outside the given paths" in problems[name]
    assert "does not exist" in problems["gone"]
    assert "'/nothing'" in problems["nowhere"]


def test_a_file_outside_is_not_opened_for_a_virtual_dataset_of_a_virtual_dataset(tmp_path: Path) -> None:
    inside = tmp_path / "in"
    inside.mkdir()
    for name, source in (("b.h5", "../out/not_there.h5"), ("a.h5", "b.h5")):
        layout = h5py.VirtualLayout((3,), "i8")
        layout[:] = h5py.VirtualSource(source, "x", (3,))
        with h5py.File(inside / name, "w") as file:
            file.create_virtual_dataset("x", layout)
    with open_hdf5(inside / "a.h5") as file:
        (problem,) = walk(file, "a.h5", [inside]).problems
    assert "outside the given paths" in problem.message


def test_a_link_of_the_file_system_is_judged_by_its_target(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.mkdir()
    with h5py.File(outside / "x.h5", "w") as file:
        file["x"] = np.arange(3)
    (inside / "innocent.h5").symlink_to(outside / "x.h5")
    with h5py.File(inside / "a.h5", "w") as file:
        file["x"] = h5py.ExternalLink("innocent.h5", "/x")
    with open_hdf5(inside / "a.h5") as file:
        found = follow(file, "x", "a.h5: x", [inside])
        assert isinstance(found, Problem)
        assert "outside the given paths" in found.message


def test_datasets_that_were_never_or_partly_written_are_a_problem(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("never", (4, 2), "f4")
        file.create_dataset("never_chunked", (4,), "f4", chunks=(2,))
        file.create_dataset("partly", (10,), "f4", chunks=(3,))[:4] = 1
        file.create_dataset("filled", (10,), "f4", chunks=(3,), fillvalue=-1)[:4] = 1
        file.create_dataset("no_values", (0, 3), "f4")
        file.create_dataset("compact_enough", data=np.float32(1))
    with open_hdf5(tmp_path / "a.h5") as file:
        found = {name: check_dataset(dataset, name) for name, dataset in file.items()}
    messages = {name: problems[0].message for name, problems in found.items() if problems}
    assert sorted(messages) == ["never", "never_chunked", "partly"]
    assert "has the shape (4, 2), but its values were never written" in messages["never"]
    assert "has 2 of 4 chunks" in messages["partly"]


def test_object_dtypes_are_refused_unless_asked_for(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["words"] = ["a", "bc"]
        ragged = file.create_dataset("ragged", (2,), h5py.vlen_dtype(np.uint8))
        ragged[0] = np.arange(3)
        file["empty"] = h5py.Empty("f4")
    with open_hdf5(tmp_path / "a.h5") as file:
        for name in ("words", "ragged"):
            assert check_dataset(file[name], name)[0].kind == "dtype"
            assert not check_dataset(file[name], name, allow_object=True)
        assert "its dataspace is null" in check_dataset(file["empty"], "empty")[0].message


def test_values_come_in_native_byte_order(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["big"] = np.arange(6, dtype=">i4").reshape(3, 2)
        file["flag"] = np.array([True, False])
        file["half"] = np.array([0.5, -2], np.float16)
        colours = h5py.enum_dtype({"red": 0, "blue": 1}, basetype="u1")
        file.create_dataset("colour", data=np.array([1, 0], "u1"), dtype=colours)
    with open_hdf5(tmp_path / "a.h5") as file:
        big = read_rows(file["big"], "big", 1)
        assert big.dtype == np.dtype("i4")
        np.testing.assert_array_equal(big, [[2, 3], [4, 5]])
        assert read_rows(file["flag"], "flag").dtype == bool
        assert read_rows(file["half"], "half").tolist() == [0.5, -2]
        colour = read_rows(file["colour"], "colour")
        assert colour.dtype == np.uint8
        assert colour.dtype.metadata is None
        out = np.zeros((4, 2), np.int32)
        read_rows(file["big"], "big", 0, 2, out=out[1:3])
        np.testing.assert_array_equal(out, [[0, 0], [0, 1], [2, 3], [0, 0]])
        assert read_rows(file["big"], "big", 2, 2).shape == (0, 2)
    assert native(np.dtype(">f8")) == np.dtype("f8")


def virtual(file: h5py.File, name: str, source: str, target: str) -> None:
    layout = h5py.VirtualLayout((3,), "i8")
    layout[:] = h5py.VirtualSource(source, target, (3,))
    file.create_virtual_dataset(name, layout)


def test_virtual_datasets_that_lead_to_themselves_or_nowhere_are_an_error(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "b.h5", "w") as other:
        virtual(other, "back", "a.h5", "by_file")
        other["own"] = h5py.ExternalLink("a.h5", "/by_link")
        other.create_dataset("short", (3,), "i8", chunks=(3,)).id.write_direct_chunk((0,), bytes(4))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(3)
        virtual(file, "itself", ".", "itself")
        virtual(file, "first", ".", "second")
        virtual(file, "second", ".", "first")
        virtual(file, "by_file", "b.h5", "back")
        virtual(file, "by_link", "b.h5", "own")
        virtual(file, "gone", ".", "nothing")
        virtual(file, "good_0", ".", "x")
        for depth in range(1, 20):
            virtual(file, f"good_{depth}", ".", f"good_{depth - 1}")
        virtual(file, "short", "b.h5", "short")
    with open_hdf5(tmp_path / "a.h5", "a.h5") as file:
        tree = walk(file, "a.h5", [tmp_path])
        said = {problem.location.split(": ")[1]: problem.message for problem in tree.problems}
        for name in ("itself", "first", "second", "by_file", "by_link"):
            assert said.pop(name) == "is virtual and maps to itself, or through more than 16 other datasets"
            with pytest.raises(InputError, match="maps to itself"):
                read_rows(file[name], name)
        assert "maps to 'nothing', which is not a dataset" in said.pop("gone")
        assert all("through more than 16" in message for message in said.values())
        assert sorted(said) == [f"good_{depth}" for depth in (16, 17, 18, 19)]
        assert {"x", "good_0", "good_15", "short"} == set(tree.datasets) - {
            f"good_{depth}" for depth in range(1, 15)
        }
        assert read_rows(file["good_9"], "good_9", 1, 3).tolist() == [1, 2]
        with pytest.raises(InputError, match=r"has 4 bytes .*not 24"):
            read_rows(file["short"], "short")


def make_of_type(
    file: h5py.File, name: str, element: h5py.h5t.TypeID, values: np.ndarray, **options: Any
) -> None:
    draft = file.create_dataset(f"{name}.draft", values.shape, "u1", **options)
    creation, space = draft.id.get_create_plist(), h5py.h5s.create_simple(values.shape)
    dataset = h5py.h5d.create(file.id, name.encode(), element, space, creation)
    dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, values)


LAYOUTS = {"contiguous": {}, "chunked": {"chunks": (2, 2)}, "gzip": {"chunks": (2, 2), "compression": "gzip"}}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_wide_booleans_brain_floats_and_24_bit_integers_are_read_with_their_values(
    tmp_path: Path, layout: str
) -> None:
    wide_bool = h5py.h5t.enum_create(h5py.h5t.STD_I16LE)
    wide_bool.enum_insert(b"FALSE", 0)
    wide_bool.enum_insert(b"TRUE", 1)
    brain_float = h5py.h5t.IEEE_F32LE.copy()
    brain_float.set_fields(15, 7, 8, 0, 7)
    brain_float.set_precision(16)
    brain_float.set_size(2)
    odd_integer = h5py.h5t.STD_I32BE.copy()
    odd_integer.set_precision(24)
    flags, numbers = np.array([[True, False, True]] * 3), np.array([[1, 0.5, -2]] * 3, "f4")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        make_of_type(file, "flags", wide_bool, flags, **LAYOUTS[layout])
        make_of_type(file, "numbers", brain_float, numbers, **LAYOUTS[layout])
        make_of_type(file, "odd", odd_integer, np.array([[1, -2, 70000]] * 3, "i4"), **LAYOUTS[layout])
    with open_hdf5(tmp_path / "a.h5") as file:
        for name in ("flags", "numbers", "odd"):
            assert not check_dataset(file[name], name)
        assert read_rows(file["flags"], "flags").dtype == bool
        np.testing.assert_array_equal(read_rows(file["flags"], "flags"), flags)
        np.testing.assert_array_equal(read_rows(file["numbers"], "numbers"), numbers)
        assert read_rows(file["odd"], "odd", 1).tolist() == [[1, -2, 70000]] * 2
        assert read_reversed(file["odd"], "odd", 1, 3).tolist() == [[-2] * 3, [70000] * 3]


def test_24_bit_integers_in_big_endian_are_read_as_h5py_reads_them(tmp_path: Path) -> None:
    """HDF5 stores all 32 bits of them, and if asked for the other byte order, returns all 32."""
    short = h5py.h5t.STD_I32BE.copy()
    short.set_precision(24)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        values = np.array([[1, -774418717], [2, 2**30 + 5]], "i4")
        make_of_type(file, "x", short, values)
    with open_hdf5(tmp_path / "a.h5") as file:
        expected = file["x"][()]
        assert expected.tolist() == [[1, -2666781], [2, 5]]
        for found in (read_rows(file["x"], "x"), read_reversed(file["x"], "x", 0, 2).T):
            assert found.dtype.isnative
            np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(read_rows(file["x"], "x", 1, 2), expected[1:])


def test_external_files_are_those_that_hdf5_opens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HDF5 looks for them in the working directory, not beside the file."""
    sources, working = tmp_path / "sources", tmp_path / "working"
    for folder in (sources, working):
        folder.mkdir()
        (folder / "raw.bin").write_bytes(folder.name[:4].encode())
    monkeypatch.chdir(working)
    with h5py.File(sources / "a.h5", "w") as file:
        file.create_dataset("x", (4,), "u1", external=[("raw.bin", 0, 4)])
    with open_hdf5(sources / "a.h5") as file:
        (problem,) = walk(file, "a.h5", [sources]).problems
        assert problem.kind == "link"
        assert f"stores its values in {working / 'raw.bin'}, " in problem.message
        tree = walk(file, "a.h5", [tmp_path])
        assert tree.files == {working / "raw.bin"}
        assert read_rows(tree.datasets["x"], "x").tobytes() == b"work"
    monkeypatch.chdir(sources)
    with open_hdf5(sources / "a.h5") as file:
        tree = walk(file, "a.h5", [sources])
        assert not tree.problems
        assert read_rows(tree.datasets["x"], "x").tobytes() == b"sour"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("address_size", [8, 4])
def test_number_and_text_fields_of_records_are_read_apart(
    tmp_path: Path, layout: str, address_size: int
) -> None:
    record = np.dtype([("number", "i2"), ("text", h5py.string_dtype()), ("pair", h5py.string_dtype(), (2,))])
    values = np.array([[(row, f"{row}", ["a", "b" * row]) for row in range(3)]] * 3, record)
    creation = h5py.h5p.create(h5py.h5p.FILE_CREATE)
    creation.set_sizes(address_size, 8)
    with h5py.File(h5py.h5f.create(str(tmp_path / "a.h5").encode(), fcpl=creation)) as file:
        file.create_dataset("x", data=values, **LAYOUTS[layout])
    with open_hdf5(tmp_path / "a.h5") as file:
        assert not check_dataset(file["x"], "x"), "a field of any length is judged by itself"
        assert read_rows(file["x"], "x", 1, 3)["number"].tolist() == [[0, 1, 2]] * 2
        assert read_objects(file["x"], "x", 1)["text"].tolist() == [b"0", b"1", b"2"]


def test_virtual_datasets_of_unwritten_values_are_an_error(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("never", (3,), "i8")
        file.create_dataset("chunks", (3,), "i8", chunks=(2,), fillvalue=5, fill_time="never")[:2] = 1
        file.create_dataset("filtered", (3,), "i8", chunks=(2,), compression="lzf", fill_time="never")[:2] = 1
        for name in ("never", "chunks", "filtered"):
            virtual(file, f"to_{name}", ".", name)
        creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        creation.set_layout(h5py.h5d.VIRTUAL)
        set_fill = ctypes.CDLL(h5py.h5p.__file__).H5Pset_fill_value
        set_fill.argtypes = (ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
        assert set_fill(creation.id, h5py.h5t.NATIVE_INT64.id, None) == 0
        space = h5py.h5s.create_simple((3,))
        h5py.h5d.create(file.id, b"no_fill", h5py.h5t.NATIVE_INT64, space, creation)
    with open_hdf5(tmp_path / "a.h5") as file:
        for name in ("to_never", "to_chunks", "to_filtered"):
            with pytest.raises(InputError, match="never written"):
                read_rows(file[name], name)
        with pytest.raises(InputError, match="no fill value"):
            read_rows(file["no_fill"], "no_fill")
