"""Rules of arrays as a root records them: JSON objects, and what they must not say."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.support.golden_stores import STORES
from unistore.converters.families import specs_of
from unistore.converters.registry import get_family
from unistore.schemas.array_specs import SAMPLES, ArrayInfo, ArraySpec, Limit
from unistore.schemas.declared_rules import resolved
from unistore.schemas.recorded_rules import (
    RecordedSpecs,
    RuleError,
    StatedRules,
    StoredField,
    extensions,
    parse_rule,
    recorded,
    rule_of,
    with_side_table,
)
from unistore.store.reader import Store

EVERYTHING = ArraySpec(
    dtypes=("int32", "int64"),
    kinds="iu",
    row_shape=(3, None),
    rows=("points/xyz", -1),
    beside=("points/rgb",),
    like=(Limit("volumes/image", (1, 2, 3), 8),),
    offsets_of=Limit("windows/lung/mask", (1, 2, 3), 8),
    indexes=("sources/path/offsets", -1),
    ascending=True,
    least=-7,
    limits=(Limit("volumes/image", (1,)),),
    text=True,
)


def stated(members: dict[str, Any]) -> StoredField:
    return StoredField(axes=(), members=members)


PLAIN = [path for path in sorted(STORES.iterdir()) if (path / "zarr.json").exists()]


@pytest.mark.parametrize(
    "rule",
    [ArraySpec(), ArraySpec(rows=(SAMPLES, 1), offsets_of="points/xyz"), ArraySpec(row_shape=()), EVERYTHING],
)
def test_a_rule_is_read_back_from_json(rule: ArraySpec) -> None:
    assert parse_rule(json.loads(json.dumps(rule_of(rule)))) == rule


def test_a_rule_says_nothing_that_is_the_default() -> None:
    assert rule_of(ArraySpec()) == {}
    assert rule_of(ArraySpec(least=0, row_shape=())) == {"row_shape": [], "least": 0}


@pytest.mark.parametrize("path", PLAIN, ids=lambda path: path.stem)
def test_a_golden_store_records_the_rules_that_its_family_declares(path: Any) -> None:
    store = Store(path)
    declared = resolved(specs_of(get_family(store.family)), store.paths()).rules()
    fields = store.attributes["fields"]
    for name, rule in declared.items():
        # columns of plain arrays, which the files name, say what they are, too
        expected = replace(rule, kinds="biuf") if name in ("rows/data", "rows/label") else rule
        said = {key: fields[name][key] for key in ("rule", "absent") if key in fields[name]}
        assert said == json.loads(json.dumps(recorded(expected))), name
        assert store.specs.of(name) == expected
    arrays = {
        name: ArrayInfo(store.array(name).shape, store.array(name).dtype.name) for name in store.paths()
    }
    assert store.specs.problems(arrays, store.sample_count) == []


def test_a_rule_bounds_numbers_of_classes() -> None:
    rule = parse_rule({"least": 0, "most": 2})
    assert rule == ArraySpec(least=0, most=2)
    assert list(rule.value_errors(np.array([0, 2, 1], "u1"), dict[str, Any]().__getitem__)) == []
    (error,) = rule.value_errors(np.array([0, 3, 1], "u1"), dict[str, Any]().__getitem__)
    assert error == "row 1 is 3, expected at most 2, the number of its last class"


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (None, "is None, expected an object"),
        ([], "expected an object"),
        ({"dtype": ["int32"]}, "unknown member 'dtype'"),
        ({"dtypes": "int32"}, "member 'dtypes'"),
        ({"rows": ["points/xyz"]}, "member 'rows'"),
        ({"rows": ["../out", 0]}, "member 'rows'"),
        ({"rows": ["points/xyz", True]}, "member 'rows'"),
        ({"row_shape": [3.0]}, "member 'row_shape'"),
        ({"least": "0"}, "member 'least'"),
        ({"most": 2.0}, "member 'most'"),
        ({"ascending": 1}, "member 'ascending'"),
        ({"limits": [{"array": "a/b", "axes": [], "scale": 1}]}, "member 'limits'"),
        ({"limits": [{"array": "a/b", "axes": [-1], "scale": 1}]}, "member 'limits'"),
        ({"limits": [{"array": "a/b", "axes": [1], "scale": 0}]}, "member 'limits'"),
        ({"like": [{"array": "a/b", "axes": [1]}]}, "member 'like'"),
        ({"offsets_of": 3}, "member 'offsets_of'"),
    ],
)
def test_a_malformed_recorded_rule_is_an_error_that_names_its_array(document: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_rule(document)
    rules = StatedRules({"rows/x": stated({"rule": document})}, "a.zarr")
    with pytest.raises(
        RuleError, match=f"a.zarr: zarr.json is damaged: the rule of 'rows/x' .*{message}"
    ) as error:
        rules["rows/x"]
    assert str(pickle.loads(pickle.dumps(error.value))) == str(error.value)


@pytest.mark.parametrize("absent", [-1, 0.5, False, "{}"])
def test_the_value_of_an_absent_array_is_recorded_beside_its_rule(absent: float | str) -> None:
    field = json.loads(json.dumps(recorded(ArraySpec(least=0, absent=absent))))
    assert field == {"rule": {"least": 0}, "absent": absent}
    rule = StatedRules({"rows/x": stated(field)}, "a.zarr")["rows/x"]
    assert (rule.absent, type(rule.absent)) == (absent, type(absent))


@pytest.mark.parametrize("absent", [[], {}, ["{}"]])
def test_a_malformed_absent_member_is_an_error(absent: Any) -> None:
    rules = StatedRules({"rows/x": stated({"rule": {}, "absent": absent})}, "a.zarr")
    with pytest.raises(
        RuleError,
        match=r"a\.zarr: zarr\.json is damaged: the rule of 'rows/x' has an invalid member 'absent': ",
    ):
        rules["rows/x"]


def test_rules_in_a_circle_are_refused() -> None:
    counted_by = {"a/a": "a/b", "a/b": "a/a", "a/c": "a/a", "a/d": "a/e", "a/e": SAMPLES}
    rules = StatedRules(
        {path: stated({"rule": {"rows": [other, 0]}}) for path, other in counted_by.items()}, "a.zarr"
    )
    for path in ("a/a", "a/b"):
        with pytest.raises(RuleError, match=r"the rule of 'a/[ab]' refers back"):
            rules[path]
    assert rules["a/d"] == ArraySpec(rows=("a/e", 0))


def test_a_side_table_adds_limits_to_rules_of_its_store() -> None:
    """A further array of voxels bounds the extents of the frames, beside the bits that bound them before."""
    bits, voxels, more = Limit("f/bits", (1, 2), 8), Limit("f/voxel/2", (2, 3)), Limit("f/voxel/4", (2, 3))
    before = {"f/extent": ArraySpec(least=1, limits=(bits,)), "f/bits": ArraySpec()}
    fields = {path: stated({"rule": rule_of(rule)}) for path, rule in before.items()}
    for limit in (voxels, more):
        after = {**before, "f/extent": ArraySpec(least=1, limits=(bits, limit)), limit.path: ArraySpec()}
        added = extensions(RecordedSpecs(before), RecordedSpecs(after))
        assert [*added] == ["f/extent"]
        side = {limit.path: stated({"rule": {}})}
        fields = with_side_table(fields, side, json.loads(json.dumps(added)), "a.zarr")
    assert parse_rule(fields["f/extent"].members["rule"]) == ArraySpec(least=1, limits=(bits, voxels, more))
    assert parse_rule(fields["f/bits"].members["rule"]) == ArraySpec()
