"""Groups of an HDF5 file that are splits, against h5py: read, refused, grown, exported."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import h5py
import numpy as np
import pytest

import unistore
from unistore import convert, export, verify
from unistore.cli.main import main
from unistore.converters.family_types import Chosen
from unistore.converters.rows import columns as rows_columns
from unistore.errors import AddOptions, InputError

pytestmark = pytest.mark.usefixtures("in_this_process")

Groups = Mapping[str, Mapping[str, np.ndarray]]


def columns(rows: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "x": rng.normal(size=(rows, 3)).astype("<f4"),
        "obs/depth": rng.integers(0, 9, (rows, 2, 2)).astype(">u2"),
        "y": rng.integers(0, 9, rows),
    }


def write(path: Path, groups: Groups) -> Path:
    path.parent.mkdir(exist_ok=True)
    with h5py.File(path, "w") as file:
        for group, arrays in groups.items():
            for name, values in arrays.items():
                file[f"{group}/{name}"] = values
    return path


def rows_of(store: Path, split: str) -> dict[str, np.ndarray]:
    samples = [dict(sample) for sample in unistore.Dataset(store, split=split)]
    return {name: np.array([sample[name] for sample in samples]) for name in samples[0] if name != "index"}


def assert_equal(found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)


# Groups as files call them, and the splits that they are
NAMES = [
    {"train": "train", "test": "test"},
    {"test": "test", "Train": "train", "valid": "val"},
    {"training": "train", "validation": "val"},
    {"val": "val", "testing": "test"},
]


@pytest.mark.parametrize("names", NAMES, ids=lambda names: "-".join(names))
def test_groups_of_the_same_columns_are_splits(tmp_path: Path, names: dict[str, str]) -> None:
    groups = {name: columns(4 + 3 * number, number) for number, name in enumerate(names)}
    source = write(tmp_path / "a.h5", groups)
    convert(source, tmp_path / "a.zarr", "rows")
    for name, split in names.items():
        assert_equal(rows_of(tmp_path / "a.zarr", split), groups[name])
    stored = unistore.Store(tmp_path / "a.zarr").split_names()
    assert stored == [split for split in ("train", "val", "test") if split in names.values()]
    receipt = verify(tmp_path / "a.zarr", against=source).receipt
    assert receipt is not None
    assert receipt.line.startswith("lossless")
    assert receipt.libraries == ("h5py",)
    assert receipt.values == sum(values.size for arrays in groups.values() for values in arrays.values())


def test_groups_of_as_many_rows_are_splits(tmp_path: Path) -> None:
    groups = {"train": columns(5), "test": columns(5, 1)}
    convert(write(tmp_path / "a.h5", groups), tmp_path / "a.zarr")
    assert_equal(rows_of(tmp_path / "a.zarr", "test"), groups["test"])


def test_inspect_and_dry_run_name_the_groups_that_are_splits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write(tmp_path / "a.h5", {"train": columns(5), "valid": columns(3)})
    with h5py.File(source, "a") as file:
        file["classes"] = np.arange(9)
    said = "groups train, valid (val) are splits of the same columns"
    assert said in " ".join(str(unistore.inspect(source)).split())
    with pytest.raises(SystemExit):
        main(["convert", "rows", str(source), str(tmp_path / "a.zarr"), "--dry-run"])
    shown = capsys.readouterr().out
    assert said in shown
    assert "--map NAME=train/DATASET stores only one of them" in shown
    assert "not stored, because it is outside of the splits train and valid: classes" in shown


def test_texts_and_records_are_columns_of_splits(tmp_path: Path) -> None:
    words = {"train": [b"a", b"long word", b""], "test": [b"bb", b"c"]}
    groups: dict[str, dict[str, np.ndarray]] = {}
    for name, texts in words.items():
        records = np.zeros(len(texts), [("a", "i4"), ("s", "S5")])
        records["a"] = range(len(texts))
        records["s"] = [text[:5] for text in texts]
        groups[name] = {"n": np.arange(len(texts)), "word": np.array(texts), "t": records}
    source = write(tmp_path / "a.h5", groups)
    with h5py.File(source, "a") as file:
        for name, texts in words.items():
            file.create_dataset(f"{name}/free", data=texts[::-1], dtype=h5py.string_dtype())
    convert(source, tmp_path / "a.zarr", "rows")
    for name, texts in words.items():
        found = rows_of(tmp_path / "a.zarr", name)
        assert found["word"].tolist() == [text.decode() for text in texts]
        assert found["free"].tolist() == [text.decode() for text in texts[::-1]]
        assert found["t/s"].tolist() == [text[:5].decode() for text in texts]
        assert found["t/a"].tolist() == list(range(len(texts)))
    assert verify(tmp_path / "a.zarr", against=source).receipt is not None


def test_exported_files_have_their_groups_and_attributes(tmp_path: Path) -> None:
    groups = {"train": columns(5), "valid": columns(3, 1), "test": columns(2, 2)}
    source = write(tmp_path / "a.h5", groups)
    with h5py.File(source, "a") as file:
        for name in groups:
            file[name].attrs["from"] = f"a {name}"
            file[f"{name}/x"].attrs["unit"] = f"m {name}"
    convert(source, tmp_path / "a.zarr", "rows")
    export(tmp_path / "a.zarr", tmp_path / "back")
    with h5py.File(tmp_path / "back/a.h5") as file:
        assert list(file) == sorted(groups)
        for name, arrays in groups.items():
            assert file[name].attrs["from"] == f"a {name}"
            assert file[f"{name}/x"].attrs["unit"] == f"m {name}"
            for column, values in arrays.items():
                assert file[f"{name}/{column}"].dtype == values.dtype
                np.testing.assert_array_equal(file[f"{name}/{column}"][()], values)


def test_appended_files_keep_their_splits(tmp_path: Path) -> None:
    first = {"train": columns(5), "test": columns(3, 1)}
    further = {"train": columns(2, 2), "valid": columns(4, 3)}
    folder = tmp_path / "in"
    write(folder / "a.h5", first)
    convert(folder, tmp_path / "a.zarr", "rows")
    write(folder / "b.h5", further)
    unistore.append(folder, tmp_path / "a.zarr")
    joined = {name: np.concatenate([first["train"][name], further["train"][name]]) for name in first["train"]}
    assert_equal(rows_of(tmp_path / "a.zarr", "train"), joined)
    assert_equal(rows_of(tmp_path / "a.zarr", "val"), further["valid"])
    assert_equal(rows_of(tmp_path / "a.zarr", "test"), first["test"])
    assert verify(tmp_path / "a.zarr", against=folder).receipt is not None


def test_files_without_groups_are_in_the_split_of_their_name(tmp_path: Path) -> None:
    write(tmp_path / "in/a.h5", {"train": columns(5), "val": columns(3, 1)})
    for name in ("b_test", "c"):
        with h5py.File(tmp_path / f"in/{name}.h5", "w") as file:
            for column, values in columns(2, 7).items():
                file[column] = values
    convert(tmp_path / "in", tmp_path / "a.zarr", "rows")
    codes, names = unistore.Store(tmp_path / "a.zarr").splits()
    assert [names[code] for code in codes] == ["train"] * 5 + ["val"] * 3 + ["test"] * 2 + ["other"] * 2


@pytest.mark.parametrize("option", ["split", "split_from"])
def test_splits_beside_those_of_the_file_are_refused(tmp_path: Path, option: str) -> None:
    source = write(tmp_path / "a.h5", {"train": columns(5), "test": columns(3)})
    (tmp_path / "list.json").write_text(json.dumps({"a.h5": "train"}))
    given = {"split": "train=0.5,val=0.5", "split_from": tmp_path / "list.json"}[option]
    with pytest.raises(InputError) as caught:
        convert(source, tmp_path / "a.zarr", "rows", split_by="row", **{option: given})
    message = str(caught.value)
    assert message.startswith(f"--{option.replace('_', '-')} ")
    assert "each row has a split already, given by groups in a.h5: train, test" in message
    assert not (tmp_path / "a.zarr").exists()


def different(**changes: np.ndarray | None) -> Groups:
    test = {**columns(5, 1), **changes}
    return {"train": columns(5), "test": {name: rows for name, rows in test.items() if rows is not None}}


def labels(**names: int) -> np.ndarray:
    return np.array([0, 1, 1], h5py.enum_dtype(names, "i1"))


DIFFERING = {
    "a column is missing": (different(y=None), "only train has y", 2),
    "a column is added": (different(w=np.zeros(5)), "only test has w", 2),
    "another row shape": (
        different(x=np.zeros((5, 4), "f4")),
        "x is float32 (3,) in train and float32 (4,) in test",
        1,
    ),
    "another dtype": (different(y=np.zeros(5)), "y is int64 () in train and float64 () in test", 1),
    "other names of classes": (
        {
            "train": {"x": np.zeros(3), "y": labels(cat=0, dog=1)},
            "test": {"x": np.zeros(3), "y": labels(dog=0, cat=1)},
        },
        "y numbers its classes differently in train and test",
        2,
    ),
    "another length": (different(y=np.zeros(4, int)), "columns of test differ in length", 1),
    "nothing in common": (
        {"train": {"x": np.zeros(3)}, "val": {"y": np.zeros(3)}},
        "they have no column in common",
        1,
    ),
    "one split twice": (
        {"val": columns(5), "valid": columns(5)},
        "val and valid are not different splits",
        1,
    ),
}


@pytest.mark.parametrize("case", DIFFERING)
def test_groups_that_differ_are_refused_with_options_that_work(tmp_path: Path, case: str) -> None:
    groups, message, options = DIFFERING[case]
    source = write(tmp_path / "a.h5", groups)
    with pytest.raises(InputError) as caught:
        convert(source, tmp_path / "a.zarr", "rows")
    (problem,) = caught.value.problems
    assert "may be splits or columns: " in problem.message
    assert message in problem.message
    fixes = [fix for fix in problem.fixes if isinstance(fix, AddOptions)]
    assert len(fixes) == len(problem.fixes) >= options
    for number, fix in enumerate(fixes):
        store = tmp_path / f"{number}.zarr"
        with pytest.raises(SystemExit) as ended:
            main(["-q", "convert", "rows", str(source), str(store), *fix.arguments])
        assert ended.value.code == 0, shlex.join(fix.arguments)
        names = unistore.Store(store).split_names()
        assert names == (["train", "test"] if "intersection" in fix.arguments else [])


def test_a_single_group_is_no_split(tmp_path: Path) -> None:
    source = write(tmp_path / "a.h5", {"train": columns(5)})
    convert(source, tmp_path / "a.zarr", "rows")
    store = unistore.Store(tmp_path / "a.zarr")
    assert store.split_names() == []
    assert "rows/train/x" in store.paths()


def test_mapped_datasets_are_columns(tmp_path: Path) -> None:
    groups = {"train": columns(5), "test": columns(5, 1)}
    source = write(tmp_path / "a.h5", groups)
    mapping = {"x": "train/x", "x_of_test": "test/x"}
    convert(source, tmp_path / "a.zarr", "rows", map=mapping)
    store = unistore.Store(tmp_path / "a.zarr")
    assert store.split_names() == []
    for name, path in mapping.items():
        group, _, column = path.partition("/")
        np.testing.assert_array_equal(store.array(f"rows/{name}").read(0, 5), groups[group][column])


def test_datasets_outside_of_splits_are_mapped_from_the_root(tmp_path: Path) -> None:
    groups = {"train": columns(5), "test": columns(3, 1), "extra": {"z": np.arange(4)}}
    source = write(tmp_path / "a.h5", groups)
    with pytest.raises(InputError, match="is not in the splits train and test") as caught:
        convert(source, tmp_path / "a.zarr", "rows", map={"z": "extra/z"})
    assert caught.value.problems[0].advice == "--map NAME=/extra/z, which stores it without the splits"
    convert(source, tmp_path / "a.zarr", "rows", map={"z": "/extra/z"})
    store = unistore.Store(tmp_path / "a.zarr")
    assert store.split_names() == []
    np.testing.assert_array_equal(store.array("rows/z").read(0, 4), np.arange(4))
    assert verify(tmp_path / "a.zarr", against=source).receipt is not None


def test_groups_of_the_same_names_of_classes_are_splits(tmp_path: Path) -> None:
    groups = {"train": {"y": labels(cat=0, dog=1)}, "test": {"y": labels(dog=1, cat=0)}}
    convert(write(tmp_path / "a.h5", groups), tmp_path / "a.zarr", "rows")
    assert_equal(rows_of(tmp_path / "a.zarr", "test"), {"y": np.array([0, 1, 1])})


def test_groups_with_axes_reversed_are_splits(tmp_path: Path) -> None:
    groups = {"train": columns(5), "test": columns(3, 1)}
    turned = {name: {key: rows.T for key, rows in arrays.items()} for name, arrays in groups.items()}
    source = write(tmp_path / "a.h5", turned)
    convert(source, tmp_path / "a.zarr", "rows", reverse_axes=True)
    assert_equal(rows_of(tmp_path / "a.zarr", "test"), groups["test"])
    assert verify(tmp_path / "a.zarr", against=source).receipt is not None
    export(tmp_path / "a.zarr", tmp_path / "back")
    with h5py.File(tmp_path / "back/a.h5") as file:
        np.testing.assert_array_equal(file["test/x"][()], turned["test"]["x"])


def test_columns_that_cannot_be_stored_are_refused_with_those_that_can(tmp_path: Path) -> None:
    groups = {"train": columns(5), "test": columns(3)}
    source = write(tmp_path / "a.h5", groups)
    with h5py.File(source, "a") as file:
        for name, rows in (("train", 5), ("test", 3)):
            file[f"{name}/c"] = np.zeros(rows, complex)
    with pytest.raises(InputError, match="has the dtype complex128") as caught:
        convert(source, tmp_path / "a.zarr", "rows")
    (problem,) = caught.value.problems
    (fix,) = problem.fixes
    assert isinstance(fix, AddOptions)
    with pytest.raises(SystemExit) as ended:
        main(["-q", "convert", "rows", str(source), str(tmp_path / "a.zarr"), *fix.arguments])
    assert ended.value.code == 0
    assert_equal(rows_of(tmp_path / "a.zarr", "test"), groups["test"])


def test_columns_of_splits_are_renamed_by_their_path_in_a_group(tmp_path: Path) -> None:
    groups = {"train": columns(5), "test": columns(3)}
    source = write(tmp_path / "a.h5", groups)
    convert(source, tmp_path / "a.zarr", "rows", map={"depth": "obs/depth"})
    assert_equal(rows_of(tmp_path / "a.zarr", "train"), {"depth": groups["train"]["obs/depth"]})
    export(tmp_path / "a.zarr", tmp_path / "back")
    with h5py.File(tmp_path / "back/a.h5") as file:
        np.testing.assert_array_equal(file["test/obs/depth"][()], groups["test"]["obs/depth"])


def test_splits_of_another_number_of_rows_are_a_fault_of_the_family(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(4))
    monkeypatch.setattr(rows_columns, "choose", with_splits(rows_columns.choose, [("train", 3)]))
    with pytest.raises(InputError, match="returned splits of 3 rows, but the source has 4"):
        convert(tmp_path / "a.npz", tmp_path / "a.zarr", "rows")


def with_splits(choose: Callable[..., Chosen], splits: Sequence[tuple[str, int]]) -> Callable[..., Chosen]:
    return lambda options, head: choose(options, head)._replace(splits=splits)
