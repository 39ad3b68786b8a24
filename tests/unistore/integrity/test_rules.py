"""Stores whose bytes are as sealed, but whose documents or values contradict each other."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from tests.support.golden_stores import STORES
from tests.support.store_files import attributes_of
from unistore import Clips, Dataset, Episodes, Events, export, verify
from unistore.converters import registry
from unistore.errors import CorruptionError, StoreError

Copy = Callable[[str], Any]


def read(store: Path, path: str) -> np.ndarray:
    return np.asarray(zarr.open_array(store / path, mode="r")[...])


def changed(values: np.ndarray, at: Any, to: Any) -> np.ndarray:
    copy = values.copy()
    copy[at] = to
    return copy


_WRIST = "clocks/wrist/observation/images/wrist_timestamps"

# Case, path, change of its values, and what the message says: all words once a rule, else what was found

Broken = tuple[str, str, Callable[[np.ndarray], np.ndarray], str]

# By rules that every store records, so that no family is needed
BY_RECORDED_RULES: list[Broken] = [
    ("rows_real", "sources/path/offsets", lambda v: changed(v, 0, 1), "begins with 1, expected 0"),
    ("rows_real", "sources/rows/offsets", lambda v: v + 1, "1"),
    ("rows_real", "sources/rows/offsets", lambda v: changed(v, -1, v[-1] - 1), "rows/"),
    ("robot_streams", "sources/clocks/force/offsets", lambda v: changed(v, 0, 1), "1"),
    ("cloud_real", "segments/offsets", lambda v: changed(v, 2, v[-1] + 5), ", less than the row before it, "),
    ("cloud_real", "segments/offsets", lambda v: changed(v, -1, v[-1] + 1), "points/xyz"),
    ("cloud_real", "segments/source", lambda v: changed(v, 0, 7), "row 0 is 7, expected at most 1, the last"),
    ("cloud_real", "voxels/50/offsets", lambda v: changed(v, -1, v[-1] - 1), "voxels/50/coords"),
    ("ct_cases", "volumes/extent", lambda v: changed(v, (0, 0), 99), "the extent that volumes/image stores"),
    ("ct_cases", "windows/lung/offsets", lambda v: changed(v, -1, v[-1] + 1), "windows/lung/coords"),
    (
        "spike_tiles",
        "frames/offsets",
        lambda v: changed(v, -1, 29),
        "ends with 29, but there are 30 rows in spi",
    ),
    ("spike_tiles", "frames/source", lambda v: changed(v, 3, 9), "9"),
    ("spike_tiles", "frames/spike_extent", lambda v: changed(v, (1, 1), 99), "spikes/bits"),
    ("spike_tiles", "frames/image_extent", lambda v: changed(v, (1, 0), 99), "frames/blur"),
    ("spike_tiles", "sequences/offsets", lambda v: changed(v, -1, 9), "frames/spike_extent"),
    ("spike_keep", "frames/blur_file/offsets", lambda v: changed(v, 2, 0), "row 2 is 0"),
    ("robot_robomimic", "episodes/source", lambda v: changed(v, 0, 1), "row 0 is 1"),
    ("robot_streams", "episodes/clocks/force/offsets", lambda v: changed(v, -1, v[-1] - 1), "clocks/force/"),
    ("robot_act_keep", "steps/observation/images/cam_high_jpeg/offsets", lambda v: v + 1, "1"),
]
VALUES: list[Broken] = [
    *BY_RECORDED_RULES,
    ("rows_real", "sources/path/data", lambda v: changed(v, 0, 255), "UTF-8"),
    (
        "cloud_real",
        "sources/segments/offsets",
        lambda v: changed(v, 1, v[1] - 1),
        "assigns other rows to the sources",
    ),
    (
        "cloud_real",
        "sources/points/offsets",
        lambda v: changed(v, 1, v[1] - 1),
        "assigns other rows to the sources",
    ),
    (
        "cloud_real",
        "sources/voxels/50/offsets",
        lambda v: changed(v, 1, v[1] - 1),
        "assigns other rows to the sources",
    ),
    ("rows_real", "splits/code", lambda v: changed(v, 3, 9), "contains the code 9"),
    (
        "cloud_real",
        "segments/source",
        lambda v: changed(v, np.argmax(v), 0),
        "assigns other rows to the sources",
    ),
    (
        *("cloud_real", "segments/number", lambda v: changed(v, 0, -1)),
        "segment 0 is -1, but is not the last segment of its source",
    ),
    ("cloud_real", "segments/number", lambda v: changed(v, 1, v[0]), " for 2 segments of source 0"),
    ("cloud_real", "segments/number", lambda v: changed(v, -1, 400), "segments, but the store has "),
    (
        "cloud_real",
        "segments/origin",
        lambda v: v + 1,
        "expected the origin as minimum, and no minimum above",
    ),
    ("cloud_real", "segments/bounds", lambda v: v[:, ::-1], "segment 0"),
    ("cloud_real", "points/source_row", lambda v: changed(v, 5, v[6]), " of source 0 is missing"),
    (
        *("cloud_real", "points/source_row", lambda v: changed(v, 5, 10**6)),
        "the rows of source 0 are from 0 to 1,000,000, expected 0 to ",
    ),
    (
        *("cloud_real", "voxels/50/point_voxel", lambda v: changed(v, 0, 10**6)),
        "row 0 is 1,000,000, but its segment 0 has ",
    ),
    (
        *("cloud_real", "voxels/50/point_voxel", lambda v: changed(v, v == -1, 3)),
        "expected -1, because its point is outside all segments",
    ),
    ("cloud_real", "voxels/50/counts", lambda v: changed(v, 0, v[0] + 1), ", but the voxel has "),
    ("cloud_real", "sources/scale", lambda v: v * 0, "a scale is 0, or a scale and its offset give coord"),
    ("cloud_real", "sources/scale", lambda v: v * 1e307, "finite"),
    ("cloud_real", "sources/offset", lambda v: v * np.nan, "finite"),
    (
        *("cloud_in_segments", "sources/scale", lambda v: -v),
        "differs from 100.0, the scale in the attribute 'decimal' of points/xyz",
    ),
    ("cloud_in_segments", "sources/offset", lambda v: v + 0.5, "the offset in the attribute 'decimal'"),
    ("cloud_in_segments", "sources/offset", lambda v: v + 0.5, "has values that are not whole numbers"),
    ("ct_sparse", "volumes/extent", lambda v: v * 0 + (2**31 - 1), "more voxels than int64 can count"),
    (
        "ct_cases",
        "windows/lung/coords",
        lambda v: changed(v, 4, v[3]),
        "row 4 does not come after row 3 in C",
    ),
    (
        "ct_cases",
        "windows/lung/coords",
        lambda v: changed(v, (0, 2), 5000),
        "outside volume 0, whose size is [",
    ),
    ("ct_cases", "sdf/bone_sdf/coords", lambda v: changed(v, (0, 0), 64), "volume 0"),
    (
        "ct_cases",
        "masks/liver/mask",
        lambda v: changed(v, (0, -1, -1, -1), 255),
        " set bits outside its extent",
    ),
    (
        "ct_real",
        "windows/lung/offsets",
        lambda v: changed(v, 1, v[1] - 1),
        " set bits, but its offsets count ",
    ),
    ("robot_robomimic", "episodes/offsets", lambda v: changed(v, 1, 0), "episode 0 has no steps"),
    ("robot_streams", _WRIST, lambda v: changed(v, 3, v[0] - 1), "row 3 is earlier than the row before it"),
    (
        *("robot_flat", "steps/next_valid", lambda v: changed(v, 4, True)),
        "is True for step 4, which ends an episode, but no next observation is stored",
    ),
    (
        *("robot_flat", "steps/next_valid", lambda v: changed(v, 1, False)),
        "is False for step 1, but its episode goes on, so the next observation is known",
    ),
    ("robot_flat", "steps/terminated", lambda v: v & False, "neither terminated nor truncated"),
]


@pytest.mark.parametrize(
    ("name", "path", "change", "message"), VALUES, ids=[f"{v[1]}-{n}" for n, v in enumerate(VALUES)]
)
def test_a_sealed_value_that_breaks_its_rule_is_a_problem(
    name: str,
    path: str,
    change: Callable[[np.ndarray], np.ndarray],
    message: str,
    copy_case: Copy,
    forge: Callable[..., None],
) -> None:
    _, store = copy_case(name)
    forge(store, {path: change(read(store, path))})
    problems = verify(store).problems
    assert {problem.kind for problem in problems} == {"values"}, problems
    assert any(message in problem.message for problem in problems), problems


@pytest.mark.parametrize("scale", [0.0, -100.0, 99.5])
def test_a_forged_scale_is_not_read(
    scale: float, copy_case: Copy, forge: Callable[..., None], tmp_path: Path
) -> None:
    _, store = copy_case("cloud_in_segments")
    forge(store, {"sources/scale": np.full_like(read(store, "sources/scale"), scale)})
    for reading in (lambda: Dataset(store)[0], lambda: export(store, tmp_path / "files")):
        with pytest.raises(StoreError, match=r"sources/scale: .*100\.0"):
            reading()


def sealed_with(store: Path, forge: Callable[..., None], **attributes: Any) -> list[tuple[str, str, str]]:
    forge(store, {}, attributes)
    return [(problem.kind, problem.location, problem.message) for problem in verify(store).problems]


def test_a_root_that_contradicts_the_arrays_is_a_problem(copy_case: Copy, forge: Callable[..., None]) -> None:
    _, store = copy_case("rows_real")
    root = attributes_of(store)
    name = next(path for path in root["fields"] if path.startswith("rows/"))
    fields = {**root["fields"], "rows/ghost": root["fields"][name]}
    assert sealed_with(store, forge, fields=fields)[0][:2] == ("metadata", "rows/ghost/zarr.json")
    wrong = sealed_with(store, forge, fields=root["fields"], samples={"count": 1, "table": "rows"})
    assert ("schema", name) in [each[:2] for each in wrong]
    assert sealed_with(store, forge, family="sonar")[0][:2] == ("family", "zarr.json")
    with pytest.raises(CorruptionError, match="'family' is 'Sonar', expected the name of a family"):
        sealed_with(store, forge, family="Sonar")


@pytest.mark.parametrize(
    "change",
    [
        lambda found: found["metadata"]["rows"]["attributes"].update(a=1),
        lambda found: found["metadata"]["splits/code"].update(shape=[1]),
        lambda found: found["metadata"].pop("sources/path"),
        lambda found: found["metadata"].update({"rows/ghost": {}}),
        lambda found: found.update(kind="outline"),
        lambda found: found.clear(),
    ],
)
def test_consolidated_metadata_that_differ_from_the_documents_are_a_problem(
    change: Callable[[Any], Any], copy_case: Copy, forge: Callable[..., None]
) -> None:
    _, store = copy_case("rows_real")
    document = json.loads((store / "zarr.json").read_text())
    change(document["consolidated_metadata"])
    (store / "zarr.json").write_text(json.dumps(document))
    forge(store, {}, {})
    (problem,) = verify(store).problems
    assert (problem.kind, problem.location) == ("metadata", "zarr.json")


def test_a_manifest_that_contradicts_the_arrays_is_a_problem(
    copy_case: Copy, forge: Callable[..., None]
) -> None:
    """A manifest, sealed, that lacks a shard, gives wrong rows, or lists one too many."""
    from unistore.store.manifest import parse_manifest

    _, store = copy_case("rows_real")
    manifest = store / "unistore-manifest.jsonl"
    lines = manifest.read_bytes().splitlines(keepends=True)
    shard = next(line for line in lines if b"rows/" in line and b"/c/0" in line)
    (entry,) = parse_manifest(shard, "here")
    manifest.write_bytes(b"".join(line for line in lines if line != shard))
    forge(store, {})
    kinds = {(problem.kind, problem.location) for problem in verify(store).problems}
    assert ("metadata", entry.key) in kinds
    assert ("extra", entry.key) in kinds
    rows = b'"rows":[0,%d]' % entry.rows[1]
    assert rows in shard
    manifest.write_bytes(b"".join(lines).replace(shard, shard.replace(rows, b'"rows":[0,1]')))
    forge(store, {})
    (problem,) = verify(store).problems
    assert "the manifest states (0, 1)" in problem.message
    one_more = shard.replace(entry.key.encode(), entry.key.removesuffix("0").encode() + b"7")
    (store / (entry.key.removesuffix("0") + "7")).write_bytes((store / entry.key).read_bytes())
    manifest.write_bytes(b"".join([*lines, one_more]))
    forge(store, {})
    (problem,) = verify(store).problems
    assert "does not belong to an array" in problem.message


@pytest.mark.parametrize(("case", "path"), [("cloud_real", "points/xyz"), ("ct_cases", "masks/liver/mask")])
def test_rules_about_an_array_with_damaged_metadata_are_not_checked(
    copy_case: Copy, case: str, path: str
) -> None:
    _, store = copy_case(case)
    document = store / path / "zarr.json"
    document.write_bytes(document.read_bytes().replace(b"chunk_shape", b"chunk_sha{e"))
    found = verify(store)
    assert [problem.location for problem in found.problems] == [f"{path}/zarr.json"]
    assert {"coordinates", "masks"} & set(found.unchecked)


@pytest.mark.parametrize(
    ("name", "path", "change", "message"),
    BY_RECORDED_RULES,
    ids=[f"{case[1]}-{number}" for number, case in enumerate(BY_RECORDED_RULES)],
)
def test_rules_that_the_store_records_are_checked_without_its_family(
    name: str,
    path: str,
    change: Callable[[np.ndarray], np.ndarray],
    message: str,
    copy_case: Copy,
    forge: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case, store = copy_case(name)
    monkeypatch.setattr(registry, "_OURS", tuple(own for own in registry._OURS if own != case.family))
    monkeypatch.setattr(registry, "families", dict)
    assert {problem.kind for problem in verify(store).problems} == {"family"}
    forge(store, {path: change(read(store, path))})
    problems = [problem for problem in verify(store).problems if problem.kind != "family"]
    assert any(problem.kind == "values" and message in problem.message for problem in problems), problems


NEEDED = [
    ("point_cloud_scaled", "segments/offsets", {}, "does not state offsets, expected offsets of points"),
    (
        "point_cloud_scaled",
        "segments/offsets",
        {"offsets_of": "segments/number"},
        "states offsets of segments/number, expected offsets of points",
    ),
    ("ct_related", "volumes/extent", {"least": 0}, "does not limit its values by the shape of volumes/image"),
    ("spike_steps", "sequences/offsets", {}, "frames"),
    (
        "ct_related",
        "volumes/extent",
        {"limits": [{"array": "volumes/image", "axes": [1, 2, 3], "scale": 1}]},
        "masks/binary/mask",
    ),
    ("spike_steps", "frames/spike_extent", {}, "frames/voxel/3"),
    ("trajectory_streams", "episodes/clocks/force/offsets", {}, "clocks/force"),
    (
        "trajectory_ragged",
        "clocks/lidar/observation/lidar/ring_ragged/offsets",
        {},
        "clocks/lidar/observation/lidar/ring_ragged",
    ),
    ("events", "recordings/offsets", {"offsets_of": "marks/t"}, "events"),
    ("trajectory", "episodes/offsets", {}, "steps"),
]


@pytest.mark.parametrize(("name", "path", "rule", "message"), NEEDED)
def test_a_kind_refuses_a_store_whose_rules_do_not_say_what_it_follows(
    name: str, path: str, rule: dict[str, Any], message: str, forge: Callable[..., None], tmp_path: Path
) -> None:
    store = tmp_path / "store.zarr"
    shutil.copytree(STORES / f"{name}.zarr", store)
    kinds = {
        "spike_steps": Clips(length=1, crop=None),
        "events": Events("1ms"),
        "trajectory_streams": Episodes(),
        "trajectory_ragged": Episodes(),
    }
    assert len(Dataset(store, kinds.get(name))[0]) > 1
    fields = attributes_of(store)["fields"]
    fields[path]["rule"] = rule
    forge(store, {}, {"fields": fields})
    with pytest.raises(StoreError, match=f"{path}: its rule .*{message}"):
        Dataset(store, kinds.get(name))[0]
    assert any(problem.file == path for problem in verify(store).problems)
