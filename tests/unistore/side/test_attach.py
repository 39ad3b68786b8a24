"""``attach``: columns beside sealed stores of every family, against numpy and zarr-python."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unistore
from tests.support import cases
from tests.support.needs_torch import needs_torch
from tests.support.programs import call
from tests.support.progress import CountedProgress
from tests.support.store_files import flip
from unistore.errors import InputError, StoreError
from unistore.side.attach import _read_npy
from unistore.zarr3 import storage

GOLDEN = Path(__file__).parents[2] / "data" / "golden"
TABLES = {
    "point_cloud_scaled.zarr": ("points", "segments"),
    "rows.zarr": ("rows",),
    "ct.zarr": ("volumes",),
    "events.zarr": ("events",),
    "trajectory.zarr": ("steps",),
}
COUNTED = {"points": "points/xyz", "segments": "segments/source", "rows": "rows/label"}
COUNTED |= {"volumes": "volumes/extent", "events": "events/t", "steps": "steps/reward"}


@pytest.fixture
def golden(tmp_path: Path) -> Callable[[str], Path]:
    return lambda name: Path(shutil.copytree(GOLDEN / name, tmp_path / name))


def rows_of(path: Path, table: str) -> int:
    return len(unistore.Store(path).array(COUNTED[table]))


def column(rows: int, seed: int = 0) -> np.ndarray[Any, Any]:
    values = np.random.default_rng(seed).normal(size=(rows, 2)).astype(np.float32)
    values[0, 0] = np.nan
    return values


def test_clips_read_columns_of_frames(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    path = cases.spike_tiles(tmp_path / "src").convert(tmp_path / "s.zarr")
    frames = len(unistore.Store(path).array("frames/source"))
    values = column(frames)
    side = unistore.attach(path, "prediction", values, "frames")
    assert side.paths == ["frames/prediction"]
    clips = unistore.Clips(2, crop=None)
    dataset = unistore.Dataset(path, clips, fields=["frame", "prediction"])
    assert len(dataset) > 1
    batch = dataset.read_batch([*range(len(dataset)), 0])
    expected = values[np.asarray(batch["frame"])[:, None] + np.arange(2)]
    np.testing.assert_array_equal(batch["prediction"], expected)
    with pytest.raises(InputError, match="the samples have no 'other'"):
        unistore.Dataset(path, clips, fields=["other"])


def test_a_function_tells_its_progress(golden: Callable[[str], Path]) -> None:
    path = golden("rows.zarr")
    rows = rows_of(path, "rows")
    progress = CountedProgress()
    unistore.attach(path, "weight", lambda _: np.float32(1), progress=progress)
    assert progress.begun == [("attaching", 4 * rows)]
    assert progress.done == 4 * rows


def of_samples(path: Path, table: str, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Values without those of points and segments that are no samples."""
    store = unistore.Store(path)
    if store.family != "point_cloud":
        return values
    is_sample = store.array("segments/number").read() >= 0
    lengths = np.diff(store.array("segments/offsets").read())
    return values[is_sample if table == "segments" else np.repeat(is_sample, lengths)]


def kind_of(path: Path) -> Any:
    return unistore.Ragged() if "events" in path.name else "Episodes" if "trajectory" in path.name else None


@pytest.mark.parametrize(("name", "table"), [(name, table) for name in TABLES for table in TABLES[name]])
def test_a_column_attached_to_any_table_is_read_beside_the_samples(
    name: str, table: str, golden: Callable[[str], Path], tree: Callable[[Path], dict[str, bytes]]
) -> None:
    path = golden(name)
    before = tree(path)
    values = column(rows_of(path, table))
    default = unistore.Dataset(path, kind_of(path)).fields
    side = unistore.attach(path, "prediction", values, table)
    assert tree(path) == before
    array = unistore.open_zarr(side.folder)[f"{table}/prediction"]
    np.testing.assert_array_equal(array[:], values)
    dataset = unistore.Dataset(path, kind_of(path), fields=[default[0], "prediction"])
    samples = [np.asarray(dataset[index]["prediction"]) for index in range(len(dataset))]
    read = np.concatenate([sample.reshape(-1, 2) for sample in samples])
    np.testing.assert_array_equal(read, of_samples(path, table, values))
    assert unistore.Dataset(path, kind_of(path)).fields == default
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(dataset))[0]["prediction"], samples[0])
    assert unistore.verify(path).ok
    assert "prediction: a column of" in str(unistore.inspect(path))


def test_windows_of_events_have_their_rows(golden: Callable[[str], Path]) -> None:
    path = golden("events.zarr")
    times = unistore.Store(path).array("events/t").read().astype(np.int64)
    unistore.attach(path, "row", np.arange(len(times)))
    unistore.attach(path, "pair", np.stack([times, -times], axis=1))
    for kind in (unistore.Events(count=50), unistore.Events(window="1ms", voxel=2)):
        dataset = unistore.Dataset(path, kind, fields=["row", "t", "pair", "x"])
        assert len(dataset) > 10
        for index in range(len(dataset)):
            sample = dataset[index]
            np.testing.assert_array_equal(times[sample["row"]], sample["t"])
            np.testing.assert_array_equal(sample["pair"][:, 1], -sample["t"])


def test_arrays_iterables_and_functions_give_the_same(golden: Callable[[str], Path]) -> None:
    path = golden("point_cloud_scaled.zarr")
    dataset = unistore.Dataset(path)
    heights = [np.asarray(dataset[index]["xyz"])[:, 2] for index in range(len(dataset))]
    z = np.zeros(rows_of(path, "points"), np.float32)
    z[of_samples(path, "points", np.arange(len(z)))] = np.concatenate(heights)
    unistore.attach(path, "whole", z)
    unistore.attach(path, "parts", iter(heights))
    unistore.attach(path, "called", lambda sample: sample["xyz"][:, 2])
    unistore.attach(path, "highest", lambda sample: sample["xyz"][:, 2].max(), table="segments")
    read = unistore.Dataset(path, fields=["whole", "parts", "called", "highest"])
    for index, expected in enumerate(heights):
        sample = read[index]
        for name in ("whole", "parts", "called"):
            np.testing.assert_array_equal(sample[name], expected)
        assert sample["highest"] == expected.max()


def test_rows_of_no_sample_are_nan(copy_case: Callable[[str], Any]) -> None:
    _, path = copy_case("cloud_indices")
    dataset = unistore.Dataset(path, fields=["source_row"])
    rows = [np.asarray(dataset[index]["source_row"], np.float64) for index in range(len(dataset))]
    unistore.attach(path, "row", rows)
    read = unistore.Dataset(path, fields=["row", "source_row"])
    for index in range(len(dataset)):
        np.testing.assert_array_equal(read[index]["row"], dataset[index]["source_row"])
    with_nan = read.store.array("points/row").read()
    outside = np.isnan(with_nan)
    assert 0 < outside.sum() < len(with_nan)
    assert (with_nan[~outside] == read.store.array("points/source_row").read()[~outside]).all()


def test_values_of_episodes_are_keys_and_conditions(golden: Callable[[str], Path]) -> None:
    path = golden("trajectory.zarr")
    unistore.attach(path, "weight", lambda sample: len(sample["action"]) / 2, table="episodes")
    lengths = np.diff(unistore.Store(path).array("episodes/offsets").read())
    dataset = unistore.Dataset(path, "Episodes", fields=["action", "episode.weight"])
    assert [float(dataset[index]["episode.weight"]) for index in range(3)] == (lengths / 2).tolist()
    most = float(lengths.max() / 2)
    assert len(unistore.Dataset(path, "Episodes", where={"episode.weight": (most, None)})) == 1
    best = unistore.Dataset(path, "Episodes", top_fraction=("episode.weight", 0.1))
    assert len(best[0]["action"]) == lengths.max()


def test_workers_of_a_loader_read_an_attached_column(golden: Callable[[str], Path]) -> None:
    path = golden("rows.zarr")
    values = column(rows_of(path, "rows"))
    unistore.attach(path, "prediction", values)
    dataset = unistore.Dataset(path, fields=["prediction"])
    with unistore.Loader(dataset, batch_size=64, num_workers=2) as loader:
        read = np.concatenate([batch["prediction"].numpy().copy() for batch in loader])
    np.testing.assert_array_equal(read, values)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "short": ({"values": np.zeros(3)}, r"shape \(3,\), but the table 'points' has 617 rows"),
    "objects": ({"values": np.array([None])}, "object, which cannot be stored"),
    "texts": ({"values": ["a", "b", "c"]}, "sample 0: are <U1"),
    "few samples": ({"values": []}, "fewer than 3 arrays"),
    "long sample": (
        {"values": [np.zeros(1)]},
        r"sample 0: have the shape \(1,\), but the sample has 154 rows",
    ),
    "unlike samples": (
        {"values": [1, 2.5, 3], "table": "segments"},
        r"sample 1: have rows of float64 \(\), but the samples before have int64",
    ),
    "many samples": ({"values": [1, 2, 3, 4], "table": "segments"}, "more than 3 arrays"),
    "nothing": ({"values": 7}, "must be an array, an iterable of arrays, or a function, got int"),
    "column": ({"name": "intensity"}, "the array points/intensity of .* has this name"),
    "key": ({"name": "source"}, "segments/source of"),
    "epoch": ({"name": "offsets"}, "segments/offsets of"),
    "outside": ({"name": "../up"}, "not a plain name"),
    "reserved": ({"name": "__x"}, "not a plain name"),
    "folder of shards": ({"name": "c"}, "not a plain name"),
    "hidden": ({"name": ".hidden"}, "not a plain name"),
    "table": ({"table": "voxels/7"}, "no table 'voxels/7'.*one of points, segments"),
    "other table": (
        {"table": "voxels/200", "values": [1, 2, 3]},
        r"a row of 'voxels/200' is not of a single sample.*array of 93 rows",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_an_attach_that_does_not_fit_is_an_error_and_leaves_nothing(
    case: str, golden: Callable[[str], Path]
) -> None:
    path = golden("point_cloud_scaled.zarr")
    changed, message = WRONG[case]
    arguments = {"name": "prediction", "values": np.zeros(rows_of(path, "points")), **changed}
    with pytest.raises(InputError, match=message):
        unistore.attach(path, **arguments)
    assert not path.with_name(f"{path.name}.unistore-side").exists()


def test_an_existing_name_needs_overwrite(golden: Callable[[str], Path]) -> None:
    path = golden("rows.zarr")
    old, new = (column(rows_of(path, "rows"), seed) for seed in (1, 2))
    unistore.attach(path, "prediction", old)
    opened = unistore.Dataset(path, fields=["prediction"])
    np.testing.assert_array_equal(opened[1]["prediction"], old[1])
    with pytest.raises(InputError, match=r"an added column of this name.*overwrite"):
        unistore.attach(path, "prediction", new)
    with pytest.raises(ZeroDivisionError):
        unistore.attach(path, "prediction", lambda sample: 1 / 0, overwrite=True)
    unistore.attach(path, "prediction", new, overwrite=True)
    np.testing.assert_array_equal(unistore.Dataset(path, fields=["prediction"])[1]["prediction"], new[1])
    names = sorted(file.name.split(".")[-1] for file in path.with_name("rows.zarr.unistore-side").iterdir())
    assert names == ["json", "zarr"]


def die_at(path: Path, sample: int) -> None:
    seen = iter(range(sample))

    def value(_: Any) -> np.float32:
        if next(seen, None) is None:
            os._exit(9)
        return np.float32(0)

    unistore.attach(path, "prediction", value, overwrite=True)


@needs_torch
@pytest.mark.timeout(60)
def test_a_killed_process_leaves_the_old_one(golden: Callable[[str], Path]) -> None:
    path = golden("rows.zarr")
    values = column(rows_of(path, "rows"))
    for exists in (False, True):
        process = multiprocessing.get_context("fork").Process(target=die_at, args=(path, 5))
        process.start()
        process.join()
        assert process.exitcode == 9
        if exists:
            np.testing.assert_array_equal(
                unistore.Dataset(path, fields=["prediction"])[3]["prediction"], values[3]
            )
        unistore.attach(path, "prediction", values, overwrite=True)
        assert len(list(path.with_name("rows.zarr.unistore-side").iterdir())) == 2


def test_a_side_table_of_another_seal_is_refused(golden: Callable[[str], Path]) -> None:
    path = golden("rows.zarr")
    unistore.attach(path, "prediction", column(rows_of(path, "rows")))
    shutil.rmtree(path)
    shutil.copytree(GOLDEN / "rows_split.zarr", path)
    with pytest.raises(StoreError, match=r"other values .*unistore attach .* prediction FILE --overwrite"):
        unistore.Dataset(path, fields=["prediction"])
    assert len(unistore.Dataset(path)) == 50
    (problem,) = unistore.verify(path).problems
    assert (problem.file, problem.kind) == ("prediction", "side")
    assert "other values of this store" in str(unistore.inspect(path))


@pytest.mark.parametrize("damage", ["shard", "document", "missing", "elsewhere", "link"])
def test_a_damaged_side_table_is_found(damage: str, golden: Callable[[str], Path], tmp_path: Path) -> None:
    path = golden("rows.zarr")
    side = unistore.attach(path, "prediction", column(rows_of(path, "rows")))
    document = side.folder.with_name("prediction.json")
    match damage:
        case "shard":
            shard = side.folder / "rows" / "prediction" / "c" / "0" / "0"
            flip(shard, 9)
        case "document":
            document.write_bytes(document.read_bytes()[:9])
        case "missing":
            shutil.rmtree(side.folder)
        case "elsewhere":
            document.write_text(json.dumps({**json.loads(document.read_bytes()), "folder": "../rows.zarr"}))
        case "link":
            document.rename(tmp_path / "moved")
            document.symlink_to(tmp_path / "moved")
    assert not unistore.verify(path).ok
    assert unistore.verify(path).problems[0].file.startswith("prediction")
    assert len(unistore.Dataset(path)) == 1065
    with pytest.raises(StoreError, match="prediction"):
        unistore.Dataset(path, fields=["prediction"])[0]


def _truncated(side: unistore.SideTable) -> None:
    document = side.folder.with_name(f"{side.name}.json")
    document.write_bytes(document.read_bytes()[:10])


def _without_root(side: unistore.SideTable) -> None:
    (side.folder / "zarr.json").rename(side.folder / "zarr.json.away")


def _of_failing_disk(side: unistore.SideTable) -> None:
    """Make reads of the document fail as those of a bad block."""
    failing.add(str(side.folder.with_name(f"{side.name}.json")))


def _of_failing_root(side: unistore.SideTable) -> None:
    failing.add(str(side.folder / "zarr.json"))


failing: set[str] = set()


@pytest.fixture
def eio(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Reads of the files in `failing` raise EIO."""
    real = storage.open_regular

    def open_regular(path: Any) -> Any:
        if os.fspath(path) in failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return real(path)

    monkeypatch.setattr(storage, "open_regular", open_regular)
    yield
    failing.clear()


@pytest.mark.usefixtures("eio")
@pytest.mark.parametrize("harm", [_truncated, _without_root, _of_failing_disk, _of_failing_root])
def test_a_refused_attach_or_derive_removes_nothing(
    harm: Callable[[unistore.SideTable], None],
    golden: Callable[[str], Path],
    tree: Callable[[Path], dict[str, bytes]],
) -> None:
    path = golden("point_cloud_scaled.zarr")
    attached = unistore.attach(path, "w", np.arange(rows_of(path, "points")))
    (derived,) = unistore.derive(path, voxel_size=0.7)
    for side in (attached, derived):
        harm(side)
    before = tree(attached.folder.parent)
    with pytest.raises(InputError, match="has an added column of this name"):
        unistore.attach(path, "w", np.zeros(rows_of(path, "points")))
    with pytest.raises(StoreError, match="voxel_size"):
        unistore.derive(path, voxel_size=0.7)
    assert tree(attached.folder.parent) == before


def test_a_damaged_document_is_replaced_on_demand_and_its_folder_stays(golden: Callable[[str], Path]) -> None:
    path = golden("rows.zarr")
    old, new = (column(rows_of(path, "rows"), seed) for seed in (1, 2))
    side = unistore.attach(path, "w", old)
    _truncated(side)
    unistore.attach(path, "w", new, overwrite=True)
    np.testing.assert_array_equal(unistore.Dataset(path, fields=["w"])[3]["w"], new[3])
    np.testing.assert_array_equal(unistore.open_zarr(side.folder)["rows/w"][:], old)


@pytest.mark.usefixtures("eio")
def test_a_document_that_cannot_be_read_is_not_overwritten(
    golden: Callable[[str], Path], tree: Callable[[Path], dict[str, bytes]]
) -> None:
    path = golden("rows.zarr")
    values = column(rows_of(path, "rows"))
    side = unistore.attach(path, "w", values)
    before = tree(side.folder.parent)
    _of_failing_disk(side)
    with pytest.raises(StoreError, match=r"w\.json: cannot be read: Input/output error"):
        unistore.attach(path, "w", values, overwrite=True)
    with pytest.raises(StoreError, match=r"w\.json: cannot be read"):
        unistore.Dataset(path, fields=["w"])[0]
    failing.clear()
    assert tree(side.folder.parent) == before
    np.testing.assert_array_equal(unistore.Dataset(path, fields=["w"])[0]["w"], values[0])


def _masked(count: int) -> Any:
    return np.ma.array(np.arange(count, dtype=np.float64), mask=np.arange(count) % 7 == 3)


class _Converts:
    """An array of another library, which numpy asks for its values."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self.values


MASKED: dict[str, Callable[[int], Any]] = {
    "array": _masked,
    "array of a library": lambda count: _Converts(_masked(count)),
    "iterable": lambda count: iter(_masked(count)),
    "lists": lambda count: [[value] for value in _masked(count)],
    "function": lambda _: lambda sample: np.ma.masked if sample["row"] == 3 else np.float64(0),
}


@pytest.mark.parametrize("form", MASKED)
def test_masked_values_are_refused_and_filled_ones_stored(form: str, tmp_path: Path) -> None:
    values = np.arange(20.0)
    np.savez(tmp_path / "a.npz", data=values[:, None], row=np.arange(20))
    unistore.convert(tmp_path / "a.npz", tmp_path / "s.zarr")
    path = tmp_path / "s.zarr"
    with pytest.raises(InputError, match=r"values.* \d of them are masked.*filled"):
        unistore.attach(path, "w", MASKED[form](20))
    assert not path.with_name("s.zarr.unistore-side").exists()
    unistore.attach(path, "filled", _masked(20).filled(np.nan))
    unistore.attach(path, "open", np.ma.array(values))
    read = unistore.Dataset(path, fields=["filled", "open"])
    every = read.read_batch(range(20))
    expected = values.copy()
    expected[[3, 10, 17]] = np.nan
    np.testing.assert_array_equal(every["filled"], expected)
    np.testing.assert_array_equal(every["open"], values)


def _file_of(folder: Path, what: str) -> Path:
    path = folder / "x.npy"
    match what:
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "empty":
            path.touch()
        case "text":
            path.write_text("1 2 3")
        case "pickle":
            np.save(path, np.array([None, "a"]), allow_pickle=True)
        case "archive":
            with path.open("wb") as file:
                np.savez(file, a=np.zeros(3))
        case "cut":
            np.save(path, np.zeros(10))
            path.write_bytes(path.read_bytes()[:-8])
        case "header":
            path.write_bytes(b"\x93NUMPY\x01\0\x10\0{'descr': (((((  ")
    return path


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("none", r"x\.npy: the file does not exist\. Fix: check the path"),
        ("folder", "is a folder, not a .npy file"),
        ("pipe", "is a pipe or a device, not a .npy file"),
        ("empty", "is not a .npy file: it is empty"),
        ("text", "is not a .npy file: it begins with b'1 2 3'"),
        ("archive", "is not a .npy file: an archive of arrays"),
        ("pickle", "is not a complete .npy file of numbers"),
        ("cut", "is not a complete .npy file of numbers"),
        ("header", "is not a complete .npy file of numbers"),
    ],
)
def test_a_file_of_values_that_is_not_npy_is_an_error_that_says_what_it_is(
    what: str, message: str, golden: Callable[[str], Path], tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        unistore.attach(golden("rows.zarr"), "w", _file_of(tmp_path, what))


def test_a_file_of_values_that_cannot_be_read_is_an_error(
    golden: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = golden("rows.zarr")
    values = np.arange(rows_of(path, "rows"))
    np.save(tmp_path / "x.npy", values)
    for code, words in ((errno.EACCES, "Permission denied"), (errno.EIO, "Input/output error")):
        with monkeypatch.context() as patched:

            def refuse(*_: Any, code: int = code) -> None:
                raise OSError(code, os.strerror(code))

            patched.setattr(os, "stat", refuse)
            with pytest.raises(InputError, match=rf"x\.npy: cannot be read: {words}"):
                _read_npy(tmp_path / "x.npy")
    unistore.attach(path, "w", tmp_path / "x.npy")
    assert int(unistore.Dataset(path, fields=["w"])[7]["w"]) == 7


def change_root(folder: Path, **members: Any) -> None:
    root = json.loads((folder / "zarr.json").read_bytes())
    root["attributes"]["unistore"].update(members)
    (folder / "zarr.json").write_text(json.dumps(root))


@pytest.mark.parametrize("hostile", ["column", "group", "no side", "no store"])
def test_a_forged_side_table_replaces_nothing(hostile: str, golden: Callable[[str], Path]) -> None:
    path = golden("ct.zarr")
    side = unistore.attach(path, "weight", [1.0, 2.0])
    about = dict(side.attributes["side"])
    match hostile:
        case "column":
            change_root(side.folder, fields={"volumes/image": {}})
        case "group":
            change_root(side.folder, side={**about, "groups": ["windows/lung"]})
        case "no side":
            change_root(side.folder, side=None)
        case "no store":
            change_root(side.folder, side={**about, "store": 7})
    with pytest.raises(StoreError, match="weight"):
        unistore.Dataset(path, fields=["image", "weight"])
    assert len(unistore.Dataset(path)) == 2
    assert not unistore.verify(path).ok


def test_the_attach_command_adds_a_column_and_refuses_unreadable_files(
    golden: Callable[[str], Path], tmp_path: Path, capsys: Any
) -> None:
    path = golden("point_cloud_scaled.zarr")
    np.save(tmp_path / "weight.npy", np.arange(rows_of(path, "segments")))
    np.savez(tmp_path / "several.npz", a=np.zeros(3))
    (tmp_path / "pickled.npy").write_bytes(pickle.dumps([1, 2]))
    weight = str(tmp_path / "weight.npy")
    assert call("attach", str(path), "weight", weight, "--table", "segments", "--json") == 0
    assert json.loads(capsys.readouterr().out)["arrays"] == ["segments/weight"]
    assert call("attach", str(path), "weight", weight, "--table", "segments") == 2
    assert "--overwrite" in capsys.readouterr().err
    for name in ("several.npz", "pickled.npy", "none.npy"):
        assert call("attach", str(path), "other", str(tmp_path / name)) == 2
        assert name in capsys.readouterr().err
    assert unistore.export(path, tmp_path / "files").notes[-1] == "added columns are not exported: weight"
