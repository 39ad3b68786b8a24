"""Layout as arithmetic: what every chunk and shard shape must satisfy, whatever the fields."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unistore.conversion import plan as layout
from unistore.conversion.plan import amplification, chunk_shape, lay_out_table
from unistore.schemas.tables import Field, Table


@pytest.fixture(autouse=True)
def small_shards() -> None:
    """Shards of their real size, in place of the small ones of this folder's other tests."""


DTYPES = ("bool", "uint8", "int16", "float32", "float64")


def make_field(
    dtype: str, row_shape: tuple[int, ...], tile: tuple[int, ...] | None = None, run: int = 1
) -> Field:
    axes = tuple(f"axis_{number}" for number in range(1 + len(row_shape)))
    return Field(path="t/x", dtype=dtype, row_shape=row_shape, axes=axes, tile=tile, run=run)


@st.composite
def fields(draw: st.DrawFn) -> Field:
    row_shape = tuple(draw(st.lists(st.integers(0, 700), max_size=3)))
    tile = None
    if row_shape and draw(st.booleans()):
        tile = tuple(draw(st.integers(1, 128)) for _ in row_shape)
    return make_field(draw(st.sampled_from(DTYPES)), row_shape, tile, draw(st.integers(1, 100_000)))


@given(st.lists(fields(), min_size=1, max_size=5), st.integers(0, 10_000_000))
def test_every_table_is_cut_into_whole_chunks_at_the_same_rows(columns: list[Field], rows: int) -> None:
    """A shard of all columns fits in memory, and is no longer than the rows need."""
    layouts = lay_out_table(Table(name="t", fields=tuple(columns)), rows)
    (shard_rows,) = {lay.shard[0] for lay in layouts}
    assert shard_rows == 1 or shard_rows * sum(field.row_bytes for field in columns) <= layout.SHARD
    assert not rows or shard_rows < rows + max(lay.chunk[0] for lay in layouts)
    for field, lay in zip(columns, layouts, strict=True):
        assert len(lay.chunk) == len(lay.shard) == 1 + len(field.row_shape)
        assert all(
            chunk >= 1 and shard % chunk == 0 for chunk, shard in zip(lay.chunk, lay.shard, strict=True)
        )
        assert all(shard >= extent for shard, extent in zip(lay.shard[1:], field.row_shape, strict=True))
        assert all(
            chunk <= max(1, extent) for chunk, extent in zip(lay.chunk[1:], field.row_shape, strict=True)
        )
        assert lay.amplification >= 1


@pytest.mark.parametrize(
    ("field", "chunk"),
    [
        (make_field("float64", ()), (4096,)),
        (make_field("float32", (3,)), (2048, 3)),
        (make_field("uint8", (224, 224, 3)), (1, 224, 224, 3)),
        (make_field("int16", (512, 512, 512), (32, 32, 32)), (1, 32, 32, 32)),
        (make_field("int16", (20, 512, 512), (32, 32, 32)), (1, 20, 32, 32)),
        (make_field("int32", (3,), run=30_000), (8192, 3)),
        (make_field("int32", (3,), run=100), (1024, 3)),
        (make_field("int32", (3,), run=10_000_000), (16_384, 3)),
        (make_field("float32", (4, 1024, 1024)), (1, 1, 256, 1024)),
        (make_field("int64", (0,)), (32768, 1)),
    ],
)
def test_common_fields_have_their_documented_chunk_shapes(field: Field, chunk: tuple[int, ...]) -> None:
    assert chunk_shape(field) == chunk


@given(st.integers(1, 40), st.integers(1, 6))
def test_amplification_of_runs_is_the_mean_over_positions(run: int, power: int) -> None:
    """Count the rows of the chunks that a run at every possible start touches."""
    chunk = 1 << power
    field = make_field("uint8", (), run=run)
    starts = range(chunk)
    decoded = [chunk * ((start + run - 1) // chunk - start // chunk + 1) for start in starts]
    assert amplification(field, (chunk,)) == pytest.approx(np.mean(decoded) / run)


@pytest.mark.parametrize(("dtype", "row_bytes"), [("uint8", 1), ("int16", 2), ("float64", 8)])
def test_a_shard_of_a_large_column_has_the_bytes_of_a_shard(dtype: str, row_bytes: int) -> None:
    (array,) = lay_out_table(Table(name="t", fields=(make_field(dtype, ()),)), 1 << 40)
    assert array.shard == (layout.SHARD // row_bytes,)


@given(fields(), st.integers(0, 10_000))
def test_a_shard_has_no_more_chunks_than_reach_around_a_row(field: Field, rows: int) -> None:
    (array,) = lay_out_table(Table(name="t", fields=(field,)), rows)
    for extent, chunk, shard in zip(field.row_shape, array.chunk[1:], array.shard[1:], strict=True):
        assert shard % chunk == 0
        assert extent <= shard < max(extent, 1) + chunk
