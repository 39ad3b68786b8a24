"""Bad CT sources: each its own clear error, the problems of all files together, nothing silently changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import unistore
from tests.support.family_converters import ct as ct_converter
from unistore.converters.source_scan import scan_sources
from unistore.errors import InputError, Problem

GOOD = np.arange(60, dtype="i2").reshape(3, 4, 5)


def scan_problems(*paths: Path, **options: object) -> dict[str, Problem]:
    with pytest.raises(InputError) as error:
        scan_sources(ct_converter(**options), paths)
    return {problem.location: problem for problem in error.value.problems}


def derive_problems(path: Path, **options: object) -> list[Problem]:
    converter = ct_converter(**options)
    scan = scan_sources(converter, [path])
    with pytest.raises(InputError) as error:
        converter.derive(scan, 0, lambda *_: None, None)
    return list(error.value.problems)


def save(path: Path, array: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, array)
    return path


def test_every_bad_file_is_reported_at_once(tmp_path: Path) -> None:
    save(tmp_path / "good.npy", GOOD)
    save(tmp_path / "flat.npy", GOOD[0])
    save(tmp_path / "four.npy", GOOD[None])
    save(tmp_path / "many.npy", np.stack([GOOD, GOOD]))
    save(tmp_path / "empty.npy", GOOD[:0])
    save(tmp_path / "complex.npy", GOOD.astype("c8"))
    save(tmp_path / "text.npy", np.full((2, 2, 2), "a"))
    save(tmp_path / "long.npy", GOOD.astype(np.longdouble))
    save(tmp_path / "record.npy", np.zeros((2, 2, 2), [("hu", "i2")]))
    np.save(tmp_path / "object.npy", np.array([GOOD, None], dtype=object), allow_pickle=True)
    cut = save(tmp_path / "cut.npy", GOOD)
    cut.write_bytes(cut.read_bytes()[:-11])
    (tmp_path / "zero.npy").write_bytes(b"")
    (tmp_path / "pointer.npy").write_bytes(
        b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 9\n"
    )
    found = scan_problems(*sorted(tmp_path.iterdir()))
    expected = {
        "flat.npy": ("shape", "has 2 axes (4, 5)", "np.stack(slices)"),
        "four.npy": ("shape", "has 4 axes (1, 3, 4, 5)", "array[0]"),
        "many.npy": (
            "shape",
            "has 4 axes (2, 3, 4, 5)",
            "if it is of another family",
        ),
        "empty.npy": ("shape", "is empty: its shape is (0, 4, 5)", ""),
        "complex.npy": ("dtype", "has dtype complex64", "astype"),
        "text.npy": ("dtype", "has dtype <U1", "astype"),
        "long.npy": ("dtype", "has dtype float128", "astype"),
        "record.npy": ("dtype", "has dtype [('hu', '<i2')]", "astype"),
        "object.npy": ("object", "Python objects", "np.stack"),
        "cut.npy": ("truncated", "it has 237 of 248 bytes", "again"),
        "zero.npy": ("empty", "0 bytes", ""),
        "pointer.npy": ("format", "Git LFS pointer", "git lfs pull"),
    }
    assert set(found) == set(expected)
    for name, (kind, message, fix) in expected.items():
        assert found[name].kind == kind
        assert message in found[name].message
        assert fix in found[name].advice


def test_volumes_without_a_common_dtype_are_an_error(tmp_path: Path) -> None:
    save(tmp_path / "a.npy", GOOD.astype("i8"))
    save(tmp_path / "ct.npy", GOOD.astype("f4"))
    (problem,) = scan_problems(tmp_path).values()
    assert "int64 (a.npy), float32 (ct.npy)" in problem.message


def test_every_file_that_contradicts_its_case_is_a_problem(tmp_path: Path) -> None:
    lung = (GOOD > 9).astype("u1")
    save(tmp_path / "case_1" / "ct_original_512.npy", GOOD)
    save(tmp_path / "case_1" / "windows" / "lung_w1500_l-600.npy", lung[:2])
    save(tmp_path / "case_1" / "masks" / "1_binary.npy", lung[:, :2])
    (tmp_path / "case_1" / "info.json").write_text("{not json")
    np.savez(tmp_path / "case_1" / "windows" / "odd.npz", a=GOOD)
    np.savez(tmp_path / "case_1" / "windows" / "bad.npz", sparse_index=GOOD, sparse_sdf=np.zeros(3))
    np.savez(tmp_path / "case_1" / "windows" / "mine.npz", indices=np.zeros((2, 3), "i2"), values=np.ones(2))
    found = {location.rpartition("/")[2]: problem for location, problem in scan_problems(tmp_path).items()}
    assert "has shape (2, 4, 5), but its volume has (3, 4, 5)" in found["lung_w1500_l-600.npy"].message
    assert "has shape (3, 2, 5), but its volume has (3, 4, 5)" in found["1_binary.npy"].message
    assert found["info.json"].kind == "json"
    assert (
        "contains a; expected indices and values or sparse_index and sparse_sdf" in found["odd.npz"].message
    )
    assert "sparse_index is int16 (3, 4, 5), expected integers (points, 3)" in found["bad.npz"].message
    assert "does not state width and level" in found["mine.npz"].message
    assert len(found) == 6


def test_a_case_without_exactly_one_volume_is_a_problem(tmp_path: Path) -> None:
    lung = (GOOD > 9).astype("u1")
    for case in ("case_1", "case_2"):
        save(tmp_path / case / "windows" / "lung_w1500_l-600.npy", lung)
    save(tmp_path / "case_1" / "ct_original.npy", GOOD)
    found = scan_problems(tmp_path)
    assert set(found) == {"case_2"}
    assert "has no image, unlike 1 other volume" in found["case_2"].message
    save(tmp_path / "case_2" / "one.npy", GOOD)
    save(tmp_path / "case_2" / "two.npy", GOOD)
    assert (
        "contains one.npy, two.npy, but one is needed" in next(iter(scan_problems(tmp_path).values())).message
    )


def test_two_windows_of_one_name_are_a_problem(tmp_path: Path) -> None:
    save(tmp_path / "a" / "ct_original.npy", GOOD)
    save(tmp_path / "a" / "windows" / "lung_w1400_l-500.npy", (GOOD > 9).astype("u1"))
    found = scan_problems(tmp_path, window=("lung",))
    assert "its files have the window lung:1400:-500, but --window has lung:1500:-600" in found["a"].message
    save(tmp_path / "a" / "windows" / "lung_w1500_l-600.npy", (GOOD > 9).astype("u1"))
    found = scan_problems(tmp_path)
    assert "is the second window 'lung'" in found["a/windows/lung_w1500_l-600.npy"].message


def test_a_window_file_that_differs_from_its_volume_is_a_problem(tmp_path: Path) -> None:
    image = GOOD * 40
    lung = (image <= 150).astype("u1")
    lung[2, 3, 4] = 1
    save(tmp_path / "a" / "ct_original.npy", image)
    save(tmp_path / "a" / "windows" / "lung_w1500_l-600.npy", np.asfortranarray(lung))
    (problem,) = derive_problems(tmp_path / "a")
    assert "differs from the window lung:1500:-600 of a/ct_original.npy in 1 voxel" in problem.message
    assert problem.advice


def test_masks_with_values_other_than_0_and_1_are_a_problem(tmp_path: Path) -> None:
    save(tmp_path / "a" / "windows" / "lung_w1500_l-600.npy", GOOD.astype("u1"))
    save(tmp_path / "a" / "masks" / "7_binary.npy", GOOD.astype("f4") / 4)
    problems = derive_problems(tmp_path / "a")
    assert [problem.kind for problem in problems] == ["values", "values"]
    assert "58 values differ from 0 and 1" in problems[0].message
    assert "a/masks/7_binary.npy" in problems[1].location


def sparse(index: object, values: object) -> Callable[[Path], None]:
    return lambda path: np.savez(path, indices=np.array(index, "i2"), values=np.array(values, "f2"))


def sdf(index: object, **more: object) -> Callable[[Path], None]:
    index = np.array(index, "i4")
    return lambda path: np.savez(path, sparse_index=index, sparse_sdf=np.zeros((len(index), 1), "f4"), **more)


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (sparse([[0, 0, 0], [1, -2, 0]], [1, 1]), "has 1 point outside of the volume (2147483648"),
        (
            sparse([[0, 1, 0], [0, 0, 0], [0, 1, 0]], [1, 1, 1]),
            "has 1 voxel more than once; the first is [0, 1, 0]",
        ),
        (sdf([[0, 0, 64]], resolution=64), "has 1 point outside of the volume (64, 64, 64)"),
        (sdf([[0, 0, -1], [0, 0, 0]]), "the first is row 0: [0, 0, -1]"),
    ],
    ids=["negative", "twice", "beyond the resolution", "negative sdf"],
)
def test_points_that_are_not_indices_of_the_volume_are_a_problem(
    tmp_path: Path, write: Callable[[Path], None], words: str
) -> None:
    (tmp_path / "a" / "windows").mkdir(parents=True)
    write(tmp_path / "a" / "windows" / "lung_w1500_l-600_sparse.npz")
    (problem,) = derive_problems(tmp_path / "a")
    assert words in problem.message


def test_plain_arrays_beside_volumes_are_left_out_unless_they_are_given(tmp_path: Path) -> None:
    good, flat = save(tmp_path / "good.npy", GOOD), save(tmp_path / "flat.npy", GOOD[0])
    dose = save(tmp_path / "dose.npy", GOOD.astype("f4"))
    scan = scan_sources(ct_converter(), [tmp_path])
    assert [source.name for source in scan.sources] == ["good.npy"]
    assert scan.left_out == tuple(
        (path, "of another family (unistore convert rows)") for path in (dose, flat)
    )
    assert set(scan_problems(good, flat)) == {"flat.npy"}
    assert len(scan_sources(ct_converter(), [good, dose]).sources) == 2
    good.unlink()
    scan = scan_sources(ct_converter(), [tmp_path])
    assert [source.name for source in scan.sources] == ["dose.npy"], "taken where the family is named"


def test_two_files_of_one_mask_are_refused(tmp_path: Path) -> None:
    save(tmp_path / "p1/ct_original.npy", GOOD)
    for name in ("liver_binary", "p1_liver_binary"):
        save(tmp_path / f"p1/masks/{name}.npy", (GOOD > 3).astype("u1"))
    (problem,) = scan_problems(tmp_path).values()
    assert (problem.location, problem.source) == ("p1/masks/p1_liver_binary.npy", "p1")
    assert problem.message == "is the second mask 'liver' of this volume, after p1/masks/liver_binary.npy"


@pytest.mark.parametrize(("name", "is_taken"), [("offsets", True), ("offset", False)])
def test_a_window_named_offsets_beside_windows_of_bits_is_an_error(
    name: str, is_taken: bool, tmp_path: Path
) -> None:
    """Windows of bits are one table, whose offsets are called as the group of the other window's would be."""
    windows = tmp_path / "scans" / "a" / "windows"
    windows.mkdir(parents=True)
    np.save(windows / "brain_w80_l35.npy", (GOOD > 9).astype("u1"))
    points = np.argwhere(GOOD > 3)
    np.savez(windows / f"{name}_w1500_l300_sparse.npz", indices=points.astype("i2"), values=GOOD[GOOD > 3])
    store = tmp_path / "ct.zarr"
    if is_taken:
        with pytest.raises(InputError, match="windows/offsets: cannot be the name of a table"):
            unistore.convert(tmp_path / "scans", store, "ct")
        return
    unistore.convert(tmp_path / "scans", store, "ct")
    assert unistore.Store(store).array(f"sources/windows/{name}/offsets").read().tolist() == [0, len(points)]
    assert unistore.Store(store).array("sources/windows/offsets").read().tolist() == [0, 1]


def test_a_text_whose_name_only_ends_like_one_about_volumes_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    np.save(tmp_path / "in/ct_1.npy", np.ones((9, 8, 7), np.int16))
    (tmp_path / "in/my_dataset.json").write_text("{}")
    unistore.convert(tmp_path / "in", tmp_path / "out.zarr", "ct")
    assert unistore.Store(tmp_path / "out.zarr").sample_count == 1
    with pytest.raises(InputError, match=r"my_dataset\.json: is JSON, which is not supported"):
        unistore.convert([tmp_path / "in/ct_1.npy", tmp_path / "in/my_dataset.json"], tmp_path / "b", "ct")
