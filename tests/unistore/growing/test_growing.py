"""Stores that grow: versions read as one conversion, whatever is killed, and bad input is refused by name."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unistore
from tests.support import programs
from unistore.cli.main import main
from unistore.conversion.plan import versions
from unistore.growing.growth import Growth, growing
from unistore.store.manifest import sign_root
from unistore.store.versions import open_stores
from unistore.zarr3 import durable
from unistore.zarr3.joined import UnalikeError
from unistore.zarr3.storage import LocalStorage, OpenFiles

SPLIT = "train=0.6,val=0.4"


def write_source(folder: Path, name: str, rows: int = 20, dtype: str = "float32") -> dict[str, Any]:
    values = np.random.default_rng(list(name.encode())).random((rows, 3)).astype(dtype)
    folder.mkdir(exist_ok=True, parents=True)
    np.savez(folder / f"{name}.npz", x=values, label=np.arange(rows) % 5)
    return {f"{name}.npz": values}


def age(*folders: Path) -> None:
    """Make sources older than the stores that are made of them next."""
    for folder in folders:
        for file in folder.iterdir():
            os.utime(file, (1e9, 1e9))


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, Any]:
    """Four sources by name: a to c in ``old/``, d in ``new/``."""
    values: dict[str, Any] = {}
    for name, rows in (("a", 20), ("b", 7), ("c", 31)):
        values |= write_source(tmp_path / "old", name, rows)
    values |= write_source(tmp_path / "new", "d", 11)
    age(tmp_path / "old", tmp_path / "new")
    return values


@pytest.fixture
def store(tmp_path: Path, sources: dict[str, Any]) -> Path:
    unistore.convert(tmp_path / "old", tmp_path / "s.zarr", split=SPLIT)
    return tmp_path / "s.zarr"


def check_values(dataset: unistore.Dataset, expected: dict[str, Any]) -> None:
    """Compare every sample of a dataset with the arrays of its sources."""
    rows: dict[str, list[Any]] = {}
    for index in range(len(dataset)):
        sample = dataset[index]
        rows.setdefault(sample["source"], []).append(sample["x"].numpy())
    assert rows.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(np.stack(rows[name]), values)


def opened(store: Path, **options: Any) -> unistore.Dataset:
    return unistore.Dataset(store, fields=["x", "source"], **options)


def test_versions_read_as_one_conversion(tmp_path: Path, store: Path, sources: dict[str, Any]) -> None:
    old = {name: values for name, values in sources.items() if name != "d.npz"}
    sealed = (store / "unistore-manifest.jsonl").read_bytes()
    appended = unistore.append(tmp_path / "new", store)
    assert (appended.version, appended.report and appended.report.samples) == (2, 11)
    check_values(opened(store), sources)
    before = opened(store, version=1)
    check_values(before, old)
    removed = unistore.remove(store, ["b*", "a.npz"])
    assert (removed.version, removed.sources, removed.samples) == (3, ("b.npz", "a.npz"), 42)
    left = {name: sources[name] for name in ("c.npz", "d.npz")}
    check_values(opened(store), left)
    check_values(before, old)
    check_values(pickle.loads(pickle.dumps(opened(store))), left)
    (first, *_) = (store / "parts").glob("*/unistore-manifest.jsonl")
    assert sealed in {file.read_bytes() for file in (store / "parts").glob("*/unistore-manifest.jsonl")}, (
        first
    )
    rows = [
        (one.number, one.sources, one.samples, one.added, one.removed) for one in unistore.versions(store)
    ]
    assert rows == [(1, 3, 58, 3, 0), (2, 4, 69, 1, 0), (3, 2, 42, 0, 2)]
    assert [path.name for path in tmp_path.iterdir() if "growth" in path.name] == []


def test_a_sample_is_that_of_the_version(
    tmp_path: Path, store: Path, sources: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    unistore.append(tmp_path / "new", store)
    unistore.remove(store, "b*")
    for version, names in ((1, "abc"), (2, "abcd"), (3, "acd")):
        rows = [(f"{name}.npz", row) for name in names for row in sources[f"{name}.npz"]]
        for sample in (0, 19, 20, len(rows) - 1):
            command = ["inspect", str(store), "--sample", str(sample), "--version", str(version), "--json"]
            with pytest.raises(SystemExit, match="0"):
                main(command)
            about = json.loads(capsys.readouterr().out)
            shown = next(key for key in about["keys"] if key["key"] == "x")
            name, row = rows[sample]
            assert (about["sample"], about["source"]) == (sample, name)
            assert (shown["min"], shown["max"]) == (row.min(), row.max())
        for beyond in (-1, len(rows)):
            with pytest.raises(SystemExit, match="2"):
                main(["inspect", str(store), f"--sample={beyond}", "--version", str(version)])
            assert f"has the samples 0 to {len(rows) - 1}" in capsys.readouterr().err


@pytest.mark.nightly
def test_splits_are_those_of_one_conversion(tmp_path: Path, sources: dict[str, Any]) -> None:
    for number in range(26):
        write_source(tmp_path / "all", f"s{number}", 3 + number)
    names = sorted((tmp_path / "all").iterdir())
    unistore.convert(tmp_path / "all", tmp_path / "one.zarr", split=SPLIT)
    unistore.convert(names[:6], tmp_path / "s.zarr", split=SPLIT)
    for name in names[6:]:
        unistore.append(name, tmp_path / "s.zarr")
    assert len(unistore.versions(tmp_path / "s.zarr")) == 21
    for split in ("train", "val"):
        whole = opened(tmp_path / "one.zarr", split=split)
        grown = opened(tmp_path / "s.zarr", split=split)
        assert len(whole) == len(grown) > 0
        assert {grown.source_of(row) for row in range(len(grown))} == {
            whole.source_of(row) for row in range(len(whole))
        }
    with pytest.raises(unistore.InputError, match=r"no split 'test'. Fix: use one of 'train', 'val'"):
        opened(tmp_path / "s.zarr", split="test")


def test_known_sources_are_skipped_refused_or_replaced(
    tmp_path: Path, store: Path, sources: dict[str, Any]
) -> None:
    same = unistore.append(tmp_path / "old", store)
    assert (same.version, same.report, same.skipped) == (1, None, ("a.npz", "b.npz", "c.npz"))
    unistore.append(tmp_path / "new", store, check=tmp_path / "old")
    unistore.remove(store, "c.npz")
    np.savez(tmp_path / "old" / "a.npz", x=sources["a.npz"] + 1, label=np.arange(20) % 5)
    with pytest.raises(unistore.InputError, match=r"a\.npz: has the name and size of a source in the store"):
        unistore.append(tmp_path / "old", store)
    write_source(tmp_path / "old", "a", 25)
    with pytest.raises(unistore.InputError, match=r"a\.npz: has \d+ bytes, but .* of this name.*--replace"):
        unistore.append(tmp_path / "old", store)
    with pytest.raises(unistore.InputError, match=r"a\.npz: has another size or modification time"):
        unistore.append(tmp_path / "new", store, check=tmp_path / "old")
    changed = write_source(tmp_path / "old", "a", 25)
    appended = unistore.append(tmp_path / "old", store, replace=True)
    assert (appended.replaced, appended.skipped) == (("a.npz",), ("b.npz", "c.npz"))
    expected = {**sources, **changed}
    del expected["c.npz"]
    check_values(opened(store), expected)
    unistore.append(tmp_path / "old" / "c.npz", store)
    check_values(opened(store), {**sources, **changed})


@pytest.mark.parametrize("name", ["b.npz", "d.npz"], ids=["one of a part", "the only one of its part"])
def test_a_removed_source_stays_removed_until_its_file_is_given_or_changes(
    tmp_path: Path, store: Path, sources: dict[str, Any], name: str
) -> None:
    folder = tmp_path / "old"
    shutil.move(tmp_path / "new" / "d.npz", folder)
    unistore.append(folder, store)
    unistore.remove(store, name)
    left = {source: values for source, values in sources.items() if source != name}
    same = unistore.append(folder, store)
    assert (same.version, same.report, name in same.skipped) == (3, None, True)
    os.utime(folder / name)  # its values are compared
    same = unistore.append(folder, store)
    assert (same.version, same.report, name in same.skipped) == (3, None, True)
    check_values(opened(store), left)
    assert unistore.append(folder / name, store).version == 4
    check_values(opened(store), sources)
    unistore.remove(store, name)
    changed = write_source(folder, name.removesuffix(".npz"), 5)
    appended = unistore.append(folder, store)
    assert appended.report is not None
    assert appended.report.notes[-1] == (
        f"a removed source has other values now and came back: {name}; "
        f"unistore remove {store} {name} removes it again"
    )
    check_values(opened(store), {**left, **changed})


def test_a_removed_source_that_comes_back_under_another_name_is_noted(
    tmp_path: Path, store: Path, sources: dict[str, Any]
) -> None:
    unistore.remove(store, ["b.npz", "c.npz"])
    (tmp_path / "all" / "day2").mkdir(parents=True)
    shutil.copy(tmp_path / "old" / "b.npz", tmp_path / "all" / "day2")
    shutil.copy(tmp_path / "old" / "c.npz", tmp_path / "all" / "-c.npz")
    appended = unistore.append(tmp_path / "all", store)
    assert appended.report is not None
    assert appended.report.notes[-1] == (
        "2 sources have the values of a removed one: -c.npz = c.npz, day2/b.npz = b.npz; "
        f"unistore remove {store} -- -c.npz removes it again"
    )
    assert programs.call("remove", store, "--", "-c.npz") == 0
    check_values(opened(store), {"a.npz": sources["a.npz"], "day2/b.npz": sources["b.npz"]})


def test_copied_sources_are_known_by_their_values(
    tmp_path: Path, store: Path, sources: dict[str, Any]
) -> None:
    for file in (tmp_path / "old").iterdir():
        os.utime(file)
    copied = unistore.append(tmp_path / "old", store)
    assert (copied.version, copied.report, copied.skipped) == (1, None, ("a.npz", "b.npz", "c.npz"))
    shutil.copy(tmp_path / "new" / "d.npz", tmp_path / "old")
    for replace in (False, True):
        appended = unistore.append(tmp_path / "old", store, replace=replace)
        assert (appended.version, appended.replaced) == (2, ())
    check_values(opened(store), sources)


def test_a_source_of_another_folder_that_has_the_name_of_a_stored_one_is_not_only_offered_for_replacement(
    tmp_path: Path, store: Path, sources: dict[str, Any]
) -> None:
    for values, problem in ((sources["a.npz"] + 1, "other values"), (sources["b.npz"], "bytes")):
        (tmp_path / "day2").mkdir(exist_ok=True)
        np.savez(tmp_path / "day2" / "a.npz", x=values, label=np.arange(len(values)) % 5)
        with pytest.raises(unistore.InputError, match=problem) as caught:
            unistore.append(tmp_path / "day2", store)
        (replace, other) = caught.value.problems[0].fixes
        assert str(replace) == "add --replace to replace the old one"
        assert str(other).startswith("rename it if it is another source, or convert both")


def test_a_source_under_a_shorter_name_is_refused(tmp_path: Path) -> None:
    for day in ("day1", "day2"):
        write_source(tmp_path / "all" / day, f"of_{day}")
    unistore.convert(tmp_path / "all", tmp_path / "s.zarr")
    with pytest.raises(unistore.InputError, match=r"Fix: give the folder from which the store was converted"):
        unistore.append(tmp_path / "all" / "day1", tmp_path / "s.zarr")


def test_a_source_under_a_longer_name_is_refused(tmp_path: Path, store: Path) -> None:
    shutil.copytree(tmp_path / "old", tmp_path / "all" / "day1")
    write_source(tmp_path / "all" / "day2", "e")
    shutil.copy(tmp_path / "old" / "a.npz", tmp_path / "all" / "day2" / "z.npz")
    with pytest.raises(unistore.InputError) as caught:
        unistore.append(tmp_path / "all", store)
    names = [problem.file for problem in caught.value.problems]
    assert names == ["day1/a.npz", "day1/b.npz", "day1/c.npz"]
    assert caught.value.problems[0].message == "has the same values as 'a.npz', which the store has already"
    (fix, exclude) = caught.value.problems[0].fixes
    assert str(fix).startswith("convert all sources into a new store, because the names of this one begin")
    assert str(exclude) == "add --exclude day1/a.npz"
    assert [one.number for one in unistore.versions(store)] == [1]


def _exact(tmp_path: Path) -> None:
    unistore.convert(tmp_path / "old", tmp_path / "s.zarr", split=f"exact:{SPLIT}", overwrite=True)


def _wider(tmp_path: Path) -> None:
    write_source(tmp_path / "new", "d", dtype="float64")


def _linked(tmp_path: Path) -> None:
    (tmp_path / "s.zarr").rename(tmp_path / "real.zarr")
    (tmp_path / "s.zarr").symlink_to(tmp_path / "real.zarr")


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (_exact, "has splits from exact shares or from a list"),
        (_wider, "field 'x': differs between stores: float32"),
        (_linked, "is a link, which unistore does not change"),
        (lambda path: (path / "new" / "d.npz").write_bytes(b"PK\3\4 cut"), "d.npz"),
        (lambda path: shutil.rmtree(path / "s.zarr"), "no such store"),
    ],
)
def test_refused_appends_change_nothing(
    tmp_path: Path, store: Path, prepare: Callable[[Path], object], message: str
) -> None:
    prepare(tmp_path)
    before = sorted(path for path in tmp_path.rglob("*"))
    with pytest.raises(unistore.UnistoreError, match=message):
        unistore.append(tmp_path / "new", store)
    assert sorted(path for path in tmp_path.rglob("*")) == before


def test_a_wrong_argument_is_an_error_that_names_it(tmp_path: Path, store: Path) -> None:
    with pytest.raises(unistore.InputError, match="has no version 2"):
        opened(store, version=2)
    unistore.append(tmp_path / "new", store)
    cases: list[tuple[str, Callable[[], object]]] = [
        ("has no version 'x'", lambda: opened(store, version="x")),
        ("has no version 3", lambda: opened(store, version=3)),
        ("version", lambda: opened(store, version=0)),
        ("version", lambda: unistore.Dataset([store, store], version=1)),
        ("top_fraction", lambda: opened(store, top_fraction=("source", 0.5))),
        ("weights", lambda: opened(store, weights=[1, 2])),
        ("no source would be left", lambda: unistore.remove(store, "*")),
        (r"z: .* has no source of this name.*a\.npz", lambda: unistore.remove(store, "z")),
        (r"'\.\./x' cannot be the name of a version", lambda: unistore.versions(store, tag="../x")),
        ("a store cannot be written to", lambda: unistore.remove("https://host/s.zarr", "a")),
    ]
    for message, call in cases:
        with pytest.raises(unistore.InputError, match=message):
            call()
    with pytest.raises(unistore.NoStoreError, match="this is a versioned store"):
        unistore.Store(store)


def test_a_tag_stays_with_its_version(tmp_path: Path, store: Path) -> None:
    unistore.append(tmp_path / "new", store)
    unistore.versions(store, tag="paper", version=1)
    assert len(opened(store, version="paper")) == 58
    with pytest.raises(unistore.InputError, match="'paper' belongs to version 1"):
        unistore.versions(store, tag="paper")
    (store / "tags" / "paper").write_text("seven")
    with pytest.raises(unistore.CorruptionError, match="tags/paper is damaged"):
        opened(store, version="paper")


def _resigned(change: Callable[[dict[str, Any]], object]) -> Callable[[bytes], bytes]:
    def damage(data: bytes) -> bytes:
        document = json.loads(data)
        change(document)
        document["root"] = "0" * 32
        return sign_root(json.dumps(document).encode())

    return damage


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-20],
        lambda data: data.replace(b'"samples": [58', b'"samples": [59'),
        lambda data: b"[]",
        _resigned(lambda document: document.update(format_version=2)),
        _resigned(lambda document: document.update(number=7)),
        _resigned(lambda document: document.pop("parts")),
        _resigned(lambda document: document["parts"].update(schema=[0, 5])),
        _resigned(lambda document: document["parts"].update(samples=[-1, 11])),
        _resigned(lambda document: document["parts"].update(removed={"0": [9]})),
        _resigned(lambda document: document["parts"].update(removed={"0": [1, 0]})),
        _resigned(lambda document: document["parts"].update(digest=["../../x"] * 2)),
        _resigned(lambda document: document["parts"].update(bytes=[1])),
        _resigned(lambda document: document["parts"]["splits"].update(train=[1.5, 2])),
        _resigned(lambda document: document["schemas"][0].update(family="../x")),
        _resigned(lambda document: document.pop("columns")),
        _resigned(lambda document: document["columns"].append([0])),
        _resigned(lambda document: document["columns"].append([0, "1"])),
        _resigned(lambda document: document["columns"].append([0, 2**70])),
        _resigned(lambda document: document["arrays"]["rows/x"].update(form=99)),
        _resigned(lambda document: document["arrays"]["rows/x"].update(forms=[])),
        _resigned(lambda document: document["arrays"]["rows/x"].update(shape=[])),
        _resigned(lambda document: document["arrays"]["rows/x"]["forms"][0].pop("shape")),
        _resigned(lambda document: document["arrays"]["rows/x"]["forms"][0].update(shape="5")),
        _resigned(lambda document: document["arrays"]["rows/x"]["forms"][0].pop("codecs")),
        _resigned(lambda document: document["arrays"]["rows/x"]["forms"][0].update(data_type="none")),
        _resigned(lambda document: document["schemas"][0]["fields"].update({"../x": {}})),
    ],
)
def test_damaged_documents_are_refused(tmp_path: Path, store: Path, damage: Callable[[bytes], bytes]) -> None:
    unistore.append(tmp_path / "new", store)
    document = store / "versions" / "2.json"
    document.write_bytes(damage(document.read_bytes()))
    with pytest.raises(unistore.CorruptionError, match=r"versions/2\.json is damaged"):
        opened(store)
    assert len(opened(store, version=1)) == 58


def test_parts_are_read_through_a_cache_and_a_changed_array_is_an_error(
    tmp_path: Path, store: Path, sources: dict[str, Any]
) -> None:
    unistore.append(tmp_path / "new", store)
    dataset = unistore.Dataset(store, fields=["x", "source"], cache_dir=tmp_path / "copies")
    check_values(pickle.loads(pickle.dumps(dataset)), sources)
    assert any((tmp_path / "copies").iterdir())
    document = Path(opened(store).parts[1].store.path, "rows/x/zarr.json")
    document.write_text(document.read_text().replace("11,", "10,", 1))
    with pytest.raises(unistore.CorruptionError, match="rows/x differs from the version's list"):
        opened(store)[len(dataset) - 1]


def test_a_missing_or_replaced_part_is_an_error(tmp_path: Path, store: Path) -> None:
    unistore.append(tmp_path / "new", store)
    first, second = (part.path for part in opened(store).parts)
    shutil.rmtree(first)
    with pytest.raises(unistore.NoStoreError, match="no such store"):
        len(opened(store))
    shutil.copytree(second, first)
    with pytest.raises(unistore.CorruptionError, match="is not the store that the version lists"):
        len(opened(store))


class _Killer:
    """Ends the process at a call into the system, counted from the commit of a version."""

    def __init__(self, step: int) -> None:
        self.left = step
        self.armed = False

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if self.armed:
                if self.left == 0:
                    os._exit(9)
                self.left -= 1
            return function(*arguments, **options)

        return call


def run_killed(step: int, action: Callable[[], object]) -> int:
    """Run an action in a child that ends at a step of its commit, and return its exit code."""
    child = os.fork()
    if child == 0:
        killer = _Killer(step)
        for name in ("rename", "link"):
            setattr(durable, name, killer.wrap(getattr(durable, name)))
        commit = Growth.commit

        def armed(*arguments: Any, **options: Any) -> Any:
            killer.armed = True
            return commit(*arguments, **options)

        Growth.commit = armed  # type: ignore[method-assign]
        try:
            action()
        except BaseException:
            os._exit(8)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.nightly
@pytest.mark.parametrize("grown", [False, True])
def test_an_append_killed_at_any_step_leaves_the_old_version_or_the_new_one(
    tmp_path: Path, store: Path, grown: bool
) -> None:
    if grown:
        write_source(tmp_path / "other", "e", 5)
        unistore.append(tmp_path / "other", store)
    old = len(opened(store))
    new = old + 11
    shutil.copytree(store, tmp_path / "kept")
    work = tmp_path / "s.zarr.unistore-growth"

    def action() -> object:
        return unistore.append(tmp_path / "new", store)

    for step in range(40):
        code = run_killed(step, action)
        assert len(opened(store)) in ({new} if code == 0 else {old, new})
        if code == 0:
            break
        assert code == 9
        action()
        assert len(opened(store)) == new
        assert not work.exists()
        shutil.rmtree(store)
        shutil.copytree(tmp_path / "kept", store)
    assert step > 2


def test_a_second_writer_of_a_store_is_an_error(tmp_path: Path, store: Path) -> None:
    with growing(store):
        code = run_killed(10**9, lambda: unistore.remove(store, "a.npz"))
    assert code == 8
    assert len(opened(store)) == 58
    durable.create_file(tmp_path, "versions/2.json", b"first")
    with pytest.raises(unistore.ConversionError, match=r"2\.json"):
        durable.create_file(tmp_path, "versions/2.json", b"second")
    assert (tmp_path / "versions" / "2.json").read_bytes() == b"first"
    assert len(list((tmp_path / "versions").iterdir())) == 1


def test_parts_share_open_files(tmp_path: Path) -> None:
    files = OpenFiles(3)
    storages = []
    for number in range(8):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        (folder / "x").write_bytes(bytes([number]) * 4)
        storages.append(LocalStorage(folder, files))
    for number, storage in enumerate(storages):
        assert list(storage.read_many(["x"], [0], [4])) == [bytes([number]) * 4]
    assert files.open.cache_info().currsize == 3
    again = pickle.loads(pickle.dumps(storages))
    assert again[0]._files is again[1]._files


def test_verify_looks_at_each_part_and_at_the_document(
    tmp_path: Path, store: Path, sources: dict[str, Any]
) -> None:
    unistore.append(tmp_path / "new", store)
    shutil.copytree(tmp_path / "old", tmp_path / "all", dirs_exist_ok=True)
    shutil.copytree(tmp_path / "new", tmp_path / "all", dirs_exist_ok=True)
    verified = unistore.verify(store, against=tmp_path / "all")
    assert verified.ok
    assert verified.receipt is not None
    assert verified.receipt.values == sum(values.size + len(values) for values in sources.values())
    assert unistore.verify(store, version=1).files < verified.files
    unistore.remove(store, "a.npz")
    assert unistore.verify(store, against=tmp_path / "all").receipt is not None
    shutil.copytree(store, tmp_path / "replaced.zarr")
    write_source(tmp_path / "all", "b", 9)
    unistore.append(tmp_path / "all" / "b.npz", tmp_path / "replaced.zarr", replace=True)
    for command in (lambda path, sources: unistore.verify(path, against=sources), unistore.repair):
        with pytest.raises(unistore.InputError, match=r"an older part contains 'b\.npz'"):
            command(tmp_path / "replaced.zarr", tmp_path / "all")
    listed = unistore.Dataset(store).parts[0].version
    assert listed is not None
    document = json.loads(listed.data)
    document["parts"]["splits"]["train"][1] += 1
    document["root"] = "0" * 32
    (store / "versions" / "3.json").write_bytes(sign_root(json.dumps(document).encode()))
    (problem,) = unistore.verify(store).problems
    assert (problem.file, problem.kind) == ("versions/3.json", "metadata")
    first = Path(unistore.Dataset(store).parts[0].store.path)
    (first / "unistore-manifest.jsonl").write_text("")
    shutil.rmtree(unistore.Dataset(store).parts[1].store.path)
    problems = unistore.verify(store).problems
    assert {problem.kind for problem in problems} >= {"missing"}
    assert any(problem.file.startswith(f"parts/{first.name}/") for problem in problems)


@pytest.mark.parametrize("shuffle", [False, True, "sources"])
def test_a_loader_finishes_the_epoch_of_an_older_version(tmp_path: Path, store: Path, shuffle: Any) -> None:
    def loader(version: int | None) -> unistore.Loader:
        dataset = opened(store, version=version)
        return unistore.Loader(dataset, batch_size=8, shuffle=shuffle, num_workers=0)

    first = loader(None)
    epoch = [batch["index"].tolist() for batch in first]
    batches = iter(first)
    second = [next(batches)["index"].tolist() for _ in range(3)]
    state = json.loads(json.dumps(first.state_dict()))
    rest = [batch["index"].tolist() for batch in batches]
    assert len(epoch) == len(second) + len(rest)
    unistore.append(tmp_path / "new", store)
    again = loader(1)
    again.load_state_dict(state)
    assert [batch["index"].tolist() for batch in again] == rest
    newer = loader(None)
    with pytest.raises(unistore.LoaderError, match=r"version=1.*extend=True"):
        newer.load_state_dict(state)
    newer.load_state_dict(state, extend=True)
    batches = iter(newer)
    assert [next(batches)["index"].tolist()] == rest[:1]
    middle = newer.state_dict()
    assert middle["store_version"] == 1
    newer = loader(None)
    newer.load_state_dict(middle, extend=True)
    assert [batch["index"].tolist() for batch in newer] == rest[1:]
    assert newer.state_dict()["store_version"] == 2
    assert sum(len(batch["index"]) for batch in newer) == 69
    fresh = loader(2)
    fresh.set_epoch(2)
    newer.set_epoch(2)
    assert [batch["index"].tolist() for batch in newer] == [batch["index"].tolist() for batch in fresh]
    unistore.remove(store, "b.npz")
    with pytest.raises(unistore.LoaderError, match="does not have all samples of version 1"):
        loader(None).load_state_dict(state, extend=True)


def test_inspect_tells_versions_and_parts(tmp_path: Path, store: Path) -> None:
    unistore.append(tmp_path / "new", store)
    inspection = unistore.inspect(store)
    assert inspection.is_good
    assert inspection.kind == "grown"
    details = inspection.details
    assert (details["samples"], details["sources"], sum(details["splits"].values())) == (69, 4, 69)
    assert "2 of 2" in str(inspection)
    assert unistore.inspect(store, version=1).details["samples"] == 58


def test_doctor_and_cache_take_a_version(tmp_path: Path, store: Path) -> None:
    unistore.append(tmp_path / "new", store)
    for version, samples in ((None, 69), (1, 58)):
        checkup = unistore.doctor(store, version=version)
        assert checkup.store is not None
        assert checkup.store.samples == samples
        assert f"version={version or 2}" in checkup.line
    files = unistore.warm_cache(store, tmp_path / "cache").files
    assert files == sum(unistore.verify(part.store.path).files for part in opened(store).parts)
    assert 0 < unistore.warm_cache(store, tmp_path / "cache", split="train").files <= files
    with pytest.raises(unistore.InputError, match=r"no split 'test'. Fix: use one of train, val"):
        unistore.warm_cache(store, tmp_path / "cache", split="test")
    for command in (unistore.doctor, unistore.inspect, unistore.keep_statistics):
        with pytest.raises(unistore.InputError, match="has no version 7"):
            command(store, version=7)


def test_a_version_of_more_splits_than_a_code_can_name_is_refused(tmp_path: Path, store: Path) -> None:
    unistore.append(tmp_path / "new", store)
    document = store / "versions" / "2.json"
    many = {f"s{number}": [None, None] for number in range(256)}  # besides train and val; codes are bytes
    damage = _resigned(lambda document: document["parts"]["splits"].update(many))
    document.write_bytes(damage(document.read_bytes()))
    with pytest.raises(unistore.CorruptionError, match=r"versions/2\.json is damaged: splits"):
        opened(store)


def test_a_version_that_a_killed_append_did_not_finish_is_made_anew(
    tmp_path: Path, store: Path, sources: dict[str, Any]
) -> None:
    prepared = tmp_path / "s.zarr.unistore-growth" / "grown" / "versions"
    prepared.mkdir(parents=True)
    (prepared / "1.json").write_text("of an append that was killed before its second version")
    unistore.append(tmp_path / "new", store)
    check_values(opened(store), sources)
    assert not (tmp_path / "s.zarr.unistore-growth").exists()


def test_columns_of_parts_that_differ_in_length_are_said(tmp_path: Path, store: Path) -> None:
    unistore.append(tmp_path / "new", store)
    document = store / "versions" / "2.json"
    damage = _resigned(lambda document: document["parts"].update(bytes=[1]))
    document.write_bytes(damage(document.read_bytes()))
    with pytest.raises(unistore.CorruptionError, match="the columns of parts differ in length"):
        opened(store)


def test_a_group_of_other_attributes_in_a_part_is_told(tmp_path: Path, store: Path) -> None:
    unistore.append(tmp_path / "new", store)
    dataset = opened(store)
    (together,) = dataset.read_parts
    assert together.store.group("rows") == {}
    document = Path(dataset.parts[1].store.path, "rows", "zarr.json")
    document.write_text(json.dumps({**json.loads(document.read_text()), "attributes": {"level": 3}}))
    with pytest.raises(UnalikeError, match="rows has other attributes than in the first store"):
        together.store.group("rows")


def test_a_store_that_is_two_parts_of_a_version_keeps_the_sources_of_each(
    tmp_path: Path, store: Path, sources: dict[str, Any]
) -> None:
    folder = tmp_path / "old"
    write_source(folder, "d", 11)
    write_source(folder, "e", 9)
    age(folder)
    unistore.append([folder / "d.npz", folder / "e.npz"], store)
    unistore.remove(store, "d.npz")
    os.utime(folder / "e.npz")  # its values are compared, so that both are converted again
    assert unistore.append([folder / "d.npz", folder / "e.npz"], store).skipped == ("e.npz",)
    version = open_stores(str(store)).version
    assert version is not None
    assert [part.removed for part in version.parts] == [(), (0,), (1,)]
    assert version.parts[1].seal == version.parts[2].seal
    removed = unistore.remove(store, ["e.npz"])
    assert removed.sources == ("e.npz",)
    check_values(opened(store), sources)
    again = unistore.append(folder, store)
    assert (again.report, sorted(again.skipped)) == (None, [*sources, "e.npz"])


def test_a_removed_source_comes_back_after_an_upgrade(
    tmp_path: Path, store: Path, sources: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    unistore.append(tmp_path / "new", store)
    unistore.remove(store, "d.npz")
    upgraded = {**versions(), "numcodecs": "99.0"}
    monkeypatch.setattr("unistore.conversion.new_store.versions", lambda: upgraded)  # a root states them
    assert unistore.append(tmp_path / "new" / "d.npz", store).version == 4
    check_values(opened(store), sources)
    check_values(opened(store, version=2), sources)
    assert unistore.verify(store).ok
