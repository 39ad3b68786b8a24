"""The scan of one volume: by its own files alone, in any process."""

from __future__ import annotations

import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from unistore.converters.common.exclusion import Exclusion
from unistore.converters.ct.family import converter as ct_converter
from unistore.converters.files.paths import list_files
from unistore.converters.scan import Part, Parts
from unistore.errors import InputError

HU = np.arange(60, dtype="i2").reshape(3, 4, 5)
INDEX = np.array([[0, 1, 2], [2, 3, 4]], "i4")


def write_case(folder: Path, image: np.ndarray = HU) -> Path:
    for name in ("windows", "masks"):
        (folder / name).mkdir(parents=True)
    np.save(folder / "ct_original_512.npy", image)
    np.save(folder / "windows/lung_w1500_l-600.npy", (image <= 150).astype("u1"))
    np.savez(folder / "windows/bone_w1500_l300_sparse.npz", indices=INDEX, values=np.ones(2, "f2"))
    np.savez(folder / "windows/far.npz", sparse_index=INDEX, sparse_sdf=np.ones((2, 1), "f4"), resolution=8)
    np.save(folder / "masks/liver_binary.npy", image > 3)
    (folder / "info.json").write_text('{"spacing": [1, 2, 3]}')
    return folder


def parts(*paths: Path) -> dict[str, Part]:
    return {part.name: part for part in ct_converter().find(list_files(paths), Exclusion(())).parts}


def test_a_pickled_part_gives_the_same_in_another_process(tmp_path: Path) -> None:
    write_case(tmp_path / "case")
    np.save(tmp_path / "other.npy", np.asfortranarray(HU.astype(">f4")))
    np.save(tmp_path / "lone_lung_w1500_l-600.npy", (HU > 3).astype("u1"))
    found = list(parts(tmp_path).values())
    converter = ct_converter(window=("brain",))
    here = [converter.scan(part) for part in found]
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        there = list(pool.map(pickle.loads(pickle.dumps(converter)).scan, pickle.loads(pickle.dumps(found))))
    assert there == here
    assert len({repr(each) for each in here}) == 3, "they are told apart"
    images = [number for number, each in enumerate(here) if each.image is not None]
    scans = [
        converter.gather(Parts(found[n] for n in images), [each[n] for n in images]) for each in (here, there)
    ]
    assert len(images) == 2
    assert scans[0] == scans[1]


def test_a_volume_is_scanned_alike_whatever_the_others_are(tmp_path: Path) -> None:
    write_case(tmp_path / "a")
    write_case(tmp_path / "b")
    before = ct_converter().scan(parts(tmp_path)["a"])
    (tmp_path / "b/ct_original_512.npy").write_bytes(b"damaged")
    np.save(tmp_path / "b/windows/lung_w1_l1.npy", HU[0])
    after = parts(tmp_path)
    assert ct_converter().scan(after["a"]) == before
    with pytest.raises(InputError, match=r"b/ct_original_512\.npy"):
        ct_converter().scan(after["b"])


def test_the_scan_of_a_volume_tells_all_its_problems(tmp_path: Path) -> None:
    case = write_case(tmp_path / "case")
    np.save(case / "windows/lung_w1500_l-600.npy", HU[:2])
    np.save(case / "masks/case_liver_binary.npy", HU > 3)
    (case / "info.json").write_text("{")
    with pytest.raises(InputError) as error:
        ct_converter().scan(parts(case)["case"])
    assert [problem.location for problem in error.value.problems] == [
        "case/masks/liver_binary.npy",
        "case/info.json",
        "case/windows/lung_w1500_l-600.npy",
    ]
