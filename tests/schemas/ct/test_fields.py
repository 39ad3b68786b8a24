from __future__ import annotations

import pytest

from unistore.converters.registry import get_family
from unistore.errors import InputError
from unistore.schemas.array_spec import ArrayInfo
from unistore.schemas.ct.fields import coords_field, mask_field
from unistore.schemas.ct.windows import PRESETS, Window, parse_window

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


def problems(**changes: ArrayInfo | None) -> dict[str, str]:
    arrays = {**STORE, **{path.replace("__", "/"): info for path, info in changes.items()}}
    found = (
        get_family("ct")
        .part("specs")
        .problems({path: info for path, info in arrays.items() if info is not None}, 2)
    )
    return {problem.location: problem.message for problem in found}


def test_a_store_is_valid() -> None:
    assert problems() == {}


def test_without_image() -> None:
    assert problems(volumes__image=None) == {}


@pytest.mark.parametrize(
    ("path", "info", "location", "message"),
    [
        ("volumes__extent", None, "volumes/extent", "is missing"),
        ("volumes__extent", ArrayInfo((2, 2), "int32"), "volumes/extent", "expected (n, 3)"),
        ("volumes__image", ArrayInfo((2, 8, 9), "int16"), "volumes/image", "expected (n, n, n, n)"),
        ("volumes__image", ArrayInfo((2, 8, 9, 10), "complex64"), "volumes/image", "expected numbers"),
        ("volumes__image", ArrayInfo((3, 8, 9, 10), "int16"), "volumes/image", "expected 2 ("),
        ("volumes__name__offsets", None, "volumes/name/offsets", "is missing"),
        (
            "volumes__name__offsets",
            ArrayInfo((4,), "int64"),
            "volumes/name/offsets",
            "has 4 rows, expected 3",
        ),
        ("windows__lung__coords", None, "windows/lung/values", "needs the array windows/lung/coords"),
        ("windows__lung__coords", ArrayInfo((5, 2), "uint16"), "windows/lung/coords", "(n, 3)"),
        ("windows__lung__coords", ArrayInfo((5, 3), "int64"), "windows/lung/coords", "uint16 or int32"),
        ("windows__lung__values", None, "windows/lung", "holds coords, offsets, expected"),
        ("windows__lung__values", ArrayInfo((4,), "int16"), "windows/lung/values", "has 4 rows, expected 5"),
        (
            "windows__lung__mask",
            ArrayInfo((2, 8, 9, 2), "uint8"),
            "windows/lung",
            "holds coords, mask, offsets, values",
        ),
        (
            "windows__bone__offsets",
            ArrayInfo((2,), "int64"),
            "windows/bone/offsets",
            "has 2 rows, expected 3",
        ),
        ("windows__bone__mask", ArrayInfo((2, 8, 9, 10), "uint8"), "windows/bone/mask", "expected (8, 9, 2)"),
        ("masks__1__present", ArrayInfo((2,), "uint8"), "masks/1/present", "expected bool"),
        ("sdf__lung__coords", None, "sdf/lung/values", "needs the array sdf/lung/coords"),
        ("masks__1__mask", None, "masks/1", "holds neither, expected mask or label"),
        ("sdf__lung__values", ArrayInfo((8,), "float32"), "sdf/lung/values", "has 8 rows, expected 7"),
    ],
)
def test_what_is_wrong_is_said(path: str, info: ArrayInfo | None, location: str, message: str) -> None:
    found = problems(**{path: info})
    assert message in found[location]


def test_all_problems_at_once() -> None:
    found = problems(windows__lung__offsets=None, masks__1__mask=None, sdf__lung__values=None)
    assert list(found) == ["windows/lung", "masks/1", "sdf/lung"]


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
