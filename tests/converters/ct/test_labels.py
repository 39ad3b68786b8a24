"""Images and their labels, paired by names: what stands in the store against what numpy reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import unistore
from tests.support.converter_contract import check_contract, convert_in_memory
from tests.support.family_converters import ct as ct_converter
from unistore.converters.detection import survey
from unistore.converters.families import specs_of
from unistore.converters.registry import get_family
from unistore.errors import InputError
from unistore.schemas.array_specs import ArrayInfo

RANDOM = np.random.default_rng(3)


def image(*shape: int, dtype: str = "i2") -> np.ndarray:
    return RANDOM.integers(-1000, 1000, shape or (4, 5, 6)).astype(dtype)


def classes(*shape: int, most: int = 5, dtype: str = "u1") -> np.ndarray:
    found = RANDOM.integers(0, most + 1, shape or (4, 5, 6)).astype(dtype)
    found.flat[0] = most
    return found


def save(root: Path, **arrays: np.ndarray) -> dict[str, np.ndarray]:
    """Arrays by their names, in which ``__`` stands for a folder."""
    for name, values in arrays.items():
        path = root / f"{name.replace('__', '/')}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            np.save(file, values)
    return arrays


def families(root: Path) -> dict[str, str]:
    """Family that takes each file, by its path."""
    root = root.resolve()
    return {path.relative_to(root).as_posix(): answer.family for path, answer in survey([root])}


def problems_of(root: Path) -> str:
    with pytest.raises(InputError) as caught:
        unistore.convert(root, root.parent / "refused.zarr", "ct")
    return str(caught.value)


def test_volumes_and_their_segmentations_are_stored_as_pairs(tmp_path: Path) -> None:
    made: dict[str, np.ndarray] = {}
    for number in range(3):
        made[f"img{number}"] = image(6, 7, 9 + number)
        made[f"img{number}_seg"] = classes(6, 7, 9 + number)
        made[f"img{number}_mask"] = classes(6, 7, 9 + number, most=1)
    save(tmp_path, **made)
    assert set(families(tmp_path).values()) == {"ct"}
    whole, seg = np.zeros((3, 6, 7, 11), "i2"), np.zeros((3, 6, 7, 11), "u1")
    mask = np.zeros((3, 6, 7, 11), "u1")
    for number in range(3):
        whole[number, :, :, : 9 + number] = made[f"img{number}"]
        seg[number, :, :, : 9 + number] = made[f"img{number}_seg"]
        mask[number, :, :, : 9 + number] = made[f"img{number}_mask"]
    oracle = {
        "volumes/image": whole,
        "labels/seg/label": seg,
        "labels/mask/mask": np.packbits(mask, axis=-1, bitorder="little"),
    }
    converted = check_contract(ct_converter(), [tmp_path], oracle)
    infos = {
        path: ArrayInfo(values.shape, str(values.dtype))
        for path, values in converted.arrays.items()
        if not path.startswith("sources/")
    }
    assert specs_of(get_family("ct")).problems(infos, 3) == []
    broken = {path: info for path, info in infos.items() if path != "labels/seg/label"}
    broken["labels/seg/present"] = ArrayInfo((3,), "bool")
    (problem,) = specs_of(get_family("ct")).problems(broken, 3)
    assert str(problem) == "labels/seg: has no voxels and no points, expected either mask or label"
    notes = " | ".join(converted.scan.notes)
    assert "labels/seg: 3 volumes paired by name, such as img0_seg.npy with img0.npy" in notes


def test_labels_are_delivered_verified_exported_and_read_again(
    tmp_path: Path, tree: Callable[[Path], dict[str, bytes]]
) -> None:
    made = save(
        tmp_path / "set",
        imagesTr__a_0000=image(),
        imagesTr__b_0000=image(4, 5, 3),
        imagesTs__c_0000=image(),
        labelsTr__a=classes(most=300, dtype=">u2"),
        labelsTr__b=classes(4, 5, 3, dtype="i1"),
    )
    store = tmp_path / "a.zarr"
    unistore.convert(tmp_path / "set", store)
    assert unistore.verify(store, against=[tmp_path / "set"]).problems == ()
    dataset = unistore.Dataset(store)
    assert len(dataset) == 3
    assert [bool(sample["label_present"]) for sample in dataset] == [True, True, False]
    for number, name in enumerate("ab"):
        sample = dataset[number]
        np.testing.assert_array_equal(sample["image"], made[f"imagesTr__{name}_0000"])
        np.testing.assert_array_equal(sample["label"], made[f"labelsTr__{name}"])
    patches = unistore.Dataset(store, unistore.Patches(2, random=False), fields=["image", "label", "corner"])
    corner = np.asarray(patches[7]["corner"])
    box = tuple(slice(at, at + 2) for at in corner)
    np.testing.assert_array_equal(patches[7]["label"], made["labelsTr__a"][box])
    exported, again = tmp_path / "exported", tmp_path / "again.zarr"
    unistore.export(store, exported)
    assert tree(exported).keys() == tree(tmp_path / "set").keys()
    given = np.load(exported / "labelsTr/b.npy")
    assert given.dtype == np.int8
    np.testing.assert_array_equal(given, made["labelsTr__b"])
    unistore.convert(exported, again)
    np.testing.assert_array_equal(unistore.Dataset(again)[0]["label"], made["labelsTr__a"])
    (tmp_path / "set/labelsTr/a.npy").unlink()
    save(tmp_path / "set", labelsTr__a=classes(most=300, dtype=">u2"))
    assert unistore.verify(store, against=[tmp_path / "set"]).problems != ()


@pytest.mark.parametrize(("dtype", "label"), [("f4", "u1"), ("u1", "?"), ("f8", "i8")])
def test_floats_and_bytes_are_volumes_only_beside_a_label_of_their_own_and_shape(
    tmp_path: Path, dtype: str, label: str
) -> None:
    certain = save(tmp_path / "a", p=image(dtype=dtype), p_mask=classes(dtype=label))
    assert set(families(tmp_path / "a").values()) == {"ct"}, certain
    save(tmp_path / "b", image=image(dtype=dtype), label=classes(dtype=label))
    assert set(families(tmp_path / "b").values()) == {"rows"}
    save(tmp_path / "c", p=image(dtype=dtype), p_mask=classes(4, 5, 7, dtype=label))
    assert set(families(tmp_path / "c").values()) == {"rows"}


def test_labels_of_arrays_that_are_not_volumes_are_rows(tmp_path: Path) -> None:
    save(tmp_path / "a", image=image(4, 5, 6, 3, dtype="f4"), label=classes(dtype="i4"))
    save(tmp_path / "b", p=image(9), p_mask=classes(9, 5, 5, dtype="i4"))
    assert set(families(tmp_path).values()) == {"rows"}


@pytest.mark.parametrize(
    ("label", "message"),
    [
        (classes(4, 5, 7), "p_seg.npy: has shape (4, 5, 7), but its volume has (4, 5, 6)"),
        (classes(4), "p_seg.npy: has 1 axes (4,), but a label has three"),
        (image(dtype="f4") / 3, "is read as a label because of its name, but contains float32"),
        (np.full((4, 5, 6), 1 + 2j), "has dtype complex128, but a label needs bool"),
    ],
)
def test_labels_of_another_shape_or_with_fractions_are_problems(
    tmp_path: Path, label: np.ndarray, message: str
) -> None:
    save(tmp_path / "a", p=image(), p_seg=label)
    assert message in problems_of(tmp_path / "a")


def test_masks_as_floats_are_bits_beside_masks_as_bytes(tmp_path: Path) -> None:
    made = save(
        tmp_path / "a",
        p=image(),
        p_mask=classes(most=1, dtype="f4"),
        q=image(),
        q_mask=classes(most=1, dtype="?"),
    )
    unistore.convert(tmp_path / "a", tmp_path / "a.zarr")
    assert unistore.verify(tmp_path / "a.zarr", against=[tmp_path / "a"]).problems == ()
    dataset = unistore.Dataset(tmp_path / "a.zarr")
    for number, name in enumerate("pq"):
        np.testing.assert_array_equal(dataset[number]["mask"], made[f"{name}_mask"])
    unistore.export(tmp_path / "a.zarr", tmp_path / "out")
    for name in "pq":
        given = np.load(tmp_path / f"out/{name}_mask.npy")
        assert given.dtype == made[f"{name}_mask"].dtype


@pytest.mark.parametrize(
    ("names", "fields"),
    [
        (("case_1", "case_1_mask_0", "case_1_mask_1"), ("mask_0", "mask_1")),
        (("case_1_image", "case_1_mask_liver", "case_1_seg"), ("mask_liver", "seg")),
        (("img_001", "img_seg_001", "label_img_001"), ("seg", "label")),
        (("p__ct_original", "p__label", "p__ct_seg_1"), ("label", "seg_1")),
        (("p__ct_original_64", "p__segmentation", "p__labels__organs"), ("seg", "organs")),
    ],
)
def test_labels_with_ids_prefixes_and_names_of_cases_belong_to_their_volume(
    tmp_path: Path, names: tuple[str, ...], fields: tuple[str, ...]
) -> None:
    """Masks with an id, and labels beside the volume of a case folder, are never volumes of their own."""
    first, *labels = names
    made = save(tmp_path / "set", **{first: image()}, **{name: classes(dtype="i2") for name in labels})
    assert set(families(tmp_path / "set").values()) == {"ct"}
    converted = convert_in_memory(ct_converter(), [tmp_path / "set"])
    assert converted.finalized.samples == 1
    for name, field in zip(labels, fields, strict=True):
        np.testing.assert_array_equal(converted.arrays[f"labels/{field}/label"], made[name][None])


def test_masks_with_more_than_two_values_are_stored_as_classes(tmp_path: Path) -> None:
    made = save(
        tmp_path / "a",
        p__ct_original=image(),
        p__organs=classes(dtype="i4"),
        p__masks__liver_binary=classes(most=2),
        p__masks__bones_binary=classes(most=1),
        p__masks__vessels=classes(most=3),
        q__ct_original=image(),
        q__masks__liver_binary=classes(most=1, dtype="u2"),
    )
    report = unistore.convert(tmp_path / "a", tmp_path / "a.zarr")
    assert (
        "masks/liver: contains other values than 0 and 1, so they are classes, stored as uint16"
        in report.notes
    )
    assert unistore.verify(tmp_path / "a.zarr", against=[tmp_path / "a"]).problems == ()
    p, q = unistore.Dataset(tmp_path / "a.zarr")[0], unistore.Dataset(tmp_path / "a.zarr")[1]
    for key, name in (("organs", "p__organs"), ("vessels", "p__masks__vessels")):
        np.testing.assert_array_equal(p[key], made[name])
        assert (p[f"{key}_present"], q[f"{key}_present"]) == (True, False)
    np.testing.assert_array_equal(p["liver"], made["p__masks__liver_binary"])
    np.testing.assert_array_equal(q["liver"], made["q__masks__liver_binary"])
    np.testing.assert_array_equal(p["bones"], made["p__masks__bones_binary"])
    unistore.export(tmp_path / "a.zarr", tmp_path / "out")
    for name in ("p__masks__liver_binary", "q__masks__liver_binary", "p__masks__bones_binary"):
        back = np.load(tmp_path / "out" / f"{name.replace('__', '/')}.npy")
        np.testing.assert_array_equal(back, made[name])
        assert back.dtype == made[name].dtype


def test_a_note_counts_voxels_that_are_nan(tmp_path: Path) -> None:
    values = image(dtype="f4")
    values[0, 0, :3] = np.nan
    save(tmp_path / "a", p__ct_original=values, q__ct_original=image(dtype="f4"))
    report = unistore.convert(tmp_path / "a", tmp_path / "a.zarr")
    assert "NaN in 3 voxels in 1 volume: kept as they are, but not in windows" in report.notes


def test_a_label_of_several_images_is_written_once(
    tmp_path: Path, tree: Callable[[Path], dict[str, bytes]]
) -> None:
    save(tmp_path / "in", imagesTr__a_0000=image(), imagesTr__a_0001=image(), labelsTr__a=classes())
    unistore.convert(tmp_path / "in", tmp_path / "a.zarr")
    unistore.export(tmp_path / "a.zarr", tmp_path / "out")
    before, after = tree(tmp_path / "in"), tree(tmp_path / "out")
    assert before.keys() == after.keys()
    for name in before:
        np.testing.assert_array_equal(np.load(tmp_path / "out" / name), np.load(tmp_path / "in" / name))
