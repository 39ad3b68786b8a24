"""Files that are odd and valid: a store of them equals them, by the library that reads them too."""

from __future__ import annotations

import gzip
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest

import unistore
from unistore.converters.files import libraries
from unistore.errors import InputError, RunCommand

VOXELS = np.random.default_rng(0).integers(-1000, 2000, (5, 6, 7)).astype("i2")
AFFINE = np.diag([1.5, 2.0, 2.5, 1.0])
AFFINE[:3, 3] = -10, 20, 30
Patch = Callable[[bytearray], Any]


def f4(place: int, value: float) -> Patch:
    return lambda raw: struct.pack_into("<f", raw, place, value)


def flat_sform(raw: bytearray) -> None:
    raw[280:328] = bytes(48)


HEADERS: dict[str, tuple[int, int, Patch, list[float] | None]] = {  # codes of sform, qform, spacing z, y, x
    "spacing 0": (0, 1, f4(88, 0.0), None),
    "spacing 0 and no forms": (0, 0, f4(88, 0.0), None),
    "a negative spacing": (0, 0, f4(88, -2.5), [2.5, 2.0, 1.5]),
    "a negative spacing and a qform": (0, 1, f4(80, -1.5), [2.5, 2.0, 1.5]),
    "an sform of zeros": (1, 1, flat_sform, [2.5, 2.0, 1.5]),
    "qfac 0": (0, 1, f4(76, 0.0), [2.5, 2.0, 1.5]),
    "an unknown unit": (1, 0, lambda raw: raw.__setitem__(123, 7), [2.5, 2.0, 1.5]),
    "nothing odd": (1, 1, lambda _: None, [2.5, 2.0, 1.5]),
}


def nifti(path: Path, sform: int, qform: int, patch: Patch) -> bytes:
    image = nibabel.Nifti1Image(VOXELS, AFFINE)
    image.set_sform(AFFINE if sform else None, sform)
    image.set_qform(AFFINE if qform else None, qform)
    path.parent.mkdir(exist_ok=True)
    nibabel.save(image, path)
    raw = bytearray(path.read_bytes())
    patch(raw)
    path.write_bytes(raw)
    return bytes(raw)


@pytest.mark.parametrize("name", HEADERS)
@pytest.mark.usefixtures("in_this_process")
def test_odd_headers_of_nifti_are_converted_and_verified_by_nibabel(tmp_path: Path, name: str) -> None:
    *form, spacing = HEADERS[name]
    nifti(tmp_path / "in/a.nii", *form)
    unistore.convert(tmp_path / "in", tmp_path / "store", "ct")
    dataset = unistore.Dataset(tmp_path / "store", fields=["image"])
    np.testing.assert_array_equal(dataset[0]["image"], VOXELS.T)
    has_spacing = "volumes/spacing" in dataset.store.paths()
    assert has_spacing == (spacing is not None)
    if spacing is not None:
        np.testing.assert_allclose(dataset.store.array("volumes/spacing").read()[0], spacing)
    verified = unistore.verify(tmp_path / "store", against=[tmp_path / "in"])
    assert verified.receipt is not None, verified.problems
    assert verified.receipt.libraries == ("nibabel",)


@pytest.mark.parametrize(("name", "is_packed"), [("a.nii.gz", False), ("a.nii", True), ("a.nii.gz", True)])
@pytest.mark.usefixtures("in_this_process")
def test_nifti_is_read_by_its_bytes_not_its_ending(tmp_path: Path, name: str, is_packed: bool) -> None:
    raw = nifti(tmp_path / "in/a.nii", 1, 1, lambda _: None)
    (tmp_path / "in/a.nii").unlink()
    (tmp_path / "in" / name).write_bytes(gzip.compress(raw) if is_packed else raw)
    unistore.convert(tmp_path / "in", tmp_path / "store", "ct")
    np.testing.assert_array_equal(unistore.Dataset(tmp_path / "store")[0]["image"], VOXELS.T)
    assert unistore.verify(tmp_path / "store", against=[tmp_path / "in"]).receipt is not None
    changed = bytearray(raw)
    changed[-1] ^= 1
    (tmp_path / "in" / name).write_bytes(gzip.compress(changed) if is_packed else changed)
    assert unistore.verify(tmp_path / "store", against=[tmp_path / "in"]).problems


def long_npy(values: np.ndarray) -> bytes:
    text = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {values.shape}, }}".ljust(20_000) + "\n"
    return b"\x93NUMPY\2\0" + struct.pack("<I", len(text)) + text.encode() + values.tobytes()


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
@pytest.mark.usefixtures("in_this_process")
def test_headers_may_be_longer_than_numpy_takes_by_default(tmp_path: Path, suffix: str) -> None:
    values = np.random.default_rng(1).normal(size=(10, 3))
    path = tmp_path / f"a{suffix}"
    if suffix == ".npy":
        path.write_bytes(long_npy(values))
    else:
        with zipfile.ZipFile(path, "w") as members:
            members.writestr("data.npy", long_npy(values))
    with pytest.raises(ValueError, match="Header info length"):
        np.load(path)["data" if suffix == ".npz" else ...]
    unistore.convert(path, tmp_path / "store", "rows")
    np.testing.assert_array_equal([row["data"] for row in unistore.Dataset(tmp_path / "store")], values)
    receipt = unistore.verify(tmp_path / "store", against=[path]).receipt
    assert receipt is not None
    assert receipt.line == "lossless: all 30 values of 1 file are equal to the store (read with numpy)."


@pytest.mark.usefixtures("in_this_process")
def test_a_file_that_the_library_does_not_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    np.save(folder / "a.npy", np.arange(6.0))
    np.save(folder / "b.npy", np.arange(8.0))
    unistore.convert(folder, tmp_path / "store", "rows")

    def load(path: Path, **options: Any) -> Any:
        if path.name == "b.npy":
            raise ValueError("of a form that is not read")
        return np.lib.format.open_memmap(path, options["mmap_mode"])

    monkeypatch.setattr(libraries.np, "load", load)
    verified = unistore.verify(tmp_path / "store", against=[folder])
    assert verified.receipt is not None, verified.problems
    assert verified.receipt.unread == ("b.npy (ValueError: of a form that is not read)",)
    assert verified.receipt.values == 6
    assert verified.receipt.stored_values > 14  # with the indices
    assert verified.receipt.line.startswith("All 6 values of 1 file are equal")
    np.save(folder / "b.npy", np.arange(8.0) + 1)
    assert unistore.verify(tmp_path / "store", against=[folder]).problems


@pytest.mark.usefixtures("in_this_process")
def test_another_number_of_files_is_told_with_the_command_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(3):
        np.save(folder / f"{number}.npy", np.arange(6.0) + number)
    store = tmp_path / "store"
    unistore.convert(folder, store, "rows")
    np.save(folder / "new.npy", np.arange(6.0))
    # values are not read first
    monkeypatch.setattr("unistore.conversion.steps.Conversion.plan", lambda *_: pytest.fail("was derived"))
    with pytest.raises(
        InputError, match=r"source new\.npy: given, but not in the store\nFix: unistore convert"
    ) as raised:
        unistore.verify(store, against=[folder])
    command = ("convert", "rows", str(folder), str(store), "--append")
    assert raised.value.problems[0].fix == (RunCommand(command, "to add the new sources"),)
    (folder / "new.npy").unlink()
    (folder / "1.npy").unlink()
    with pytest.raises(InputError, match=r"source 1\.npy: in the store, but not given") as raised:
        unistore.verify(store, against=[folder])
    fixes = raised.value.problems[0].fix
    assert ("remove", str(store), "1.npy") in [getattr(fix, "arguments", ()) for fix in fixes]
    monkeypatch.undo()
    unistore.remove(store, ["1.npy"])
    unistore.compact(store, tmp_path / "compacted")
    assert unistore.verify(tmp_path / "compacted", against=[folder]).receipt is not None
