"""Plain arrays against what numpy and h5py read."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

import unistore
from tests.support.converter_contract import check_contract
from tests.support.family_converters import rows as rows_converter
from unistore.converters.adapter.converter import Converter
from unistore.converters.source_scan import scan_sources
from unistore.errors import AddOptions, InputError

RANDOM = np.random.default_rng(0)


def problems_of(converter: Converter, *paths: Path) -> str:
    with pytest.raises(InputError) as caught:
        scan_sources(converter, paths)
    assert caught.value.exit_code == 2
    return str(caught.value)


def write(path: Path, **arrays: np.ndarray) -> dict[str, np.ndarray]:
    with h5py.File(path, "w") as file:
        for name, values in arrays.items():
            file[name.replace("__", "/")] = values
    return {name.replace("__", "/"): values for name, values in arrays.items()}


def test_hdf5_files_are_joined_in_natural_order_with_groups_as_paths(tmp_path: Path) -> None:
    parts = {}
    for number in (10, 2, 1):
        n = 5 + number
        parts[number] = write(
            tmp_path / f"part_{number}.h5",
            obs__image=RANDOM.integers(0, 255, (n, 4, 4, 3), dtype=np.uint8),
            label=RANDOM.integers(0, 9, n),
            flag=RANDOM.random(n) > 0.5,
        )
    joined = {
        f"rows/{name}": np.concatenate([parts[number][name] for number in (1, 2, 10)]) for name in parts[1]
    }
    converted = check_contract(rows_converter(), [tmp_path], joined)
    assert [source.name for source in converted.scan.sources] == ["part_1.h5", "part_2.h5", "part_10.h5"]
    assert converted.finalized.sample_source.tolist() == [0, 1, 2]
    assert converted.finalized.sample_runs is not None
    assert converted.finalized.sample_runs.tolist() == [6, 7, 15], "no array of all rows"


def test_the_note_names_the_first_of_many_columns(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **{f"x{number:02}": np.zeros(3, "f4") for number in range(30)})
    report = unistore.convert(tmp_path / "a.npz", tmp_path / "a.zarr")
    named = ", ".join(f"x{number:02}" for number in range(10))
    assert report.notes == (f"plain arrays: 3 rows of {named} and 20 more from 1 file",)


def test_npy_files_are_columns_of_a_split_or_parts_by_number(tmp_path: Path) -> None:
    data, label = RANDOM.random((9, 2)), np.arange(9)
    for split, lo, hi in (("train", 0, 6), ("test", 6, 9)):
        (tmp_path / split).mkdir()
        np.save(tmp_path / split / "data.npy", data[lo:hi])
        np.save(tmp_path / split / "label.npy", label[lo:hi])
    order = [6, 7, 8, 0, 1, 2, 3, 4, 5]
    oracle = {"rows/data": data[order], "rows/label": label[order]}
    converted = check_contract(rows_converter(), [tmp_path], oracle)
    names = [source.name for source in converted.scan.sources]
    assert names == ["test/{data,label}.npy", "train/{data,label}.npy"]
    assert [source.split for source in converted.scan.sources] == ["test", "train"]
    assert len(converted.scan.sources[0].files) == 2

    numbered = tmp_path / "numbered"
    numbered.mkdir()
    for number in (10, 9):
        np.save(numbered / f"x_{number}.npy", np.full(number, number))
        np.save(numbered / f"y_{number}.npy", np.full((number, 2), number))
    both = np.repeat([9, 10], [9, 10])
    pairs = np.stack([both, both], axis=1)
    check_contract(rows_converter(), [numbered], {"rows/x": both, "rows/y": pairs})
    parts = [numbered / f"x_{number}.npy" for number in (9, 10)]
    check_contract(rows_converter(), parts, {"rows/data": both})
    check_contract(rows_converter(map={"z": "y"}), [numbered], {"rows/z": pairs})

    (numbered / "y_9.npy").unlink()
    message = problems_of(rows_converter(), numbered)
    assert "x_9.npy: needs one file for each of x, y" in message
    np.save(numbered / "y_9.npy", np.arange(8))
    message = problems_of(rows_converter(), numbered)
    assert "{x,y}_9.npy: its arrays differ in the length of axis 0" in message
    assert "y  8" in message


def test_structured_arrays_give_one_column_per_field(tmp_path: Path) -> None:
    points = np.zeros(9, [("xyz", "<f4", 3), ("class", ">u2")])
    points["xyz"], points["class"] = RANDOM.random((9, 3)), np.arange(9)
    np.save(tmp_path / "p.npy", points)
    oracle = {"rows/data/xyz": points["xyz"], "rows/data/class": points["class"].astype("u2")}
    check_contract(rows_converter(), [tmp_path / "p.npy"], oracle)
    with h5py.File(tmp_path / "p.h5", "w") as file:
        file["points"] = points
    oracle = {path.replace("data", "points"): values for path, values in oracle.items()}
    check_contract(rows_converter(), [tmp_path / "p.h5"], oracle)


def test_different_columns_are_one_table_and_can_be_joined(tmp_path: Path) -> None:
    x = RANDOM.random((4, 2), dtype=np.float32)
    write(tmp_path / "a.h5", x=x, weight=np.ones(4, "f4"), count=np.ones(4, "i4"))
    write(tmp_path / "b.h5", x=x)
    write(tmp_path / "c.h5", x=x)
    message = problems_of(rows_converter(), tmp_path)
    assert message.count("columns differ") == 1
    assert "b.h5 (+1)" in message
    assert "--columns union" in message
    assert "weight: float32 in a.h5, missing in b.h5 (+1)" in message

    joined = check_contract(rows_converter(columns="union"), [tmp_path], {"rows/x": np.tile(x, (3, 1))})
    np.testing.assert_array_equal(joined.arrays["rows/weight"], [1] * 4 + [np.nan] * 8)
    np.testing.assert_array_equal(joined.arrays["rows/count"], [1] * 4 + [0] * 8)
    assert joined.fields["rows/weight"].attributes["missing_in"] == [1, 2]
    common = check_contract(rows_converter(columns="intersection"), [tmp_path])
    assert list(common.arrays) == ["rows/x"]


def test_lengths_that_differ_are_listed_and_map_chooses(tmp_path: Path) -> None:
    data = RANDOM.random((6, 2))
    write(tmp_path / "a.h5", data=data, label=np.arange(5))
    np.savez(tmp_path / "a.npz", data=data, label=np.arange(5), version=np.float64(2))
    for name, scalar in (("a.h5", ""), ("a.npz", "version  scalar")):
        message = problems_of(rows_converter(), tmp_path / name)
        for expected in ("data", "6", "label", "5", scalar, "--map"):
            assert expected in message
    converter = rows_converter(map={"image": "data"})
    converted = check_contract(converter, [tmp_path / "a.h5"], {"rows/image": data})
    assert list(converted.arrays) == ["rows/image"]
    assert "the arrays are data, label" in problems_of(
        rows_converter(map={"x": "nothing"}), tmp_path / "a.h5"
    )


def test_a_name_with_control_characters_is_a_problem_until_mapped(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["a\nb"] = np.arange(3)
    message = problems_of(rows_converter(), tmp_path / "a.h5")
    assert "control" in message
    assert "\n" not in message
    check_contract(rows_converter(map={"fine": "a\nb"}), [tmp_path / "a.h5"], {"rows/fine": np.arange(3)})


def test_texts_of_two_axes_are_a_problem(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["data"] = np.arange(4)
        file["words"] = np.array([["a", "b"]] * 4, "S1")
    assert "a.h5: words: has the dtype |S1" in problems_of(rows_converter(), tmp_path)


def test_sources_without_rows_or_values_are_a_problem(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.empty((0, 3)))
    assert problems_of(rows_converter(), tmp_path / "a.npy").startswith("a.npy: there are no rows to store")
    np.save(tmp_path / "b.npy", np.ones((2, 3)))
    check_contract(rows_converter(), [tmp_path], {"rows/data": np.ones((2, 3))})
    np.save(tmp_path / "c.npy", np.empty((4, 0)))
    assert "which contain no values" in problems_of(rows_converter(), tmp_path / "c.npy")


def test_a_file_of_only_scalars_is_an_error(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["version"] = 3
        file["scale"] = 0.5
    with pytest.raises(InputError, match="contains no arrays"):
        scan_sources(rows_converter(), [tmp_path / "a.h5"])
    np.savez(tmp_path / "a.npz", version=3, scale=0.5)
    with pytest.raises(InputError, match="scalar") as caught:
        scan_sources(rows_converter(), [tmp_path / "a.npz"])
    (problem,) = caught.value.problems
    assert problem.advice == "save arrays whose axis 0 counts the rows"


def test_the_fix_of_a_name_keeps_the_other_arrays(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **{"x\\y": np.arange(4), "q\\y": np.arange(4), "z": np.arange(4)})
    with pytest.raises(InputError) as caught:
        scan_sources(rows_converter(), [tmp_path])
    words = ("--map", r"x_y_2=x\y", "--map", r"q_y_2=q\y", "--map", "z=z")
    fix = AddOptions(words, "to rename it and keep the others")
    assert [problem.fix for problem in caught.value.problems] == [fix, fix]
