"""What inspect says of stores of every family, of unfinished conversions, of sources and of anything else."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import zarr

import unistore
from tests.support.cases import REAL, Case
from tests.support.executors import Stopping
from tests.support.needs_torch import needs_torch
from tests.support.programs import call, printed
from tests.support.store_files import attributes_of
from unistore.cli.main import cli
from unistore.conversion.lock import Lock
from unistore.conversion.run import run
from unistore.conversion.settings import Settings
from unistore.report.suggestions import convert_command
from unistore.store.names import build_folder

DATA = Path(__file__).parents[2] / "data"
MakeCase = Callable[[str], tuple[Case, Path]]
FAMILIES = dict(zip(("rows", "point_cloud", "ct", "spike", "trajectory"), REAL, strict=True))


def tree(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*")}


@pytest.mark.parametrize("family", FAMILIES)
def test_figures_of_a_store_equal_zarr_and_the_files(make_case: MakeCase, family: str) -> None:
    """Every figure against zarr-python and the files themselves."""
    case, path = make_case(FAMILIES[family])
    sources = case.sources if case.sources[0].is_file() else list(case.sources[0].iterdir())
    before = tree(path)
    about = unistore.inspect(path).to_json()
    assert tree(path) == before, "looking changes nothing"
    attributes = attributes_of(path)
    assert (about["kind"], about["path"], about["problems"]) == ("store", str(path), [])
    assert about["family"] == family
    assert about["samples"] == attributes["samples"]
    assert about["sources"]["count"] == len(sources)
    assert about["sources"]["bytes"] == sum(source.stat().st_size for source in sources)
    assert {each["path"] for each in about["sources"]["first"]} == {source.name for source in sources}
    assert {array["path"] for array in about["arrays"]} == set(attributes["fields"])
    for array in about["arrays"]:
        stored = zarr.open_array(path / array["path"], mode="r")
        files = [file for file in (path / array["path"]).rglob("*") if file.is_file()]
        shards = [file for file in files if file.name != "zarr.json"]
        assert array["shape"] == list(stored.shape)
        assert array["dtype"] == stored.dtype.name
        assert array["chunks"] == list(stored.chunks)
        assert array["shards"] == list(stored.shards or ())
        assert array["raw_bytes"] == stored.nbytes
        assert array["stored_bytes"] == sum(file.stat().st_size for file in shards)
        assert array["files"] == len(shards)
        assert array["codec"].endswith("crc32c")
        if array["stored_bytes"]:
            assert array["ratio"] == pytest.approx(array["raw_bytes"] / array["stored_bytes"], abs=1e-3)
    assert about["stored_bytes"] == sum(array["stored_bytes"] for array in about["arrays"])
    assert about["seal"]["agrees"] is True
    assert about["seal"]["files"] == sum(file.is_file() for file in path.rglob("*")) - 3
    assert json.loads(json.dumps(about)) == about


@needs_torch
def test_the_snippets_of_every_family_run_unchanged(make_case: MakeCase, tmp_path: Path) -> None:
    """Each pasted into a file of its own and run as a script."""
    for family, name in FAMILIES.items():
        code = unistore.inspect(make_case(name)[1]).details["snippet"]
        (tmp_path / f"{family}.py").write_text(code)
    runner = "import runpy, sys; [runpy.run_path(path, run_name='__main__') for path in sys.argv[1:]]"
    scripts = [str(tmp_path / f"{family}.py") for family in FAMILIES]
    output = printed("-W", "error", "-c", runner, *scripts)
    lines = output.splitlines()
    assert sum(line.startswith("index torch.Size") for line in lines) == len(FAMILIES)
    for expected in ("data", "xyz", "image", "voxel", "action"):
        assert any(line.startswith(f"{expected} torch.Size") for line in lines)


def test_splits_are_counted_and_the_snippet_takes_one(tmp_path: Path, make_store: Any) -> None:
    path = make_store(
        "rows", {"rows/x": np.arange(9)}, count=9, splits={"empty": [], "val": range(2), "fit": range(2, 9)}
    )
    about = unistore.inspect(path).to_json()
    assert about["splits"] == {"empty": 0, "val": 2, "fit": 7}
    assert 'split="val"' in about["snippet"]
    path = make_store("rows", {"rows/x": np.arange(9)}, count=9, splits={"val": [0], "train": range(1, 9)})
    assert 'split="train"' in unistore.inspect(path).to_json()["snippet"]


@pytest.mark.parametrize(
    ("name", "values", "told"),
    [
        ("label", list(range(10)), None),
        ("label", [0, 1, 2, 0, 1, 2, 0, 1, 2, 2], None),
        ("label", [0, 1, 2, 2, 2, 2, 2, 2, 1, 1], ("10 %", "0")),
        ("classification", [0, 0, 1, 2, 2, 2, 2, 5, 5, 5], ("30 %", "0 or 1")),
        ("label", [-1, 0, 1, 1, 1, 1, 1, 1, 1, 1], ("20 %", "-1 or 0")),
        ("classification", [2, 2, 3, 3, 3, 4, 4, 4, 5, 5], None),
        ("intensity", [0, 0, 0, 0, 1, 1, 1, 2, 2, 2], None),
    ],
)
def test_a_note_asks_about_a_frequent_label_that_may_mean_unlabelled(
    make_store: Any, name: str, values: Any, told: tuple[str, str] | None
) -> None:
    found = unistore.inspect(make_store("rows", {f"rows/{name}": np.array(values, "i4")}, count=10))
    remarks = [each for each in found.details["remarks"] if f"rows/{name}" in each]
    if told is None:
        assert remarks == []
    else:
        share, labels = told
        label = "LABEL" if "or" in labels else labels
        answer = f"If so: class_weights(…, unlabelled={label})"
        assert remarks == [f"{share} of rows/{name} are {labels}. Does {labels} mean 'unlabelled'? {answer}"]


def test_stored_voxels_are_the_first_other_samples_of_the_snippet(tmp_path: Path) -> None:
    options = {"segment": "window:50", "voxel_size": (20.0, 0.5)}
    store = unistore.convert([DATA / "pointcloud" / "thin_a.h5"], tmp_path / "a.zarr", **options).destination
    others = re.findall(r"# or: samples=(.*)", unistore.inspect(store).details["snippet"])
    assert others[:2] == ["unistore.Segments(voxel=0.5)", "unistore.Segments(voxel=20)"]
    assert len(others) == len(set(others))
    assert "voxel_coords" in unistore.Dataset(store, unistore.Segments(voxel=20))[0]


@pytest.mark.parametrize("damage", ["manifest", "root", "gone"])
def test_damage_to_the_seal_is_remarked(tmp_path: Path, damage: str) -> None:
    np.save(tmp_path / "a.npy", np.arange(20).reshape(10, 2))
    store = tmp_path / "a.zarr"
    unistore.convert(tmp_path / "a.npy", store, "rows")
    manifest = store / "unistore-manifest.jsonl"
    if damage == "manifest":
        manifest.write_bytes(manifest.read_bytes().replace(b'"bytes":', b'"bytes": ', 1))
    elif damage == "root":
        root = store / "zarr.json"
        digest = json.loads(root.read_text())["attributes"]["unistore"]["plan_digest"]
        root.write_bytes(root.read_bytes().replace(digest.encode(), digest[::-1].encode()))
    else:
        manifest.unlink()
    found = unistore.inspect(store)
    assert found.details["seal"]["agrees"] is False
    assert "DAMAGED" in str(found)
    assert any("unistore verify" in remark for remark in found.details["remarks"])
    assert not found.is_good


@pytest.fixture
def unfinished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Destination of a conversion that was stopped after its first of several shards."""
    from unistore.conversion.convert import make_converter

    monkeypatch.setattr("unistore.conversion.plan.SHARD", 16 << 10)
    np.save(tmp_path / "my data.npy", np.arange(100_000, dtype=np.int32).reshape(-1, 8))
    converter = make_converter("rows", {"map": {"my data": "data"}})
    sources = [tmp_path / "my data.npy"]
    with pytest.raises(KeyboardInterrupt):
        run(converter, sources, tmp_path / "out.zarr", Settings(codec="small"), executor=Stopping(1))
    return tmp_path / "out.zarr"


@pytest.mark.parametrize("where", ["destination", "build"])
def test_an_unfinished_conversion_is_shown_with_the_command_that_continues(
    unfinished: Path, where: str
) -> None:
    path = unfinished if where == "destination" else build_folder(unfinished)
    before = tree(unfinished.parent)
    found = unistore.inspect(path)
    assert tree(unfinished.parent) == before
    about = found.to_json()
    assert (about["kind"], about["family"], about["destination"]) == ("unfinished", "rows", str(unfinished))
    assert (about["tasks_done"], about["sealed"], about["at_work"]) == (1, False, None)
    assert about["tasks"] > 5
    assert about["written_bytes"] > 0
    words = shlex.split(about["command"])
    assert words == [
        *("unistore", "convert", "rows", str(unfinished.parent / "my data.npy"), str(unfinished)),
        *("--map", "my data=data", "--codec", "small"),
    ]
    text = str(found)
    assert f"1 of {about['tasks']} shards written" in text
    assert about["command"] in text
    assert found.is_good


def test_a_running_conversion_is_shown_without_a_command(unfinished: Path) -> None:
    with Lock(build_folder(unfinished) / "lock"):
        found = unistore.inspect(unfinished)
    assert found.details["at_work"].startswith("process ")
    assert "go on" not in str(found), "nobody is told to start it again while it runs"


def test_the_command_of_an_unfinished_conversion_finishes_it(unfinished: Path) -> None:
    words = shlex.split(unistore.inspect(unfinished).details["command"])
    assert call(*words[1:]) == 0
    assert unistore.inspect(unfinished).kind == "store"


SPELLED: dict[str, dict[str, Any]] = {
    "rows": {"map": {"a b": "data"}, "columns": "union"},
    "point_cloud": {"voxel_size": [20.0, 0.5], "segment": "window:50", "max_points": 9, "min_points": 2},
    "ct": {"window": ["lung:1500.0:-600.0", "mine:400:50"], "sparse": "mask", "resolution": 512},
    "spike": {"height": 96, "width": 160, "flip": False, "voxel_bins": [5, 10], "convert_images": True},
    "trajectory": {"image_size": 32, "images": "keep", "ignore": ["obs/a*", "b"], "colour": "swapped"},
}


@pytest.mark.parametrize("family", SPELLED)
def test_recorded_options_are_spelled_as_the_command_line_reads_them(family: str) -> None:
    """click reads the same options back out of the line, and nothing but them."""
    from unistore.cli.convert import convert

    split = {
        "split": {"train": 0.8, "val": 0.2},
        "split_rule": "hash",
        "split_seed": 3,
        "split_by": "row",
        "split_below": "in",
        "group_by": "a b",
        "split_from": {"name": "l.csv", "digest": "0"},
    }
    recorded = {**SPELLED[family], **split, "exclude": ["a b", "c"]}
    words = shlex.split(convert_command(family, ["in put"], "out.zarr", recorded))
    command = convert.get_command(click.Context(convert), words[2])
    assert command is not None
    parent = cli.make_context("unistore", ["convert"])  # a command keeps the help option of its first context
    parsed = command.make_context(words[2], words[3:], parent).params
    untouched = command.make_context(words[2], ["in put", "out.zarr"], parent).params
    changed = {name: value for name, value in parsed.items() if value != untouched[name]}
    spelled = {"split": "train=0.8,val=0.2", "split_from": "l.csv"}
    spelled |= {name: split[name] for name in ("split_seed", "split_by", "group_by")}
    assert {name: changed.pop(name) for name in spelled} == spelled
    assert json.loads(json.dumps(changed)) == {**SPELLED[family], "exclude": ["a b", "c"]}


def test_a_conversion_that_will_replace_a_store_names_it(unfinished: Path) -> None:
    unistore.convert(unfinished.parent / "my data.npy", unfinished.parent / "other.zarr", "rows")
    (unfinished.parent / "other.zarr").rename(unfinished)
    assert any("not finished" in remark for remark in unistore.inspect(unfinished).details["remarks"])
    found = unistore.inspect(build_folder(unfinished))
    assert found.details["replaces"] == str(unfinished)
    assert "--overwrite" in str(found)


def test_sources_read_before_some_were_left_out_are_not_counted_twice(unfinished: Path) -> None:
    steps = [{"step": "derive", "sources": 3, "round": 0}, {"step": "derive", "sources": 2, "round": 1}]
    with (build_folder(unfinished) / "journal.jsonl").open("a") as journal:
        journal.writelines(f"{json.dumps(step)}\n" for step in steps)
    assert unistore.inspect(unfinished).details["sources_read"] == 2


@pytest.mark.parametrize("family", FAMILIES)
def test_a_source_is_shown_with_family_tables_and_command(make_case: MakeCase, family: str) -> None:
    path = make_case(FAMILIES[family])[0].sources[0]
    path = path if path.is_file() else min(path.iterdir())
    found = unistore.inspect(path)
    about = found.to_json()
    assert (about["kind"], about["family"], about["problems"]) == ("source", family, [])
    assert about["sources"]["count"] == 1
    assert about["sources"]["bytes"] == path.stat().st_size
    assert about["reason"]
    assert about["tables"][0]["arrays"]
    stem = path.name.split(".")[0]
    assert shlex.split(about["command"]) == [
        *("unistore", "convert", family.replace("_", "-"), str(path), f"{stem}.zarr"),
    ]
    assert about["command"] in str(found)


def test_all_problems_of_sources_are_listed(tmp_path: Path) -> None:
    (tmp_path / "empty.h5").write_bytes(b"")
    (tmp_path / "lfs.h5").write_text("version https://git-lfs.github.com/spec/v1\n")
    (tmp_path / "cut.h5").write_bytes((DATA / "pointcloud/thin_a.h5").read_bytes()[:2000])
    found = unistore.inspect(tmp_path)
    about = found.to_json()
    assert about["kind"] == "source"
    assert {problem["file"] for problem in about["problems"]} == {"empty.h5", "lfs.h5", "cut.h5"}
    assert all(problem["message"] and problem["kind"] for problem in about["problems"])
    assert not found.is_good
    assert "3 problems to solve before converting" in str(found)


def test_a_zarr_group_of_others_is_shown_as_such(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "plain.zarr")
    group.create_array("a/b", shape=(3, 4), dtype="f4")
    found = unistore.inspect(tmp_path / "plain.zarr")
    about = found.to_json()
    assert (about["kind"], about["zarr_format"]) == ("zarr", 3)
    assert "not a unistore store" in str(found)
    assert found.is_good
    zarr.create_group(tmp_path / "old.zarr", zarr_format=2).create_array("x", shape=(2,), dtype="i4")
    about = unistore.inspect(tmp_path / "old.zarr").to_json()
    assert about["zarr_format"] == 2


def test_the_line_of_the_seal_does_not_claim_that_files_are_intact(tmp_path: Path) -> None:
    """Two bytes of a shard changed: nothing that inspect reads, and it does not say otherwise."""
    path = tmp_path / "a.zarr"
    np.save(tmp_path / "a.npy", np.random.default_rng(0).random((50, 4)))
    unistore.convert(tmp_path / "a.npy", path)
    shard = max(filter(Path.is_file, path.rglob("c/*/*")), key=lambda file: file.stat().st_size)
    data = bytearray(shard.read_bytes())
    data[20:22] = bytes(byte ^ 255 for byte in data[20:22])
    shard.write_bytes(data)
    found = unistore.inspect(path)
    seal = next(value for block in found.blocks for name, value in block.facts if name == "seal")
    assert seal.endswith("matches manifest and root; 'unistore verify' also reads the files")
    assert "intact" not in str(found)
    assert unistore.verify(path).problems


def test_suggestions_fit_the_store(make_store: Any, make_scans: Any) -> None:
    """Sizes that fit, of natural and other kinds; each runs as printed, and nothing of it is padded."""
    extents = np.tile(np.array([12, 20], np.int32), (7, 1))
    frames = {
        "frames/voxel/2": np.ones((7, 2, 12, 20), np.uint8),
        "frames/spike_extent": extents,
        "frames/source": np.arange(7, dtype=np.int32),
        "sources/path": list("abcdefg"),
        "sequences/offsets": np.array([0, 4, 7]),
        "sequences/name": ["a", "b"],
    }
    steps = {
        "steps/action": np.zeros((9, 2)),
        "steps/observation/x": np.zeros((9, 2)),
        "steps/next_valid": np.ones(9, bool),
        "episodes/offsets": np.array([0, 4, 9]),
    }
    cases = {
        make_store("spike", frames, count=7, table="frames"): {"unistore.Clips(length=4, crop=(12, 20))"},
        make_scans([(122, 101, 30), (130, 20, 99)]).path: {
            "unistore.Patches(size=(96, 20, 30))",
            "unistore.SparsePoints()",
        },
        make_scans([(97, 96, 99)]).path: {"unistore.Patches(96)", "unistore.SparsePoints()"},
        make_store("trajectory", steps, count=2, table="episodes"): {
            'unistore.Windows(history=2, horizon=8, pad="edge")'
        },
    }
    for path, expected in cases.items():
        code = unistore.inspect(path).details["snippet"]
        kinds = set(re.findall(r"samples=(unistore\.\w+\([^()]*(?:\([^()]*\))?[^()]*\))", code))
        assert kinds == expected
        for said in kinds:
            dataset = unistore.Dataset(path, eval(said), fields=["index"])
            assert len(dataset) > 0
            assert "reach" not in repr(dataset)
    splits = {"train": [4, 5, 6], "val": [0, 1, 2, 3]}
    far = make_store("spike", frames, count=7, table="frames", splits=splits)
    assert "Clips(length=3, crop=(12, 20))" in unistore.inspect(far).details["snippet"]
