from __future__ import annotations

import json

import pytest

from tests.support.golden_stores import STORES
from unistore.errors import InputError
from unistore.schemas.ct.fields import coords_field, mask_field
from unistore.schemas.ct.windows import PRESETS, VALUE_SENTENCES, Window, parse_window, value_source

GOLDEN = {
    "ct.zarr": {"lung": "volume"},
    "ct_windows.zarr": {"lung": "scaled", "bone": "sparse", "brain": "mask"},
}


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("lung", -1350, 150),
        ("bone", -450, 1050),
        ("soft_tissue", -150, 250),
        ("brain", -5, 75),
        ("mediastinum", -135, 215),
    ],
)
def test_presets_have_their_documented_bounds(name: str, low: float, high: float) -> None:
    assert (PRESETS[name].low, PRESETS[name].high) == (low, high)
    assert parse_window(name) is PRESETS[name]


def test_parse_window_reads_name_width_and_level_and_is_printed_alike() -> None:
    assert parse_window("mywin:400:50") == Window("mywin", 400.0, 50.0)
    assert str(parse_window("my-win.2:40.5:-0.5")) == "my-win.2:40.5:-0.5"


@pytest.mark.parametrize(
    "text", ["liver", "a:1", "a:b:1", "a:0:1", "a:nan:1", "a:1:inf", "a/b:1:1", ":1:1", "..:1:1", "a:1:2:3"]
)
def test_an_invalid_window_is_an_error_that_names_the_form(text: str) -> None:
    with pytest.raises(InputError) as error:
        parse_window(text)
    (problem,) = error.value.problems
    assert problem.location == f"--window {text}"
    assert problem.kind == "option"
    assert "NAME:WIDTH:LEVEL" in problem.message
    assert problem.advice.startswith("use one of lung, bone, ")


def test_coords_are_as_narrow_as_the_axes_allow() -> None:
    assert coords_field("windows/w", 1 << 16, 1).dtype == "uint16"
    assert coords_field("windows/w", (1 << 16) + 1, 1).dtype == "int32"


def test_mask_rows_are_whole_bytes() -> None:
    field = mask_field("windows/w", (4, 5, 17), (32, 32, 32))
    assert field.row_shape == (4, 5, 3)
    assert field.tile == (64, 64, 8)


def test_value_source_reads_where_the_values_of_a_window_come_from() -> None:
    for store, sources in GOLDEN.items():
        for window, source in sources.items():
            document = json.loads((STORES / store / "windows" / window / "zarr.json").read_text())
            assert value_source(document["attributes"]) == source
    for attributes in ({"values": VALUE_SENTENCES["mask"]}, {"value_source": "file"}, {"value_source": None}):
        with pytest.raises(ValueError, match="of a window is unknown, expected one of volume, "):
            value_source(attributes)
