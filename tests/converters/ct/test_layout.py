from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.family_converters import ct as converter
from unistore.converters.common.exclusion import Exclusion
from unistore.converters.ct.names import window_in
from unistore.converters.files.paths import list_files
from unistore.converters.scan_types import Found, SourcePart

VOLUME = np.zeros((2, 3, 4), "i2")


@pytest.mark.parametrize(
    ("stem", "known", "expected"),
    [
        ("lung_w1500_l-600", (), ("", "lung", 1500, -600)),
        ("derived_ct_cropped_lung_w1500_l-600", (), ("derived_ct_cropped", "lung", 1500, -600)),
        ("case_soft_tissue_w400_l50", (), ("case", "soft_tissue", 400, 50)),
        ("case_mine_w40.5_l-1.5", (), ("case", "mine", 40.5, -1.5)),
        ("case_my_own_w40_l1", ("my_own",), ("case", "my_own", 40, 1)),
        ("lung", (), None),
        ("lung_w0_l5", (), None),
        ("_w5_l5", (), None),
        ("a__w5_l5", (), None),
        ("case_w512_l", (), None),
    ],
)
def test_window_in_parses_prefix_name_width_and_level_of_a_file_name(
    stem: str, known: tuple[str, ...], expected: tuple[str, str, float, float] | None
) -> None:
    found = window_in(stem, known)
    assert (None if found is None else (found[0], found[1].name, found[1].width, found[1].level)) == expected


def lay(root: Path, *names: str) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".npy":
            np.save(path, VOLUME)
        elif path.suffix == ".npz":
            np.savez(path, a=VOLUME)
        else:
            path.write_text("{}")
    return root


def find(*paths: Path) -> Found:
    found: Found = converter().find(list_files(paths), Exclusion(()))
    return found


def grouped(root: Path, *given: str) -> dict[str, set[str]]:
    """Files of each volume, by the volume's path."""
    found = find(*([root / name for name in given] or [root]))
    assert not found.problems, found.problems
    return {
        path_of(part, root): {path.name for path in part.files if path.name != "info.json"}
        for part in found.parts
    }


def path_of(part: SourcePart, root: Path) -> str:
    """Case folder of a volume, or its first file."""
    path = part.files[0]
    if part.detail.names[0] != part.name:
        path = next(parent for parent in path.parents if parent.name == part.name.rpartition("/")[2])
    return path.relative_to(root.resolve()).as_posix()


def test_windows_are_grouped_with_the_file_whose_name_they_begin_with(tmp_path: Path) -> None:
    lay(
        tmp_path,
        "a.npy",
        "a_lung_w1500_l-600.npy",
        "a_lung_w1500_l-600_sparse.npz",
        "b.npy",
        "c_hu.npy",
        "c_bone_w1500_l300.npy",
        "lone_bone_w1500_l300.npy",
        "lone_lung_w1500_l-600.npy",
    )
    assert grouped(tmp_path) == {
        "a.npy": {"a.npy", "a_lung_w1500_l-600.npy", "a_lung_w1500_l-600_sparse.npz"},
        "b.npy": {"b.npy"},
        "c_hu.npy": {"c_hu.npy", "c_bone_w1500_l300.npy"},
        "lone_bone_w1500_l300.npy": {"lone_bone_w1500_l300.npy", "lone_lung_w1500_l-600.npy"},
    }


def test_a_window_that_fits_two_volumes_is_grouped_with_neither(tmp_path: Path) -> None:
    lay(tmp_path, "c_1.npy", "c_2.npy", "c_bone_w1500_l300.npy")
    assert set(grouped(tmp_path)) == {"c_1.npy", "c_2.npy", "c_bone_w1500_l300.npy"}


def test_case_folders_and_loose_files_of_one_folder_are_grouped_apart(tmp_path: Path) -> None:
    lay(
        tmp_path,
        "processed/case_1/ct_original_512.npy",
        "processed/case_1/notes.npy",
        "processed/case_1/info.json",
        "processed/case_1/masks/1_binary.npy",
        "processed/case_2/volume.npy",
        "processed/case_2/windows/odd_name_w40_l1.npy",
        "extra/x.npy",
        "extra/z.npy",
        "extra/masks/x_binary.npy",
        "extra/masks/y_binary.npy",
        "extra/info.json",
        "extra/plain.npz",
    )
    found = find(tmp_path)
    assert sorted(path.name for path, _ in found.left_out) == sorted(
        ["notes.npy", "plain.npz", "y_binary.npy", "info.json"]
    )
    assert grouped(tmp_path) == {
        "extra/x.npy": {"x.npy", "x_binary.npy"},
        "extra/z.npy": {"z.npy"},
        "processed/case_1": {"ct_original_512.npy", "1_binary.npy"},
        "processed/case_2": {"volume.npy", "odd_name_w40_l1.npy"},
    }
    roles = {part.name.rpartition("/")[2]: part.detail.roles for part in found.parts}
    assert roles == {
        "x.npy": ("image/0", "masks/binary"),
        "z.npy": ("image/0",),
        "case_1": ("image/512", "masks/1", "info"),
        "case_2": ("image/0", "windows/odd_name"),
    }


def test_a_given_windows_folder_is_grouped_without_its_volume(tmp_path: Path) -> None:
    lay(tmp_path, "case/ct_original.npy", "case/windows/lung_w1500_l-600.npy", "case/windows/b_c_w9_l9.npy")
    assert grouped(tmp_path, "case/windows") == {
        "case/windows/b_c_w9_l9.npy": {"b_c_w9_l9.npy", "lung_w1500_l-600.npy"}
    }


def test_a_windows_folder_without_windows_is_no_case(tmp_path: Path) -> None:
    lay(tmp_path, "drivers/windows/a.npy", "drivers/windows/b.npy")
    assert grouped(tmp_path) == {"drivers/windows/a.npy": {"a.npy"}, "drivers/windows/b.npy": {"b.npy"}}
