"""Parquet: against pyarrow and NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

import unistore
from unistore import verify
from unistore.conversion.signatures import convert
from unistore.converters.formats.parquet import Parquet
from unistore.converters.opened import SourceFile
from unistore.errors import InputError
from unistore.testing import check_format

ROWS = 700
RANDOM = np.random.default_rng(5)
COLUMNS = {
    "height": RANDOM.normal(size=ROWS),
    "count": RANDOM.integers(-9, 9, ROWS, "i2"),
    "good": RANDOM.random(ROWS) < 0.5,
    "state": RANDOM.normal(size=(ROWS, 3)).astype("f4"),
    "grid": RANDOM.integers(0, 256, (ROWS, 2, 2), "u1"),
}


def nested(values: np.ndarray) -> pa.Array:
    if values.ndim == 1:
        return pa.array(values)
    return pa.array(values.tolist(), pa_type(values))


def pa_type(values: np.ndarray) -> pa.DataType:
    kind = pa.from_numpy_dtype(values.dtype)
    for extent in reversed(values.shape[1:]):
        kind = pa.list_(kind, extent)
    return kind


def write(path: Path, **further: object) -> Path:
    columns = {name: nested(values) for name, values in COLUMNS.items()}
    pq.write_table(pa.table({**columns, **further}), path, row_group_size=128)
    return path


def test_the_format_keeps_its_promises(tmp_path: Path) -> None:
    check_format(Parquet(), write(tmp_path / "a.parquet"), COLUMNS)


@pytest.mark.usefixtures("in_this_process")
def test_tables_become_rows_and_tables_again(tmp_path: Path) -> None:
    (tmp_path / "tables").mkdir()
    for name in ("a", "b"):
        write(tmp_path / "tables" / f"{name}.parquet", name=["cat"] * ROWS)
    store = tmp_path / "store"
    convert(tmp_path / "tables", store)
    batch = unistore.Dataset(store).__getitems__([3, ROWS + 4])
    np.testing.assert_array_equal(np.stack([row["state"] for row in batch]), COLUMNS["state"][3:5])
    receipt = verify(store, against=tmp_path / "tables").receipt
    assert receipt is not None
    assert receipt.left_out == ("name",)
    unistore.export(store, tmp_path / "again")
    again = pq.read_table(tmp_path / "again/b.parquet").column("grid").to_pylist()
    np.testing.assert_array_equal(again, COLUMNS["grid"])


@pytest.mark.usefixtures("in_this_process")
def test_points_of_a_table_become_a_cloud(tmp_path: Path) -> None:
    points = {axis: RANDOM.normal(size=50) for axis in "xyz"}
    pq.write_table(pa.table(points), tmp_path / "a.parquet")
    convert(tmp_path / "a.parquet", tmp_path / "store", "point_cloud")
    found = unistore.Dataset(tmp_path / "store")[0]["xyz"]
    given = np.stack(list(points.values()), 1)
    np.testing.assert_allclose(found, given - given.min(0), atol=1e-6)  # samples begin at their origin


def test_missing_values_are_an_error_that_names_the_column(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1, None, 3]}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"a\.parquet: its column 'a' has missing values"):
        unistore.convert(tmp_path / "a.parquet", tmp_path / "store")


@pytest.mark.usefixtures("in_this_process")
def test_a_note_names_the_columns_that_only_folders_state(tmp_path: Path) -> None:
    whole = pa.table({"x": [1.0, 2.0, 3.0], "label": [0, 1, 1], "year": [7, 7, 8]})
    pq.write_to_dataset(whole, tmp_path / "in", partition_cols=["label", "year"])
    report = unistore.convert(tmp_path / "in", tmp_path / "store", "rows")
    assert any("names of folders state label, year" in note for note in report.notes)
    assert list(unistore.Dataset(tmp_path / "store")[0]) == ["index", "x"]


def test_columns_of_one_name_are_an_error(tmp_path: Path) -> None:
    doubled = pa.Table.from_arrays([pa.array([1, 2]), pa.array([3, 4])], names=["x", "x"])
    pq.write_table(doubled, tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"a\.parquet: has 2 columns called 'x'"):
        unistore.convert(tmp_path / "a.parquet", tmp_path / "store", "rows")


@pytest.mark.parametrize("field", [{"b": 1}, {"b": "text"}])
def test_a_column_called_like_a_field_of_another_has_its_own_values(
    tmp_path: Path, field: dict[str, Any]
) -> None:
    pq.write_table(pa.table({"a": [field, field], "a.b": [10, 20]}), tmp_path / "a.parquet")
    with Parquet().open(SourceFile(tmp_path / "a.parquet", "a.parquet")) as file:
        assert file.arrays["a.b"][:].tolist() == [10, 20]


def test_a_table_of_only_texts_is_an_error(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": ["x", "y"]}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"a\.parquet: contains no arrays"):
        unistore.convert(tmp_path / "a.parquet", tmp_path / "store", "rows")


def with_checksums(path: Path, damaged: int | None) -> NDArray[Any]:
    """Write a table whose pages have checksums, and change one bit of row `damaged` of column a."""
    values = np.arange(500.0)
    form: dict[str, Any] = {"write_page_checksum": True, "use_dictionary": False, "compression": "none"}
    pq.write_table(pa.table({"a": values}), path, row_group_size=100, **form)
    if damaged is not None:
        content = bytearray(path.read_bytes())
        content[content.index(np.float64(damaged).tobytes()) + 6] ^= 1
        path.write_bytes(content)
    return values


@pytest.mark.parametrize("damaged", [None, 250])
def test_checksums_of_pages_are_verified(damaged: int | None, tmp_path: Path) -> None:
    (tmp_path / "tables").mkdir()
    table = tmp_path / "tables/a.parquet"
    values = with_checksums(table, damaged)
    store = tmp_path / "store"
    if damaged is None:
        np.testing.assert_array_equal(pq.read_table(table, page_checksum_verification=True)["a"], values)
        unistore.convert(tmp_path / "tables", store, workers=0)
        np.testing.assert_array_equal([row["a"] for row in unistore.Dataset(store)], values)
        with_checksums(table, 250)
        assert "CRC checksum" in str(unistore.verify(store, against=tmp_path / "tables").problems)
        return
    with pytest.raises(OSError, match="CRC checksum"):
        pq.read_table(table, page_checksum_verification=True)
    with pytest.raises(InputError, match=r"a\.parquet: is damaged: .*CRC checksum") as raised:
        unistore.convert(tmp_path / "tables", store, workers=0)
    assert raised.value.problems[0].kind == "damaged"
