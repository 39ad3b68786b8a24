"""Small sources of few shards are read by all workers: the same store, the same problems."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

from tests.support.store_files import tree
from unistore.conversion import job as jobs
from unistore.conversion.convert import make_converter
from unistore.conversion.executors.local import Serial
from unistore.conversion.job import RowsRead, index_rows
from unistore.conversion.plan import ShardTask, lay_out_table
from unistore.conversion.run import run
from unistore.conversion.settings import Settings
from unistore.errors import ConversionError
from unistore.schemas.tables import Field, Table

FILES = 80


def kind(job: Any) -> str:
    return "parts" if getattr(job, "reads_parts", False) else type(job).__name__


class Sent(Serial):
    """As two workers would do them: every step is sent, with its job; `jobs` has their kinds."""

    workers = 2

    def __init__(self) -> None:
        self.jobs: list[str] = []

    def run(self, job: Any, items: Any) -> Iterator[Any]:
        for item in items:
            self.jobs.append(kind(job))
            yield item, cloudpickle.loads(cloudpickle.dumps(job.alone(item)))(item)


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """Files of zero to six rows, of two dtypes, some without a column."""
    rng = np.random.default_rng(3)
    for number in range(FILES):
        path = tmp_path / "sources" / f"lot_{number % 3}" / f"part_{number}.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = number % 7
        more = {"y": rng.integers(0, 9, rows).astype("i2")} if number % 5 else {}
        np.savez(path, x=rng.normal(size=(rows, 2)).astype("f4" if number % 2 else "f8"), **more)
    return tmp_path / "sources"


@pytest.mark.parametrize("options", [{}, {"codec": "small", "memory": 1 << 30}])
def test_a_store_read_in_parts_equals_one_read_in_one_piece(
    sources: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    converter, executor = make_converter("rows", {"columns": "union"}), Sent()
    run(converter, [sources], tmp_path / "parts.zarr", Settings(**options), executor=executor)
    run(converter, [sources], tmp_path / "whole.zarr", Settings(**options))
    assert executor.jobs.count("parts") >= jobs.MIN_BATCHES
    assert executor.jobs.count("ShardJob") == 1
    assert tree(tmp_path / "parts.zarr") == tree(tmp_path / "whole.zarr")
    assert not list(tmp_path.glob("*.unistore-build"))


def test_an_interrupted_conversion_reads_parts_again(sources: Path, tmp_path: Path) -> None:
    class Stopping(Sent):
        def run(self, job: Any, items: Any) -> Iterator[Any]:
            for number, each in enumerate(super().run(job, items)):
                yield each
                if kind(job) == "parts" and number == 7:
                    raise KeyboardInterrupt

    converter = make_converter("rows", {"columns": "union"})
    with pytest.raises(KeyboardInterrupt):
        run(converter, [sources], tmp_path / "out.zarr", executor=Stopping())
    run(converter, [sources], tmp_path / "out.zarr", executor=Sent())
    run(converter, [sources], tmp_path / "whole.zarr")
    assert tree(tmp_path / "out.zarr") == tree(tmp_path / "whole.zarr")


X = np.arange(40, dtype="f4").reshape(20, 2)
FLAG = np.arange(20) % 3 == 0


def _blank(rows: int) -> dict[str, np.ndarray]:
    return {"x": np.full((rows, 2), -1, "f4"), "flag": np.zeros(rows, bool)}


def _read(folder: Path, *spans: tuple[int, int]) -> RowsRead:
    rows = RowsRead(folder / "parts")
    for lo, hi in spans:
        part = ShardTask("t", 0, lo, hi)
        rows.write(part, {"x": X[lo:hi], "flag": FLAG[lo:hi]})
        rows.parts.append(part)
    return rows


@pytest.mark.parametrize(("lo", "hi"), [(0, 20), (0, 5), (2, 4), (4, 13), (6, 7), (19, 20)])
def test_rows_that_were_read_are_copied_from_wherever_they_are(tmp_path: Path, lo: int, hi: int) -> None:
    for spans in (((12, 20), (0, 5), (5, 12)), ((3, 9), (0, 5), (0, 5), (5, 12), (12, 20))):
        out = _blank(hi - lo)
        assert _read(tmp_path, *spans).fill("t", lo, hi, out)
        np.testing.assert_array_equal(out["x"], X[lo:hi])
        np.testing.assert_array_equal(out["flag"], FLAG[lo:hi])


def test_fill_copies_nothing_if_some_rows_are_missing(tmp_path: Path) -> None:
    rows = _read(tmp_path, (0, 5), (6, 9))
    for table, lo, hi in (("t", 0, 9), ("t", 8, 10), ("other", 0, 5)):
        out = _blank(hi - lo)
        assert not rows.fill(table, lo, hi, out)
        assert (out["x"] == -1).all()


def test_short_missing_or_unwritable_files_of_rows_are_an_error(tmp_path: Path) -> None:
    rows = _read(tmp_path, (0, 20))
    (file,) = (tmp_path / "parts").rglob("flag")
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ConversionError, match="has fewer rows than were written"):
        rows.fill("t", 0, 20, _blank(20))
    file.unlink()
    with pytest.raises(ConversionError, match="cannot be read"):
        rows.fill("t", 0, 20, _blank(20))
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(ConversionError, match="parts"):
        _read(tmp_path / "file", (0, 20))


@pytest.mark.parametrize("row_shape", [(), (3,), (50_000,)])
def test_an_index_array_is_written_in_blocks_of_a_few_mebibytes(row_shape: tuple[int, ...]) -> None:
    field = Field(
        path="t/x", dtype="float64", row_shape=row_shape, axes=("row", "axis")[: 1 + len(row_shape)]
    )
    rows = (12 << 20) // field.row_bytes
    (array,) = lay_out_table(Table(name="t", fields=(field,)), rows)
    values = np.arange(rows * math.prod(row_shape), dtype=np.float64).reshape(rows, *row_shape)
    blocks = [block for _, block in index_rows(array, 0, values)]
    np.testing.assert_array_equal(np.concatenate(blocks), values[: array.shard[0]])
    assert max(block.nbytes for block in blocks) <= 4 << 20
    assert len(blocks) <= 1 + array.shard[0] * field.row_bytes // (2 << 20)
