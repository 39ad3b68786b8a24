from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from tests.support.converter_contract import check_contract
from tests.support.family_converters import rows as rows_converter
from unistore.converters.files.formats import has_ending

HDF5 = (".h5", ".hdf5")


def hdf5(path: Path, block: int = 0, **values: np.ndarray) -> Path:
    with h5py.File(path, "w", userblock_size=block) as file:
        for name, each in values.items():
            file[name.replace("__", "/")] = each
    return path


@pytest.mark.parametrize(("ending", "block"), [(".mat", 512), (".h5ad", 0), (".anything", 2048), ("", 0)])
def test_hdf5_is_known_by_its_content(tmp_path: Path, ending: str, block: int) -> None:
    path = hdf5(tmp_path / f"a{ending}", block, data=np.arange(3))
    assert has_ending(path, HDF5)
    assert not has_ending(path, (".npy",))
    path.write_bytes(b"MATLAB 5.0 MAT-file" + bytes(3000))
    assert not has_ending(path, HDF5)


@pytest.mark.parametrize("name", ["a.h5.tmp", "a.h5.part", "a.h5.bak", "a.h5~", "a.nii", "a.png", "a.npy"])
def test_unfinished_files_and_other_formats_are_known_by_their_names(tmp_path: Path, name: str) -> None:
    assert not has_ending(hdf5(tmp_path / name, data=np.arange(3)), HDF5)


def test_indices_of_pytables_are_skipped(tmp_path: Path) -> None:
    """As ``df.to_hdf(format="table")`` and ``table.cols.x.create_index()`` write them."""
    table = np.zeros(6, [("index", "i8"), ("values_block_0", "f8", (2,))])
    table["index"], table["values_block_0"] = np.arange(6), np.arange(12).reshape(6, 2)
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["df/table"] = table
        group = file.create_group("df/_i_table/index")
        group["sorted"], group["bounds"] = np.arange(4), np.arange(9)
        file["df/_i_other"] = np.arange(6)
    oracle = {
        "rows/df/table/values_block_0": table["values_block_0"],
        "rows/df/_i_other": np.arange(6),
    }
    converted = check_contract(rows_converter(), [path], oracle)
    assert not any("_i_table" in key for key in converted.arrays)


def test_axes_of_pandas_are_skipped(tmp_path: Path) -> None:
    """As ``df.to_hdf(format="fixed")`` writes them: two columns of floats, one of integers."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        frame = file.create_group("df")
        frame.attrs["pandas_type"] = "frame"
        frame["axis0"], frame["axis1"] = np.array([b"a", b"b", b"c"]), np.arange(5)
        for block, values in enumerate((np.arange(10.0).reshape(5, 2), np.arange(5)[:, None])):
            frame[f"block{block}_items"] = np.array([b"a", b"b"][: values.shape[1]])
            frame[f"block{block}_values"] = values
        file["plain/axis0"] = np.arange(5)
    oracle = {
        "rows/df/block0_values": np.arange(10.0).reshape(5, 2),
        "rows/df/block1_values": np.arange(5)[:, None],
        "rows/plain/axis0": np.arange(5),
    }
    converted = check_contract(rows_converter(), [path], oracle)
    assert {key for key in converted.arrays if key.startswith("rows/")} == set(oracle)


def test_references_of_matlab_are_skipped(tmp_path: Path) -> None:
    path = hdf5(tmp_path / "a.mat", 512, x=np.arange(4.0), **{"#refs#__a": np.arange(9)})
    check_contract(rows_converter(), [path], {"rows/x": np.arange(4.0)})
