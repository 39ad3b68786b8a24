from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from tests.golden import STORES
from unistore.converters.registry import get_family
from unistore.errors import InputError
from unistore.schemas.array_specs import ArrayInfo
from unistore.schemas.ct.fields import coords_field, mask_field
from unistore.schemas.ct.windows import PRESETS, VALUE_SENTENCES, Window, parse_window, value_source

GOLDEN = {
    "ct.zarr": {"lung": "volume"},
    "ct_windows.zarr": {"lung": "scaled", "bone": "sparse", "brain": "mask"},
}
STORE = {
    "volumes/image": ArrayInfo((2, 8, 9, 10), "int16"),
    "volumes/extent": ArrayInfo((2, 3), "int32"),
    "volumes/name/data": ArrayInfo((9,), "uint8"),
    "volumes/name/offsets": ArrayInfo((3,), "int64"),
    "windows/lung/coords": ArrayInfo((5, 3), "uint16"),
    "windows/lung/values": ArrayInfo((5,), "int16"),
    "windows/lung/offsets": ArrayInfo((3,), "int64"),
    "windows/lung/present": ArrayInfo((2,), "bool"),
    "windows/bone/mask": ArrayInfo((2, 8, 9, 2), "uint8"),
    "windows/bone/offsets": ArrayInfo((3,), "int64"),
    "windows/bone/present": ArrayInfo((2,), "bool"),
    "masks/1/mask": ArrayInfo((2, 8, 9, 2), "uint8"),
    "masks/1/present": ArrayInfo((2,), "bool"),
    "sdf/lung/coords": ArrayInfo((7, 3), "int32"),
    "sdf/lung/values": ArrayInfo((7,), "float32"),
    "sdf/lung/offsets": ArrayInfo((3,), "int64"),
    "sdf/lung/present": ArrayInfo((2,), "bool"),
}


SAMPLES = "(the root's count of samples"


def problems(changes: Mapping[str, ArrayInfo | None]) -> dict[str, str]:
    arrays = {**STORE, **changes}
    found = (
        get_family("ct")
        .part("specs")
        .problems({path: info for path, info in arrays.items() if info is not None}, 2)
    )
    return {problem.location: problem.message for problem in found}


def test_a_store_is_valid() -> None:
    assert problems({}) == {}


def test_without_image() -> None:
    assert problems({"volumes/image": None}) == {}


BOTH = "coords, offsets, values or mask, offsets"


@pytest.mark.parametrize(
    ("path", "info", "said"),
    [
        ("volumes/extent", None, "is missing"),
        ("volumes/extent", ArrayInfo((2, 2), "int32"), "has shape (2, 2), expected (n, 3)"),
        (
            "volumes/image",
            ArrayInfo((2, 8, 9), "int16"),
            {
                "volumes/image": "has shape (2, 8, 9), expected (n, n, n, n)",
                **dict.fromkeys(
                    ["masks/1/mask", "windows/bone/mask"],
                    "has shape (2, 8, 9, 2), expected (8, 2) at its end, as volumes/image has (2, 8, 9)",
                ),
            },
        ),
        ("volumes/image", ArrayInfo((2, 8, 9, 10), "complex64"), "is complex64, expected numbers"),
        ("volumes/image", ArrayInfo((3, 8, 9, 10), "int16"), f"has 3 rows, expected 2 {SAMPLES})"),
        ("volumes/name/offsets", None, "is missing"),
        ("volumes/name/offsets", ArrayInfo((4,), "int64"), f"has 4 rows, expected 3 {SAMPLES} +1)"),
        (
            "windows/lung/coords",
            None,
            {
                "windows/lung/values": "needs the array windows/lung/coords",
                "windows/lung/offsets": "needs the array windows/lung/mask",
            },
        ),
        ("windows/lung/coords", ArrayInfo((5, 2), "uint16"), "has shape (5, 2), expected (n, 3)"),
        ("windows/lung/coords", ArrayInfo((5, 3), "int64"), "is int64, expected uint16 or int32"),
        ("windows/lung/values", None, {"windows/lung": f"holds coords, offsets, expected {BOTH}"}),
        (
            "windows/lung/values",
            ArrayInfo((4,), "int16"),
            "has 4 rows, expected 5 (the rows of windows/lung/coords)",
        ),
        (
            "windows/lung/mask",
            ArrayInfo((2, 8, 9, 2), "uint8"),
            {"windows/lung": f"holds coords, mask, offsets, values, expected {BOTH}"},
        ),
        ("windows/bone/offsets", ArrayInfo((2,), "int64"), f"has 2 rows, expected 3 {SAMPLES} +1)"),
        (
            "windows/bone/mask",
            ArrayInfo((2, 8, 9, 10), "uint8"),
            "has shape (2, 8, 9, 10), expected (8, 9, 2) at its end, as volumes/image has (2, 8, 9, 10)",
        ),
        ("masks/1/present", ArrayInfo((2,), "uint8"), "is uint8, expected bool"),
        (
            "sdf/lung/coords",
            None,
            {
                "sdf/lung/values": "needs the array sdf/lung/coords",
                "sdf/lung/offsets": "needs the array sdf/lung/mask",
            },
        ),
        ("masks/1/mask", None, {"masks/1": "holds neither, expected mask or label"}),
        (
            "sdf/lung/values",
            ArrayInfo((8,), "float32"),
            "has 8 rows, expected 7 (the rows of sdf/lung/coords)",
        ),
    ],
)
def test_what_is_wrong_is_said(path: str, info: ArrayInfo | None, said: str | dict[str, str]) -> None:
    """Of the array itself, where it is a text, and nothing else."""
    assert problems({path: info}) == ({path: said} if isinstance(said, str) else said)


def test_all_problems_at_once() -> None:
    removed = ("windows/lung/offsets", "masks/1/mask", "sdf/lung/values")
    assert problems(dict.fromkeys(removed)) == {
        "windows/lung": f"holds coords, values, expected {BOTH}",
        "masks/1": "holds neither, expected mask or label",
        "sdf/lung": "holds coords, offsets, expected coords, offsets, values",
    }


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [("lung", -1350, 150), ("bone", -450, 1050), ("soft_tissue", -150, 250), ("brain", -5, 75)],
)
def test_presets(name: str, low: float, high: float) -> None:
    assert (PRESETS[name].low, PRESETS[name].high) == (low, high)
    assert parse_window(name) is PRESETS[name]


def test_mediastinum() -> None:
    assert (PRESETS["mediastinum"].width, PRESETS["mediastinum"].level) == (350, 40)


def test_parse_window() -> None:
    assert parse_window("mywin:400:50") == Window("mywin", 400.0, 50.0)
    assert str(parse_window("my-win.2:40.5:-0.5")) == "my-win.2:40.5:-0.5"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("liver", "is no known window (lung, bone"),
        ("a:1", "is no known window"),
        ("a:b:1", "must be numbers"),
        ("a:0:1", "width must be above 0"),
        ("a:nan:1", "width must be above 0"),
        ("a:1:inf", "width must be above 0"),
        ("a/b:1:1", "name 'a/b' must be"),
        (":1:1", "name '' must be"),
        ("..:1:1", "name '..' must be"),
    ],
)
def test_invalid_windows(text: str, words: str) -> None:
    with pytest.raises(InputError) as error:
        parse_window(text)
    (problem,) = error.value.problems
    assert words in problem.message
    assert problem.location.startswith("--window")


def test_coords_are_as_narrow_as_the_axes_allow() -> None:
    assert coords_field("windows/w", 1 << 16, 1).dtype == "uint16"
    assert coords_field("windows/w", (1 << 16) + 1, 1).dtype == "int32"


def test_mask_rows_are_whole_bytes() -> None:
    field = mask_field("windows/w", (4, 5, 17), (32, 32, 32), "")
    assert field.row_shape == (4, 5, 3)
    assert field.tile == (64, 64, 8)


def test_where_values_come_from() -> None:
    """By a word, and in older stores, of which there is a golden one, by a sentence."""
    for store, sources in GOLDEN.items():
        for window, source in sources.items():
            document = json.loads((STORES / store / "windows" / window / "zarr.json").read_text())
            assert ("value_source" in document["attributes"]) == (store != "ct.zarr")
            assert value_source(document["attributes"]) == source
    for source, sentence in VALUE_SENTENCES.items():
        assert value_source({"values": sentence}) == source
        assert value_source({"values": "whatever", "value_source": source}) == source
    for attributes in ({"values": "whatever"}, {"values": "1", "value_source": "file"}, {"values": None}):
        with pytest.raises(ValueError, match="is not known"):
            value_source(attributes)
