"""Read voxels, points and masks of one volume from its files."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.exclusion import ProblemCollector
from unistore.converters.ct.counting import (
    MaskComparison,
    VoxelCounts,
    cached_counts,
    cached_ones,
    scaled_differences,
)
from unistore.converters.ct.files import State, file_location, state_of
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
from unistore.converters.ct.tables import windows_of
from unistore.converters.ct.voxels import inside, point_coords, read_bits, read_points
from unistore.converters.protocol import Facts, Scan, Source
from unistore.errors import InputError, Problem
from unistore.schemas.ct.fields import LABELS, MASKS, SDF, VOLUMES, WINDOWS
from unistore.schemas.ct.windows import Window, parse_window

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
    options
        Options of the conversion.
    """

    source: Source
    windows: Mapping[str, Window]
    options: Mapping[str, Any]

    @classmethod
    def of(cls, scan: Scan, source: int) -> VolumeReader:
        """Reader of a scan's source."""
        return cls(scan.sources[source], windows_of(scan), scan.options)

    def facts(self) -> Facts:
        """Read everything once: counts of all windows, NaN, the extent; check masks and points.

        Raises an `InputError` with every problem of the volume's values.

        Returns
        -------
        Facts
            ``points/<window>`` (), ``nan`` (), ``extent`` (3,), ``scaled/<window>`` () of windows that came
            as floats scaled to 0…1, and of each label how many voxels are neither 0 nor 1,
            ``others/labels/<label>`` (), and of each mask; all i8.
        """
        collected = ProblemCollector()
        counts = dict.fromkeys(self.windows, 0)
        others: dict[str, int] = {}
        image = self._image
        found = None if image is None else self._count_image(image)
        if found is not None:
            counts |= {name: int(planes.sum()) for name, planes in found.counts.items()}
            collected.problems += self._label_problems(found.labels)
        for name, file in self._files(WINDOWS):
            with collected.attempt(self._location(file)):
                if image is None or found is None:
                    counts[name] = self._count_mask(file)
                else:
                    self._check_window(name, image, found.masks[name], counts[name])
        for name, file in self._files("sparse"):
            with collected.attempt(where := self._location(file)):
                index, values = load_points(self._path(file), SPARSE_MEMBERS, where)
                check_range([index], self._point_bounds(name), where)
                counts[name] = len(sort_points(index, values, where)[0])
        for family in (MASKS, LABELS):
            for name, file in self._files(family):
                with collected.attempt(self._location(file)):
                    others[f"others/{family}/{name}"] = self._count_classes(family, file)
        for name, file in self._files(SDF):
            with collected.attempt(self._location(file)):
                blocks = point_blocks(self._path(file), SDF_MEMBERS, self._location(file))
                check_range((index for index, _ in blocks), self._point_bounds(name), self._location(file))
        collected.check()
        numbers = {f"points/{name}": count for name, count in counts.items()} | others
        numbers |= {f"scaled/{name}": 1 for name, file in self._files(WINDOWS) if self._is_scaled(file)}
        numbers["nan"] = 0 if found is None else found.nan
        facts: dict[str, NDArray[Any]] = {name: np.array(count, np.int64) for name, count in numbers.items()}
        return facts | {"extent": np.array(self.extent())}

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
        image, computed = self._image, dict[str, NDArray[Any]]()
        files = {} if table == VOLUMES else dict(self._files(table))
        for column, (block,) in out.items():
            name, _, form = column.rpartition("/")
            file = image if table == VOLUMES else self._file(files[name]) if name in files else None
            if file is not None and form != "mask":
                read_image(file, block, lo, hi)
            elif file is not None and (table != WINDOWS or image is None or file.dtype.kind != "f"):
                read_bits(file, {name: inside(None, file.dtype)}, {name: block}, lo, hi)
            elif table == WINDOWS and image is not None:
                computed[name] = block
        if computed and image is not None:
            tests = {name: inside(self.windows[name], image.dtype) for name in computed}
            read_bits(image, tests, computed, lo, hi)

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
            counts = self._count_image(file).counts[name] if lo else None
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

    def _check_window(self, name: str, image: VoxelSource, agreed: MaskComparison, count: int) -> None:
        """Raise if a window's file is not a mask, or differs from the image."""
        file = self.source.detail["windows"][name]
        location, differing = self._location(file), agreed.differing
        detail = f"it has {agreed.ones} ones, the volume {count} voxels inside"
        if agreed.others and self._is_scaled(file):
            differing = scaled_differences(image, self._file(file), self.windows[name])
            detail = "it holds floats from 0 to 1, but not (value - low) / width"
        elif agreed.others:
            raise _not_a_mask(agreed.others, location)
        if differing:
            window = f"window {self.windows[name]} of {image.location}"
            message = f"differs from {window} in {differing} voxels: {detail}"
            cure = "make it again from this volume, or remove it: it is computed anyway"
            raise InputError(Problem(location, message, cure, "window"))

    def _label_problems(self, labels: NDArray[np.bool_] | None) -> list[Problem]:
        """Return a problem if a window is cut of an image that looks like a mask, and no file confirms it."""
        windows = [name for name in self.windows if name not in self.source.detail["windows"]]
        if labels is None or not windows or self.options["values"] == "hu":
            return []
        values = np.flatnonzero(labels).tolist()
        held = " or ".join(map(str, values))
        if len(values) > 3:
            held = f"one of {len(values)} whole numbers from {values[0]} to {values[-1]}"
        message = (
            f"looks like a mask, not like HU: each voxel is {held}; a window is of HU: {', '.join(windows)}"
        )
        # windows that other volumes have as files are cut without the option, too
        options = {parse_window(text).name for text in self.options["window"]}
        as_mask = f"with --exclude {shlex.quote(self.source.name)}"
        if options.issuperset(windows):
            as_mask = "without --window"
        cure = f"if it is a mask, the same command {as_mask}; if it is HU, with --values hu"
        return [Problem(self._location(self.source.detail["image"]), message, cure, "values")]

    def _is_scaled(self, file: int) -> bool:
        """Whether a window came as floats scaled to 0…1."""
        mask = self._file(file)
        return mask.dtype.kind == "f" and cached_ones(mask, state_of([mask.path])).scaled

    def _count_mask(self, file: int) -> int:
        """Count ones of a mask, or voxels above 0 of a scaled window; raise if it is neither."""
        mask = self._file(file)
        found = cached_ones(mask, state_of([mask.path]))
        if found.others and not found.scaled:
            raise _not_a_mask(found.others, self._location(file))
        return int(found.counts.sum())

    def _count_classes(self, family: str, file: int) -> int:
        """Count voxels of a label or mask other than 0 and 1; raise if they are floats."""
        label = self._file(file)
        others = cached_ones(label, state_of([label.path])).others
        if others and label.dtype.kind == "f":
            if family == MASKS:
                raise _not_a_mask(others, self._location(file))
            message = f"is taken for a label by its name, but is {label.dtype} and not a mask of 0 and 1"
            cure = "save classes as integers: labels.astype(np.uint8); rename it if it is a volume"
            raise InputError(Problem(self._location(file), message, cure, "dtype"))
        return others

    def _count_image(self, image: VoxelSource) -> VoxelCounts:
        """Counts of all windows in the image, and how it agrees with windows that are files, too."""
        masks = tuple((name, self._file(file)) for name, file in self._files("windows"))
        state = state_of([image.path, *(file.path for _, file in masks)])
        return cached_counts(image, masks, tuple(self.windows.items()), state)

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


def _not_a_mask(others: int, location: str) -> InputError:
    message = f"holds {others} values that are neither 0 nor 1: it is not a mask"
    cure = "save (values > 0).astype(np.uint8), or rename it to convert it as an image"
    return InputError(Problem(location, message, cure, "values"))


@lru_cache(maxsize=1)
def _sparse_points(path: Path, state: State, location: str) -> tuple[NDArray[Any], NDArray[Any]]:  # noqa: ARG001
    """Points of a sparse window in C order, cached for the next shard of the same volume."""
    return sort_points(*load_points(path, SPARSE_MEMBERS, location), location)
