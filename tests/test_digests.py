"""Stores stay the same byte for byte: digests of every case's store, and of the options that decide content.

A store's manifest holds a checksum of every file but the root, so two digests say all: the manifest's and
the root document's. A third one is of the shards alone, which unfinished conversions hold. A change that is
meant is recorded by one command, in a commit that says why::

    python -m pytest tests/test_digests.py --record-digests
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xxhash

from tests.support.cases import DATA, MAKERS, Case
from tests.support.real_ct import VOLUME, write_volume
from unistore.conversion.keys import CONTENT
from unistore.conversion.split_rule import SplitRule

RECORD = Path(__file__).with_suffix(".json")
BEFORE: dict[str, Any] = json.loads(RECORD.read_text())
"""What was recorded when the tests began."""
ENCODERS = ("unistore", "numcodecs", "h5py", "opencv-python-headless")
"""What decides bytes beside unistore's code: the versions that encode stores and synthetic sources."""


@dataclass(frozen=True)
class Variant:
    """A case with options of its own, in place of the case's and beside them."""

    case: str
    options: Mapping[str, Any] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)


HALVES = {"train": 0.5, "val": 0.5}
EXACT = SplitRule(shares=HALVES, method="exact")
VARIANTS = {
    "rows_hdf5 intersection": Variant("rows_hdf5", {"columns": "intersection"}),
    "rows_hdf5 balanced": Variant("rows_hdf5", run={"codec": "balanced"}),
    "rows_npz small, split": Variant(
        "rows_npz",
        run={"codec": "small", "split": SplitRule(shares={"train": 0.6, "val": 0.4}, method="exact")},
    ),
    "rows_npz exclude": Variant("rows_npz", {"exclude": ("b.npz",)}),
    "rows_npy none": Variant("rows_npy", run={"codec": "none"}),
    "cloud_indices none": Variant("cloud_indices", run={"codec": "none"}),
    "cloud_indices small, two grids": Variant(
        "cloud_indices", {"voxel_size": (5.0, 20.0)}, {"codec": "small"}
    ),
    "cloud_indices map": Variant("cloud_indices", {"map": {"label": "classification", "rgb": ""}}),
    "cloud_indices split": Variant("cloud_indices", run={"split": EXACT}),
    "cloud_mixed windows": Variant("cloud_mixed", {"segment": "window:1", "max_points": 5}),
    "cloud_pdal balanced": Variant(
        "cloud_pdal", {"segment": "window:500", "columns": "union"}, {"codec": "balanced"}
    ),
    "cloud_pdal one segment": Variant("cloud_pdal", {"segment": None, "min_points": 1}),
    "ct_cases mask": Variant("ct_cases", {"window": ("lung", "bone"), "sparse": "mask"}),
    "ct_cases auto, tile": Variant("ct_cases", {"sparse": "auto", "tile": (4, 8, 16)}, {"codec": "small"}),
    "ct_cases locations": Variant("ct_cases", {"foreground_locations": 50}),
    "ct_cases exclude, none": Variant("ct_cases", {"exclude": ("test/case_1",)}, {"codec": "none"}),
    "ct_real coords": Variant("ct_real", {"window": ("soft_tissue",), "sparse": "coords"}),
    "ct_real resolution": Variant("ct_cases", {"resolution": 512}),
    "spike_tiles two grids": Variant("spike_tiles", {"voxel_bins": (2, 5)}, {"codec": "small"}),
    "spike_tiles without flip": Variant("spike_tiles", {"flip": False}, {"codec": "none"}),
    "spike_keep balanced": Variant("spike_keep", run={"codec": "balanced"}),
    "spike_bytes exclude": Variant("spike_bytes", {"exclude": ("test",)}),
    "robot_robomimic none": Variant("robot_robomimic", {"image_size": None}, {"codec": "none"}),
    "robot_robomimic ignore": Variant(
        "robot_robomimic", {"ignore": ("obs/camera", "next_obs/camera")}, {"codec": "small"}
    ),
    "robot_robomimic resized alone": Variant("robot_robomimic", {"images": "resized"}),
    "robot_robomimic exclude": Variant("robot_robomimic", {"exclude": ("demos.hdf5: data/demo_2",)}),
    "robot_flat split": Variant("robot_flat", run={"split": EXACT}),
    "robot_flat split by hash": Variant(
        "robot_flat", run={"split": SplitRule(shares=HALVES, by="episode", seed=1)}
    ),
    "spike_tiles exact": Variant("spike_tiles", run={"split": SplitRule(shares=HALVES, method="exact")}),
    "rows_npz split and group": Variant(
        "rows_npz", run={"split": SplitRule(shares=HALVES, by="row", group_by=r".$")}
    ),
    "robot_act swapped": Variant("robot_act", {"colour": "swapped", "image_size": 8}),
    "robot_d4rl map": Variant("robot_d4rl", {"map": {"observation/joints": "infos/qpos"}}),
}


def with_a_bad_file(folder: Path) -> Case:
    """One file of three is cut short, and left out."""
    case = MAKERS["rows_hdf5"](folder)
    with h5py.File(folder / "part_7.h5", "w") as file:
        file["data/value"] = np.ones((400, 3))
        file["label"] = np.ones(400, np.int8)
    whole = (folder / "part_7.h5").read_bytes()
    (folder / "part_7.h5").write_bytes(whole[: len(whole) // 2])
    return case


REAL: dict[str, tuple[str, str, dict[str, Any]]] = {
    "samples autzen": ("point_cloud", "pointcloud/pdal_autzen.h5", {"segment": "window:100"}),
    "samples two points": (
        "point_cloud",
        "pointcloud/pdal_twoPoints.h5",
        {"map": {"x": "longitude", "y": "latitude", "z": "elevation"}},
    ),
    "samples thin-1": (
        "point_cloud",
        "samples/pointcloud/derived_pointsuite_thin-1.h5",
        {"voxel_size": (10.0,)},
    ),
    "samples thin-2": ("point_cloud", "samples/pointcloud/derived_pointsuite_thin-2.h5", {}),
    "samples thin-1 in segments": ("point_cloud", "samples/pointcloud/derived_pointsuite_thin-1_fast.h5", {}),
    "samples spike stream": ("spike", "samples/spike/spikezoo_data.dat", {"voxel_bins": (5,)}),
    "samples spike array": ("spike", "samples/spike/spikezoo_uhsr.npz", {"voxel_bins": (5,)}),
    "samples baxter": (
        "trajectory",
        "samples/trajectory/robosuite030_BaxterPegInHole_demo.hdf5",
        {"map": {"action": "states"}},
    ),
    "samples sawyer": ("trajectory", "samples/trajectory/robosuite030_SawyerLift_demo.hdf5", {}),
    "samples door": ("trajectory", "trajectory/robosuite100_door_panda_demo.hdf5", {}),
    "samples lift": ("trajectory", "trajectory/robosuite100_lift_panda_demo.hdf5", {}),
}
"""Family, file of tests/data, and options of the real files."""
REAL_CT = "samples ct"


def store_digests(store: Path) -> dict[str, str]:
    """Digests of manifest, shards and root document; the manifest's own are checked against the files."""
    manifest = (store / "unistore-manifest.jsonl").read_bytes()
    shards = xxhash.xxh3_128()
    for line in manifest.splitlines():
        entry = json.loads(line)
        found = xxhash.xxh3_128_hexdigest((store / entry["key"]).read_bytes())
        assert found == entry["checksum"], entry["key"]
        if "content" in entry:
            shards.update(line)
    return {
        "manifest": xxhash.xxh3_128_hexdigest(manifest),
        "shards": shards.hexdigest(),
        "root": xxhash.xxh3_128_hexdigest((store / "zarr.json").read_bytes()),
    }


def convert(name: str, folder: Path) -> Path:
    """Convert what `name` says."""
    sources, store = folder / "sources", folder / "store.zarr"
    sources.mkdir()
    if name in REAL:
        family, file, options = REAL[name]
        return Case(family, [DATA / file], options).convert(store)
    if name == REAL_CT:
        write_volume(sources)
        return Case("ct", [sources / VOLUME], {"window": ("lung", "bone")}).convert(store)
    if name == "rows_hdf5 skip":
        return with_a_bad_file(sources).convert(store, on_error="skip")
    variant = VARIANTS.get(name) or Variant(name)
    case = MAKERS[variant.case](sources)
    return Case(case.family, case.sources, {**case.options, **variant.options}).convert(store, **variant.run)


@pytest.mark.parametrize("name", [*MAKERS, *VARIANTS, "rows_hdf5 skip", *REAL, REAL_CT])
def test_a_store_has_the_recorded_bytes(
    name: str, tmp_path: Path, make_case: Any, request: pytest.FixtureRequest
) -> None:
    recorded = json.loads(RECORD.read_text())
    versions = {each: version(each) for each in ENCODERS}
    if request.config.getoption("--record-digests"):
        digests = store_digests(convert(name, tmp_path))
        if name in BEFORE and BEFORE["content"] == CONTENT:
            fix = "raise CONTENT in unistore/conversion/keys.py: unfinished conversions hold older shards"
            assert digests["shards"] == BEFORE[name].get("shards", digests["shards"]), fix
        recorded = {**recorded, "versions": versions, "content": CONTENT, name: digests}
        RECORD.write_text(json.dumps(recorded, indent=1) + "\n")
        return
    if versions != recorded["versions"]:
        pytest.skip(f"digests were recorded with {recorded['versions']}, here are {versions}")
    store = make_case(name)[1] if name in MAKERS else convert(name, tmp_path)
    assert store_digests(store) == recorded[name]


def test_every_record_has_its_case() -> None:
    recorded = json.loads(RECORD.read_text())
    assert recorded["content"] == CONTENT
    assert set(recorded) == {"versions", "content", *MAKERS, *VARIANTS, "rows_hdf5 skip", *REAL, REAL_CT}
