"""Rows that were read are copied from wherever they are, all of them or none."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from unistore.conversion.job import RowsRead, StoredRows
from unistore.errors import ConversionError

X = np.arange(40, dtype="f4").reshape(20, 2)
FLAG = np.arange(20) % 3 == 0


def _stored(folder: Path, lo: int, hi: int) -> StoredRows:
    rows = StoredRows("t", lo, hi, folder / "parts" / f"t#{lo}", {"x": 8, "flag": 1})
    rows.write({"x": X[lo:hi], "flag": FLAG[lo:hi]})
    return rows


def _blank(rows: int) -> dict[str, np.ndarray]:
    return {"x": np.full((rows, 2), -1, "f4"), "flag": np.zeros(rows, bool)}


@pytest.fixture
def cache(tmp_path: Path) -> RowsRead:
    """Rows 0:5, 5:12 and 12:20, as another process gets them."""
    spans = (12, 20), (0, 5), (5, 12)
    sent: RowsRead = pickle.loads(pickle.dumps(RowsRead([_stored(tmp_path, *span) for span in spans])))
    return sent


@pytest.mark.parametrize(("lo", "hi"), [(0, 20), (0, 5), (2, 4), (4, 13), (6, 7), (19, 20)])
def test_rows_of_several_ranges(cache: RowsRead, lo: int, hi: int) -> None:
    out = _blank(hi - lo)
    assert cache.fill("t", lo, hi, out)
    np.testing.assert_array_equal(out["x"], X[lo:hi])
    np.testing.assert_array_equal(out["flag"], FLAG[lo:hi])


def test_ranges_may_overlap(cache: RowsRead, tmp_path: Path) -> None:
    cache.add(_stored(tmp_path, 3, 9))
    for lo, hi in ((0, 20), (4, 6), (8, 14)):
        out = _blank(hi - lo)
        assert cache.fill("t", lo, hi, out)
        np.testing.assert_array_equal(out["x"], X[lo:hi])
    twice = RowsRead([_stored(tmp_path, 0, 5), _stored(tmp_path, 0, 5)])
    assert not twice.fill("t", 0, 8, _blank(8))


def test_nothing_is_copied_where_rows_are_missing(tmp_path: Path) -> None:
    cache = RowsRead([_stored(tmp_path, 0, 5), _stored(tmp_path, 6, 9)])
    for table, lo, hi in (("t", 0, 9), ("t", 8, 10), ("other", 0, 5)):
        out = _blank(hi - lo)
        assert not cache.fill(table, lo, hi, out)
        assert (out["x"] == -1).all()


def test_a_file_that_is_short_or_gone(tmp_path: Path) -> None:
    rows = _stored(tmp_path, 0, 20)
    rows.path.write_bytes(rows.path.read_bytes()[:-1])
    assert RowsRead([rows]).fill("t", 0, 20, {"x": _blank(20)["x"]})
    with pytest.raises(ConversionError, match="1 bytes of rows are missing; run the same command again"):
        RowsRead([rows]).fill("t", 0, 20, _blank(20))
    rows.path.unlink()
    with pytest.raises(ConversionError, match="rows cannot be read"):
        RowsRead([rows]).fill("t", 0, 20, _blank(20))


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "parts").write_text("no folder")
    with pytest.raises(ConversionError, match="parts"):
        _stored(tmp_path, 0, 20)
