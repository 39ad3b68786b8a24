"""Read voxels, points and masks of one volume from its files."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.exclusion import ProblemCollector
from unistore.converters.ct.scan import Detail
from unistore.converters.ct.slabs import VolumeArray, check_range, point_blocks, read_image, sorted_points
from unistore.converters.ct.voxels import (
    MOST_CLASSES,
    ImageCounts,
    Locations,
    count_image,
    count_mask,
    locations_of,
    point_coords,
    read_bits,
    read_points,
    scaled_differences,
)
from unistore.converters.protocol import Emit, Facts
from unistore.errors import InputError, Problem
from unistore.schemas.ct.fields import FOREGROUND, LABELS, MASKS, SDF, VOLUMES, WINDOWS
from unistore.schemas.ct.voxels import inside
from unistore.schemas.ct.windows import Window, parse_window
from unistore.system.hints import AnyArray

Extent = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class VolumeReader:
    """Reads the volume of one source, called `name`."""

    name: str
    detail: Detail
    windows: Mapping[str, Window]  # of the store, by name
    options: Mapping[str, Any]  # of the conversion

    def facts(self) -> Facts:
        """Read everything once and return counts, or raise every problem of the volume's values."""
        # All i8: `points/<window>` (), `nan` (), `extent` (3,), `scaled/<window>` () of windows that came as
        # floats scaled to 0…1, `others/<group>` (), the voxels of a label or mask that are neither 0 nor 1.
        collected = ProblemCollector()
        numbers = {f"points/{name}": 0 for name in self.windows} | {"nan": 0}
        image = self.detail.array("image")
        if image is not None:
            counts = self._count(image)
            numbers |= {f"points/{name}": int(planes.sum()) for name, planes in counts.planes.items()}
            numbers["nan"] = counts.nan
            collected.problems += self._label_problems(image.name, counts.labels)
        for array in self.detail.arrays:
            kind, _, name = array.role.partition("/")
            with collected.attempt(array.name):
                if kind == WINDOWS:
                    numbers |= self._check_window(name, array, image)
                elif kind in (MASKS, LABELS):
                    numbers[f"others/{array.role}"] = _count_classes(kind, array)
                elif kind != "image":
                    edge = array.resolution
                    check_range(array, (edge, edge, edge) if edge else self.detail.extent)
                if kind == "sparse":
                    numbers[f"points/{name}"] = len(sorted_points(array)[0])
        collected.check()
        facts: dict[str, AnyArray] = {name: np.array(count, np.int64) for name, count in numbers.items()}
        return facts | {"extent": np.array(self.extent())}

    def locations(self, most: int, emit: Emit) -> Facts:
        """Find and emit locations of every window, mask and label.

        Returns
        -------
        Facts
            Of each group that has voxels, ``classes/<group>`` (K,) and ``locations/<group>`` (K,), how many.
        """
        image = self.detail.array("image")
        located: dict[str, Locations] = {}
        if image is not None and self.windows:
            tests = {f"{WINDOWS}/{name}": inside(window, image.kind) for name, window in self.windows.items()}
            located |= locations_of(image, tests, most)
        for array in self.detail.arrays:
            kind = array.role.partition("/")[0]
            if kind in (WINDOWS, MASKS, LABELS) and array.role not in located:
                is_mask = kind == WINDOWS or array.kind.kind == "f"
                test = inside(None, array.kind) if is_mask else None
                located |= locations_of(array, {array.role: test}, most)
        facts: dict[str, AnyArray] = {}
        for group, (classes, lengths, coords) in located.items():
            facts |= {f"classes/{group}": classes, f"locations/{group}": lengths}
            if len(classes) <= MOST_CLASSES:
                dtype = np.uint16 if max(self.extent()) <= 1 << 16 else np.int32
                emit(f"{FOREGROUND}/{group}", "coords", coords.astype(dtype))
        return facts

    def extent(self) -> Extent:
        """D, H, W: of the image or a mask, else of the cube that point files state, else of all points."""
        if self.detail.extent is not None:
            return self.detail.extent
        stated = max(array.resolution for array in self.detail.arrays)
        if stated:
            return stated, stated, stated
        longest = np.zeros(3, np.int64)
        for array in self.detail.arrays:
            for index, _ in point_blocks(array):
                longest = np.maximum(longest, index.max(axis=0).astype(np.int64) + 1)
        depth, height, width = longest.tolist()
        return depth, height, width

    def read_planes(self, table: str, lo: int, hi: int | None, out: Mapping[str, AnyArray]) -> None:
        """Read planes ``lo:hi`` of this volume's row of ``volumes``, ``masks``, ``labels`` or ``windows``."""
        # What this volume lacks, and planes beyond its depth, stay zero. Windows that are files are read from
        # them, as `facts` has compared these with the image; all others in one pass of the image.
        if "extent" in out:
            out["extent"][0] = self.extent()
            return
        depth = self.extent()[0]
        hi = depth if hi is None else min(hi, depth)
        if hi <= lo:
            return
        image = self.detail.array("image")
        computed: dict[str, AnyArray] = {}
        for column, (block,) in out.items():
            name, _, form = column.rpartition("/")
            array = self.detail.array("image" if table == VOLUMES else f"{table}/{name}")
            is_scaled = table == WINDOWS and array is not None and array.kind.kind == "f"
            if array is not None and form != "mask":
                read_image(array, block, lo, hi)
            elif array is not None and (image is None or not is_scaled):
                read_bits(array, {name: inside(None, array.kind)}, {name: block}, lo, hi)
            elif table == WINDOWS:
                computed[name] = block
        if computed and image is not None:
            tests = {name: inside(self.windows[name], image.kind) for name in computed}
            read_bits(image, tests, computed, lo, hi)

    def read_window_points(self, name: str, lo: int, hi: int, out: Mapping[str, AnyArray]) -> None:
        """Read points ``lo:hi`` of a window, in C order."""
        sparse = self.detail.array(f"sparse/{name}")
        if sparse is not None:
            index, values = sorted_points(sparse)
            out["coords"][...] = index[lo:hi]
            out["values"][...] = values[lo:hi]
            return
        array = self.detail.array("image")
        counts = None
        if array is not None:
            test = inside(self.windows[name], array.kind)
            counts = self._count(array).planes[name] if lo else None
        else:
            array = self.detail.array(f"{WINDOWS}/{name}")
            if array is None:
                return
            test = inside(None, array.kind)
            counts = count_mask(array).planes if lo else None
        for part, first, flat, values in read_points(array, test, lo, hi, counts):
            point_coords(flat, first, array.shape, out["coords"][part])
            out["values"][part] = values

    def read_sdf(self, name: str, lo: int, hi: int, out: Mapping[str, AnyArray]) -> None:
        """Read points ``lo:hi`` of a distance field, in the file's order."""
        filled = 0
        for index, values in point_blocks(self.detail.named(SDF)[name], lo, hi):
            out["coords"][filled : filled + len(index)] = index
            out["values"][filled : filled + len(index)] = values
            filled += len(index)

    def _count(self, image: VolumeArray) -> ImageCounts:
        return count_image(image, self.windows, self.detail.named(WINDOWS))

    def _check_window(self, name: str, array: VolumeArray, image: VolumeArray | None) -> dict[str, int]:
        # The facts of a window's file, and raise if it is not a mask, or differs from the image
        if image is None:
            ones = count_mask(array)
            if ones.others and not ones.is_scaled:
                raise _not_a_mask(array, ones.others)
            count = {f"points/{name}": int(ones.planes.sum())}
            return count | {f"scaled/{name}": 1} if ones.is_scaled else count
        differing = self._count(image).differing[name]
        is_scaled = differing > 0 and count_mask(array).is_scaled
        window = self.windows[name]
        if is_scaled:
            differing = scaled_differences(image, array, window)
        if differing:
            message = f"differs from window {window} of {image.name} in {differing} voxels"
            cure = "make it again from this volume, or remove it: it is computed anyway"
            raise array.file.problem(message, cure, "window")
        return {f"scaled/{name}": 1} if is_scaled else {}

    def _label_problems(self, location: str, labels: NDArray[np.bool_] | None) -> list[Problem]:
        # Return a problem if a window is cut of an image that looks like a mask, and no file confirms it
        windows = [name for name in self.windows if self.detail.array(f"{WINDOWS}/{name}") is None]
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
        as_mask = f"with --exclude {shlex.quote(self.name)}"
        if options.issuperset(windows):
            as_mask = "without --window"
        cure = f"if it is a mask, the same command {as_mask}; if it is HU, with --values hu"
        return [Problem(location, message, cure, "values")]


def _count_classes(kind: str, label: VolumeArray) -> int:
    # Count voxels of a label or mask other than 0 and 1, and raise if they are floats
    foreign_voxels = count_mask(label).others
    if not foreign_voxels or label.kind.kind != "f":
        return foreign_voxels
    if kind == MASKS:
        raise _not_a_mask(label, foreign_voxels)
    message = f"is taken for a label by its name, but is {label.kind} and not a mask of 0 and 1"
    cure = "save classes as integers: labels.astype(np.uint8); rename it if it is a volume"
    raise label.file.problem(message, cure, "dtype")


def _not_a_mask(mask: VolumeArray, others: int) -> InputError:
    message = f"holds {others} values that are neither 0 nor 1: it is not a mask"
    cure = "save (values > 0).astype(np.uint8), or rename it to convert it as an image"
    return mask.file.problem(message, cure, "values")
