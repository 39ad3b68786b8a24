"""Read voxels, points and masks of one volume from its files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.ct.files import file_location
from unistore.converters.ct.layouts import open_voxels
from unistore.converters.ct.layouts.npz import (
    SDF_MEMBERS,
    SPARSE_MEMBERS,
    check_range,
    load_points,
    point_blocks,
    sort_points,
)
from unistore.converters.ct.slabs import read_image
from unistore.converters.ct.source import VoxelSource
from unistore.converters.ct.survey import (
    MaskComparison,
    State,
    Survey,
    cached_ones,
    cached_survey,
    scaled_differences,
    state_of,
)
from unistore.converters.ct.tables import windows_of
from unistore.converters.ct.voxels import inside, point_coords, read_bits, read_points
from unistore.converters.protocol import Facts, Scan, Source
from unistore.errors import InputError, Problem
from unistore.schemas.ct.fields import LABELS, MASKS, VOLUMES
from unistore.schemas.ct.windows import Window

Extent = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class VolumeReader:
    """Reads the volume of one source.

    Attributes
    ----------
    source
        Made by `unistore.converters.ct.tables.make_source`.
    windows
        Windows of the store, by name.
    """

    source: Source
    windows: Mapping[str, Window]

    @classmethod
    def of(cls, scan: Scan, source: int) -> VolumeReader:
        """Reader of a scan's source."""
        return cls(scan.sources[source], windows_of(scan))

    def facts(self) -> Facts:
        """Read everything once: counts of all windows, NaN, the extent; check masks and points.

        Returns
        -------
        Facts
            ``points/<window>`` (), ``nan`` (), ``extent`` (3,), ``scaled/<window>`` () of windows that came
            as floats scaled to 0…1, and of each label how many voxels are neither 0 nor 1,
            ``others/labels/<label>`` (), and of each mask; all i8.

        Raises
        ------
        InputError
            With every problem of the volume's values.
        """
        problems: list[Problem] = []
        counts = dict.fromkeys(self.windows, 0)
        nan = 0
        image = self._image
        scaled = [name for name, file in self._files("windows") if self._is_scaled(file)]
        if image is None:
            for name, file in self._files("windows"):
                counts[name] = self._check_mask(file, problems)
            for name, file in self._files("sparse"):
                counts[name] = self._check_sparse(name, file, problems)
        else:
            found = self._survey_image(image)
            nan = found.nan
            counts |= {name: int(planes.sum()) for name, planes in found.counts.items()}
            for name, agreed in found.masks.items():
                self._check_window(name, image, agreed, counts[name], problems)
        others = {
            f"{family}/{name}": self._check_classes(family, file, problems)
            for family in (MASKS, LABELS)
            for name, file in self._files(family)
        }
        for name, file in self._files("sdf"):
            index = (index for index, _ in point_blocks(self._path(file), SDF_MEMBERS, self._location(file)))
            self._collect(problems, check_range, index, self._point_bounds(name), self._location(file))
        if problems:
            raise InputError(problems)
        facts = {f"points/{name}": np.int64(count) for name, count in counts.items()}
        facts |= {f"scaled/{name}": np.int64(1) for name in scaled}
        facts |= {"nan": np.int64(nan)} | {f"others/{name}": np.int64(n) for name, n in others.items()}
        return {name: np.asarray(value) for name, value in facts.items()} | {
            "extent": np.array(self.extent())
        }

    def extent(self) -> Extent:
        """D, H, W: of the image or a mask, else of the cube that point files state, else of all points."""
        known = self.source.detail["extent"]
        if known is not None:
            return known[0], known[1], known[2]
        stated = max(self.source.detail["resolution"].values(), default=0)
        if stated:
            return stated, stated, stated
        longest = np.zeros(3, np.int64)
        for kind, members in (("sparse", SPARSE_MEMBERS), ("sdf", SDF_MEMBERS)):
            for _, file in self._files(kind):
                for index, _ in point_blocks(self._path(file), members, self._location(file)):
                    longest = np.maximum(longest, index.max(axis=0).astype(np.int64) + 1)
        depth, height, width = longest.tolist()
        return depth, height, width

    def read_planes(self, table: str, lo: int, hi: int | None, out: Mapping[str, NDArray[Any]]) -> None:
        """Read planes ``lo:hi`` of this volume's row of ``volumes``, ``masks``, ``labels`` or ``windows``.

        Masks and windows that this volume lacks stay zero, and so do planes beyond its depth. Windows that
        are files, which `facts` has compared with the image, are read from them; all others in one pass of
        the image.
        """
        if "extent" in out:
            out["extent"][0] = self.extent()
            return
        depth = self.extent()[0]
        hi = depth if hi is None else min(hi, depth)
        if hi <= lo:
            return
        if table in (LABELS, MASKS):
            self._read_classes(table, lo, hi, out)
            return
        blocks = {column.removesuffix("/mask"): block[0] for column, block in out.items()}
        image = self._image
        if table == VOLUMES:
            assert image is not None
            read_image(image, blocks["image"], lo, hi)
            return
        for name, file in self._files("windows"):
            mask = self._file(file)
            if name in blocks and (image is None or mask.dtype.kind != "f"):
                read_bits(mask, {name: inside(None, mask.dtype)}, {name: blocks.pop(name)}, lo, hi)
        if blocks and image is not None:
            tests = {name: inside(self.windows[name], image.dtype) for name in blocks}
            read_bits(image, tests, blocks, lo, hi)

    def _read_classes(self, family: str, lo: int, hi: int, out: Mapping[str, NDArray[Any]]) -> None:
        for name, file in self._files(family):
            if f"{name}/label" in out:
                read_image(self._file(file), out[f"{name}/label"][0], lo, hi)
            if f"{name}/mask" in out:
                label = self._file(file)
                read_bits(label, {name: inside(None, label.dtype)}, {name: out[f"{name}/mask"][0]}, lo, hi)

    def read_window_points(self, name: str, lo: int, hi: int, out: Mapping[str, NDArray[Any]]) -> None:
        """Read points ``lo:hi`` of a window, in C order."""
        sparse = self.source.detail["sparse"].get(name)
        if sparse is not None and self._image is None:
            index, values = _sparse_points(
                self._path(sparse), state_of([self._path(sparse)]), self._location(sparse)
            )
            out["coords"][...] = index[lo:hi]
            out["values"][...] = values[lo:hi]
            return
        file, window, counts = self._image, None, None
        if file is not None:
            window = self.windows[name]
            counts = self._survey_image(file).counts[name] if lo else None
        else:
            file = self._file(self.source.detail["windows"][name])
            counts = cached_ones(file, state_of([file.path])).counts if lo else None
        test = inside(window, file.dtype)
        for at, first, flat, values in read_points(file, test, lo, hi, counts):
            point_coords(flat, first, file.shape, out["coords"][at])
            out["values"][at] = values

    def read_sdf(self, name: str, lo: int, hi: int, out: Mapping[str, NDArray[Any]]) -> None:
        """Read points ``lo:hi`` of a distance field, in the file's order."""
        file = self.source.detail["sdf"][name]
        at = 0
        for index, values in point_blocks(self._path(file), SDF_MEMBERS, self._location(file), lo, hi):
            out["coords"][at : at + len(index)] = index
            out["values"][at : at + len(index)] = values
            at += len(index)

    def _check_window(
        self, name: str, image: VoxelSource, agreed: MaskComparison, count: int, problems: list[Problem]
    ) -> None:
        """Collect a Problem if a window's file is not a mask, or differs from the image."""
        file = self.source.detail["windows"][name]
        location, differing = self._location(file), agreed.differing
        detail = f"it has {agreed.ones} ones, the volume {count} voxels inside"
        if agreed.others and self._is_scaled(file):
            differing = scaled_differences(image, self._file(file), self.windows[name])
            detail = "it holds floats from 0 to 1, but not (value - low) / width"
        elif agreed.others:
            problems.append(_not_a_mask(agreed.others, location))
            return
        if differing:
            window = f"window {self.windows[name]} of {image.location}"
            message = f"differs from {window} in {differing} voxels: {detail}"
            cure = "make it again from this volume, or remove it: it is computed anyway"
            problems.append(Problem(location, message, cure, "window"))

    def _is_scaled(self, file: int) -> bool:
        """Whether a window came as floats scaled to 0…1."""
        mask = self._file(file)
        return mask.dtype.kind == "f" and cached_ones(mask, state_of([mask.path])).scaled

    def _check_mask(self, file: int, problems: list[Problem]) -> int:
        """Count ones of a mask, or voxels above 0 of a scaled window; collect a Problem if it is neither."""
        mask = self._file(file)
        found = cached_ones(mask, state_of([mask.path]))
        if found.others and not found.scaled:
            problems.append(_not_a_mask(found.others, self._location(file)))
        return int(found.counts.sum())

    def _check_classes(self, family: str, file: int, problems: list[Problem]) -> int:
        """Count voxels of a label or mask other than 0 and 1; collect a Problem if they are floats."""
        label = self._file(file)
        others = cached_ones(label, state_of([label.path])).others
        if others and label.dtype.kind == "f" and family == MASKS:
            problems.append(_not_a_mask(others, self._location(file)))
        elif others and label.dtype.kind == "f":
            message = f"is taken for a label by its name, but is {label.dtype} and not a mask of 0 and 1"
            cure = "save classes as integers: labels.astype(np.uint8); rename it if it is a volume"
            problems.append(Problem(self._location(file), message, cure, "dtype"))
        return others

    def _survey_image(self, image: VoxelSource) -> Survey:
        """Counts of all windows in the image, and how it agrees with windows that are files, too."""
        masks = tuple((name, self._file(file)) for name, file in self._files("windows"))
        state = state_of([image.path, *(file.path for _, file in masks)])
        return cached_survey(image, masks, tuple(self.windows.items()), state)

    def _check_sparse(self, name: str, file: int, problems: list[Problem]) -> int:
        location = self._location(file)
        index, values = load_points(self._path(file), SPARSE_MEMBERS, location)
        self._collect(problems, check_range, [index], self._point_bounds(name), location)
        self._collect(problems, sort_points, index, values, location)
        return len(index)

    @staticmethod
    def _collect(problems: list[Problem], check: Any, *arguments: Any) -> None:
        try:
            check(*arguments)
        except InputError as error:
            problems += error.problems

    def _point_bounds(self, name: str) -> Extent | None:
        """Bounds of a point file's indices: the cube that it states, else its volume; None: unknown."""
        stated = self.source.detail["resolution"].get(name, 0)
        if stated:
            return stated, stated, stated
        known = self.source.detail["extent"]
        return None if known is None else (known[0], known[1], known[2])

    @property
    def _image(self) -> VoxelSource | None:
        file = self.source.detail["image"]
        return None if file is None else self._file(file)

    def _files(self, kind: str) -> list[tuple[str, int]]:
        return list(self.source.detail[kind].items())

    def _path(self, file: int) -> Path:
        return self.source.files[file]

    def _file(self, file: int) -> VoxelSource:
        return open_voxels(self._path(file), self._location(file))

    def _location(self, file: int) -> str:
        return file_location(self._path(file), self.source.path, self.source.name)


def _not_a_mask(others: int, location: str) -> Problem:
    message = f"holds {others} values that are neither 0 nor 1: it is not a mask"
    cure = "save (values > 0).astype(np.uint8), or rename it to convert it as an image"
    return Problem(location, message, cure, "values")


@lru_cache(maxsize=1)
def _sparse_points(path: Path, state: State, location: str) -> tuple[NDArray[Any], NDArray[Any]]:  # noqa: ARG001
    """Points of a sparse window in C order, cached for the next shard of the same volume."""
    return sort_points(*load_points(path, SPARSE_MEMBERS, location), location)
