"""Spilled rows come back as they were emitted; the journal has whole lines only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.support.store_files import full_disk
from unistore.conversion.journal import Journal
from unistore.conversion.run import run
from unistore.conversion.spill import SpilledBatch, SpillWriter
from unistore.errors import ConversionError
from unistore.store.reader import Store

DTYPES = st.sampled_from(["?", "u1", "<i2", ">i4", "<f2", "<f8", ">f8"])


def read(batch: SpilledBatch, column: str, lo: int, hi: int) -> list[Any]:
    """Values of rows, of any dtypes."""
    return [value for part in batch.read("t", column, 0, lo, hi) for value in part.tolist()]


@settings(max_examples=30)  # every example waits for the disk
@given(data=st.data(), row_shape=st.lists(st.integers(0, 3), max_size=2).map(tuple))
def test_spilled_rows_are_read_back_with_dtype_shape_and_bytes(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, row_shape: tuple[int, ...]
) -> None:
    folder = tmp_path_factory.mktemp("spill") / "0"
    forms = data.draw(st.lists(st.tuples(st.integers(0, 5), DTYPES), min_size=1, max_size=4))
    parts = [data.draw(hnp.arrays(dtype, (count, *row_shape))) for count, dtype in forms]
    with SpillWriter(folder) as writer:
        for part in parts:
            writer.emit("t", "deep/column", part)
            writer.emit("t", "other", np.arange(len(part)))
        writer.end_source("key", {})
        writer.finish()
    batch = SpilledBatch(folder)
    rows = [row for part in parts for row in part]
    assert batch.rows("t", 0) == len(rows)
    lo = data.draw(st.integers(0, len(rows)))
    hi = data.draw(st.integers(lo, len(rows)))
    found = [row for run in batch.read("t", "deep/column", 0, lo, hi) for row in run]
    assert [(row.dtype, row.shape, row.tobytes()) for row in found] == [
        (row.dtype, row.shape, row.tobytes()) for row in rows[lo:hi]
    ]


def test_prepared_arrays_of_any_name_are_read_back(tmp_path: Path) -> None:
    prepared: dict[str, Any] = {
        "file": np.arange(3),
        "allow_pickle": np.array(True),
        "a/b": np.zeros((0, 3)),
        "text": np.array(["é", "longer"]),
    }
    with SpillWriter(tmp_path / "0") as writer:
        writer.end_source("key", prepared)
        writer.finish()
    found = SpilledBatch(tmp_path / "0").prepared()[0]
    assert list(found) == list(prepared)
    for name, value in prepared.items():
        np.testing.assert_array_equal(found[name], value)


def test_an_attempt_that_was_killed_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = tmp_path / "0"
    with SpillWriter(folder) as writer:
        writer.emit("t", "x", np.arange(5))
    assert not SpilledBatch.is_complete(folder)
    with SpillWriter(folder) as writer:
        writer.emit("t", "y", np.arange(2))
        writer.end_source("key", {})
        writer.finish()
    assert SpilledBatch.is_complete(folder)
    assert SpilledBatch(folder).rows("t", 0) == 2
    assert sorted(path.name for path in folder.iterdir()) == ["0.bin", "facts.bin", "rows.json"]


def test_faults_of_a_converter_are_named(tmp_path: Path) -> None:
    with SpillWriter(tmp_path / "0") as writer:
        writer.emit("t", "x", np.zeros((2, 3), np.float32))
        with pytest.raises(ValueError, match=r"t/x: emitted \(4,\) after"):
            writer.emit("t", "x", np.zeros((2, 4), np.float32))
        writer.emit("t", "y", np.zeros(3))
        writer.end_source("key", {})
        writer.finish()
    with pytest.raises(ConversionError, match=r"columns of table 't' differ in length: \{'x': 2, 'y': 3\}"):
        SpilledBatch(tmp_path / "0").rows("t", 0)


def test_missing_rows_are_told(tmp_path: Path) -> None:
    with SpillWriter(tmp_path / "0") as writer:
        writer.emit("t", "x", np.arange(100))
        writer.end_source("key", {})
        writer.finish()
    (tmp_path / "0/0.bin").write_bytes(b"short")
    with pytest.raises(ConversionError, match="--restart"):
        read(SpilledBatch(tmp_path / "0"), "x", 0, 100)


def test_rows_of_each_source_of_a_batch_are_read_apart(tmp_path: Path) -> None:
    """One emits other columns than another, in another dtype; one failed after some rows."""
    with SpillWriter(tmp_path / "0") as writer:
        writer.emit("t", "x", np.arange(3))
        writer.end_source("a", {"n": np.array(1), "b": np.zeros((2, 3))})
        writer.emit("t", "x", np.arange(7))
        writer.end_source(None, {})
        writer.emit("t", "x", np.array([0.5, 1.5]))
        writer.emit("u", "y", np.array([[True]]))
        writer.end_source("c", {"n": np.array(3)})
        writer.finish()
    batch = SpilledBatch(tmp_path / "0")
    assert batch.keys == ["a", None, "c"]
    assert [batch.rows("t", source) for source in range(3)] == [3, 7, 2]
    assert [batch.rows("u", source) for source in range(3)] == [0, 0, 1]
    assert [part.tolist() for part in batch.read("t", "x", 0, 0, 3)] == [[0, 1, 2]]
    assert [part.tolist() for part in batch.read("t", "x", 2, 1, 2)] == [[1.5]]
    assert [part.tolist() for part in batch.read("u", "y", 2, 0, 1)] == [[[True]]]
    assert [{name: value.shape for name, value in prepared.items()} for prepared in batch.prepared()] == [
        {"n": (), "b": (2, 3)},
        {},
        {"n": ()},
    ]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


def test_records_of_the_journal_are_read_back(path: Path) -> None:
    journal = Journal(path)
    for number in range(3):
        journal.append({"step": "shard", "task": f"höhe/{number}\n"})
    journal.append({"step": "plan"})
    journal.close()
    again = Journal(path)
    assert [record["task"] for record in again.of("shard")] == ["höhe/0\n", "höhe/1\n", "höhe/2\n"]
    assert again.of("plan") == [{"step": "plan"}]
    assert again.of("sealed") == []
    again.close()


@pytest.mark.parametrize("kept", range(1, 18))
def test_a_torn_line_is_cut_off_wherever_it_tears(path: Path, kept: int) -> None:
    journal = Journal(path)
    journal.append({"step": "a"})
    whole = path.read_bytes()
    journal.append({"step": "bcdefghi"})
    journal.close()
    path.write_bytes(path.read_bytes()[: len(whole) + kept])
    again = Journal(path)
    assert (again.of("a"), again.of("bcdefghi")) == ([{"step": "a"}], [])
    again.append({"step": "c"})
    again.close()
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == ["a", "c"]


@pytest.mark.parametrize("damage", [b"{\n", b"\n", b"\xff\xff\n"])
def test_a_damaged_line_is_named(path: Path, damage: bytes) -> None:
    path.write_bytes(b'{"step":"a"}\n' + damage + b'{"step":"b"}\n')
    with pytest.raises(ConversionError, match=r"journal\.jsonl: line 2 of the journal is damaged"):
        Journal(path)


def test_a_record_on_a_full_disk_leaves_no_trace_in_the_journal(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(path)
    journal.append({"step": "a"})

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full_disk)
        with pytest.raises(ConversionError, match=r"journal\.jsonl: cannot be written: No space left"):
            journal.append({"step": "b"})
    assert (journal.of("a"), journal.of("b")) == ([{"step": "a"}], [])
    journal.append({"step": "c"})
    journal.close()
    assert path.read_text() == '{"step":"a"}\n{"step":"c"}\n'


def test_sources_that_are_derived_together_keep_their_rows(
    tmp_path: Path, store: Path, toy: Any, truth: Any
) -> None:
    """Two of 66 sources in a batch."""
    rng = np.random.default_rng(0)
    (tmp_path / "src" / "train").mkdir(parents=True)
    for number in range(66):
        np.savez(
            tmp_path / "src" / "train" / f"s{number:02}.npz",
            value=np.rint(rng.normal(0, 3, (3, 3))),
            image=rng.integers(0, 100, (3, 4, 5), dtype=np.uint8),
            label=rng.integers(0, 50, 3),
        )
    run(toy(), [tmp_path / "src"], store)
    expected = truth(tmp_path / "src")
    for path in ("points/xyz", "points/source_row", "points/offsets", "sources/points/offsets"):
        np.testing.assert_array_equal(Store(store).array(path).read(), expected[path])
