"""Label maps: what numbers become, what is refused, and what stores of volumes and clouds hold of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import unistore
from unistore.converters.common.label_map import LabelMap, checked_map
from unistore.errors import InputError

LABELS = np.array([[0, 1, 6], [6, 6, 0]], "u1")
TWO = {
    "datasets": {"A": {"1": 2, "6": 1}, "B": {"1": 1}},
    "classes": {"1": "liver", "2": "spleen"},
}


def labels_of(text: str, path: str, labels: np.ndarray = LABELS, ignored: int | None = None) -> np.ndarray:
    whole = checked_map(text, ignored)
    assert whole is not None
    assert checked_map(whole, ignored) == whole
    return LabelMap(whole, ignored).numbering(Path(path), "a").stored(labels, "a")


@pytest.mark.parametrize("dtype", ["i1", "u8", ">u2"])
def test_numbers_become_those_of_the_map(dtype: str) -> None:
    stored = labels_of("1=2,6=1", "x/a.npy", LABELS.astype(dtype))
    assert stored.dtype == np.uint8
    np.testing.assert_array_equal(stored, [[0, 2, 1], [1, 1, 0]])


def test_mapped_labels_have_the_smallest_dtype_of_all_numbers_of_the_map() -> None:
    assert labels_of("1=2,6=300", "x/a.npy").dtype == np.uint16
    assert labels_of("1=-1,6=200,0=0", "x/a.npy").dtype == np.int16
    np.testing.assert_array_equal(labels_of("0=255,1=0,6=1", "x/a"), [[255, 0, 1], [1, 1, 255]])


def test_a_label_that_is_not_in_the_map_is_an_error_or_becomes_ignore_label() -> None:
    with pytest.raises(InputError) as error:
        labels_of("1=2", "x/a.npy")
    (problem,) = error.value.problems
    assert problem.message == "label 6 is not in --label-map"
    assert problem.advice.startswith("add 6=…, or add --ignore-label")
    np.testing.assert_array_equal(labels_of("1=2", "a", ignored=255), [[0, 2, 255], [255, 255, 0]])
    large = np.array([2**40, -5, 1])
    np.testing.assert_array_equal(labels_of("1=2", "a", large, ignored=9), [9, 9, 2])
    with pytest.raises(InputError, match="has labels of the dtype float32"):
        labels_of("1=2", "a", LABELS.astype("f4"))


def test_a_file_takes_the_map_of_the_nearest_folder_named_in_it() -> None:
    text = json.dumps(TWO)
    np.testing.assert_array_equal(labels_of(text, "/data/A/labelsTr/a.nii"), [[0, 2, 1], [1, 1, 0]])
    np.testing.assert_array_equal(labels_of(text, "/data/A/B/a.nii", LABELS[:, :2] % 2), [[0, 1], [0, 0]])
    with pytest.raises(InputError, match="folders in --label-map, which are A, B"):
        labels_of(text, "/data/C/a.nii")
    with_others = json.dumps({"datasets": {"A": {"1": 9}, "*": {"1": 3, "6": 4}}})
    np.testing.assert_array_equal(labels_of(with_others, "/data/C/a.nii"), [[0, 3, 4], [4, 4, 0]])


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[1, 2]",
        '{"a": 1}',
        '{"1": 1.5}',
        '{"1": true}',
        '{"datasets": {}}',
        '{"datasets": {"A": {"1": 2}}, "names": {}}',
        '{"datasets": {"A": {"1": 2}}, "classes": {"liver": 1}}',
        '{"0": 1, "9000000": 2}',
        "1=2,",
        "no-such-file.json",
    ],
)
def test_a_malformed_label_map_is_an_error(text: str) -> None:
    with pytest.raises(InputError, match="--label-map"):
        checked_map(text, None)


def volumes(root: Path) -> dict[str, np.ndarray]:
    made = {}
    for number, dataset in enumerate(("A", "B")):
        labels = np.array([1, 6] if dataset == "A" else [1], "u1")
        for part in ("imagesTr", "labelsTr"):
            (root / dataset / part).mkdir(parents=True)
        rng = np.random.default_rng(number)
        made[dataset] = rng.choice([0, *labels], (3, 4, 5)).astype("u1")
        np.save(root / dataset / "imagesTr/c_0000.npy", rng.integers(-9, 9, (3, 4, 5), np.int16))
        np.save(root / dataset / "labelsTr/c.npy", made[dataset])
    return made


def test_labels_of_volumes_of_two_datasets_are_stored_in_one_numbering(tmp_path: Path) -> None:
    made = volumes(tmp_path / "in")
    (tmp_path / "map.json").write_text(json.dumps(TWO))
    store = tmp_path / "a.zarr"
    unistore.convert(tmp_path / "in", store, "ct", label_map=str(tmp_path / "map.json"))
    (tmp_path / "map.json").unlink()
    first, second = unistore.Dataset(store)
    np.testing.assert_array_equal(first["label"], np.array([0, 2, 0, 0, 0, 0, 1])[made["A"]])
    np.testing.assert_array_equal(second["label"], made["B"])
    opened = unistore.Store(store)
    assert opened.array("labels/label/label").attributes["classes"] == TWO["classes"]
    recorded = opened.attributes["options"]
    assert json.loads(recorded["label_map"]) == TWO
    assert "ignore_label" not in recorded
    assert unistore.verify(store, against=tmp_path / "in").problems == ()
    np.save(tmp_path / "in/A/labelsTr/c.npy", made["A"][::-1])
    assert not unistore.verify(store, against=tmp_path / "in").ok


def test_a_map_of_a_dataset_without_files_is_an_error(tmp_path: Path) -> None:
    volumes(tmp_path / "in")
    maps = json.dumps({"datasets": {**TWO["datasets"], "Amos": {"1": 2}}})
    with pytest.raises(InputError, match="--label-map Amos: no label file is in a folder of this name"):
        unistore.convert(tmp_path / "in", tmp_path / "a.zarr", "ct", label_map=maps)


def clouds(root: Path) -> dict[str, np.ndarray]:
    made = {}
    for number, dataset in enumerate(("A", "B")):
        (root / dataset).mkdir(parents=True)
        rng = np.random.default_rng(number)
        made[dataset] = rng.choice([0, 1, 6] if dataset == "A" else [0, 1], 20).astype("i4")
        np.savez(root / dataset / "c.npz", xyz=rng.random((20, 3)), label=made[dataset])
    return made


def test_labels_of_clouds_of_two_datasets_are_stored_in_one_numbering(tmp_path: Path) -> None:
    made = clouds(tmp_path / "in")
    store = tmp_path / "a.zarr"
    unistore.convert(tmp_path / "in", store, "point_cloud", label_map=json.dumps(TWO), segment="window:0.4")
    opened = unistore.Store(store)
    labels = opened.array("points/label")
    assert labels.dtype == np.uint8
    assert labels.attributes["classes"] == TWO["classes"]
    in_source_order = opened.array("points/source_row").read()
    expected = [np.array([0, 2, 0, 0, 0, 0, 1])[made["A"]], made["B"]]
    halves = [in_source_order[:20], 20 + in_source_order[20:]]
    np.testing.assert_array_equal(labels.read(), np.concatenate(expected)[np.concatenate(halves)])
    assert unistore.verify(store, against=tmp_path / "in").problems == ()
    with pytest.raises(InputError, match="label 6 is not in"):
        unistore.convert(tmp_path / "in", tmp_path / "b.zarr", "point_cloud", label_map="1=1")


@pytest.mark.parametrize("text", ["1=2,1=3", '{"1": 2, "1": 3}', '{"1": 2, "01": 3}'])
def test_a_map_that_contains_a_label_twice_is_an_error(text: str) -> None:
    with pytest.raises(InputError, match="contains a label twice"):
        checked_map(text, None)
