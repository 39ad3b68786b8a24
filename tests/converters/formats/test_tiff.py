"""TIFF as tifffile and OpenCV write it, and as tifffile reads it; synthetic."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import tifffile

import unistore
from tests.support.family_converters import ct as ct_converter
from unistore.converters.formats.tiff import Tiff
from unistore.converters.opened import Metadata, SourceFile
from unistore.converters.source_scan import scan_sources
from unistore.errors import InputError
from unistore.testing import check_format

VOXELS = np.random.default_rng(0).integers(-1000, 1000, (4, 9, 7), np.int16)
GRAY = {"photometric": "minisblack"}


def opened(path: Path) -> tuple[np.ndarray, Metadata]:
    with Tiff().open(SourceFile(path, path.name)) as file:
        return file.arrays["image"][:], file.metadata


def pages(folder: Path, voxels: np.ndarray = VOXELS, name: str = "p_{:02d}.tif", first: int = 8) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, page in enumerate(voxels):
        tifffile.imwrite(folder / name.format(first + number), page)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bigtiff": True, "byteorder": ">"},
        {"compression": "zlib", "tile": (16, 16)},
        {"compression": "zlib", "byteorder": ">", "rowsperstrip": 2},
        {"metadata": None},
        {"metadata": {"axes": "ZYX"}},
    ],
    ids=str,
)
def test_the_format_keeps_its_promises_for_whole_and_truncated_files(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    tifffile.imwrite(tmp_path / "a.tif", VOXELS, **GRAY, **options)
    np.testing.assert_array_equal(tifffile.imread(tmp_path / "a.tif"), VOXELS)
    is_big = options.get("byteorder") == ">" and "compression" not in options
    check_format(Tiff(), tmp_path / "a.tif", {"image": VOXELS.astype(">i2" if is_big else "i2")}, {})


@pytest.mark.parametrize("dtype", ["u1", "i1", "u2", "i4", "u4", "f4", "f8"])
def test_voxels_keep_every_dtype(tmp_path: Path, dtype: str) -> None:
    tifffile.imwrite(tmp_path / "a.tif", VOXELS.astype(dtype), **GRAY)
    values, _ = opened(tmp_path / "a.tif")
    assert values.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(values, VOXELS.astype(dtype))


def test_the_spacing_of_imagej_and_ome_is_converted_to_mm(tmp_path: Path) -> None:
    voxels = VOXELS.astype("u2")
    metadata = {"spacing": 2.5, "unit": "um", "axes": "ZYX"}
    tifffile.imwrite(tmp_path / "a.tif", voxels, imagej=True, resolution=(2, 4), metadata=metadata)
    values, metadata = opened(tmp_path / "a.tif")
    np.testing.assert_array_equal(values, voxels)
    np.testing.assert_allclose(metadata["spacing"], [2.5e-3, 0.25e-3, 0.5e-3])
    sizes = {"PhysicalSizeX": 0.5, "PhysicalSizeXUnit": "mm", "PhysicalSizeY": 250, "PhysicalSizeZ": 2000}
    tifffile.imwrite(tmp_path / "a.ome.tif", voxels, metadata={"axes": "ZYX", **sizes}, **GRAY)
    np.testing.assert_allclose(opened(tmp_path / "a.ome.tif")[1]["spacing"], [2, 0.25, 0.5])


def test_a_spacing_without_a_unit_is_unknown(tmp_path: Path) -> None:
    voxels = VOXELS.astype("u2")
    for metadata in ({"spacing": 2.5}, {"spacing": 2.5, "unit": "pixel"}, {"unit": "um"}):
        said = {"axes": "ZYX", **metadata}
        tifffile.imwrite(tmp_path / "a.tif", voxels, imagej=True, resolution=(2, 4), metadata=said)
        assert opened(tmp_path / "a.tif")[1] == {}
    tifffile.imwrite(tmp_path / "b.tif", VOXELS, resolution=(300, 300), resolutionunit="inch", **GRAY)
    assert opened(tmp_path / "b.tif")[1] == {}  # what printers are told


@pytest.mark.parametrize(
    ("shape", "options", "axes"),
    [
        ((4, 5, 3), {"photometric": "rgb"}, "YXS"),
        ((4, 9, 7), {"imagej": True, "metadata": {"axes": "TYX"}}, "TYX"),
        ((4, 9, 7), {"imagej": True, "metadata": {"axes": "CYX"}}, "CYX"),
        ((3, 4, 9, 7), {"imagej": True, "metadata": {"axes": "TZYX"}}, "TZYX"),
    ],
)
def test_colours_channels_and_times_are_no_volume(
    tmp_path: Path, shape: tuple[int, ...], options: dict[str, Any], axes: str
) -> None:
    tifffile.imwrite(tmp_path / "a.tif", np.zeros(shape, "u1"), **options)
    with pytest.raises(InputError, match=f"has the axes {axes}, "):
        opened(tmp_path / "a.tif")


def test_a_file_of_several_volumes_is_an_error(tmp_path: Path) -> None:
    with tifffile.TiffWriter(tmp_path / "a.tif") as file:
        file.write(VOXELS, **GRAY)
        file.write(VOXELS[:, :5], **GRAY)
    with pytest.raises(InputError, match=r"has the axes QYX, QYX"):
        opened(tmp_path / "a.tif")


def test_lzw_without_imagecodecs_is_an_error_that_names_the_package(tmp_path: Path) -> None:
    cv2.imwrite(str(tmp_path / "a.tif"), VOXELS[0].astype("u2"))  # by LZW
    with pytest.raises(InputError, match="LZW, which needs imagecodecs") as error:
        opened(tmp_path / "a.tif")
    assert error.value.problems[0].advice == "pip install imagecodecs"


def test_volumes_and_stacks_of_pages_in_one_folder_are_converted(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    tifffile.imwrite(tmp_path / "in/brain1.tif", VOXELS, **GRAY)
    tifffile.imwrite(tmp_path / "in/brain1_seg.tif", (VOXELS > 0).astype("u1"), **GRAY)
    pages(tmp_path / "in/stack", -VOXELS)
    tifffile.imwrite(tmp_path / "in/figure.tif", VOXELS[0])
    report = unistore.convert(tmp_path / "in", tmp_path / "a.zarr")
    assert "stacked by the numbers in their names, from p_08.tif on" in " ".join(report.notes)
    assert "a single page, not a volume: figure.tif" in " ".join(report.notes)
    assert unistore.verify(tmp_path / "a.zarr", against=tmp_path / "in").ok
    dataset = unistore.Dataset(tmp_path / "a.zarr", unistore.Volumes())
    np.testing.assert_array_equal(dataset[0]["image"], VOXELS)
    np.testing.assert_array_equal(dataset[0]["seg"], VOXELS > 0)
    np.testing.assert_array_equal(dataset[1]["image"], -VOXELS)
    unistore.export(tmp_path / "a.zarr", tmp_path / "out")
    back = [np.load(path) for path in sorted((tmp_path / "out").rglob("p_08*.npy"))]
    np.testing.assert_array_equal(back, [-VOXELS])
    tifffile.imwrite(tmp_path / "in/stack/p_10.tif", VOXELS[0])
    assert not unistore.verify(tmp_path / "a.zarr", against=tmp_path / "in").ok


def problems_of(folder: Path) -> str:
    with pytest.raises(InputError) as error:
        scan_sources(ct_converter(), [folder])
    return str(error.value)


def test_a_stack_with_missing_doubled_or_unequal_pages_is_a_problem(tmp_path: Path) -> None:
    pages(tmp_path / "a")
    (tmp_path / "a/p_09.tif").unlink()
    assert "p_08.tif: the stack of TIFF files has no page 9" in problems_of(tmp_path / "a")
    pages(tmp_path / "b")
    pages(tmp_path / "b", VOXELS[:1, :5], first=12)
    assert "(9, 7) int16, and (5, 7) int16" in problems_of(tmp_path / "b")
    pages(tmp_path / "c")
    pages(tmp_path / "c", VOXELS[:1], "p_{}.tif", first=8)
    assert "has two pages 8" in problems_of(tmp_path / "c")


def write_ome_of_files(folder: Path, written: range, *, names_others: bool = True) -> None:
    """Write the pages of one OME-TIFF, a file each, as Bio-Formats does; `written`: those that are there."""
    tail = "".join(
        f'<TiffData FirstZ="{number}" IFD="0" PlaneCount="1">'
        f'<UUID FileName="z{number}.ome.tif">urn:uuid:{number}</UUID></TiffData>'
        for number in range(len(VOXELS))
    )
    depth, height, width = VOXELS.shape
    pixels = (
        f'<Image ID="Image:0"><Pixels ID="Pixels:0" DimensionOrder="XYZCT" Type="int16" SizeX="{width}" '
        f'SizeY="{height}" SizeZ="{depth}" SizeC="1" SizeT="1">{tail}</Pixels></Image>'
    )
    for number in written:
        content = pixels
        if number and not names_others:
            content = '<BinaryOnly MetadataFile="z0.ome.tif" UUID="urn:uuid:0"/>'
        schema = 'xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06"'
        text = f'<OME {schema} UUID="urn:uuid:{number}">{content}</OME>'
        path = folder / f"z{number}.ome.tif"
        tifffile.imwrite(path, VOXELS[number], description=text, metadata=None, **GRAY)


@pytest.mark.parametrize("names_others", [True, False])
def test_files_of_one_ome_tiff_are_an_error_that_says_how_to_join_them(
    tmp_path: Path, names_others: bool
) -> None:
    folder = tmp_path / "pages"
    folder.mkdir()
    write_ome_of_files(folder, range(len(VOXELS)), names_others=names_others)
    joined = tifffile.imread(folder / "z0.ome.tif")
    np.testing.assert_array_equal(joined, VOXELS)
    message = problems_of(folder)
    for number in range(len(VOXELS)):
        assert f"z{number}.ome.tif: is one file of an OME-TIFF of several files" in message
    tifffile.imwrite(tmp_path / "a.tif", joined, photometric="minisblack")
    np.testing.assert_array_equal(opened(tmp_path / "a.tif")[0], VOXELS)
    for path in folder.iterdir():
        tifffile.tiffcomment(path, "")
    unistore.convert(folder, tmp_path / "ct.zarr", "ct")
    np.testing.assert_array_equal(unistore.Dataset(tmp_path / "ct.zarr")[0]["image"], VOXELS)


@pytest.mark.parametrize("written", [range(1), range(3)])
def test_missing_files_of_an_ome_tiff_are_an_error(tmp_path: Path, written: range) -> None:
    write_ome_of_files(tmp_path, written)
    with pytest.raises(InputError, match=r"z0\.ome\.tif: .* several files, some of which are missing"):
        opened(tmp_path / "z0.ome.tif")


@pytest.mark.parametrize(("count", "compression"), [(2, None), (2, "zlib"), (8, "zlib")])
def test_another_number_of_pages_than_the_metadata_states_is_an_error(
    tmp_path: Path, count: int, compression: str | None
) -> None:
    text = f"ImageJ=1.53t\nimages={count}\nslices={count}\n"
    options: dict[str, Any] = {"description": text, "metadata": None, "compression": compression, **GRAY}
    tifffile.imwrite(tmp_path / "a.tif", VOXELS.astype("u2"), **options)
    with pytest.raises(InputError, match=rf"a\.tif: has 4 pages, but its metadata states {count}"):
        opened(tmp_path / "a.tif")
    tifffile.tiffcomment(tmp_path / "a.tif", "")
    np.testing.assert_array_equal(opened(tmp_path / "a.tif")[0], VOXELS.astype("u2"))


def test_a_truncated_file_of_imagej_is_not_called_one_of_channels(tmp_path: Path) -> None:
    tifffile.imwrite(tmp_path / "a.tif", VOXELS.astype("u2"), imagej=True, metadata={"axes": "ZYX"})
    content = (tmp_path / "a.tif").read_bytes()
    (tmp_path / "a.tif").write_bytes(content[:-60])
    with pytest.raises(InputError, match="is truncated: the table of a page is missing"):
        opened(tmp_path / "a.tif")


@pytest.mark.parametrize(
    ("tag", "number", "message"),
    [
        ("Predictor", 3, "is compressed with the predictor FLOATINGPOINT, which needs imagecodecs"),
        ("BitsPerSample", 12, "has 12 bits per sample, which needs imagecodecs"),
    ],
)
def test_numbers_that_need_imagecodecs_name_the_package(
    tmp_path: Path, tag: str, number: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "imagecodecs", None)
    options = {"compression": "zlib", "predictor": 2} if tag == "Predictor" else {}
    tifffile.imwrite(tmp_path / "a.tif", VOXELS.astype("u2"), metadata=None, **GRAY, **options)
    with tifffile.TiffFile(tmp_path / "a.tif", mode="r+b") as tiff:
        for page in tiff.pages:
            page.aspage().tags[tag].overwrite(number)
    with pytest.raises(InputError, match=message) as caught:
        opened(tmp_path / "a.tif")
    assert "pip install imagecodecs" in str(caught.value)
