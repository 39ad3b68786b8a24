"""Plans: tasks cover every row once, pieces cover every task, and equal inputs give equal bytes."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unistore.conversion.plan import Plan, TablePlan, json_digest, plan_table
from unistore.conversion.spill import source_batches
from unistore.schemas.tables import Field, Table
from unistore.system.packed import PackedObjects

ROWS = st.lists(st.integers(0, 5000), max_size=8)


def make_table(name: str = "rows", width: int = 3, spilled: bool = False) -> Table:
    return Table(
        name=name,
        fields=(
            Field(path=f"{name}/x", dtype="float32", row_shape=(width,), axes=("row", "axis")),
            Field(path=f"{name}/deep/flag", dtype="bool", axes=("row",)),
        ),
        spilled=spilled,
    )


def make_plan(*tables: TablePlan, **changes: object) -> Plan:
    values: dict[str, object] = {
        "family": "rows",
        "sample_table": "rows",
        "sources": ("a.npy", "b.npy"),
        "tables": tables,
        "index": (),
        "options": {"tile": [1, 2], "name": "x"},
        "versions": {"unistore": "0"},
    }
    return Plan(**{**values, **changes})  # type: ignore[arg-type]


def of_codec(codec: str) -> TablePlan:
    table = plan_table(make_table(), [10, 20])
    return replace(table, arrays=tuple(replace(array, codec=codec) for array in table.arrays))


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a few thousand rows make many shards."""
    monkeypatch.setattr("unistore.conversion.plan.SHARD", 1 << 10)


@given(ROWS, st.data())
def test_pieces_of_any_range_cover_each_of_its_rows_once(source_rows: list[int], data: st.DataObject) -> None:
    plan = plan_table(make_table(), source_rows)
    lo = data.draw(st.integers(0, plan.rows))
    hi = data.draw(st.integers(lo, plan.rows))
    starts = [0, *accumulate(source_rows)]
    rows = [starts[p.source] + row for p in plan.pieces(lo, hi) for row in range(p.lo, p.hi)]
    assert rows == list(range(lo, hi))


@pytest.mark.parametrize("sources", [0, 1, 2500])
def test_digest_is_that_of_the_plain_json(sources: int) -> None:
    """Although the text of the sequences with an item for each source is made in blocks."""
    names = [f'lot "{number}"/ä' for number in range(sources)]
    tables = plan_table(make_table(), range(sources)), plan_table(make_table("more"), [0] * sources)
    for each in (names, PackedObjects(names)):
        plan = make_plan(*tables, sources=each, options={"tile": [], "classes": {"10": "a", "9": {}}})
        assert plan.to_json()["sources"] == names
        assert plan.digest == json_digest(plan.to_json())


@pytest.mark.parametrize(
    "changed",
    [
        {"tables": (of_codec("small"),)},
        {"sources": ("b.npy", "a.npy")},
        {"options": {"tile": [1, 3], "name": "x"}},
        {"tables": (plan_table(make_table(), [10, 21]),)},
        {"tables": (plan_table(make_table(width=4), [10, 20]),)},
        {"tables": (plan_table(make_table(spilled=True), [10, 20]),)},
    ],
)
def test_digest_sees_every_change(changed: dict[str, object]) -> None:
    table = plan_table(make_table(), [10, 20])
    assert make_plan(table).digest != make_plan(table, **changed).digest


@pytest.mark.parametrize(
    ("megabytes", "batches"),
    [((1, 1), [(0, 1), (2, 3)]), ((15, 2), [(0,), (1,), (2,), (3,)])],
)
def test_sources_of_a_batch_have_few_bytes_together(
    megabytes: tuple[int, int], batches: list[tuple[int, ...]]
) -> None:
    """Two of 64 sources in a batch, or one: a batch that is full goes without the source that follows."""
    assert source_batches(range(64), np.tile(megabytes, 32) << 20)[: len(batches)] == batches


@given(ROWS)
def test_tasks_have_the_bytes_of_all_rows(source_rows: list[int]) -> None:
    plan = make_plan(plan_table(make_table(width=3), source_rows), plan_table(make_table("more"), [7]))
    row_bytes = 3 * 4 + 1
    assert sum(map(plan.task_bytes, plan.tasks())) == (sum(source_rows) + 7) * row_bytes
