"""Open TIFF volumes: the pages of a file, or of the files that continue it, one behind the other."""

# Pages are read as tifffile reads them: of ImageJ, OME and BigTIFF, in strips and in tiles.

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from unistore.converters.array import Array
from unistore.converters.common.faults import COPY_AGAIN
from unistore.converters.formats.volumes import MILLIMETRES, Planes, VolumeFormat
from unistore.converters.opened import OpenFile, SourceFile
from unistore.system.extras import is_installed
from unistore.system.types import AnyArray, JsonObject

_MAGIC = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
# Axes of one page, and of pages along a depth or along an axis of which nothing is said.
_PAGES = ("YX", "ZYX", "IYX", "QYX")
_WRITE_AGAIN = "save one volume per file: tifffile.imwrite('a.tif', voxels, photometric='minisblack')"


class Tiff(VolumeFormat):
    """One array, called ``image``: (H, W) of a page. (D, H, W) of several, or with `SourceFile.parts`."""

    name = "tiff"
    suffixes = (".tif", ".tiff")
    library = "imagecodecs"

    def begins(self, file: SourceFile) -> bool:
        return file.head(4) in _MAGIC

    @contextmanager
    def open(self, file: SourceFile) -> Iterator[OpenFile]:
        """Read the tables of the pages, which are decoded when they are sliced."""
        with _opened(file) as tiff, file.path.open("rb") as stream:
            series = tiff.series[0]
            dtype = series.dtype.newbyteorder(tiff.byteorder)
            start = series.dataoffset
            values: Any = _Pages(file, series)
            if start is not None and not file.parts:  # uncompressed, one page behind the other
                values = Planes(file, stream, start, series.shape, dtype)
                values.check_size(file.size - start)
            yield OpenFile({"image": Array(values)}, _spacing(tiff))


def is_page(file: SourceFile) -> bool:
    """Return whether a file has one page."""
    with _opened(file) as tiff:
        return len(tiff.series[0].shape) == 2


class _Pages:
    """Pages of an open file, and of the files that continue it."""

    def __init__(self, file: SourceFile, series: Any) -> None:
        self._file = file
        self._series = series
        self.shape = series.shape
        self.dtype = series.dtype
        if file.parts:
            self.shape = (1 + len(file.parts), *series.shape)
        for path in file.parts:
            _check_alike(file.name, path, path.stat().st_mtime_ns, (series.shape, series.dtype))

    def __getitem__(self, rows: slice) -> AnyArray:
        if len(self.shape) == 2:
            page: AnyArray = self._page(0)[rows]
            return page
        numbers = range(self.shape[0])[rows]
        values = np.empty((len(numbers), *self.shape[1:]), self.dtype)
        for place, number in enumerate(numbers):
            values[place] = self._page(number)
        return values

    def _page(self, number: int) -> Any:
        if not self._file.parts or number == 0:
            return self._series.pages[number].asarray()
        path = self._file.parts[number - 1]
        with _opened(SourceFile(path, self._file.name)) as tiff:
            return tiff.series[0].pages[0].asarray()


@contextmanager
def _opened(file: SourceFile) -> Iterator[Any]:
    """Open a file whose pages are one volume of numbers that can be decoded."""
    tifffile = file.library("tifffile", "medical")
    logging.getLogger("tifffile").setLevel(logging.CRITICAL)  # which prints what it raises
    with tifffile.TiffFile(file.path) as tiff:
        series = tiff.series[0]
        _check_tables(file, tiff)
        _check_files(file, tiff)
        if len(tiff.series) > 1 or series.axes not in _PAGES:
            axes = ", ".join(one.axes for one in tiff.series)
            message = f"has the axes {axes}, but a volume has Z, Y, X and no colours, channels or times"
            raise file.problem(message, _WRITE_AGAIN, "shape")
        compression = series.keyframe.compression
        if compression not in tifffile.TIFF.DECOMPRESSORS:
            raise file.problem(
                f"is compressed with {compression.name}, which needs imagecodecs",
                "pip install imagecodecs",
                "library",
            )
        _check_numbers(file, series.keyframe)
        _check_pages(file, tiff)
        yield tiff


def _check_tables(file: SourceFile, tiff: Any) -> None:
    """Refuse a file in which the table of a page is missing: tifffile leaves out what follows."""
    next_page = tiff.pages.next_page_offset
    behind = file.bytes()[next_page : next_page + tiff.tiff.offsetsize]
    if not len(behind) or behind.any():
        raise file.problem("is truncated: the table of a page is missing", COPY_AGAIN, "truncated")


def _check_files(file: SourceFile, tiff: Any) -> None:
    """Refuse an OME-TIFF of several files: tifffile reads all of them wherever one is opened."""
    series = tiff.series[0]
    is_missing = any(page is None for page in series.pages)
    has_metadata_elsewhere = tiff.is_ome and "<BinaryOnly" in tiff.ome_metadata
    if not (series.is_multifile or is_missing or has_metadata_elsewhere):
        return
    name = file.path.name
    join = f"join them: tifffile.imwrite('a.tif', tifffile.imread({name!r}), photometric='minisblack')"
    stack = f"stack pages by the numbers in their names: tifffile.tiffcomment({name!r}, '') of each"
    if is_missing:
        raise file.problem(
            "is one file of an OME-TIFF of several files, some of which are missing",
            (f"copy the others, too, and {join}", stack),
            "missing",
        )
    raise file.problem("is one file of an OME-TIFF of several files, which is not supported", (join, stack))


def _check_numbers(file: SourceFile, page: Any) -> None:
    """Refuse predictors and bits that tifffile decodes by imagecodecs only, if that is not installed."""
    import tifffile

    needed = ""
    if page.predictor not in tifffile.TIFF.UNPREDICTORS:
        needed = f"is compressed with the predictor {page.predictor.name}"
    elif page.bitspersample not in (1, 8, 16, 32, 64):
        needed = f"has {page.bitspersample} bits per sample"
    if needed and not is_installed("imagecodecs"):
        raise file.problem(f"{needed}, which needs imagecodecs", "pip install imagecodecs", "library")


def _check_pages(file: SourceFile, tiff: Any) -> None:
    """Refuse a file whose metadata states other pages than it has, or that ends before its last page.

    tifffile leaves out pages, and fills what is missing.
    """
    series = tiff.series[0]
    page_count = prod(series.shape[:-2])
    is_divided = series.dataoffset is None and len(series.pages) != page_count
    if is_divided and series.keyframe.imagedepth > 1:
        raise file.problem("has pages with several planes, but each must have one", _WRITE_AGAIN, "shape")
    if is_divided or len(tiff.pages) > len(series.pages):
        raise file.problem(
            f"has {len(tiff.pages)} pages, but its metadata states {page_count}",
            f"correct or remove its metadata: tifffile.tiffcomment({file.path.name!r}, '')",
            "count",
        )
    ends = [0]
    for page in series.pages:
        ends += map(sum, zip(page.dataoffsets, page.databytecounts, strict=True))
    file.check_size(max(ends))


@lru_cache(maxsize=1 << 16)
def _check_alike(name: str, path: Path, time: int, form: tuple[Any, ...]) -> None:  # noqa: ARG001
    """Check that a file continues another: once, until it changes."""
    file = SourceFile(path, name)
    with _opened(file) as tiff:
        series = tiff.series[0]
        if (series.shape, series.dtype) != form:
            raise file.problem(
                f"has pages of different forms: {form[0]} {form[1]}, and {series.shape} {series.dtype}",
                "save all pages with one shape and dtype, or each stack in a separate folder",
                "shape",
            )


def _spacing(tiff: Any) -> JsonObject:
    """Return the spacing that ImageJ or OME states with a unit, in mm."""
    import tifffile

    lengths: dict[str, float] = {}
    if tiff.ome_metadata:
        pixels = tifffile.xml2dict(tiff.ome_metadata)["OME"]["Image"]["Pixels"]
        for axis in "ZYX":
            unit = pixels.get(f"PhysicalSize{axis}Unit", "µm")  # as OME's schema has it
            lengths[axis] = pixels.get(f"PhysicalSize{axis}", 0) * MILLIMETRES.get(unit.lower(), 0)
    elif tiff.imagej_metadata:
        metadata = tiff.imagej_metadata
        unit = MILLIMETRES.get(str(metadata.get("unit", "")).lower(), 0)
        lengths["Z"] = metadata.get("spacing", 0) * unit
        for axis in "YX":
            tag = tiff.pages[0].tags.get(f"{axis}Resolution")
            pixels_a_unit, units = (0, 0) if tag is None else tag.value
            lengths[axis] = units / pixels_a_unit * unit if pixels_a_unit else 0
    spacing = [float(lengths.get(axis, 0)) for axis in "ZYX"]
    return {"spacing": spacing} if min(spacing) > 0 else {}
