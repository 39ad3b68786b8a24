"""Rules that a family declares: those of every store, by path, and by templates of paths."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest

from unistore.errors import Problem
from unistore.schemas.array_specs import (
    BYTES,
    SAMPLES,
    TEXT,
    ArrayInfo,
    ArraySpec,
    Limit,
    rule_problems,
    spec_of,
)
from unistore.schemas.declared_rules import ArraySpecs, Declared, is_kept, resolved, text_columns
from unistore.schemas.ragged import table_columns

PINGS = ArraySpec(dtypes=("uint16",), rows=(SAMPLES, 0))
SPECS = ArraySpecs(
    arrays={"rows/echo": PINGS, "rows/rate": ArraySpec(rows=("rows/echo", 0))},
    optional={"rows/<column>": ArraySpec(rows=("rows/echo", 0))},
)


def rule(optional: dict[str, Declared], path: str, paths: Collection[str] = ()) -> ArraySpec:
    """The rule of an array in a store that has these, too."""
    return resolved(ArraySpecs(optional=optional), {path, *paths}).of(path)


def test_the_problems_of_all_arrays_are_reported_together() -> None:
    arrays = {
        "rows/rate": ArrayInfo((4,), "uint16"),
        "splits/code": ArrayInfo((5,), "int8"),
        "sources/bytes": ArrayInfo((2,), "int64"),
    }
    assert [str(each) for each in SPECS.problems(arrays, 5)] == [
        "rows/echo: is missing",
        "rows/rate: its rule needs the array rows/echo, which is missing",
        "splits/code: has dtype int8, expected uint8",
        "sources/bytes: its rule needs the array sources/path/offsets, which is missing",
    ]
    del arrays["rows/rate"]
    assert [str(each) for each in SPECS.problems(arrays, 5)][:2] == [
        "rows/echo: is missing",
        "rows/rate: is missing",
    ]
    arrays |= {"rows/rate": ArrayInfo((4,), "uint16")}
    arrays |= {"rows/echo": ArrayInfo((6,), "uint16"), "splits/code": ArrayInfo((5,), "uint8")}
    del arrays["sources/bytes"]
    assert [each.file for each in SPECS.problems(arrays, 5)] == ["rows/rate", "rows/echo"]
    assert ArraySpecs().problems({"splits/code": ArrayInfo((5,), "uint8")}, 5) == []


def test_specs_in_a_circle_are_a_problem() -> None:
    circle = {"rows/a": "rows/b", "rows/b": "rows/c", "rows/c": "rows/a", "rows/d": "rows/d"}
    specs = ArraySpecs(
        optional={path: ArraySpec(like=(Limit(other, (0,)),)) for path, other in circle.items()}
    )
    found = specs.problems(dict.fromkeys(circle, ArrayInfo((5,), "f4")), 5)
    assert [str(each) for each in found] == [
        f"{path}: its rule refers back to its own array" for path in circle
    ]


def test_the_check_of_a_family_runs_only_if_all_arrays_fit() -> None:
    specs = ArraySpecs(arrays={"rows/echo": ArraySpec()}, check=lambda arrays: [Problem("rows", "never")])
    assert [str(each) for each in specs.problems({}, 5)] == ["rows/echo: is missing"]
    assert [str(each) for each in specs.problems({"rows/echo": ArrayInfo((5,), "f4")}, 5)] == ["rows: never"]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (ArraySpec(kinds="iuf"), "has dtype bool, expected integers, unsigned integers or floats"),
        (ArraySpec(beside=("rows/image",)), None),
        (ArraySpec(beside=("rows/gone",)), "its rule needs the array rows/gone"),
        (ArraySpec(like=(Limit("rows/image", (1, 2), 8),)), None),
        (
            ArraySpec(like=(Limit("rows/image", (1, 2)),)),
            "has shape (5, 7, 2), expected (…, 7, 9), because ",
        ),
        (
            ArraySpec(like=(Limit("rows/image", (1,), 8),)),
            "has shape (5, 7, 2), expected (…, 1), because ",
        ),
        (ArraySpec(like=(Limit("rows/gone", (1,)),)), "its rule needs the array rows/gone"),
    ],
)
def test_a_wrong_kind_or_a_missing_companion_array_is_a_problem(spec: ArraySpec, message: str | None) -> None:
    rules = {"rows/mask": spec, "rows/image": ArraySpec()}
    arrays = {"rows/mask": ArrayInfo((5, 7, 2), "bool"), "rows/image": ArrayInfo((5, 7, 9), "uint8")}
    found = [each.message for each in rule_problems(rules, arrays, 5)]
    assert [each[: len(message or "")] for each in found] == ([] if message is None else [message])


def test_placeholders_of_a_template_are_filled_in_its_spec() -> None:
    declared: dict[str, Declared] = {
        "voxels/<size>/counts": spec_of("uint32", rows=("voxels/<size>/coords", 0)),
        "clocks/<clock>/<column>": ArraySpec(beside=("clocks/<clock>/offsets", "texts/<column>")),
    }
    assert rule(declared, "voxels/0.5/counts") == spec_of("uint32", rows=("voxels/0.5/coords", 0))
    assert rule(declared, "voxels/a/b/counts").rows == ("voxels/a/b/coords", 0)
    # the first hole ends at the first slash that fits
    assert rule(declared, "clocks/cam/a/b").beside == ("clocks/cam/offsets", "texts/a/b")
    for path in ("voxels/counts", "voxels//counts", "a/voxels/1/counts", "voxels/1/counts/x"):
        assert rule(declared, path) == ArraySpec()


def test_an_exact_path_wins_over_templates_and_the_first_template_over_later_ones() -> None:
    declared: dict[str, Declared] = {
        "rows/<name>_file": ArraySpec(kinds="u"),
        "rows/<name>": ArraySpec(kinds="f"),
        "rows/a_file": ArraySpec(kinds="i"),
    }
    assert [rule(declared, f"rows/{name}").kinds for name in ("a_file", "b_file", "b")] == ["i", "u", "f"]


def test_a_placeholder_of_digits_is_filled_as_an_extent() -> None:
    declared: dict[str, Declared] = {"frames/voxel/<#bins>": ArraySpec(row_shape=("<#bins>", None))}
    assert rule(declared, "frames/voxel/12").row_shape == (12, None)
    for path in ("frames/voxel/x", "frames/voxel/1x", "frames/voxel/١"):
        assert rule(declared, path) == ArraySpec()


def test_only_limits_of_present_arrays_apply_and_exact_paths_come_first() -> None:
    limits = (Limit("z/image", (1,)), Limit("<group>/label", (1,), 2), Limit("<group>/mask", (1,), 8))
    declared: dict[str, Declared] = {"z/extent": ArraySpec(limits=limits, like=limits)}
    paths = ("b/mask", "a/label", "z/image", "b/other")
    expected = (Limit("z/image", (1,)), Limit("a/label", (1,), 2), Limit("b/mask", (1,), 8))
    assert rule(declared, "z/extent", paths) == ArraySpec(limits=expected, like=expected)
    assert rule(declared, "z/extent", ["a/label"]).limits == expected[1:2]
    assert rule(declared, "z/extent") == ArraySpec()


def test_the_first_of_several_specs_with_present_arrays_applies_else_the_last() -> None:
    bits = Limit("w/<name>/mask", (1, 2, 3), 8)
    declared: dict[str, Declared] = {
        "w/<name>/offsets": (ArraySpec(offsets_of="w/<name>/coords"), ArraySpec(offsets_of=bits))
    }
    assert rule(declared, "w/a/offsets", ["w/a/coords"]).offsets_of == "w/a/coords"
    assert rule(declared, "w/a/offsets", ["w/a/mask", "w/b/coords"]).offsets_of == bits._replace(
        path="w/a/mask"
    )
    assert rule(declared, "w/a/offsets").offsets_of == bits._replace(path="w/a/mask")


CLIPS: dict[str, Declared] = {
    "clips/offsets": (
        spec_of("int64", rows=(SAMPLES, 1), offsets_of="frames/"),
        spec_of("int64", rows=(SAMPLES, 1), indexes=("frames/", 1), ascending=True),
    ),
    **table_columns("frames", "frames/"),
}


def test_a_table_is_resolved_to_the_column_that_counts_its_rows() -> None:
    rules = resolved(
        ArraySpecs(optional=CLIPS),
        [
            "clips/offsets",
            "frames/c",
            "frames/b",
            "frames/a_utf8/data",
            "frames/a_utf8/offsets",
            "sources/frames/offsets",
        ],
    ).rules()
    assert rules == {
        "clips/offsets": spec_of("int64", rows=(SAMPLES, 1), offsets_of="frames/b"),
        "frames/b": ArraySpec(),
        "frames/c": ArraySpec(rows=("frames/b", 0)),
        "frames/a_utf8/data": replace(BYTES, beside=rules["frames/a_utf8/data"].beside),
        "frames/a_utf8/offsets": spec_of("int64", rows=("frames/b", 1), offsets_of="frames/a_utf8/data"),
        "sources/frames/offsets": spec_of("int64", rows=("sources/path/offsets", 0), offsets_of="frames/b"),
    }
    # a declared column counts them, though another one is before it
    specs = ArraySpecs(arrays={"frames/c": PINGS}, optional=CLIPS)
    assert resolved(specs, ["frames/b", "frames/c"]).of("frames/b").rows == ("frames/c", 0)


def test_rows_of_a_table_of_ragged_columns_alone_are_counted_by_the_first_of_them() -> None:
    ragged = [f"frames/{name}_ragged/{array}" for name in "ba" for array in ("data", "offsets")]
    rules = resolved(ArraySpecs(optional=CLIPS), ["clips/offsets", *ragged]).rules()
    bounds = "frames/a_ragged/offsets"
    assert rules["clips/offsets"].indexes == (bounds, 0)
    assert rules["clips/offsets"].offsets_of is None
    assert rules[bounds] == spec_of("int64", offsets_of="frames/a_ragged/data")
    assert rules["frames/b_ragged/offsets"].rows == (bounds, 0)


def test_a_column_is_ragged_only_if_it_has_both_data_and_offsets() -> None:
    declared = table_columns("rows", SAMPLES)
    plain = ArraySpec(rows=(SAMPLES, 0))
    for suffix in ("_ragged", "_utf8"):
        data, offsets = f"rows/a{suffix}/data", f"rows/a{suffix}/offsets"
        assert rule(declared, offsets, [data]) == spec_of("int64", rows=(SAMPLES, 1), offsets_of=data)
        assert rule(declared, offsets) == plain
    assert rule(declared, "rows/a_ragged/data", ["rows/a_ragged/offsets"]).beside == (
        "rows/a_ragged/offsets",
    )
    assert rule(declared, "rows/a_ragged/data") == rule(declared, "rows/a/data", ["rows/a/offsets"]) == plain


def test_arrays_of_sources_have_rules_as_texts_offsets_or_one_value_each() -> None:
    assert rule({}, "sources/note", ()) == ArraySpec(rows=("sources/path/offsets", -1))
    assert rule({}, "sources/note/data", ["sources/note/offsets"]) == TEXT
    bounds = rule({}, "sources/note/offsets", ["sources/note/data"])
    assert bounds == spec_of("int64", rows=("sources/path/offsets", 0), offsets_of="sources/note/data")
    of_table = rule({}, "sources/voxels/0.5/offsets", ["voxels/0.5/coords"])
    assert of_table == replace(bounds, offsets_of="voxels/0.5/coords")
    assert rule({}, "sources/voxels/0.5/offsets") == replace(bounds, offsets_of=None)


def test_a_declared_column_adds_bounds_to_its_rule() -> None:
    specs = ArraySpecs(optional={"rows/<column>": ArraySpec(rows=(SAMPLES, 0))})
    columns = {"rows/a": ArraySpec(least=0, most=3), "rows/b": None}
    rules = resolved(specs, ["rows/a", "rows/b"], columns)
    bounded = ArraySpecs(arrays={"rows/a": ArraySpec(kinds="iu", most=2)})
    assert resolved(bounded, ["rows/a"], columns).of("rows/a") == ArraySpec(kinds="iu", least=0, most=2)
    assert rules.of("rows/a") == ArraySpec(rows=(SAMPLES, 0), least=0, most=3)
    assert rules.of("rows/b") == ArraySpec(rows=(SAMPLES, 0))


def test_a_recorded_rule_may_only_restrict_the_values_of_the_declared_one() -> None:
    declared = ArraySpec(rows=(SAMPLES, 0), least=0)
    assert is_kept(declared, replace(declared, kinds="u", row_shape=(3,), most=4))
    for other in (
        ArraySpec(rows=(SAMPLES, 0)),
        replace(declared, least=1),
        replace(declared, rows=(SAMPLES, 1)),
        replace(declared, rows=None),
        replace(declared, ascending=True),
        replace(declared, absent=0),
        replace(declared, limits=(Limit("rows/a", (0,)),)),
    ):
        assert not is_kept(declared, other), other


def test_texts_may_be_absent() -> None:
    declared = text_columns("sources/header", (SAMPLES, 1), absent="{}")
    rules = resolved(ArraySpecs(optional=declared), declared).rules()
    assert {path: rule.absent for path, rule in rules.items()} == dict.fromkeys(declared, "{}")
    assert rules["sources/header/data"].text
