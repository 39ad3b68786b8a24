"""Whether a file is of a CT volume: one verdict a file, whatever unrelated files lie beside it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.family_converters import ct as ct_converter
from unistore.converters.claims import Claim
from unistore.converters.common.faults import as_problem
from unistore.converters.scan_types import Candidate

HU = np.zeros((2, 3, 4), "i2")
MASK = HU.astype("u1")
FLOATS = HU.astype("f4")
INDEX = np.zeros((1, 3), "i4")
SPARSE = {"indices": INDEX, "values": np.ones(1)}
SDF = {"sparse_index": INDEX, "sparse_sdf": np.ones(1)}
CASE = ("cases", "is the volume of a case folder")
WINDOW = ("cases", "is a window of a case folder")
CASE_MASK = ("cases", "is a mask of a case folder")
NAMED = ("files", "names an intensity window")


def save(path: Path, content: np.ndarray | dict[str, np.ndarray] | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, str):
        path.write_text(content)
    elif isinstance(content, dict):
        np.savez(path, **content)
    else:
        with path.open("wb") as file:
            np.save(file, content)
    return path


def claim(path: Path, *roots: Path) -> Claim:
    """What the converter says of a file, as the survey of all files asks it."""
    with Candidate(path, roots) as file, as_problem(str(path)):
        return ct_converter().look(file)


def taken(path: Path, *roots: Path) -> tuple[str, str]:
    found = claim(path, *roots)
    assert found.certainty == "sure", found
    return found.layout, found.reason


def left_out(path: Path, *roots: Path) -> str:
    found = claim(path, *roots)
    assert found.certainty != "sure", found
    return found.reason


@pytest.mark.parametrize("dtype", ["i2", "u2", ">i4", "i8"])
def test_integers_of_three_axes_are_volumes(tmp_path: Path, dtype: str) -> None:
    path = save(tmp_path / "data/a.npy", HU.astype(dtype))
    assert taken(path, tmp_path) == ("files", f"has three axes: {np.dtype(dtype)} (2, 3, 4)")


@pytest.mark.parametrize("dtype", ["u1", "?", ">f4"])
@pytest.mark.parametrize(
    ("name", "hinted"),
    [
        ("data/ct_a.npy", True),
        ("data/a_HU.npy", True),
        ("data/vol3.npy", True),
        ("scans/a.npy", True),
        ("data/a.npy", False),
        ("data/direct.npy", False),
        ("scans/data/a.npy", False),
    ],
)
def test_floats_and_bytes_need_a_name_that_says_so(
    tmp_path: Path, dtype: str, name: str, hinted: bool
) -> None:
    path = save(tmp_path / name, HU.astype(dtype))
    if hinted:
        assert taken(path, tmp_path)[0] == "files"
    else:
        assert left_out(path, tmp_path).startswith(
            f"contains {np.dtype(dtype)} (2, 3, 4); a volume needs integers"
        )


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("c/ct_original.npy", HU, CASE),
        ("c/ct_original_512.npy", FLOATS, CASE),
        ("c/windows/lung_w1500_l-600.npy", MASK, WINDOW),
        ("c/windows/my_own_w9_l-9.5.npy", MASK, WINDOW),
        ("c/windows/lung_w1500_l-600_sparse.npz", SPARSE, WINDOW),
        ("c/windows/lung_w1500_l-600_sparse.npz", {"a": HU}, WINDOW),
        ("c/windows/far.npz", SDF, WINDOW),
        ("x_lung_w1500_l-600.npy", MASK, NAMED),
        ("x_lung_w1500_l-600_sparse.npz", SPARSE, NAMED),
    ],
)
def test_the_name_of_a_file_decides_its_role(
    tmp_path: Path, name: str, content: np.ndarray | dict[str, np.ndarray], expected: tuple[str, str]
) -> None:
    assert taken(save(tmp_path / name, content), tmp_path) == expected


COMPANIONS: list[tuple[str, np.ndarray | dict[str, np.ndarray] | str, tuple[str, str]]] = [
    ("c/masks/1_binary.npy", MASK, CASE_MASK),
    ("c/windows/odd.npz", {"a": HU}, WINDOW),
    ("c/info.json", "{}", ("cases", "describes the volume of a case folder")),
]


@pytest.mark.parametrize(("name", "content", "expected"), COMPANIONS)
def test_a_companion_file_is_taken_only_beside_the_volume_of_its_case(
    tmp_path: Path,
    name: str,
    content: np.ndarray | dict[str, np.ndarray] | str,
    expected: tuple[str, str],
) -> None:
    path = save(tmp_path / name, content)
    left_out(path, tmp_path)
    partner = save(tmp_path / "c/ct_original_512.npy", HU)
    assert taken(path, tmp_path) == expected
    left_out(path, path)  # the volume is not among what was given
    assert taken(path, path, partner) == expected


def test_a_case_without_a_named_volume_is_recognised_by_its_windows(tmp_path: Path) -> None:
    case = {
        "volume": save(tmp_path / "w/any.npy", FLOATS),
        "mask": save(tmp_path / "w/masks/1_binary.npy", MASK),
        "info": save(tmp_path / "w/info.json", "{}"),
    }
    assert "float32" in left_out(case["volume"], tmp_path)
    save(tmp_path / "w/windows/lung_w1500_l-600.npy", MASK)
    assert {role: taken(path, tmp_path)[1].split(" of a ")[0] for role, path in case.items()} == {
        "volume": "is the volume",
        "mask": "is a mask",
        "info": "describes the volume",
    }
    save(tmp_path / "w/ct_original.npy", HU)
    assert "float32" in left_out(case["volume"], tmp_path)
