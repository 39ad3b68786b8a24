"""The chart of the README shows what RESULTS.md says."""

from __future__ import annotations

import re

import pytest

from examples.chart import CHART, RESULTS, chart


def test_the_chart_is_drawn_from_the_results() -> None:
    assert CHART.read_text() == chart(RESULTS.read_text()), "run examples/chart.py"


def test_a_changed_result_changes_its_bar_and_a_missing_one_is_an_error() -> None:
    results = RESULTS.read_text()
    changed, count = re.subn(r"(\| nnU-Net's way .*\| )[\d.]+(× \|)", r"\g<1>45.6\2", results)
    assert count == 1
    assert ">46×<" in chart(changed)
    with pytest.raises(ValueError, match=r"0 lines of RESULTS\.md are that of CT patches"):
        chart(results.replace("| nnU-Net's way", "| another way"))
