from __future__ import annotations

from pathlib import Path

import pytest

from unistore.converters.formats.label_names import (
    images_of_label,
    label_paths,
    row_label_paths,
)
from unistore.converters.opened import SourceFile
from unistore.converters.rows.grouping import group_files


@pytest.mark.parametrize(
    ("label", "images", "name", "certain"),
    [
        ("img0_seg", ["img0"], "seg", True),
        ("img0-Mask", ["img0"], "mask", True),
        ("case.1.labels", ["case.1"], "label", True),
        ("case_seg", ["case_image"], "seg", True),
        ("seg0", ["img0"], "seg", True),
        ("segmentation-12", ["volume-12"], "seg", True),
        ("label_3", ["image_3"], "label", False),
        ("label", ["image"], "label", False),
        ("mask_case1", ["case1"], "mask", True),
        ("masks/a", ["a"], "mask", True),
        ("labels/a", ["images/a"], "label", False),
        ("labels/a_seg", ["images/a"], "seg", True),
        ("labels/train/a", ["images/train/a"], "label", False),
        ("labelsTr/c_01", ["imagesTr/c_01"], "label", True),
        ("labelsTr/c_01", ["imagesTr/c_01_0000"], "label", True),
        ("labelsTr/c_01", ["imagesTr/c_01_0000", "imagesTr/c_01_0001"], "label", True),
        ("data/gt", ["data/ct"], "label", False),
        ("case_12_mask_0", ["case_12"], "mask_0", False),
        ("case_1_mask_liver", ["case_1_image"], "mask_liver", False),
        ("img_seg_0001", ["img_0001"], "seg", False),
        ("p_label_3", ["p_image_3"], "label", False),
        ("b_1_seg", ["b_1_t1", "b_1_flair"], "seg", True),
        ("b-1-seg", ["b-1-t2w"], "seg", True),
    ],
)
def test_a_label_is_paired_with_the_image_in_its_name(
    label: str, images: list[str], name: str, certain: bool
) -> None:
    there = {f"set/{name}" for name in [*images, label]}
    found = images_of_label(f"set/{label}", there.__contains__, ("ct",))
    assert found is not None
    assert (found.images, found.name, found.certain) == (
        tuple(f"set/{image}" for image in images),
        name,
        certain,
    )
    if certain and "." not in label and "/a_" not in label and "case_" not in label:
        listed = [path.lower() for path in label_paths(f"set/{images[0]}", ("ct",))]
        assert f"set/{label}".lower() in listed, "the image does not find its label"


@pytest.mark.parametrize(
    ("file", "others"),
    [
        ("img0", ["img0_seg"]),
        ("img0_seg", ["img1", "img", "sub/img0"]),
        ("segment", ["img"]),
        ("masked_a", ["a"]),
        ("labels/a", ["a/a", "images/b"]),
        ("labelsTr/a", ["imagesTs/a", "images/a"]),
        ("y", ["x"]),
    ],
)
def test_names_without_the_name_of_an_image_are_not_labels(file: str, others: list[str]) -> None:
    there = {f"set/{name}" for name in [*others, file]}
    assert images_of_label(f"set/{file}", there.__contains__) is None


def test_the_paths_of_labels_of_rows_follow_from_the_path_of_the_data() -> None:
    assert "a/label_3" in row_label_paths("a/data_3")
    assert "a/data_3_y" in row_label_paths("a/data_3")
    assert "a/label_3" not in row_label_paths("a/data_4")
    assert "a/y" in row_label_paths("a/x")


def grouped(tmp_path: Path, *names: str) -> dict[str, tuple[list[str], tuple[str, ...]]]:
    """Files and arrays of each part, of arrays that could all be parts of one."""
    import numpy as np

    for name in names:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, np.zeros((3, 4, 5), "u1" if "seg" in name or "label" in name else "i2"))
    groups, problems = group_files([SourceFile(tmp_path / name, name) for name in sorted(names)])
    assert not problems
    return {group.name: ([file.name for file in group.files], group.arrays) for group in groups}


def test_plain_arrays_of_a_pair_become_the_columns_of_one_source(tmp_path: Path) -> None:
    assert grouped(tmp_path / "a", "img0.npy", "img0_seg.npy", "img1.npy", "img1_seg.npy") == {
        "{image,seg}_img0.npy": (["img0.npy", "img0_seg.npy"], ("image", "seg")),
        "{image,seg}_img1.npy": (["img1.npy", "img1_seg.npy"], ("image", "seg")),
    }
    assert grouped(tmp_path / "b", "image.npy", "label.npy") == {
        "{image,label}.npy": (["image.npy", "label.npy"], ("image", "label"))
    }
    assert grouped(tmp_path / "c", "images/p.npy", "images/q.npy", "labels/p.npy") == {
        "images/{image,label}_p.npy": (["images/p.npy", "labels/p.npy"], ("image", "label")),
        "images/q.npy": (["images/q.npy"], ("image",)),
    }
    assert grouped(tmp_path / "d", "part_0.npy", "part_1.npy") == {
        "part_0.npy": (["part_0.npy"], ("data",)),
        "part_1.npy": (["part_1.npy"], ("data",)),
    }
