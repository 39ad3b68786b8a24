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
    bit_shape,
    expand_points,
    point_coords,
    point_values,
    read_image,
    read_mask,
    survey,
)
from unistore.converters.npy import NpyHeader, read_header
from unistore.converters.protocol import Facts, Scan, Source
from unistore.errors import InputError, Problem
from unistore.schemas.ct_windows import Window

__all__ = ["VolumeReader"]

Extent = tuple[int, int, int]


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
            counted, nan = self._check_windows(problems)
            counts |= counted
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

    def read_volume(self, out: Mapping[str, NDArray[Any]]) -> None:
        """Read the one row of ``volumes``."""
        if "extent" in out:
            out["extent"][0] = self.extent()
        if "image" in out:
            assert self._image is not None
            path, header, place = self._image
            read_image(path, header, out["image"][0], place)

    def read_masks(self, out: Mapping[str, NDArray[Any]]) -> None:
        """Read the one row of ``masks``; masks that this volume lacks stay zero."""
        for name, file in self._files("masks"):
            read_mask(self._path(file), self._header(file), out[f"{name}/mask"][0], self._place(file))

    def read_window_masks(self, out: Mapping[str, NDArray[Any]]) -> None:
        """Read the one row of ``windows``: the bit masks of all windows stored as such, in one pass."""
        if self._image is not None:
            path, header, place = self._image
            bits = {column.removesuffix("/mask"): block[0] for column, block in out.items()}
            survey(path, header, [self.windows[name] for name in bits], bits, place)
            return
        for name, file in self._files("windows"):
            block = out.get(f"{name}/mask")
            if block is not None:
                read_mask(self._path(file), self._header(file), block[0], self._place(file))

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
        extent = self.extent()
        bits = self._bits(name)
        for at, first, last, flat in expand_points(bits, extent[2], lo, hi):
            target = slice(at, at + len(flat))
            point_coords(flat, first, extent, out["coords"][target])
            if self._image is None:
                out["values"][target] = 1
            else:
                path, header, place = self._image
                point_values(path, header, first, last, flat, out["values"][target], place)

    def read_sdf(self, name: str, lo: int, hi: int, out: Mapping[str, NDArray[Any]]) -> None:
        """Read points `lo` to `hi` of a distance field, in the file's order."""
        file = self.source.detail["sdf"][name]
        index, values = load_points(self._path(file), SDF_MEMBERS, self._place(file))
        out["coords"][...] = index[lo:hi]
        out["values"][...] = values[lo:hi]

    def _check_windows(self, problems: list[Problem]) -> tuple[dict[str, int], int]:
        """Count all windows of the image; compare those that also came as files."""
        assert self._image is not None
        path, header, place = self._image
        files = dict(self._files("windows"))
        bits = {name: np.zeros(bit_shape(header.shape), np.uint8) for name in files}
        counts, nan = survey(path, header, list(self.windows.values()), bits, place)
        for name, file in files.items():
            given = np.zeros_like(bits[name])
            before = len(problems)
            ones = self._check_mask(file, problems, given)
            differing = int(np.bitwise_count(bits[name] ^ given).sum(dtype=np.int64))
            if differing and len(problems) == before:
                window = self.windows[name]
                message = (
                    f"differs from window {window} of {place} in {differing} voxels: "
                    f"it has {ones} ones, the volume {counts[name]} voxels inside"
                )
                cure = "make it again from this volume, or take it away: it is computed anyway"
                problems.append(Problem(self._place(file), message, cure, "window"))
        return counts, nan

    def _check_mask(self, file: int, problems: list[Problem], out: NDArray[np.uint8] | None = None) -> int:
        """Number of ones in a mask; a Problem if it holds anything but 0 and 1."""
        place = self._place(file)
        ones, others = read_mask(self._path(file), self._header(file), out, place)
        if others:
            message = f"holds {others} values that are neither 0 nor 1: it is no mask"
            cure = "save (values > 0).astype(np.uint8), or rename it to convert it as an image"
            problems.append(Problem(place, message, cure, "values"))
        return ones

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

    def _bits(self, name: str) -> NDArray[np.uint8]:
        if self._image is not None:
            path, _, place = self._image
            window: Window | None = self.windows[name]
        else:
            file = self.source.detail["windows"][name]
            path, place, window = self._path(file), self._place(file), None
        return _bit_mask(path, _state(path), window, place)

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


@lru_cache(maxsize=1)
def _bit_mask(path: Path, state: tuple[int, int], window: Window | None, place: str) -> NDArray[np.uint8]:  # noqa: ARG001
    """Bit mask of a window, kept for the next shard of the same volume; `state` notices a changed file."""
    header = read_header(path, place)
    bits = np.zeros(bit_shape(header.shape), np.uint8)
    if window is None:
        read_mask(path, header, bits, place)
    else:
        survey(path, header, (window,), {window.name: bits}, place)
    return bits


@lru_cache(maxsize=1)
def _sparse_points(path: Path, state: tuple[int, int], place: str) -> tuple[NDArray[Any], NDArray[Any]]:  # noqa: ARG001
    """Points of a sparse window in C order, kept for the next shard of the same volume."""
    return in_order(*load_points(path, SPARSE_MEMBERS, place), place)
