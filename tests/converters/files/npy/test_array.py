from __future__ import annotations

import io
import os
import pickle
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from unistore.converters.common.faults import as_problem
from unistore.converters.files.npy import ArrayValues, FileValues, open_npz, read_header
from unistore.errors import InputError

ARRAYS = {
    "int16": np.arange(24, dtype="<i2").reshape(2, 3, 4),
    "big-endian": np.arange(24, dtype=">i4").reshape(2, 3, 4),
    "fortran": np.asfortranarray(np.arange(24, dtype="<f4").reshape(2, 3, 4)),
    "big-endian-fortran": np.asfortranarray(np.arange(24, dtype=">f8").reshape(2, 3, 4)),
    "half": np.linspace(-1, 1, 12, dtype="<f2").reshape(3, 4),
    "bool": np.array([[True, False], [False, True]]),
    "scalar": np.array(7, dtype="<i8"),
    "empty": np.zeros((0, 5), dtype="<u2"),
    "text": np.array(["a", "bcd"]),
    "structured": np.array([(1, 2.0), (3, 4.0)], dtype=[("a", "<i4"), ("b", "<f8")]),
}


def header_file(literal: str, payload: bytes = b"", version: tuple[int, int] = (1, 0)) -> bytes:
    text = literal.encode("latin-1")
    width = 2 if version == (1, 0) else 4
    return b"\x93NUMPY" + bytes(version) + len(text).to_bytes(width, "little") + text + payload


def only_problem(error: pytest.ExceptionInfo[InputError], kind: str) -> str:
    (problem,) = error.value.problems
    assert problem.kind == kind
    return problem.message


@pytest.mark.parametrize("name", ARRAYS)
def test_npy_equals_numpy(tmp_path: Path, name: str) -> None:
    array = ARRAYS[name]
    path = tmp_path / "a.npy"
    np.save(path, array)
    header = read_header(path)
    assert (header.shape, header.dtype) == (array.shape, array.dtype)
    assert header.nbytes == array.nbytes
    found = whole(path)
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, np.load(path))
    assert found.flags.f_contiguous == np.load(path).flags.f_contiguous


@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
def test_headers_of_versions_1_and_2_are_read(tmp_path: Path, version: tuple[int, int]) -> None:
    path = tmp_path / "a.npy"
    array = np.arange(6, dtype="<i2")
    with path.open("wb") as file:
        np.lib.format.write_array(file, array, version)
    np.testing.assert_array_equal(whole(path), array)


def test_names_of_version_3_are_utf_8(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    array = np.array([(1, 2.0)], dtype=[("höhe", "<i4"), ("高さ", "<f8")])
    with pytest.warns(UserWarning, match="format 3.0"):
        np.save(path, array)
    assert path.read_bytes()[6] == 3
    np.testing.assert_array_equal(whole(path), np.load(path))
    assert whole(path).dtype.names == ("höhe", "高さ")


def test_a_header_written_by_python_2_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    literal = "{'descr': '<i2', 'fortran_order': False, 'shape': (2L, 3L), }\n"
    path.write_bytes(header_file(literal, np.arange(6, dtype="<i2").tobytes()))
    np.testing.assert_array_equal(whole(path), np.arange(6).reshape(2, 3))


SAVES = {"npy": np.save, "stored": np.savez, "deflated": np.savez_compressed}


@contextmanager
def opened(path: Path) -> Iterator[ArrayValues]:
    """Values of a ``.npy`` file, or of the member ``a`` of an ``.npz`` file."""
    if path.suffix == ".npy":
        yield FileValues(read_header(path, "case/a"), "case/a", path)
    else:
        with open_npz(path, "case") as members:
            yield members["a"]


def whole(path: Path) -> NDArray[Any]:
    return FileValues(read_header(path), "a", path).whole()


def npz_members(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays of an ``.npz`` file."""
    with open_npz(path) as members:
        return {name: values.whole() for name, values in members.items()}


def saved(folder: Path, how: str, array: NDArray[Any]) -> Path:
    path = folder / ("a.npy" if how == "npy" else "a.npz")
    SAVES[how](path, **({"arr": array} if how == "npy" else {"before": np.zeros(7), "a": array}))
    return path


WIDE = np.arange(60_000, dtype=">i4").reshape(300, 20, 10)
VALUES = {
    **{name: array for name, array in ARRAYS.items() if array.ndim},
    "wide": WIDE,
    "wide fortran": np.asfortranarray(WIDE),
    "few columns fortran": np.asfortranarray(WIDE.reshape(-1, 2, 3)),
}


@pytest.mark.parametrize("how", SAVES)
@pytest.mark.parametrize("name", VALUES)
def test_rows_of_values_are_those_of_numpy(tmp_path: Path, how: str, name: str) -> None:
    array = VALUES[name]
    path = saved(tmp_path, how, array)
    rows = len(array)
    with opened(path) as values:
        assert (values.shape, values.dtype) == (array.shape, array.dtype)
        # onward, again from the start, and back
        for lo, hi in ((0, rows // 2), (rows // 2, rows), (0, rows), (rows // 3, rows // 2), (rows, rows)):
            found = values[lo:hi]
            assert found.dtype.isnative
            np.testing.assert_array_equal(found, array[lo:hi])
        np.testing.assert_array_equal(values[::2], array[::2])
        np.testing.assert_array_equal(values.T[1:3], array.T[1:3])
        np.testing.assert_array_equal(values.whole(), array)


@pytest.mark.parametrize("how", SAVES)
def test_rows_are_read_into_memory_of_their_dtype(tmp_path: Path, how: str) -> None:
    array = ARRAYS["int16"]
    with opened(saved(tmp_path, how, array)) as values:
        out = np.zeros((1, 3, 4), "<i2")
        assert values.read_into(1, 2, out) is out
        np.testing.assert_array_equal(out, array[1:2])
        wider = np.zeros((1, 3, 4), "<i4")
        np.testing.assert_array_equal(values.read_into(1, 2, wider), array[1:2])
        assert not wider.any()


@pytest.mark.parametrize("how", ["npy", "stored"])
def test_a_file_that_is_cut_off_while_it_is_open_is_an_error(tmp_path: Path, how: str) -> None:
    path = saved(tmp_path, how, ARRAYS["int16"])
    with opened(path) as values:
        os.truncate(path, values.header.offset + 43)
        with pytest.raises(InputError) as error:
            values[0:2]
    assert "shortened by 5 bytes" in only_problem(error, "truncated")


def test_a_truncated_file_is_an_error_that_states_both_sizes(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, ARRAYS["int16"])
    whole = path.read_bytes()
    path.write_bytes(whole[:-7])
    with pytest.raises(InputError) as error:
        read_header(path, "case/a.npy")
    assert f"it has {len(whole) - 7} of {len(whole)} bytes" in only_problem(error, "truncated")
    assert error.value.problems[0].location == "case/a.npy"


@pytest.mark.parametrize("length", [7, 9, 40])
def test_a_file_that_ends_inside_its_header_is_an_error(tmp_path: Path, length: int) -> None:
    path = tmp_path / "a.npy"
    np.save(path, ARRAYS["int16"])
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(InputError) as error:
        read_header(path)
    assert "ends inside its header" in only_problem(error, "truncated")


def test_a_second_array_in_a_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    with path.open("wb") as file:
        np.save(file, ARRAYS["int16"])
        np.save(file, ARRAYS["int16"])
    with pytest.raises(InputError) as error:
        read_header(path)
    assert "has 352 bytes, but its header states 176" in only_problem(error, "trailing")


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (pytest.fail, ("unpickled",))


@pytest.mark.parametrize(
    "array",
    [
        np.array([Bomb(), None], dtype=object),
        np.array([(1, Bomb())], dtype=[("a", "<i4"), ("b", object)]),
    ],
    ids=["object", "object field"],
)
def test_object_arrays_are_never_opened(tmp_path: Path, array: np.ndarray) -> None:
    np.save(tmp_path / "a.npy", array, allow_pickle=True)
    np.savez(tmp_path / "a.npz", a=array)
    with pytest.raises(InputError) as error:
        read_header(tmp_path / "a.npy")
    assert "Python objects" in only_problem(error, "object")
    with pytest.raises(InputError) as error:
        npz_members(tmp_path / "a.npz")
    assert "Python objects" in only_problem(error, "object")


def zip_bytes() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, a=np.arange(3))
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "kind", "words"),
    [
        (b"", "empty", "0 bytes"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "format", "Git LFS"),
        (pickle.dumps(Bomb()), "format", "is not a .npy file"),
        (b"hello, world", "format", "begins with b'hello, w'"),
        (header_file("{'descr': '<i2'}"), "header", "damaged header"),
        (header_file("__import__('os').getcwd()"), "header", "damaged header"),
        (
            header_file("{'descr': '<f8', 'fortran_order': False, 'shape': (0,), }\xa0"),
            "header",
            "damaged header",
        ),
        (
            header_file("{'descr': '<f8', 'fortran_order': False, 'shape': (0,), }   \0   "),
            "header",
            "damaged header",
        ),
        (header_file("{'descr': '<i2', 'fortran_order': False, 'shape': (-1,)}"), "header", "shape"),
        (header_file("{'descr': '<i2', 'fortran_order': 0, 'shape': (1,)}"), "header", "fortran_order"),
        (header_file("{'descr': '<q9', 'fortran_order': False, 'shape': (1,)}"), "header", "damaged header"),
        (header_file("{'descr': '|V0', 'fortran_order': False, 'shape': (1,)}"), "dtype", "V0"),
        (header_file("{}", version=(9, 0)), "version", "9.0"),
        (header_file("((((" * 4000), "header", "damaged header"),
        (header_file("{[]: 1}"), "header", "damaged header"),
        (header_file("{'descr': '<i2', 'fortran_order': False, 'shape': (True,)}"), "header", "shape"),
        (header_file("\xff", version=(3, 0)), "header", "damaged header"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\x7f", "header", "65,536"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_file_that_is_not_npy_is_an_error(tmp_path: Path, content: bytes, kind: str, words: str) -> None:
    path = tmp_path / "a.npy"
    path.write_bytes(content)
    with pytest.raises(InputError) as error:
        whole(path)
    assert words in only_problem(error, kind)


@pytest.mark.parametrize(
    ("content", "kind", "words"),
    [
        (b"", "empty", "0 bytes"),
        (zip_bytes()[:-30], "truncated", "truncated or damaged"),
        (b"\x93NUMPY\x01\x00", "format", "not a .npz file"),
        (b"version https://git-lfs.github.com/spec/v1\n", "format", "Git LFS"),
        (b"hello", "format", "b'hello'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_file_that_is_not_npz_is_an_error(tmp_path: Path, content: bytes, kind: str, words: str) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(content)
    with pytest.raises(InputError) as error:
        npz_members(path)
    assert words in only_problem(error, kind)


def test_a_damaged_compressed_member_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    values = np.random.default_rng(0).integers(0, 255, 4000, dtype=np.uint8)
    np.savez_compressed(path, a=values)
    raw = bytearray(path.read_bytes())
    raw[2000] ^= 0xFF
    path.write_bytes(raw)
    with pytest.raises(InputError) as error:
        npz_members(path)
    assert "damaged" in only_problem(error, "damaged")


def test_all_bad_members_are_reported_at_once(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "no array")
        archive.writestr("short.npy", header_file("{'descr': '<i2', 'fortran_order': False, 'shape': (9,)}"))
        archive.writestr("junk.npy", b"junk")
    with pytest.raises(InputError) as error:
        npz_members(path)
    assert [(p.location.rsplit(": ")[-1], p.kind) for p in error.value.problems] == [
        ("short", "truncated"),
        ("junk", "format"),
    ]


HUGE = 10**12


@pytest.mark.parametrize(
    ("shape", "kind"),
    [
        (f"({HUGE},)", "truncated"),
        (f"({HUGE}, 2)", "truncated"),
        (f"(0, {10**30})", "header"),
        (f"({10**30}, 0)", "header"),
        (f"({2**40}, {2**40})", "header"),
        (f"({'1, ' * 200})", "header"),
    ],
)
@pytest.mark.parametrize("order", ["True", "False"], ids=["F", "C"])
def test_a_shape_beyond_the_file_is_an_error_before_memory_is_taken(
    tmp_path: Path, shape: str, kind: str, order: str
) -> None:
    path = tmp_path / "a.npy"
    path.write_bytes(header_file(f"{{'descr': '|u1', 'fortran_order': {order}, 'shape': {shape}}}", b"\0"))
    for look in (read_header, whole):
        with pytest.raises(InputError) as caught:
            look(path)
        only_problem(caught, kind)


def claiming(path: Path, claim: int, method: int) -> Path:
    """An archive of ten values whose header and directory both say `claim`."""
    header = header_file(f"{{'descr': '|u1', 'fortran_order': True, 'shape': ({claim // 2}, 2)}}")
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("x.npy", header + bytes(10))
    content = bytearray(path.read_bytes())
    entry, total = content.rfind(b"PK\x01\x02"), len(header) + claim
    name_bytes = int.from_bytes(content[entry + 28 : entry + 30], "little")
    sizes = [total] * (
        2 if method == zipfile.ZIP_STORED else 1
    )  # APPNOTE 4.5.3: the real size, the packed one
    extra = (
        b"\1\0" + (8 * len(sizes)).to_bytes(2, "little") + b"".join(n.to_bytes(8, "little") for n in sizes)
    )
    content[entry + (24 if len(sizes) == 1 else 20) : entry + 28] = b"\xff" * 4 * len(sizes)
    content[entry + 30 : entry + 32] = len(extra).to_bytes(2, "little")
    content[entry + 46 + name_bytes : entry + 46 + name_bytes] = extra
    end = content.rfind(b"PK\x05\x06")
    directory = int.from_bytes(content[end + 12 : end + 16], "little") + len(extra)
    content[end + 12 : end + 16] = directory.to_bytes(4, "little")
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("claim", [3 * 10**6, 3 * 10**9, HUGE])
@pytest.mark.parametrize(
    ("method", "kind", "words"),
    [
        (zipfile.ZIP_STORED, "truncated", "is truncated: it has "),
        (zipfile.ZIP_DEFLATED, "damaged", "compressed bytes cannot contain them"),
    ],
)
def test_members_beyond_the_file_are_refused_before_memory_is_taken(
    tmp_path: Path, claim: int, method: int, kind: str, words: str
) -> None:
    with pytest.raises(InputError) as caught:
        npz_members(claiming(tmp_path / "a.npz", claim, method))
    (problem,) = caught.value.problems
    # zipfile of Python 3.11.8 and newer sees first that the member reaches into the directory
    assert words in problem.message or "Overlapped entries" in problem.message
    assert problem.kind in (kind, "damaged")


def test_members_that_overlap_are_refused(tmp_path: Path) -> None:
    """A member whose values are a member: nested so, a small archive gives any number of bytes."""
    inner = io.BytesIO()
    np.savez(inner, inner=np.arange(1000, dtype=np.uint8))
    with zipfile.ZipFile(inner) as archive:
        (info,) = archive.infolist()
        record = inner.getvalue()[: archive.start_dir]
    path = tmp_path / "a.npz"
    np.savez(path, outer=np.frombuffer(record, np.uint8))
    with open_npz(path) as members:
        offset = members["outer"].header.offset
    with zipfile.ZipFile(path, "a") as archive:
        info.header_offset = offset
        archive.filelist.append(info)
        archive._didModify = True
    with np.load(path) as members:
        np.testing.assert_array_equal(members["inner"], np.arange(1000, dtype=np.uint8))
    with pytest.raises(InputError) as caught:
        npz_members(path)
    assert "overlap" in only_problem(caught, "damaged").lower()


def test_a_member_that_begins_outside_of_the_file_is_damaged(tmp_path: Path) -> None:
    """Where the archive says that its directory lies further on, members would begin before the file."""
    path = tmp_path / "a.npz"
    np.savez(path, x=np.arange(10))
    content = bytearray(path.read_bytes())
    at = len(content) - 6  # of the offset of the directory, four bytes
    offset = int.from_bytes(content[at : at + 4], "little")
    content[at : at + 4] = (offset + 10).to_bytes(4, "little")
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        npz_members(path)
    assert "outside" in only_problem(caught, "damaged")


def test_a_member_that_no_memory_holds_is_a_problem_of_its_file(tmp_path: Path) -> None:
    """How much bzip2 can give is not bounded by what it was given."""
    path = claiming(tmp_path / "a.npz", 10**17, zipfile.ZIP_BZIP2)
    with pytest.raises(InputError) as caught, as_problem("a.npz"):
        npz_members(path)
    assert "Unable to allocate" in only_problem(caught, "memory")
    assert "--memory" in caught.value.problems[0].advice


def test_a_member_of_zeros_that_compresses_a_thousandfold_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        content = io.BytesIO()
        np.save(content, np.zeros(20_000_000, np.uint8))
        archive.writestr("x.npy", content.getvalue())
    assert 20_000_000 / path.stat().st_size > 1000
    assert not npz_members(path)["x"].any()


@pytest.mark.nightly
def test_a_large_compressed_array_in_fortran_order_is_read_in_passes(tmp_path: Path) -> None:
    """Of 400 MB, 256 MiB are kept: rows behind these are decompressed anew, and so are earlier ones."""
    values = np.zeros((100_000, 500), "f8", order="F")
    values[:, 0] = np.arange(len(values))
    values[:, 499] = -np.arange(len(values))
    np.savez_compressed(tmp_path / "a.npz", x=values)
    with open_npz(tmp_path / "a.npz") as arrays:
        array = arrays["x"]
        assert array.memory == 256 << 20 < values.nbytes
        for lo, hi in ((0, 9), (60_000, 70_000), (99_990, 100_000), (5, 7), (1_000, 1_000)):
            np.testing.assert_array_equal(array[lo:hi], values[lo:hi])
        np.testing.assert_array_equal(array.T[498:500], values.T[498:500])


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_an_array_whose_name_lacks_the_ending_is_read_as_numpy_reads_it(tmp_path: Path, method: int) -> None:
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w", method) as archive:
        for name in ("bare", "group/bare", "with.npy"):
            content = io.BytesIO()
            np.save(content, np.arange(3) + len(name))
            archive.writestr(name, content.getvalue())
        archive.writestr("notes.txt", "no array")
        archive.writestr("short", "x")
        archive.mkdir("folder")
    with np.load(path) as expected, open_npz(path) as arrays:
        assert sorted(arrays) == ["bare", "group/bare", "with"]
        for name, array in arrays.items():
            np.testing.assert_array_equal(array[:], expected[name])


def test_a_name_with_and_without_the_ending_is_an_error(tmp_path: Path) -> None:
    content = io.BytesIO()
    np.save(content, np.arange(3))
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", content.getvalue())
        archive.writestr("x", content.getvalue())
    with pytest.raises(InputError) as error, open_npz(tmp_path / "a.npz"):
        pass
    assert "x: is in the file twice" in str(error.value)
