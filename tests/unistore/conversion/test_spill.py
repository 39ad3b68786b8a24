"""Spilled rows come back as they were emitted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from unistore.conversion.spill import Spill, SpillWriter
from unistore.errors import ConversionError

DTYPES = st.sampled_from(["?", "u1", "<i2", ">i4", "<f2", "<f8", ">f8"])


def read(spill: Spill, column: str, lo: int, hi: int) -> list[Any]:
    """Values of rows, of any dtypes."""
    return [value for part in spill.read("t", column, lo, hi) for value in part.tolist()]


@settings(max_examples=30)  # every example waits for the disk
@given(data=st.data(), row_shape=st.lists(st.integers(0, 3), max_size=2).map(tuple))
def test_any_rows_in_any_parts_of_any_dtypes(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, row_shape: tuple[int, ...]
) -> None:
    folder = tmp_path_factory.mktemp("spill") / "0"
    forms = data.draw(st.lists(st.tuples(st.integers(0, 5), DTYPES), min_size=1, max_size=4))
    parts = [data.draw(hnp.arrays(dtype, (count, *row_shape))) for count, dtype in forms]
    with SpillWriter(folder) as writer:
        for part in parts:
            writer.emit("t", "deep/column", part)
            writer.emit("t", "other", np.arange(len(part)))
        writer.finish({})
    spill = Spill(folder)
    rows = [row for part in parts for row in part]
    assert spill.rows("t") == len(rows)
    lo = data.draw(st.integers(0, len(rows)))
    hi = data.draw(st.integers(lo, len(rows)))
    found = [row for run in spill.read("t", "deep/column", lo, hi) for row in run]
    assert [(row.dtype, row.shape, row.tobytes()) for row in found] == [
        (row.dtype, row.shape, row.tobytes()) for row in rows[lo:hi]
    ]


def test_strided_rows(tmp_path: Path) -> None:
    values = np.arange(24).reshape(6, 4)
    with SpillWriter(tmp_path / "0") as writer:
        writer.emit("t", "x", values[::2, ::-1])
        writer.finish({})
    assert read(Spill(tmp_path / "0"), "x", 0, 3) == values[::2, ::-1].tolist()


def test_facts_of_any_name(tmp_path: Path) -> None:
    facts: dict[str, Any] = {
        "file": np.arange(3),
        "allow_pickle": np.array(True),
        "a/b": np.zeros((0, 3)),
        "text": np.array(["é", "longer"]),
    }
    with SpillWriter(tmp_path / "0") as writer:
        writer.finish(facts)
    found = Spill(tmp_path / "0").facts()
    assert list(found) == list(facts)
    for name, value in facts.items():
        np.testing.assert_array_equal(found[name], value)


def test_an_attempt_that_was_killed_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = tmp_path / "0"
    with SpillWriter(folder) as writer:
        writer.emit("t", "x", np.arange(5))
    assert not Spill.stands(folder)
    with SpillWriter(folder) as writer:
        writer.emit("t", "y", np.arange(2))
        writer.finish({})
    assert Spill.stands(folder)
    assert Spill(folder).rows("t") == 2
    assert sorted(path.name for path in folder.iterdir()) == ["0.bin", "facts.npz", "spill.json"]


def test_a_source_without_rows(tmp_path: Path) -> None:
    with SpillWriter(tmp_path / "0") as writer:
        writer.finish({})
    assert Spill(tmp_path / "0").rows("t") == 0
    assert Spill(tmp_path / "0").facts() == {}


def test_faults_of_a_converter_are_named(tmp_path: Path) -> None:
    with SpillWriter(tmp_path / "0") as writer:
        writer.emit("t", "x", np.zeros((2, 3), np.float32))
        with pytest.raises(ValueError, match=r"t/x: emitted \(4,\) after"):
            writer.emit("t", "x", np.zeros((2, 4), np.float32))
        writer.emit("t", "y", np.zeros(3))
        writer.finish({})
    with pytest.raises(ConversionError, match=r"columns of table 't' differ in length: \{'x': 2, 'y': 3\}"):
        Spill(tmp_path / "0").rows("t")


def test_missing_rows_are_told(tmp_path: Path) -> None:
    with SpillWriter(tmp_path / "0") as writer:
        writer.emit("t", "x", np.arange(100))
        writer.finish({})
    (tmp_path / "0/0.bin").write_bytes(b"short")
    with pytest.raises(ConversionError, match="--restart"):
        read(Spill(tmp_path / "0"), "x", 0, 100)
