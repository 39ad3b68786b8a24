"""The chart of the README shows what RESULTS.md says."""

from __future__ import annotations

import re

import pytest

from examples.chart import CHART, RESULTS, bars_of, chart


def test_the_chart_is_drawn_from_the_results() -> None:
    assert CHART.read_text() == chart(RESULTS.read_text()), "run examples/chart.py"


def test_a_changed_result_changes_its_bar_and_a_missing_one_is_an_error() -> None:
    results = RESULTS.read_text()
    changed, count = re.subn(r"(\| nnU-Net's blosc2 \|[^|]+\|[^|]+\| )[\d.]+(× \|)", r"\g<1>45.6\2", results)
    assert count == 1
    assert ">46×<" in chart(changed)
    with pytest.raises(ValueError, match="no table with ratios"):
        chart(results.replace("## Beside the usual readers", "## Other readers"))


def test_every_row_of_the_table_is_a_bar() -> None:
    results = RESULTS.read_text()
    table = results.partition("## Beside the usual readers")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")]
    assert len(rows) - 1 == len(bars_of(results))  # without the row of names
