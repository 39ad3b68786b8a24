"""One plain store of a version: every array is that of one conversion of all sources, in every family."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import unistore
from tests.support import cases
from tests.support.problems import of_kind
from tests.support.store_files import tree
from tests.unistore.growing.conftest import CASES, Make, add_part, robots_of_which_some_have_attributes
from unistore.conversion import build


def check_equal(path: Path, expected: Path) -> None:
    store = unistore.Store(path)
    one = unistore.Store(expected)
    assert store.paths() == one.paths()
    for array in one.paths():
        np.testing.assert_array_equal(store.array(array).read(), one.array(array).read(), array)
        assert dict(store.array(array).attributes) == dict(one.array(array).attributes), array
    assert store.splits()[1] == one.splits()[1]


def test_attributes_that_differ_between_sources_are_compacted_like_one_conversion(tmp_path: Path) -> None:
    for number in range(3):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file["data/demo_0/actions"] = np.full((4, 2), number)
            file["data/demo_0"].attrs.update({"robot": "panda", "task": f"lift {number}"})
    sources = sorted(tmp_path.iterdir())
    unistore.convert(sources, tmp_path / "one.zarr")
    unistore.convert(sources[0], tmp_path / "s.zarr")
    for source in sources[1:]:
        unistore.append(source, tmp_path / "s.zarr")
    assert len(unistore.Dataset(tmp_path / "s.zarr").read_parts) == 1, "read as one store"
    unistore.compact(tmp_path / "s.zarr", tmp_path / "compacted.zarr", order="name")
    check_equal(tmp_path / "compacted.zarr", tmp_path / "one.zarr")
    for name in ("one.zarr", "compacted.zarr"):
        assert unistore.Store(tmp_path / name).group("episodes")["attributes"] == {"robot": "panda"}


@pytest.mark.nightly
@pytest.mark.parametrize(
    "make", [*CASES, robots_of_which_some_have_attributes], ids=lambda make: make.__name__
)
def test_a_compacted_store_equals_one_conversion(tmp_path: Path, joined: Any, make: Make) -> None:
    case = joined(make)
    store, compacted = tmp_path / "s.zarr", tmp_path / "compacted.zarr"
    unistore.compact(store, compacted, order="name", largest_index=0)
    check_equal(compacted, tmp_path / "one.zarr")
    assert unistore.verify(compacted, against=case.sources).receipt is not None
    first = unistore.Store(tmp_path / "one.zarr").text("sources/path")[0]
    unistore.remove(store, first)
    unistore.compact(store, tmp_path / "less.zarr", order="name", largest_index=1 << 25)
    unistore.convert(case.sources, tmp_path / "same.zarr", case.family, exclude=[first], **case.options)
    check_equal(tmp_path / "less.zarr", tmp_path / "same.zarr")


def damage(store: Path, sources: Sequence[Path]) -> None:
    """Change shards of each part, and the names of sources of the first, and have them repaired."""
    parts = [Path(part.store.path) for part in unistore.Dataset(store).parts]
    shards = [next(path for path in part.glob("**/c/**/*") if path.is_file()) for part in parts]
    shards.append(next(path for path in parts[0].glob("sources/path/data/c/**/*") if path.is_file()))
    whole = [shard.read_bytes() for shard in shards]
    for shard in shards:
        shard.write_bytes(b"")
    assert not unistore.verify(store, against=sources).ok
    repaired = unistore.repair(store, sources)
    assert repaired.ok
    assert {*repaired.repaired} == {shard.relative_to(store).as_posix() for shard in shards}
    assert [shard.read_bytes() for shard in shards] == whole


@pytest.mark.nightly
@pytest.mark.parametrize(
    "make", [cases.cloud_indices, cases.ct_sparse, cases.robot_flat], ids=lambda make: make.__name__
)
def test_commands_take_a_version_as_one_conversion(tmp_path: Path, joined: Any, make: Make) -> None:
    case = joined(make)
    store = tmp_path / "s.zarr"
    names = unistore.Store(tmp_path / "one.zarr").text("sources/path")
    unistore.remove(store, names[0])
    whole = {"grown": (store, 2), "one": (tmp_path / "one.zarr", None)}
    less = {"grown": (store, None), "one": (tmp_path / "less.zarr", None)}
    excluded = names[0]
    unistore.convert(case.sources, tmp_path / "less.zarr", case.family, exclude=excluded, **case.options)
    for number, pair in enumerate((whole, less)):
        exported = {}
        statistics = {}
        for name, (path, version) in pair.items():
            folder = tmp_path / f"{name}{number}"
            unistore.export(path, folder, version=version)
            exported[name] = tree(folder)
            statistics[name] = unistore.keep_statistics(path, version=version)
        assert exported["grown"] == exported["one"]
        assert statistics["grown"].keys() == statistics["one"].keys()
        for key, expected in statistics["one"].items():
            grown = statistics["grown"][key]
            assert (grown.axis, grown.axis_name) == (expected.axis, expected.axis_name)
            for field in dataclasses.fields(expected)[3:]:
                value = getattr(grown, field.name)
                np.testing.assert_allclose(value, getattr(expected, field.name), 1e-12, err_msg=key)
    assert unistore.verify(store, against=case.sources).receipt is not None
    damage(store, case.sources)


@pytest.mark.parametrize("to", ["lerobot", "robomimic"])
def test_a_dataset_of_all_sources_is_not_exported_of_parts(tmp_path: Path, joined: Any, to: str) -> None:
    joined(cases.robot_flat)
    with pytest.raises(unistore.InputError, match="unistore compact STORE DST"):
        unistore.export(tmp_path / "s.zarr", tmp_path / "out", to=to, fps=10 if to == "lerobot" else None)
    assert not (tmp_path / "out").exists()


def robots_that_differ(folder: Path, name: str, number: int) -> None:
    """Write an episode of other columns, dtypes, row shapes and attributes than those before it."""
    rng = np.random.default_rng(number)
    with h5py.File(folder / f"{name}.h5", "w") as file:
        group = file.create_group("data/demo_0")
        group["actions"] = rng.normal(size=(5, 2)).astype(["f4", "f8"][number % 2])
        group["obs/state"] = np.arange(10).reshape(5, 2).astype(["i1", "f4"][number % 2]) + number
        group["dones"] = np.arange(5) == 4
        group["next_obs/state"] = np.roll(group["obs/state"], -1, 0)
        if number == 2:
            group["next_obs/state"][1] = 9  # is not the observation of the next step
        if number != 1:
            group["obs/force"] = rng.normal(size=(5, 3 + number)).astype("f4")
            group["obs/count"] = rng.integers(0, 9, 5).astype("u1")
        if number == 3:
            group["scan"] = np.arange(5, dtype="i2")
            group.attrs["success"] = True
            group.attrs["task"] = "lift"


def clouds_that_differ(folder: Path, name: str, number: int) -> None:
    """Write a cloud of other columns and dtypes than those before it."""
    rng = np.random.default_rng(number)
    arrays = {"xyz": rng.random((50, 3), np.float32)}
    arrays["intensity"] = rng.integers(0, 99, 50).astype(["u1", "i4", "f4", "u2"][number])
    if number != 1:
        arrays["rgb"] = rng.integers(0, 255, (50, 3)).astype("u1")
    with h5py.File(folder / f"{name}.h5", "w") as file:
        for key, values in arrays.items():
            file[key] = values
        if number == 2:
            file.attrs["place"] = "hall"


def rows_that_differ(folder: Path, name: str, number: int) -> None:
    """Write rows of other columns, dtypes and row shapes than those before them."""
    columns = {"x": np.arange(6).astype(["u1", "i1", "f2", "i4"][number]), "y": np.ones((6, 2 + number))}
    if number % 2:
        columns["z"] = np.arange(6).astype("i2")
    if number == 3:
        columns["text"] = np.array(["a", "bb", "", "ccc", "d", "e"])
    np.savez(folder / f"{name}.npz", **columns)  # type: ignore[arg-type]


@pytest.mark.nightly
@pytest.mark.parametrize("family", ["rows", "point_cloud", "trajectory"])
@pytest.mark.parametrize("first", [[0], [0, 1], [1, 2], [3]], ids=str)
def test_stores_that_differ_become_one(tmp_path: Path, family: str, first: list[int]) -> None:
    (tmp_path / "src").mkdir()
    write = {"rows": rows_that_differ, "point_cloud": clouds_that_differ, "trajectory": robots_that_differ}
    for number in range(4):
        write[family](tmp_path / "src", "abcd"[number], number)
    sources = sorted((tmp_path / "src").iterdir())
    others = [number for number in range(4) if number not in first]
    for name, numbers in (("mine.zarr", first), ("yours.zarr", others)):
        excluded = [source.name for number, source in enumerate(sources) if number not in numbers]
        unistore.convert(tmp_path / "src", tmp_path / name, family, exclude=excluded, columns="union")
    unistore.convert(tmp_path / "src", tmp_path / "one.zarr", family, columns="union")
    stores = [tmp_path / "mine.zarr", tmp_path / "yours.zarr"]
    workers = len(first) - 1
    unistore.compact(stores, tmp_path / "both.zarr", order="name", columns="union", workers=workers)
    check_equal(tmp_path / "both.zarr", tmp_path / "one.zarr")
    with pytest.raises(unistore.InputError, match=r"(?s)columns differ:.*--columns union to fill"):
        unistore.compact(stores, tmp_path / "none.zarr", columns="exact")
    with pytest.raises(unistore.InputError, match="several of the stores have"):
        unistore.compact([stores[0], stores[0]], tmp_path / "none.zarr")


def _write(folder: Path, name: str, **columns: object) -> None:
    folder.mkdir(exist_ok=True)
    np.savez(folder / f"{name}.npz", **columns)  # type: ignore[arg-type]


def test_parts_that_differ_are_refused_by_name(tmp_path: Path) -> None:
    _write(tmp_path / "a", "a", x=np.zeros(3, np.int16), y=np.ones(3))
    _write(tmp_path / "b", "b", x=np.zeros(4, np.int16))
    unistore.convert(tmp_path / "a", tmp_path / "s.zarr")
    unistore.convert(tmp_path / "b", tmp_path / "p.zarr")
    add_part(tmp_path / "s.zarr", tmp_path / "p.zarr")
    with pytest.raises(unistore.InputError, match=r"rows/y: float64 in a\.npz, missing in b\.npz"):
        unistore.compact(tmp_path / "s.zarr", tmp_path / "one.zarr")
    assert not (tmp_path / "one.zarr").exists()


def test_a_split_or_conditions_select_whole_sources(tmp_path: Path) -> None:
    for number in range(8):
        rows = np.arange(number + 2)
        _write(tmp_path / "src", f"{number}", x=rows + 10 * number, y=rows > 4)
    sources = sorted((tmp_path / "src").iterdir())
    store = tmp_path / "s.zarr"
    unistore.convert(sources[:6], store, split="train=0.6,val=0.4")
    unistore.append(sources[6:], store)
    unistore.remove(store, "6.npz")
    selections: list[dict[str, Any]] = [
        {"split": "val"},
        {"where": {"source": "[1-7].npz"}},
        {"split": "train", "where": {"source": "[0-4]*"}},
    ]
    for number, options in enumerate(selections):
        unistore.compact(store, tmp_path / f"{number}.zarr", **options)
        found = unistore.Dataset(tmp_path / f"{number}.zarr", fields=["x", "source"])
        expected = unistore.Dataset(store, fields=["x", "source"], **options)
        assert 0 < len(found) == len(expected) < sum(range(2, 10))
        for index in range(len(found)):
            assert (found[index]["source"], int(found[index]["x"])) == (
                expected[index]["source"],
                int(expected[index]["x"]),
            )
        assert unistore.verify(tmp_path / f"{number}.zarr", against=tmp_path / "src").receipt is not None
    refused: list[tuple[str, dict[str, Any]]] = [
        (r"4\.npz: only 1 of its 6 samples match", {"where": {"row.y": 1}}),
        ("no split 'test'. Fix: use one of 'train', 'val'", {"split": "test"}),
        ("no source is in this split and meets all conditions", {"where": {"source": "z*"}}),
        ("has no 'z' of its samples", {"where": {"z": 1}}),
    ]
    for message, options in refused:
        with pytest.raises(unistore.InputError, match=message):
            unistore.compact(store, tmp_path / "none.zarr", **options)
    with pytest.raises(unistore.InputError, match="store: must be a folder, or several"):
        unistore.compact([], tmp_path / "none.zarr")


def test_a_killed_compaction_resumes_and_never_overwrites(tmp_path: Path) -> None:
    _write(tmp_path / "a", "a", x=np.arange(3))
    _write(tmp_path / "b", "b", x=np.arange(5))
    unistore.convert(tmp_path / "a", tmp_path / "s.zarr")
    unistore.append(tmp_path / "b", tmp_path / "s.zarr")
    child = os.fork()
    if child == 0:
        build.FolderBuild.move_into_place = lambda _: os._exit(9)  # type: ignore[method-assign]
        unistore.compact(tmp_path / "s.zarr", tmp_path / "one.zarr")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert not (tmp_path / "one.zarr").exists()
    report = unistore.compact(tmp_path / "s.zarr", tmp_path / "one.zarr")
    assert report.resumed == report.tasks == 1
    assert unistore.Store(tmp_path / "one.zarr").array("rows/x").read().tolist() == [0, 1, 2, 0, 1, 2, 3, 4]
    with pytest.raises(unistore.InputError, check=of_kind("exists")):
        unistore.compact(tmp_path / "s.zarr", tmp_path / "one.zarr")
    _write(tmp_path / "c", "c", x=np.arange(2))
    assert unistore.append(tmp_path / "c", tmp_path / "one.zarr").version == 2


@pytest.mark.parametrize("kind", ["follow", "differ"])
def test_stores_with_and_without_next_observations_become_one(tmp_path: Path, kind: str) -> None:
    (tmp_path / "src").mkdir()
    for number, name in enumerate("abc"):
        values = np.random.default_rng(number).normal(size=(6, 2)).astype(["f4", "f8", "f4"][number])
        with h5py.File(tmp_path / "src" / f"{name}.h5", "w") as file:
            for demo, steps in (("demo_0", 5), ("demo_1", 3)):
                group = file.create_group(f"data/{demo}")
                group["actions"] = np.zeros((steps, 2))
                group["obs/state"] = values[:steps]
                group["obs/said"] = np.array([f"{name}{step}" for step in range(steps)], object)
                if name == "a" or (name == "c" and demo == "demo_1"):
                    group["next_obs/state"] = values[1 : steps + 1] + (kind == "differ")
                    group["next_obs/said"] = np.array([f"next {step}" for step in range(steps)], object)
    names = ["a.h5", "b.h5", "c.h5"]
    unistore.convert(tmp_path / "src", tmp_path / "one.zarr")
    for store, number in (("a.zarr", 0), ("b.zarr", 1), ("c.zarr", 2)):
        excluded = names[:number] + names[number + 1 :]
        unistore.convert(tmp_path / "src", tmp_path / store, exclude=excluded)
    stores = [tmp_path / "a.zarr", tmp_path / "b.zarr", tmp_path / "c.zarr"]
    unistore.compact(stores, tmp_path / "both.zarr", order="name")
    check_equal(tmp_path / "both.zarr", tmp_path / "one.zarr")


def test_a_compacted_version_has_the_arrays_and_attributes_of_one_conversion(tmp_path: Path) -> None:
    sources = [tmp_path / f"{number}.h5" for number in range(3)]
    for number, source in enumerate(sources):
        with h5py.File(source, "w") as file:
            file["data/demo_0/actions"] = np.full((4, 2), number)
            if number == 2:  # without it, no array of attributes is left
                file["data/demo_0"].attrs["task"] = "lift"
    unistore.convert([sources[0], sources[2]], tmp_path / "s.zarr")
    unistore.append(sources[1], tmp_path / "s.zarr")
    unistore.remove(tmp_path / "s.zarr", "2.h5")
    unistore.compact(tmp_path / "s.zarr", tmp_path / "compacted.zarr")
    unistore.convert(sources[:2], tmp_path / "one.zarr")
    check_equal(tmp_path / "compacted.zarr", tmp_path / "one.zarr")


def test_compaction_after_appends_and_a_removal_takes_the_rows_of_the_kept_sources(tmp_path: Path) -> None:
    store = tmp_path / "s.zarr"
    for number in range(6):
        _write(tmp_path / "src", str(number), x=np.arange(number + 2) + 10 * number)
    sources = sorted((tmp_path / "src").iterdir())
    unistore.convert(sources[:2], store)
    unistore.append(sources[2:4], store)
    unistore.append(sources[4:], store)
    unistore.remove(store, "0.npz")
    for order in ("version", "name"):
        unistore.compact(store, tmp_path / f"{order}.zarr", order=order)
        compacted = unistore.Store(tmp_path / f"{order}.zarr")
        assert compacted.text("sources/path") == [source.name for source in sources[1:]]
        expected = np.concatenate([np.load(source)["x"] for source in sources[1:]])
        np.testing.assert_array_equal(compacted.array("rows/x").read(), expected)
    assert unistore.verify(tmp_path / "version.zarr", against=tmp_path / "src").receipt is not None


def test_a_mended_source_that_was_appended_is_skipped_no_more(tmp_path: Path) -> None:
    store = tmp_path / "s.zarr"
    one = tmp_path / "one.zarr"
    (tmp_path / "in").mkdir()
    for name in ("a", "b", "c"):
        np.savez(tmp_path / "in" / f"{name}.npz", x=np.ones((4, 2), "f4"))
    for name in ("b", "c"):
        os.truncate(tmp_path / "in" / f"{name}.npz", 100)
    unistore.convert(tmp_path / "in", store, on_error="skip")
    np.savez(tmp_path / "in" / "b.npz", x=np.zeros((3, 2), "f4"))
    unistore.append(tmp_path / "in", store, on_error="skip")
    report = unistore.compact(store, one)
    assert [entry["left_out"] for entry in report.skipped] == ["c.npz"]
    for path in (store, one):
        receipt = unistore.verify(path, against=tmp_path / "in").receipt
        assert receipt is not None
        assert receipt.left_out == ("c.npz",)
    assert unistore.Store(one).text("sources/path") == ["a.npz", "b.npz"]
    np.savez(tmp_path / "in" / "c.npz", x=np.zeros((5, 2), "f4"))
    unistore.append(tmp_path / "in", store)
    assert unistore.compact(store, one, overwrite=True).skipped == ()
    assert "skipped" not in unistore.inspect(one).to_json()["options"]
