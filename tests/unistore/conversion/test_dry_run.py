"""``--dry-run``: the plan, as plain data, and nothing written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unistore.conversion.convert import make_converter
from unistore.conversion.cost import cost_of
from unistore.conversion.dry_run import dry_run
from unistore.conversion.settings import Settings
from unistore.conversion.signatures import convert
from unistore.conversion.split_rule import SplitRule
from unistore.store.reader import Store

DATA = Path(__file__).resolve().parents[2] / "data"
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "rows": ("rows", {}),
    "point_cloud": ("pointcloud/thin_a.h5", {"voxel_size": (50.0,)}),
    "ct": ("ct", {"window": ("lung",)}),
    "spike": ("spike/reds_frames_140_162.dat", {"height": 250, "width": 400, "voxel_bins": (5,)}),
    "trajectory": ("trajectory", {"ignore": ("states",)}),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_plan_and_cost_are_those_of_the_conversion(tmp_path: Path, family: str) -> None:
    sources, options = FAMILIES[family]
    settings = Settings(codec="small", split=SplitRule(shares={"train": 1.0}))
    found = dry_run(make_converter(family, options), [DATA / sources], settings)
    shown = found.to_json()
    report = convert(DATA / sources, tmp_path / "out", family, codec="small", split="train=1", **options)
    store = Store(tmp_path / "out")
    plan = shown["plan"]
    assert plan["options"] == store.attributes["options"]
    assert plan["versions"] == store.attributes["created_with"]
    assert plan["sources"] == store.text("sources/path")
    assert (plan["family"], plan["sample_table"]) == (store.family, store.sample_table)
    estimated = {table["name"] for table in shown["tables"] if table["estimated"]}
    for table in plan["tables"]:
        for planned in table["arrays"] if table["name"] not in estimated else ():
            array = store.array(planned["field"]["path"])
            assert tuple(planned["shape"]) == array.shape
            assert tuple(planned["chunk"]) == array.chunk_shape
            assert planned["field"]["dtype"] == array.dtype.name
    cost = cost_of(found, settings, options)
    assert cost.trial is not None, cost.no_trial
    assert cost.files == pytest.approx(report.files, rel=0.3)
    share = report.source_bytes / cost.trial.bytes
    assert cost.trial.total_seconds == pytest.approx(cost.trial.seconds * share)
    assert bool(cost.spilled_bytes) == any(table.spilled for table in found.plan.tables)


def test_sources_too_large_for_a_trial_are_reported_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unistore.conversion.cost._MOST_BYTES", 1000)
    cost = cost_of(dry_run(make_converter("rows", {}), [DATA / "rows"]), Settings(), {})
    assert (cost.trial, cost.no_trial) == (None, "each source is too large for a trial that takes a second")


def test_the_trial_is_of_what_is_not_excluded_and_shows_no_progress(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        np.savez(tmp_path / f"{name}.npz", x=np.ones((4, 2)))
    monkeypatch.setattr("unistore.progress._in_notebook", lambda: True)  # where bars are the default
    options = {"exclude": ("b.npz",)}
    cost = cost_of(dry_run(make_converter("rows", options), [tmp_path]), Settings(), options)
    assert cost.trial is not None, cost.no_trial
    assert cost.trial.sources == 2
    assert capfd.readouterr() == ("", "")


def test_sources_that_need_the_others_have_no_trial() -> None:
    cost = cost_of(dry_run(make_converter("trajectory", {}), [DATA / "lerobot" / "v3"]), Settings(), {})
    assert (cost.trial, cost.no_trial) == (
        None,
        "a few of these sources cannot be converted without the others",
    )
