"""Arrays and values that break the schema of their family: nothing is sealed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import unistore
from unistore.conversion.new_store import NewStore
from unistore.conversion.run import run
from unistore.converters.rows import RowsFamily
from unistore.errors import ConversionError, InputError
from unistore.schemas.array_specs import SAMPLES, ArraySpec
from unistore.schemas.ct import fields as ct
from unistore.schemas.declared_rules import ArraySpecs

OTHERS = ArraySpecs(
    arrays={
        "rows/data": ArraySpec(dtypes=("int8", "int16"), rows=(SAMPLES, 1)),
        "rows/other": ArraySpec(),
    }
)


def test_arrays_of_other_specs_are_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "a.npy", np.arange(12, dtype=np.float32))
    monkeypatch.setattr(RowsFamily, "specs", lambda: OTHERS)
    with pytest.raises(ConversionError) as refused:
        unistore.convert(tmp_path / "a.npy", tmp_path / "a.zarr", "rows")
    assert str(refused.value).splitlines() == [
        "the arrays do not match the schema of rows. Fix: please report this:",
        "  rows/other: is missing",
        "  rows/data: has dtype float32, expected int8 or int16",
    ]
    assert not (tmp_path / "a.zarr").exists()
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and "/c/" in path.as_posix()]


def test_rows_below_the_bound_of_their_column_name_their_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, values in (("a", [7, 8, 9]), ("b", [9, 8, 2, 1])):
        np.save(tmp_path / f"{name}.npy", np.array(values, np.int16))
    bounded = ArraySpecs(arrays={"rows/data": ArraySpec(rows=(SAMPLES, 0), least=5)})
    monkeypatch.setattr(RowsFamily, "specs", lambda: bounded)
    with pytest.raises(InputError, match=r"b\.npy: data: row 2 is 2, expected at least 5. Fix: correct"):
        unistore.convert(tmp_path, tmp_path.with_suffix(".zarr"), "rows")
    report = unistore.convert(tmp_path, tmp_path.with_suffix(".zarr"), "rows", on_error="skip")
    assert [entry["file"] for entry in report.skipped] == ["b.npy"]
    assert zarr.open(tmp_path.with_suffix(".zarr"))["rows/data"][:].tolist() == [7, 8, 9]


def test_a_plane_with_a_value_below_its_bound_is_not_sealed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume = np.full((9, 8, 8), 40, np.int16)
    volume[6, 5, 4] = -3
    np.save(tmp_path / "a.npy", volume)
    monkeypatch.setattr("unistore.conversion.plan.LARGE", 0)
    image = ArraySpec(row_shape=(None, None, None), rows=(SAMPLES, 0), least=0)
    optional = {**ct.SPECS.optional, "volumes/image": image}
    monkeypatch.setattr(ct, "SPECS", replace(ct.SPECS, optional=optional))
    with pytest.raises(InputError, match=r"a\.npy: image: row 0 is "):
        unistore.convert(tmp_path / "a.npy", tmp_path / "a.zarr", "ct")
    assert not (tmp_path / "a.zarr").exists()


def test_an_index_that_breaks_its_rule_is_not_sealed(
    tmp_path: Path, toy: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez(
        tmp_path / "a.npz", value=np.ones((4, 3)), image=np.ones((4, 2, 2), np.uint8), label=np.arange(4)
    )
    wrong = {"points/offsets": ArraySpec(offsets_of="points/xyz"), "labels/name/offsets": ArraySpec(least=1)}
    monkeypatch.setattr(RowsFamily, "specs", lambda: ArraySpecs(arrays=wrong))
    with pytest.raises(ConversionError, match=r"labels/name/offsets: row 0 is 0"):
        run(toy(undeclared=False), [tmp_path], tmp_path.with_suffix(".zarr"))
    assert not tmp_path.with_suffix(".zarr").exists()


@pytest.mark.parametrize("change", ["longer", "shorter", "gone"])
def test_a_shard_that_changed_before_the_seal_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    np.save(tmp_path / "a.npy", np.arange(12))

    seal = NewStore.seal

    def late(new_store: NewStore, *arguments: Any) -> Any:
        (shard,) = (path for path in tmp_path.rglob("data/c/0") if path.is_file())
        if change == "gone":
            shard.unlink()
        else:
            whole = shard.read_bytes()
            shard.write_bytes(whole + b"x" if change == "longer" else whole[:-1])
        return seal(new_store, *arguments)

    monkeypatch.setattr(NewStore, "seal", late)
    with pytest.raises(ConversionError, match=r"rows/data/c/0: is missing or changed since it was written"):
        unistore.convert(tmp_path / "a.npy", tmp_path / "a.zarr", "rows")
    assert not (tmp_path / "a.zarr").exists()
