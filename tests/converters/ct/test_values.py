"""Images whose values cannot be HU are refused where a window of HU would be cut of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import unistore
from tests.support.converter_contract import convert_in_memory
from tests.support.family_converters import ct as ct_converter
from unistore.cli.main import main
from unistore.converters.source_scan import scan_sources
from unistore.errors import AddOptions, InputError
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


def test_masks_with_window_are_an_error_and_without_it_are_stored_unchanged(
    masks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ("convert", "ct", masks, tmp_path / "m.zarr")
    assert run(*command, "--window", "lung") == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "case0.npy, case1.npy, case2.npy: has only values from 0 to 1, which do not look like HU" in said
    assert "remove --window if it is a mask or was scaled" in said
    assert "--values hu if it is HU" in said
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
UNIT = np.random.default_rng(2).random((6, 7, 9))
WITH_NAN = UNIT.astype("f4")
WITH_NAN[0, 0] = np.nan, np.inf, -np.inf, *[np.nan] * 6
REFUSED = {
    "bool": HU > 0,
    "bytes of 255": (HU > 0).astype("u1") * 255,
    "big-endian": (HU > 0).astype(">i4"),
    "Fortran order": np.asfortranarray((HU > 0).astype("u2")),
    "halves": (HU > 0).astype("f2"),
    "classes": LABELS.astype("u1"),
    "one value": np.zeros((3, 4, 5), "i2"),
    "another value": np.full((3, 4, 5), 255, "i8"),
    "0 to 1": UNIT.astype("f4"),
    "-1 to 1": 2 * UNIT - 1,
    "halves of 0 to 1": UNIT.astype("f2"),
    "0 to 255 as floats": 255 * UNIT,
    "not a number and infinite": WITH_NAN,
    "an image in eight bits": np.arange(343, dtype="u1").reshape(7, 7, 7),
    "signed bytes": np.clip(np.arange(343).reshape(7, 7, 7) - 170, -128, 127).astype("i1"),
    "from the lowest to the highest": np.linspace(-200, 255, 378).reshape(6, 7, 9),
}


@pytest.mark.parametrize("name", REFUSED)
def test_images_that_cannot_be_hu_are_refused(tmp_path: Path, name: str) -> None:
    image = REFUSED[name]
    save(tmp_path / "volume.npy", image)
    (message,) = problems(tmp_path).values()
    finite = image[np.isfinite(image)].astype("f8")
    least, most = f"{finite.min():.6g}", f"{finite.max():.6g}"
    found = f"values from {least} to {most}" if least != most else f"the value {least}"
    assert message.startswith(f"has only {found}, which")
    assert problems(tmp_path, values="hu") == {}
    assert problems(tmp_path, window=()) == {}


NO_NUMBERS = np.full((3, 4, 5), np.nan, "f4")
ACCEPTED = {
    "i2": HU.astype("i2"),
    "f4": HU.astype("f4"),
    "unsigned with an offset": (HU + 1024).astype("u2"),
    "few values, one below -200": np.where(HU > 0, 0, -201).astype("i2"),
    "few values, one above 255": np.where(HU > 0, 256, 0).astype("i2"),
    "a fraction above 255": np.where(HU > 0, 255.5, 0).astype("f4"),
    "air alone": np.full((3, 4, 5), -1000, "i2"),
    "some not a number": np.where(HU > 800, np.nan, HU).astype("f4"),
    "no numbers": NO_NUMBERS,
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_images_in_hu_are_converted_with_window(tmp_path: Path, name: str) -> None:
    image = ACCEPTED[name]
    save(tmp_path / "volume.npy", image)
    converted = convert_in_memory(ct_converter(window=("lung",), sparse="coords"), [tmp_path])
    expected = np.argwhere((image >= LUNG.low) & (image <= LUNG.high))
    np.testing.assert_array_equal(converted.arrays["windows/lung/coords"], expected)


def test_values_of_the_last_slab_count_when_an_image_is_judged_as_hu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unistore.converters.ct.slabs.SLAB", 256)
    image = np.zeros((40, 8, 16), "i2")
    image[::2] = 1
    save(tmp_path / "volume.npy", image)
    assert len(problems(tmp_path)) == 1
    image[-1, -1, -1] = -201
    save(tmp_path / "volume.npy", image)
    assert problems(tmp_path) == {}


def test_slope_and_intercept_are_applied_before_values_are_judged(tmp_path: Path) -> None:
    nibabel = pytest.importorskip("nibabel")
    stored = np.arange(240, dtype="u1").reshape(6, 5, 8)
    for name, slope, intercept in (("hu", 8.0, -1024.0), ("unit", 1 / 255, 0.0)):
        image = nibabel.Nifti1Image(stored, np.eye(4))
        image.header.set_slope_inter(slope, intercept)
        nibabel.save(image, tmp_path / f"{name}.nii")
    assert [*problems(tmp_path)] == ["unit.nii"]
    window = convert_in_memory(ct_converter(window=("lung",), sparse="coords"), [tmp_path / "hu.nii"])
    hu = nibabel.load(tmp_path / "hu.nii").get_fdata().T
    expected = np.argwhere((hu >= LUNG.low) & (hu <= LUNG.high))
    np.testing.assert_array_equal(window.arrays["windows/lung/coords"], expected)


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """A store without windows: a volume of HU, and one that was scaled to 0…1."""
    save(tmp_path / "in/a.npy", HU.astype("f4"))
    save(tmp_path / "in/b.npy", UNIT.astype("f4"))
    unistore.convert(tmp_path / "in", tmp_path / "mixed.zarr", "ct", workers=0)
    return tmp_path / "mixed.zarr"


def test_only_the_volume_whose_values_cannot_be_hu_is_named(mixed: Path) -> None:
    (location,) = problems(mixed.parent / "in")
    assert location == "b.npy"


def test_derive_refuses_a_window_of_a_volume_that_cannot_be_hu(
    mixed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InputError, match=r"'b' has only values from ") as raised:
        unistore.derive(mixed, window="lung")
    assert raised.value.problems[0].kind == "values"
    with pytest.raises(InputError, match="no option was given"):
        unistore.derive(mixed, values="hu")
    assert run("derive", mixed, "--window", "lung") == 2
    assert "--values hu if it is HU" in " ".join(capsys.readouterr().err.split())
    assert run("derive", mixed, "--window", "lung", "--values", "hu") == 0
    points = unistore.Dataset(mixed, unistore.SparsePoints("lung"))
    assert len(points[1]["coords"]) == UNIT.size
    np.testing.assert_array_equal(points[0]["coords"], np.argwhere((LUNG.low <= HU) & (LUNG.high >= HU)))


def test_reading_a_window_of_a_volume_that_cannot_be_hu_is_an_error(mixed: Path, tmp_path: Path) -> None:
    points = unistore.Dataset(mixed, unistore.SparsePoints("lung"))
    np.testing.assert_array_equal(points[0]["coords"], np.argwhere((LUNG.low <= HU) & (LUNG.high >= HU)))
    with pytest.raises(InputError, match=r"volume 1 has only values from "):
        points[1]
    insisting = unistore.SparsePoints("lung", values="hu")
    assert repr(insisting) == repr(points.samples)
    assert len(unistore.Dataset(mixed, insisting)[1]["coords"]) == UNIT.size
    with pytest.raises(InputError, match="values"):
        unistore.SparsePoints("lung", values="mr")  # type: ignore[arg-type]
    sure = tmp_path / "sure.zarr"
    unistore.convert(tmp_path / "in", sure, "ct", values="hu", workers=0)
    assert len(unistore.Dataset(sure, unistore.SparsePoints("lung"))[1]["coords"]) == UNIT.size
    unistore.derive(sure, window="lung")


def test_an_image_confirmed_by_its_window_file_may_have_any_values(tmp_path: Path) -> None:
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
    assert problem.fix == (
        AddOptions(("--exclude", "b"), "if it is a mask or was scaled"),
        AddOptions(("--values", "hu"), "if it is HU"),
    )
    assert problems(tmp_path / "in", window=(), exclude=("b",)) == {}
    assert problems(tmp_path / "in", window=(), values="hu") == {}
