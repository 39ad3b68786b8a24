"""``--dry-run``: the plan, as plain data, and nothing written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from unistore.conversion.convert import convert, make_converter
from unistore.conversion.dry_run import dry_run
from unistore.conversion.settings import Settings
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
def test_it_is_the_plan_that_is_carried_out(tmp_path: Path, family: str) -> None:
    sources, options = FAMILIES[family]
    converter = make_converter(family, options)
    shown = dry_run(
        converter, [DATA / sources], Settings(codec="small", split=SplitRule(shares={"train": 1.0}))
    ).to_json()
    convert(DATA / sources, tmp_path / "out", family, codec="small", split="train=1", **options)
    store = Store(tmp_path / "out")
    plan = shown["plan"]
    assert plan["options"] == store.attributes["options"]
    assert plan["versions"] == store.attributes["created_with"]
    assert plan["sources"] == store.text("sources/path")
    assert (plan["family"], plan["sample_table"]) == (store.family, store.sample_table)
    for table in plan["tables"]:
        for planned in table["arrays"]:
            array = store.array(planned["field"]["path"])
            if table["name"] in [each["name"] for each in shown["tables"] if each["estimated"]]:
                continue
            assert tuple(planned["shape"]) == array.shape
            assert tuple(planned["chunk"]) == array.chunk_shape
            assert planned["field"]["dtype"] == array.dtype.name
