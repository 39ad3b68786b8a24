"""Volumes in HDF5 files of one array, as h5py reads them."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

import unistore
from unistore import verify
from unistore.conversion.signatures import convert

RANDOM = np.random.default_rng(3)


@pytest.mark.usefixtures("in_this_process")
def test_volumes_and_labels_of_hdf5_files_equal_what_h5py_reads(tmp_path: Path) -> None:
    volumes = RANDOM.integers(-1000, 1000, (2, 6, 8, 10), "i2")
    labels = RANDOM.integers(0, 3, (2, 6, 8, 10), "u1")
    folder = tmp_path / "scans"
    folder.mkdir()
    for number in range(2):
        with h5py.File(folder / f"{number}.h5", "w") as file:
            file.create_dataset("ct", data=volumes[number], chunks=(2, 8, 10), compression="gzip")
        with h5py.File(folder / f"{number}_seg.h5", "w") as file:
            file["mask"] = labels[number]
    converted = convert(folder, tmp_path / "store")
    assert "4 files: names and attributes of HDF5 arrays are not stored" in converted.notes
    for number, sample in enumerate(unistore.Dataset(tmp_path / "store")):
        np.testing.assert_array_equal(sample["image"], volumes[number])
        np.testing.assert_array_equal(sample["seg"], labels[number])
    receipt = verify(tmp_path / "store", against=folder).receipt
    assert receipt is not None
    assert receipt.libraries == ("h5py",)
