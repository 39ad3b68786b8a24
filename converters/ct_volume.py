"""One volume's voxels, points and masks, read from its files as its source describes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.ct_headers import SDF_MEMBERS, SPARSE_MEMBERS
from unistore.converters.ct_points import check_range, in_order, load_points
from unistore.converters.ct_voxels import (
    bands,
    box,
    inside,
    point_coords,
    read_bits,
    read_image,
    read_points,
    survey,
)
from unistore.converters.npy import NpyHeader, read_header
from unistore.converters.protocol import Facts, Scan, Source
from unistore.errors import InputError, Problem
from unistore.schemas.ct import MASKS, VOLUMES, WINDOWS
from unistore.schemas.ct_windows import Window

__all__ = ["VolumeReader"]

Extent = tuple[int, int, int]
Counted = tuple[dict[str, NDArray[np.int64]], int]
ONES, OTHERS = "1", "neither 0 nor 1"


@dataclass(frozen=True, slots=True)
class VolumeReader:
    """Reads what one source describes.

    Attributes
    ----------
    source
        Made by `unistore.converters.ct_scan.make_source`.
    windows
        Windows of the store, by name.
    """

    source: Source
    windows: Mapping[str, Window]

    @classmethod
    def of(cls, scan: Scan, source: int) -> VolumeReader:
        """Reader of a scan's source."""
        found = scan.options["found"]["windows"]
        windows = {w["name"]: Window(w["name"], w["width"], w["level"]) for w in found}
        return cls(scan.sources[source], windows)

    def facts(self) -> Facts:
        """Read everything once: counts of all windows, NaN, the extent; check masks and points.

        Returns
        -------
        Facts
            ``points/<window>`` (), ``nan`` (), ``extent`` (3,), all i8.

        Raises
        ------
        InputError
            Everything that is wrong with the volume's values.
        """
        problems: list[Problem] = []
        counts = dict.fromkeys(self.windows, 0)
        nan = 0
        if self._image is None:
            for name, file in self._files("windows"):
                counts[name] = self._check_mask(file, problems)
            for name, file in self._files("sparse"):
                counts[name] = self._check_sparse(name, file, problems)
        else:
            counted, nan = self._counted(None)
            counts |= {name: int(planes.sum()) for name, planes in counted.items()}
            self._compare_masks(counts, problems)
        for _, file in self._files("masks"):
            self._check_mask(file, problems)
        for name, file in self._files("sdf"):
            index, _ = load_points(self._path(file), SDF_MEMBERS, self._place(file))
            self._collect(problems, check_range, index, self._cube(name), self._place(file))
        if problems:
            raise InputError(problems)
        facts = {f"points/{name}": np.int64(count) for name, count in counts.items()}
        facts |= {"nan": np.int64(nan)}
        return {name: np.asarray(value) for name, value in facts.items()} | {
            "extent": np.array(self.extent())
        }

    def extent(self) -> Extent:
        """D, H, W: of the image or a mask; else the cube that point files state; else what holds all."""
        known = self.source.detail["extent"]
        if known is not None:
            return known[0], known[1], known[2]
        stated = max(self.source.detail["resolution"].values(), default=0)
        if stated:
            return stated, stated, stated
        longest = np.zeros(3, np.int64)
        for kind, members in (("sparse", SPARSE_MEMBERS), ("sdf", SDF_MEMBERS)):
            for _, file in self._files(kind):
                index, _ = load_points(self._path(file), members, self._place(file))
                longest = np.maximum(longest, index.max(axis=0, initial=-1).astype(np.int64) + 1)
        depth, height, width = longest.tolist()
        return depth, height, width

    def read_planes(self, table: str, lo: int, hi: int | None, out: Mapping[str, NDArray[Any]]) -> None:
        """Read planes ``lo:hi`` of the one row of ``volumes``, ``masks`` or ``windows``.

        Masks and windows that this volume lacks stay zero, and so do planes that it has not. All windows
        stored as bits are found in one pass.
        """
        if "extent" in out:
            out["extent"][0] = self.extent()
            return
        depth = self.extent()[0]
        hi = depth if hi is None else min(hi, depth)
        if hi <= lo:
            return
        blocks = {column.removesuffix("/mask"): block[0] for column, block in out.items()}
        if table == VOLUMES:
            assert self._image is not None
            path, header, place = self._image
            read_image(path, header, blocks["image"], place, lo, hi)
        elif table == WINDOWS and self._image is not None:
            path, header, place = self._image
            tests = {name: inside(self.windows[name], header.dtype) for name in blocks}
            read_bits(path, header, tests, blocks, place, lo, hi)
        else:
            for name, file in self._files("masks" if table == MASKS else "windows"):
                if name in blocks:
                    path, header, place = self._path(file), self._header(file), self._place(file)
                    tests = {name: inside(None, header.dtype)}
                    read_bits(path, header, tests, {name: blocks[name]}, place, lo, hi)

    def read_window_points(self, name: str, lo: int, hi: int, out: Mapping[str, NDArray[Any]]) -> None:
        """Read points number `lo` to `hi` of a window, in C order."""
        sparse = self.source.detail["sparse"].get(name)
        if sparse is not None and self._image is None:
            index, values = _sparse_points(
                self._path(sparse), _state(self._path(sparse)), self._place(sparse)
            )
            out["coords"][...] = index[lo:hi]
            out["values"][...] = values[lo:hi]
            return
        if self._image is not None:
            path, header, place = self._image
            window, counts = self.windows[name], self._counted(None)[0][name]
        else:
            file = self.source.detail["windows"][name]
            path, header, place = self._path(file), self._header(file), self._place(file)
            window, counts = None, self._counted(file)[0][ONES]
        test = inside(window, header.dtype)
        for at, first, flat, values in read_points(path, header, test, counts, lo, hi, place):
            point_coords(flat, first, header.shape, out["coords"][at])
            out["values"][at] = values

    def read_sdf(self, name: str, lo: int, hi: int, out: Mapping[str, NDArray[Any]]) -> None:
        """Read points `lo` to `hi` of a distance field, in the file's order."""
        file = self.source.detail["sdf"][name]
        index, values = load_points(self._path(file), SDF_MEMBERS, self._place(file))
        out["coords"][...] = index[lo:hi]
        out["values"][...] = values[lo:hi]

    def _compare_masks(self, counts: Mapping[str, int], problems: list[Problem]) -> None:
        """Compare windows that also came as files with the image; a Problem for each that differs."""
        assert self._image is not None
        path, header, place = self._image
        files = dict(self._files("windows"))
        ones = {name: self._check_mask(file, problems) for name, file in files.items()}
        wrong = {problem.location for problem in problems}
        files = {name: file for name, file in files.items() if self._place(file) not in wrong}
        tests = {name: inside(self.windows[name], header.dtype) for name in files}
        differing = dict.fromkeys(files, 0)
        for lo, hi in bands(header, 0, header.shape[0] if files else 0):
            block = box(path, header, lo, hi, place)
            for name, file in files.items():
                given = box(self._path(file), self._header(file), lo, hi, self._place(file)) == 1
                differing[name] += int(np.count_nonzero(tests[name](block) != given))
        for name, count in differing.items():
            if count:
                message = (
                    f"differs from window {self.windows[name]} of {place} in {count} voxels: "
                    f"it has {ones[name]} ones, the volume {counts[name]} voxels inside"
                )
                cure = "make it again from this volume, or take it away: it is computed anyway"
                problems.append(Problem(self._place(files[name]), message, cure, "window"))

    def _check_mask(self, file: int, problems: list[Problem]) -> int:
        """Number of ones in a mask; a Problem if it holds anything but 0 and 1."""
        counted, _ = self._counted(file)
        ones, others = int(counted[ONES].sum()), int(counted[OTHERS].sum())
        if others:
            message = f"holds {others} values that are neither 0 nor 1: it is no mask"
            cure = "save (values > 0).astype(np.uint8), or rename it to convert it as an image"
            problems.append(Problem(self._place(file), message, cure, "values"))
        return ones

    def _counted(self, file: int | None) -> Counted:
        """What `survey` finds of the image's windows; of a file that is a mask: `ONES` and `OTHERS`."""
        windows = tuple(self.windows.items()) if file is None else None
        file = self.source.detail["image"] if file is None else file
        path = self._path(file)
        return _survey(path, _state(path), windows, self._place(file))

    def _check_sparse(self, name: str, file: int, problems: list[Problem]) -> int:
        place = self._place(file)
        index, values = load_points(self._path(file), SPARSE_MEMBERS, place)
        self._collect(problems, check_range, index, self._cube(name), place)
        self._collect(problems, in_order, index, values, place)
        return len(index)

    @staticmethod
    def _collect(problems: list[Problem], check: Any, *arguments: Any) -> None:
        try:
            check(*arguments)
        except InputError as error:
            problems += error.problems

    def _cube(self, name: str) -> Extent | None:
        """Where a point file's indices must lie: the cube it states, else its volume, else unknown."""
        stated = self.source.detail["resolution"].get(name, 0)
        if stated:
            return stated, stated, stated
        known = self.source.detail["extent"]
        return None if known is None else (known[0], known[1], known[2])

    @property
    def _image(self) -> tuple[Path, NpyHeader, str] | None:
        file = self.source.detail["image"]
        return None if file is None else (self._path(file), self._header(file), self._place(file))

    def _files(self, kind: str) -> list[tuple[str, int]]:
        return list(self.source.detail[kind].items())

    def _path(self, file: int) -> Path:
        return self.source.files[file]

    def _header(self, file: int) -> NpyHeader:
        return read_header(self._path(file), self._place(file))

    def _place(self, file: int) -> str:
        path = self._path(file)
        if path == self.source.path:
            return self.source.name
        if path.is_relative_to(self.source.path):
            return f"{self.source.name}/{path.relative_to(self.source.path).as_posix()}"
        return f"{self.source.name.rpartition('/')[0]}/{path.name}".lstrip("/")


def _state(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


@lru_cache(maxsize=512)
def _survey(
    path: Path,
    state: tuple[int, int],  # noqa: ARG001
    windows: tuple[tuple[str, Window], ...] | None,
    place: str,
) -> Counted:
    """Points in each plane, kept for the shards of the same volume; `state` notices a changed file."""
    header = read_header(path, place)
    tests = {ONES: inside(None, header.dtype), OTHERS: _neither}
    if windows is not None:
        tests = {name: inside(window, header.dtype) for name, window in windows}
    return survey(path, header, tests, place)


def _neither(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Values that are neither 0 nor 1."""
    found: NDArray[np.bool_] = (values != 0) & (values != 1)
    return found


@lru_cache(maxsize=1)
def _sparse_points(path: Path, state: tuple[int, int], place: str) -> tuple[NDArray[Any], NDArray[Any]]:  # noqa: ARG001
    """Points of a sparse window in C order, kept for the next shard of the same volume."""
    return in_order(*load_points(path, SPARSE_MEMBERS, place), place)
