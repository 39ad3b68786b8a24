"""One attribute as JSON and back, beside h5py; what is left out, and that it is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from unistore.converters.files.hdf5 import attributes as reading
from unistore.converters.files.hdf5.attributes import (
    Attributes,
    attribute_differences,
    attributes_left_out,
    decode,
    encode,
    read_attributes,
    type_problem,
)

NANS = np.array([0x7FC00000, 0x7FC00001, 0xFFC00000, 0x7F800001, 0xFF800000, 0x80000000], "u4").view("f4")
UTF8, ASCII = h5py.string_dtype("utf-8"), h5py.string_dtype("ascii")
NESTED = np.dtype([("a", "<i4"), ("b", ">f8", (2,)), ("c", [("d", "u1"), ("e", "S3")])])
VALUES: dict[str, tuple[Any, Any]] = {
    "bool": (True, None),
    "bools": ([[True, False]], bool),
    "small": (-5, "i1"),
    "largest": (2**64 - 1, "<u8"),
    "big endian": ([1, -2, 3], ">i2"),
    "half": (np.nan, "f2"),
    "not finite": (NANS, "<f4"),
    "not finite, big endian": (NANS.astype(">f4"), ">f4"),
    "not finite, double": ([np.inf, -np.inf, np.nan, 5e-324, 0.1], "f8"),
    "complex": ([1 + 2j, complex(np.nan, -0.0)], ">c16"),
    "three axes": (np.arange(24).reshape(2, 3, 4), "<i8"),
    "no value": (np.zeros((0, 3)), "<f8"),
    "empty": (h5py.Empty("<f4"), None),
    "empty text": (h5py.Empty(UTF8), None),
    "text": ("Übergröße \u2028 \U0001f600", UTF8),
    "ascii": (b"EPSG:25832", ASCII),
    "no UTF-8": (b"\xff\xfe", UTF8),
    "texts": (np.array([b"a", b"\xff", b""], object), UTF8),
    "fixed": (b"abc", "S5"),
    "fixed with zeros inside": (b"a\0b", "S5"),
    "fixed UTF-8": ("äö".encode(), h5py.string_dtype("utf-8", 6)),
    "enumeration": (1, h5py.enum_dtype({"GROUND": 1, "OTHER": 7}, "u1")),
    "compound": (np.array([(1, (2.0, np.nan), (3, b"xy"))] * 2, NESTED), NESTED),
    "one compound": (np.array((1, "hi"), [("a", "<i4"), ("s", UTF8)]), None),
    "a name with / and \u2028 and \x1b": (0, "i4"),
}


@pytest.fixture
def file(tmp_path: Path) -> Any:
    with h5py.File(tmp_path / "a.h5", "w", libver=("v108", "latest")) as opened:
        yield opened


def raw(item: Any, name: str) -> tuple[Any, np.dtype]:
    found = item.attrs.get_id(name)
    if found.shape is None:
        return None, found.dtype
    values = np.empty(found.shape, found.dtype)
    found.read(values)
    return values, found.dtype


def same(one: Any, two: Any) -> bool:
    """Bit for bit; h5py gives objects for text."""
    if isinstance(one, h5py.Empty):
        return one == two
    one, two = np.asarray(one), np.asarray(two)
    if one.dtype.names:
        return all(same(one[name], two[name]) for name in one.dtype.names)
    if one.dtype.kind == "O":
        return one.shape == two.shape and one.tolist() == two.tolist()
    return (one.dtype, one.shape, one.tobytes()) == (two.dtype, two.shape, two.tobytes())


@pytest.mark.parametrize("name", VALUES)
def test_every_value_comes_back_as_h5py_reads_it(name: str, file: h5py.File) -> None:
    value, dtype = VALUES[name]
    file.attrs.create(name, value, dtype=dtype)
    text = json.dumps(encode(*raw(file, name)), allow_nan=False)
    text.encode("ascii")
    back = decode(json.loads(text))
    other = file.create_group("other").attrs
    other.create(name, back, dtype=getattr(back, "dtype", None))
    assert same(other[name], file.attrs[name])
    one, two = (each.get_id(name) for each in (file.attrs, other))
    assert one.get_type().equal(two.get_type()) or name == "compound"
    for told in (h5py.check_string_dtype, h5py.check_enum_dtype):
        assert told(one.dtype) == told(two.dtype)


def test_references_and_values_without_a_json_form_are_left_out_and_listed(file: h5py.File) -> None:
    file.attrs["reference"] = file.ref
    ints = h5py.vlen_dtype(np.dtype("i4"))
    ragged = np.empty(1, object)
    ragged[0] = np.arange(2, dtype="i4")
    file.attrs.create("ragged", ragged, dtype=ints)
    file.attrs["opaque"] = np.void(b"abcd")
    file.attrs["long double"] = np.longdouble(1.5)
    inside = np.zeros(1, [("a", "i4"), ("r", h5py.ref_dtype)])
    inside["r"] = file.ref
    file.attrs["inside"] = inside
    name, scalar = b"na\xffme", h5py.h5s.create(h5py.h5s.SCALAR)
    h5py.h5a.create(file.id, name, h5py.h5t.NATIVE_INT32, scalar).write(np.array(5, "i4"))
    file.attrs["unit"] = "m"
    found = read_attributes([("", file)])
    assert {path: names for path, (names, _) in found.kept.items()} == {"": ("unit",)}
    assert found.left_out == {
        "values of dtype float128": ("long double of /", 1),
        "without a name in UTF-8": ("na\\xffme of /", 1),
        "values of dtype |V4": ("opaque of /", 1),
        "values of variable length": ("ragged of /", 1),
        "references": ("inside of /", 2),
    }
    listed = attributes_left_out(file, text_of(found), lambda _: True)
    assert len(listed) == 6
    assert "attribute reference of /" in listed


def text_of(found: Attributes) -> str:
    return json.dumps({path: json.loads(text) for path, (_, text) in found.kept.items()})


def test_large_attributes_and_those_beyond_the_limit_of_a_file_are_left_out(
    file: h5py.File, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.attrs["large"] = np.zeros(reading.MAX_ATTRIBUTE_BYTES // 8 + 1)
    file.attrs["long"] = "x" * reading.MAX_ATTRIBUTE_BYTES
    file.attrs["small"] = 1
    found = read_attributes([("", file)])
    assert found.kept[""][0] == ("small",)
    assert found.left_out == {"larger than 256 KiB": ("large of /", 2)}

    for number in range(9):
        file.create_group(f"g{number}").attrs["text"] = "y" * (200 << 10)
        file[f"g{number}"].attrs["unit"] = "m"
    found = read_attributes((f"g{number}", file[f"g{number}"]) for number in range(9))
    assert sum(len(text) for _, text in found.kept.values()) < reading.MAX_FILE_BYTES
    assert [names for names, _ in found.kept.values()] == [("text", "unit")] * 5 + [("unit",)] * 4
    assert found.left_out == {"more than 1 MiB of attributes in one file": ("text of g5", 4)}


def test_an_attribute_that_cannot_be_read_is_left_out(
    file: h5py.File, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.attrs["unit"] = "m"

    def fail(*_: object, **__: object) -> None:
        message = "Unable to synchronously read attribute"
        raise OSError(message)

    monkeypatch.setattr(reading.h5py.h5a, "open", fail)
    assert read_attributes([("", file)]).left_out == {"unreadable": ("number 0 of /", 1)}


@pytest.mark.parametrize("dtype", ["O", "V4", "M8[s]", "f16", "U3"])
def test_a_stored_attribute_of_an_unsupported_dtype_is_an_error(dtype: str) -> None:
    assert type_problem(np.dtype(dtype)) is not None
    with pytest.raises(ValueError, match="attributes cannot have"):
        decode({"dtype": dtype, "value": 0})


@pytest.mark.parametrize(
    "entry",
    [
        {},
        {"dtype": "<i4"},
        {"dtype": "<i4", "value": "x"},
        {"dtype": "<i4", "shape": [10**15], "value": [1]},
        {"dtype": "i4,i4", "value": 1},
        {"dtype": "text", "encoding": "utf-16", "value": "a"},
        {"dtype": "text", "encoding": "utf-8", "value": 5},
        {"shape": [2], "fields": {"a": {"dtype": "<i4", "value": 1}}},
        {"dtype": "<f4", "value": "0xfffffffff"},
    ],
)
def test_a_malformed_stored_attribute_is_an_error(entry: dict[str, Any]) -> None:
    with pytest.raises((AttributeError, LookupError, TypeError, ValueError, OverflowError)):
        decode(entry)


def test_every_change_of_a_file_is_a_difference(file: h5py.File) -> None:
    for name in ("text", "fixed", "enumeration", "compound", "complex", "not finite", "empty"):
        value, dtype = VALUES[name]
        file.attrs.create(name, value, dtype=dtype)
    text, path = text_of(read_attributes([("", file)])), Path(file.filename)
    file.close()
    assert set(differences(path, text).values()) == {None}

    changes: dict[str, tuple[Any, Any]] = {
        "text": ("Übergrösse", UTF8),
        "fixed": (b"abc", "S4"),
        "enumeration": (1, h5py.enum_dtype({"GROUND": 1, "OTHER": 8}, "u1")),
        "compound": (np.array([(1, (2.0, 0.0), (3, b"xy"))] * 2, NESTED), NESTED),
        "complex": ([1 + 2j, complex(np.nan, 0.0)], ">c16"),
        "not finite": (np.concatenate([NANS[:1], NANS[:1], NANS[2:]]), "<f4"),
        "empty": (0, "<f4"),
    }
    with h5py.File(path, "r+") as opened:
        for name, (value, dtype) in changes.items():
            opened.attrs.create(name, value, dtype=dtype)
    found = differences(path, text)
    assert found.keys() == {f"attribute {name} of /" for name in changes}
    assert None not in found.values()
    with h5py.File(path, "r+") as opened:
        opened.attrs.clear()
    assert set(differences(path, text).values()) == {"only the store has it"}


def differences(path: Path, text: str) -> dict[str, str | None]:
    with h5py.File(path) as file:
        return {label: difference for label, _, difference in attribute_differences(file, text)}
