"""Stores of a family that cannot be imported: they are verified, described, drawn and read."""

from __future__ import annotations

import base64
import json
import re
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import unistore
from tests.support import cases
from tests.support.golden_stores import STORES
from tests.support.needs_torch import needs_torch
from tests.support.programs import printed
from tests.support.store_files import attributes_of, tree

Make = Callable[[Path], cases.Case]

WITHOUT = Path(__file__).parents[2] / "support" / "without_family.py"
"""A program that cannot import a family, and prints what commands and readers do then."""

CASES: dict[str, Make] = {
    "rows": cases.rows_npz,
    "point_cloud": cases.cloud_indices,
    "ct": cases.ct_sparse,
    "spike": cases.spike_tiles,
    "events": cases.events_of_two_cameras,
    "trajectory": cases.robot_flat,
}
"""Sources of several files of each family, which become one store, and a grown one."""

QUICK = ("rows", "ct")
"""The families that every run tests: one whose default kind needs no code of it, and one whose kind does."""


def broken_values(store: Path) -> dict[str, tuple[str, np.ndarray]]:
    """Return the path of an array and values that break its rule, for each kind of rule."""
    fields = attributes_of(store)["fields"]
    found: dict[str, tuple[str, np.ndarray]] = {}
    for path, field in sorted(fields.items()):
        values = np.array(zarr.open_array(store / path, mode="r")[...])
        rule = field["rule"]
        if isinstance(rule.get("offsets_of"), str):
            values[-1] += 1
            found.setdefault("offsets", (path, values))
        elif "indexes" in rule and len(values):
            values[-1] = np.iinfo(values.dtype).max
            found.setdefault("index", (path, values))
        elif rule.get("limits") and values.size:
            values.reshape(-1)[-1] = 30_000
            found.setdefault("index", (path, values))
        values = np.array(zarr.open_array(store / path, mode="r")[...])
        if ("offsets_of" in rule or "ascending" in rule) and len(values) > 2 and values[-1] > 0:
            values[-2] = values[-1] + 1
            found.setdefault("descending", (path, values))
    return found


def drawn(page: Path) -> list[str]:
    """Return the widgets by which a page shows samples."""
    (text,) = re.findall(r'<script type="application/json" id="samples">(.*?)</script>', page.read_text())
    packed = [zlib.decompress(base64.b64decode(sample["data"])) for sample in json.loads(text)["samples"]]
    return [json.loads(view[4 : 4 + int.from_bytes(view[:4], "little")])["widget"] for view in packed]


@needs_torch
@pytest.mark.parametrize(
    "family",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.nightly) for name in CASES],
)
def test_a_store_is_verified_compacted_and_read_without_its_family(
    family: str, make_joined: Any, forge: Callable[..., None], tmp_path: Path
) -> None:
    _, folder = make_joined(CASES[family])
    one = folder / "one.zarr"
    # only stores of volumes that have images have bounds
    sound = STORES / "ct_related.zarr" if family == "ct" else one
    broken = broken_values(sound)
    assert set(broken) == {"offsets", "descending", *(["index"] if family != "rows" else [])}
    for name, (path, values) in broken.items():
        shutil.copytree(sound, tmp_path / f"{name}.zarr")
        forge(tmp_path / f"{name}.zarr", {path: values})
    found: dict[str, Any] = json.loads(printed(WITHOUT, family, folder, tmp_path, *broken))
    for name, (path, _) in broken.items():
        assert found["broken"][name] == [path], (name, found["broken"])
    for store in ("one.zarr", "s.zarr"):
        assert found["warnings"][store]
        assert all(f"family {family}" in warning for warning in found["warnings"][store])
    assert found["exported"].startswith(f"{one}: cannot be exported: family {family}: ")
    # what it makes of several stores is what this process makes of them
    compacted = unistore.compact(folder / "s.zarr", tmp_path / "here.zarr")
    assert found["compacted"] == compacted.samples
    assert tree(tmp_path / "compacted.zarr") == tree(tmp_path / "here.zarr")
    assert unistore.verify(tmp_path / "compacted.zarr").problems == ()
    # what it reads is what this process reads, which has the family
    for store in ("one.zarr", "s.zarr"):
        rows = unistore.Dataset(folder / store, unistore.Rows())
        sample = {key: np.asarray(value).tolist() for key, value in rows[len(rows) - 1].items()}
        assert found["rows"][store] == [len(rows), json.loads(json.dumps(sample))]
    if family == "rows":
        assert found["default"] == len(unistore.Dataset(folder / "s.zarr"))
    else:
        assert f"unistore.schemas.{family}" in found["default"]
        assert "install unistore again" in found["default"]
    assert set(drawn(tmp_path / "page.html")) == {"rows"}
