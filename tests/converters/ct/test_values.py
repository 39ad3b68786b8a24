"""Images that look like masks are refused where a window of HU would be cut of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import unistore
from tests.converters.contract import convert_in_memory
from unistore.cli.main import main
from unistore.converters.ct.converter import converter as ct_converter
from unistore.converters.scanning import scan_sources
from unistore.errors import InputError
from unistore.schemas.ct.windows import PRESETS

SHAPE = (16, 16, 16)
ONES = 203
LUNG = PRESETS["lung"]
HU = np.random.default_rng(0).integers(-1000, 900, (6, 7, 9))


def mask(seed: int) -> NDArray[np.uint8]:
    flat = np.zeros(SHAPE, np.uint8).reshape(-1)
    flat[np.random.default_rng(seed).choice(flat.size, ONES, replace=False)] = 1
    return flat.reshape(SHAPE)


def save(path: Path, values: NDArray[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, values)


def run(*arguments: str | Path) -> Any:
    with pytest.raises(SystemExit) as left:
        main([str(argument) for argument in arguments])
    return left.value.code


@pytest.fixture
def masks(tmp_path: Path) -> Path:
    for number in range(3):
        save(tmp_path / "flat" / f"case{number}.npy", mask(number))
    return tmp_path / "flat"


def test_masks_do_not_become_tissue(masks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ("convert", "ct", masks, tmp_path / "m.zarr")
    assert run(*command, "--window", "lung") == 2
    said = " ".join(capsys.readouterr().err.split())
    for number in range(3):
        assert f"case{number}.npy: looks like a mask, not like HU: each voxel is 0 or 1" in said
    assert "the same command without --window; if it is HU, with --values hu" in said
    assert not (tmp_path / "m.zarr").exists()

    assert run(*command) == 0
    store = unistore.Store(tmp_path / "m.zarr")
    assert not [path for path in store.paths() if path.startswith("windows/")]
    for number in range(3):
        assert np.count_nonzero(store.array("volumes/image").read_ranges([number], [number + 1])) == ONES
    assert unistore.verify(tmp_path / "m.zarr", against=[masks]).ok

    hu = tmp_path / "hu.zarr"
    assert run("convert", "ct", masks, hu, "--window", "lung", "--values", "hu") == 0
    offsets = unistore.Store(hu).array("windows/lung/offsets").read()
    assert np.diff(offsets).tolist() == [4096] * 3
    assert unistore.verify(hu, against=[masks]).ok


def problems(folder: Path, **options: Any) -> dict[str, str]:
    """What the first pass over the values says of each source, by location."""
    converter = ct_converter(**{"window": ("lung",), **options})
    scan = scan_sources(converter, [folder])
    messages = {}
    for number in range(len(scan.sources)):
        try:
            converter.derive(scan, number, lambda *_: None, None)
        except InputError as error:
            messages |= {problem.location: problem.message for problem in error.problems}
    return messages


LABELS = np.random.default_rng(1).integers(0, 118, (20, 20, 20))
"""As many classes as TotalSegmentator has."""
REFUSED = {
    "bool": HU > 0,
    "bytes of 255": (HU > 0).astype("u1") * 255,
    "big-endian": (HU > 0).astype(">i4"),
    "Fortran order": np.asfortranarray((HU > 0).astype("u2")),
    "halves": (HU > 0).astype("f2"),
    "classes": LABELS.astype("u1"),
    "one value": np.zeros((3, 4, 5), "i2"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_masks_and_label_maps_of_any_dtype_are_refused(tmp_path: Path, name: str) -> None:
    save(tmp_path / "volume.npy", REFUSED[name])
    (message,) = problems(tmp_path).values()
    assert message.startswith("looks like a mask")
    assert problems(tmp_path, values="hu") == {}
    assert problems(tmp_path, window=()) == {}


WITH_NAN = (HU > 0).astype("f4")
WITH_NAN[0, 0, 0] = np.nan
ACCEPTED = {
    "i2": HU.astype("i2"),
    "f4": HU.astype("f4"),
    "unsigned with an offset": (HU + 1024).astype("u2"),
    "few values, one below 0": np.where(HU > 0, 0, -1).astype("i2"),
    "few values, one above 255": np.where(HU > 0, 256, 0).astype("i2"),
    "fractions": np.where(HU > 0, 0.5, 0).astype("f4"),
    "no number": WITH_NAN,
    "an image in eight bits": np.arange(343, dtype="u1").reshape(7, 7, 7),
    "129 values": (np.arange(343) % 129).astype("i2").reshape(7, 7, 7),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_hu_are_converted_as_before(tmp_path: Path, name: str) -> None:
    image = ACCEPTED[name]
    save(tmp_path / "volume.npy", image)
    converted = convert_in_memory(ct_converter(window=("lung",), sparse="coords"), [tmp_path])
    expected = np.argwhere((image >= LUNG.low) & (image <= LUNG.high))
    np.testing.assert_array_equal(converted.arrays["windows/lung/coords"], expected)


def test_the_last_slab_decides_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unistore.converters.ct.slabs.SLAB", 256)
    image = np.zeros((40, 8, 16), "i2")
    image[::2] = 1
    save(tmp_path / "volume.npy", image)
    assert len(problems(tmp_path)) == 1
    image[-1, -1, -1] = -1
    save(tmp_path / "volume.npy", image)
    assert problems(tmp_path) == {}


def test_windows_that_files_confirm_are_no_problem(tmp_path: Path) -> None:
    """The image holds what its window's file says; a second volume has no file."""
    image = (HU > 0).astype("u1")
    for case in "ab":
        save(tmp_path / "in" / case / "ct_original.npy", image)
        (tmp_path / "in" / case / "windows").mkdir()
        np.save(tmp_path / "in" / case / "windows" / "lung_w1500_l-600.npy", np.ones_like(image))
    assert problems(tmp_path / "in", window=()) == {}
    assert problems(tmp_path / "in") == {}
    (tmp_path / "in" / "b" / "windows" / "lung_w1500_l-600.npy").unlink()
    converter = ct_converter()
    scan = scan_sources(converter, [tmp_path / "in"])
    with pytest.raises(InputError) as error:
        converter.derive(scan, 1, lambda *_: None, None)
    (problem,) = error.value.problems
    assert problem.location == "b/ct_original.npy"
    assert (
        "if it is a mask, the same command with --exclude b; if it is HU, with --values hu" in problem.advice
    )
    assert problems(tmp_path / "in", window=(), exclude=("b",)) == {}
    assert problems(tmp_path / "in", window=(), values="hu") == {}
