"""Rules of several stores together, from what their roots record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unistore
from unistore.errors import InputError
from unistore.growing.united_rules import united_rules
from unistore.schemas.array_specs import SAMPLES, ArraySpec, Limit, spec_of
from unistore.schemas.declared_rules import ArraySpecs, is_kept, resolved
from unistore.schemas.ragged import table_columns
from unistore.schemas.spike.fields import SPECS as SPIKE

CLIPS = ArraySpecs(
    arrays={"clips/offsets": spec_of("int64", rows=(SAMPLES, 1), offsets_of="frames/")},
    optional=table_columns("frames", "frames/"),
)
COMMON = ("clips/offsets", "sources/frames/offsets")


def test_limits_and_companions_of_arrays_are_united() -> None:
    one = {"f/extent": ArraySpec(least=1, limits=(Limit("f/bits", (1, 2), 8),)), "f/bits": ArraySpec()}
    two = {
        "f/extent": ArraySpec(least=1, limits=(Limit("f/voxel/2", (2, 3)),), beside=("f/a",), kinds="i"),
        "f/bits": ArraySpec(like=(Limit("f/voxel/2", (2, 3), 8),)),
        "f/voxel/2": ArraySpec(),
    }
    united = united_rules([one, two])
    limits = (*one["f/extent"].limits, *two["f/extent"].limits)
    # kinds that one store allows any of may be any
    assert united["f/extent"] == ArraySpec(least=1, limits=limits, beside=("f/a",))
    assert united["f/bits"] == two["f/bits"]
    assert united["f/voxel/2"] == ArraySpec()


@pytest.mark.parametrize(
    ("other", "name"),
    [
        (ArraySpec(least=0, absent=0), "absent"),
        (ArraySpec(least=0, rows=(SAMPLES, 0)), "rows"),
        (ArraySpec(least=0, dtypes=("int32",)), "dtypes"),
        (ArraySpec(least=0, ascending=True), "ascending"),
    ],
)
def test_rules_that_differ_between_stores_are_an_error_that_names_them(other: ArraySpec, name: str) -> None:
    for stores in (
        [{"a/x": ArraySpec(least=0)}, {"a/x": other}],
        [{"a/x": other}, {"a/x": ArraySpec(least=0)}],
    ):
        with pytest.raises(InputError) as refused:
            united_rules(stores)
        (problem,) = refused.value.problems
        assert problem.file == "a/x"
        assert problem.message == f"its rules differ between the parts: {name}"
        assert problem.fix == "convert all sources together"


@pytest.mark.parametrize(
    ("one", "other", "united"),
    [
        (ArraySpec(least=0, most=2), ArraySpec(least=0, most=3), ArraySpec(least=0, most=3)),
        (ArraySpec(least=0, most=2), ArraySpec(least=-1), ArraySpec(least=-1)),
        (ArraySpec(least=0), ArraySpec(), ArraySpec()),
        (ArraySpec(row_shape=(3, None)), ArraySpec(row_shape=(4, None)), ArraySpec(row_shape=(None, None))),
        (ArraySpec(row_shape=(3,)), ArraySpec(row_shape=(3,)), ArraySpec(row_shape=(3,))),
        (ArraySpec(row_shape=(3,)), ArraySpec(row_shape=(3, 3)), ArraySpec()),
        (ArraySpec(row_shape=(3,)), ArraySpec(), ArraySpec()),
    ],
)
def test_values_and_shapes_that_any_store_allows_are_allowed(
    one: ArraySpec, other: ArraySpec, united: ArraySpec
) -> None:
    assert united_rules([{"a/x": one}, {"a/x": other}]) == {"a/x": united}
    assert united_rules([{"a/x": other}, {"a/x": one}]) == {"a/x": united}


@pytest.mark.parametrize(
    "columns",
    [
        (["frames/a", "frames/c"], ["frames/b", "frames/c"]),
        (["frames/c", "frames/d"], ["frames/a", "frames/c"]),
        (["frames/b", "frames/t_utf8/data", "frames/t_utf8/offsets"], ["frames/a"]),
    ],
)
def test_rows_of_a_table_are_counted_by_the_column_that_one_conversion_would_take(
    columns: tuple[list[str], list[str]],
) -> None:
    stores = [resolved(CLIPS, [*COMMON, *paths]).rules() for paths in columns]
    together = resolved(CLIPS, {*COMMON, *columns[0], *columns[1]}).rules()
    assert united_rules(stores) == dict(together)
    assert united_rules(stores[::-1]) == dict(together)


def test_extents_of_spikes_and_voxels_are_those_of_one_conversion() -> None:
    shared = ["frames/spike_extent", "frames/source", "sequences/offsets", "sources/frames/offsets"]
    paths = [[*shared, "frames/voxel/5"], [*shared, "spikes/bits", "frames/offsets", "frames/blur"]]
    united = united_rules([resolved(SPIKE, own).rules() for own in paths])
    together = resolved(SPIKE, {*paths[0], *paths[1]}).rules()
    differing = [path for path, rule in together.items() if not is_kept(rule, united[path])]
    # one conversion has voxels of as many pixels as bits, which no store of one of them says
    assert differing == ["spikes/bits"]
    assert united["sequences/offsets"].offsets_of == "frames/spike_extent"


def test_without_the_family_stores_of_other_columns_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, columns in (("a", ["x"]), ("b", ["x"]), ("c", ["x", "y"])):
        arrays: dict[str, Any] = {column: np.arange(4.0) for column in columns}
        np.savez(tmp_path / f"{name}.npz", **arrays)
        unistore.convert(tmp_path / f"{name}.npz", tmp_path / f"{name}.zarr", "rows", columns="union")
    a, b, c = (tmp_path / f"{name}.zarr" for name in "abc")
    monkeypatch.setattr("unistore.converters.registry._own", lambda _: "cannot be imported")
    assert unistore.compact([a, b], tmp_path / "ab.zarr").samples == 8
    with pytest.raises(InputError, match="family rows: cannot be imported"):
        unistore.compact([a, c], tmp_path / "ac.zarr")
    assert not (tmp_path / "ac.zarr").exists()
