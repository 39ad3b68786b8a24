"""Read voxels, points and masks of one volume from its files."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.exclusion import ProblemCollector
from unistore.converters.common.label_map import LabelMap
from unistore.converters.ct.counting import (
    MaskComparison,
    Ones,
    VoxelCounts,
    cached_counts,
    cached_ones,
    scaled_differences,
)
from unistore.converters.ct.locations import MOST_CLASSES, Locations, locations_of
from unistore.converters.ct.points import (
    SDF_MEMBERS,
    SPARSE_MEMBERS,
    check_range,
    load_points,
    point_blocks,
    sort_points,
)
from unistore.converters.ct.slabs import read_image
from unistore.converters.ct.source import State, Voxels, arrays_of, state_of, voxels_of
from unistore.converters.ct.tables import Detail
from unistore.converters.ct.voxels import point_coords, read_bits, read_points
from unistore.converters.plugin import Array, Format, SourceFile
from unistore.converters.protocol import Emit, Facts
from unistore.errors import InputError, Problem
from unistore.schemas.ct.fields import FOREGROUND, LABELS, MASKS, SDF, VOLUMES, WINDOWS
from unistore.schemas.ct.voxels import inside
from unistore.schemas.ct.windows import Window, parse_window

Extent = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class VolumeReader:
    """Reads the volume of one source.

    Attributes
    ----------
    name, detail
        Of the source.
    file_of
        Gives a file by its number in the detail, and what opens it.
    labels
        How labels are numbered in the store; None: as in the files.
    windows
        Windows of the store, by name.
    options
        Options of the conversion.
    """

    name: str
    detail: Detail
    file_of: Callable[[int], tuple[Format, SourceFile]]
    labels: LabelMap | None
    windows: Mapping[str, Window]
    options: Mapping[str, Any]

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
        if image is not None and found is not None:
            counts |= {name: int(planes.sum()) for name, planes in found.counts.items()}
            collected.problems += self._label_problems(image.file.name, found.labels)
        for name, location in self._files(WINDOWS):
            with collected.attempt(location):
                if image is None or found is None:
                    counts[name] = _count_mask(self._voxels(f"{WINDOWS}/{name}"))
                else:
                    self._check_window(name, image, found.masks[name], counts[name])
        for name, location in self._files("sparse"):
            with collected.attempt(location), self._arrays(f"sparse/{name}") as arrays:
                index, values = load_points(arrays, SPARSE_MEMBERS)
                check_range([index], self._point_bounds(name), location)
                counts[name] = len(sort_points(index, values, location)[0])
        for kind in (MASKS, LABELS):
            for name, location in self._files(kind):
                with collected.attempt(location):
                    others[f"others/{kind}/{name}"] = _count_classes(kind, self._voxels(f"{kind}/{name}"))
        for name, location in self._files(SDF):
            with collected.attempt(location), self._arrays(f"{SDF}/{name}") as arrays:
                blocks = point_blocks(arrays, SDF_MEMBERS)
                check_range((index for index, _ in blocks), self._point_bounds(name), location)
        collected.check()
        numbers = {f"points/{name}": count for name, count in counts.items()} | others
        windows = [name for name, _ in self._files(WINDOWS)]
        scaled = [name for name in windows if _is_scaled(self._voxels(f"{WINDOWS}/{name}"))]
        numbers |= {f"scaled/{name}": 1 for name in scaled}
        numbers["nan"] = 0 if found is None else found.nan
        facts: dict[str, NDArray[Any]] = {name: np.array(count, np.int64) for name, count in numbers.items()}
        return facts | {"extent": np.array(self.extent())}

    def locations(self, most: int, emit: Emit) -> Facts:
        """Find and emit locations of every window, mask and label.

        Returns
        -------
        Facts
            Of each group that has voxels, ``classes/<group>`` (K,) and ``locations/<group>`` (K,), how many.
        """
        image = self._image
        found: dict[str, Locations] = {}
        if image is not None and self.windows:
            tests = {
                f"{WINDOWS}/{name}": inside(window, image.dtype) for name, window in self.windows.items()
            }
            found |= locations_of(image, tests, most)
        for kind in (WINDOWS, MASKS, LABELS):
            for name, _ in self._files(kind):
                group = f"{kind}/{name}"
                if group not in found:
                    voxels = self._voxels(group)
                    is_mask = kind == WINDOWS or voxels.dtype.kind == "f"
                    found |= locations_of(
                        voxels, {group: inside(None, voxels.dtype) if is_mask else None}, most
                    )
        facts: dict[str, NDArray[Any]] = {}
        for group, (classes, lengths, coords) in found.items():
            facts |= {f"classes/{group}": classes, f"locations/{group}": lengths}
            if len(classes) <= MOST_CLASSES:
                dtype = np.uint16 if max(self.extent()) <= 1 << 16 else np.int32
                emit(f"{FOREGROUND}/{group}", "coords", coords.astype(dtype))
        return facts

    def extent(self) -> Extent:
        """D, H, W: of the image or a mask, else of the cube that point files state, else of all points."""
        if self.detail.extent is not None:
            return self.detail.extent
        stated = max(self.detail.resolutions.values(), default=0)
        if stated:
            return stated, stated, stated
        longest = np.zeros(3, np.int64)
        for kind, members in (("sparse", SPARSE_MEMBERS), ("sdf", SDF_MEMBERS)):
            for name, _ in self._files(kind):
                with self._arrays(f"{kind}/{name}") as arrays:
                    for index, _ in point_blocks(arrays, members):
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
        image = self._image
        computed: dict[str, NDArray[Any]] = {}
        for column, (block,) in out.items():
            name, _, form = column.rpartition("/")
            array = "image" if table == VOLUMES else f"{table}/{name}"
            voxels = None if self.detail.number(array) is None else self._voxels(array)
            if voxels is not None and form != "mask":
                read_image(voxels, block, lo, hi)
            elif voxels is not None and (table != WINDOWS or image is None or voxels.dtype.kind != "f"):
                read_bits(voxels, {name: inside(None, voxels.dtype)}, {name: block}, lo, hi)
            elif table == WINDOWS and image is not None:
                computed[name] = block
        if computed and image is not None:
            tests = {name: inside(self.windows[name], image.dtype) for name in computed}
            read_bits(image, tests, computed, lo, hi)

    def read_window_points(self, name: str, lo: int, hi: int, out: Mapping[str, NDArray[Any]]) -> None:
        """Read points ``lo:hi`` of a window, in C order."""
        sparse = self.detail.number(f"sparse/{name}")
        if sparse is not None:
            opening, file = self.file_of(sparse)
            index, values = _sparse_points(file, opening, state_of([file.path]))
            out["coords"][...] = index[lo:hi]
            out["values"][...] = values[lo:hi]
            return
        voxels, window, counts = self._image, None, None
        if voxels is not None:
            window = self.windows[name]
            counts = self._count_image(voxels).counts[name] if lo else None
        else:
            voxels = self._voxels(f"windows/{name}")
            counts = _ones(voxels).counts if lo else None
        test = inside(window, voxels.dtype)
        for at, first, flat, values in read_points(voxels, test, lo, hi, counts):
            point_coords(flat, first, voxels.shape, out["coords"][at])
            out["values"][at] = values

    def read_sdf(self, name: str, lo: int, hi: int, out: Mapping[str, NDArray[Any]]) -> None:
        """Read points ``lo:hi`` of a distance field, in the file's order."""
        at = 0
        with self._arrays(f"{SDF}/{name}") as arrays:
            for index, values in point_blocks(arrays, SDF_MEMBERS, lo, hi):
                out["coords"][at : at + len(index)] = index
                out["values"][at : at + len(index)] = values
                at += len(index)

    def _check_window(self, name: str, image: Voxels, agreed: MaskComparison, count: int) -> None:
        """Raise if a window's file is not a mask, or differs from the image."""
        file = self._voxels(f"windows/{name}")
        differing = agreed.differing
        detail = f"it has {agreed.ones} ones, the volume {count} voxels inside"
        if agreed.others and _is_scaled(file):
            differing = scaled_differences(image, file, self.windows[name])
            detail = "it holds floats from 0 to 1, but not (value - low) / width"
        elif agreed.others:
            raise _not_a_mask(file, agreed.others)
        if differing:
            window = f"window {self.windows[name]} of {image.file.name}"
            message = f"differs from {window} in {differing} voxels: {detail}"
            cure = "make it again from this volume, or remove it: it is computed anyway"
            raise file.file.problem(message, cure, "window")

    def _label_problems(self, location: str, labels: NDArray[np.bool_] | None) -> list[Problem]:
        """Return a problem if a window is cut of an image that looks like a mask, and no file confirms it."""
        windows = [name for name in self.windows if self.detail.number(f"windows/{name}") is None]
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

    def _count_image(self, image: Voxels) -> VoxelCounts:
        """Counts of all windows in the image, and how it agrees with windows that are files, too."""
        masks = tuple((name, self._voxels(f"{WINDOWS}/{name}")) for name, _ in self._files(WINDOWS))
        state = state_of([image.file.path, *image.file.parts, *(mask.file.path for _, mask in masks)])
        return cached_counts(image, masks, tuple(self.windows.items()), state)

    def _point_bounds(self, name: str) -> Extent | None:
        """Bounds of a point file's indices: the cube that it states, else its volume; None: unknown."""
        stated = self.detail.resolutions.get(name, 0)
        return (stated, stated, stated) if stated else self.detail.extent

    @property
    def _image(self) -> Voxels | None:
        return None if self.detail.number("image") is None else self._voxels("image")

    def _files(self, kind: str) -> list[tuple[str, str]]:
        """Name of each file of a kind, and what messages call the file."""
        return [(name, self.detail.files[number]) for name, number in self.detail.named(kind).items()]

    def _voxels(self, array: str) -> Voxels:
        opening, file = self.file_of(self.detail.arrays.index(array))
        voxels = voxels_of(file, opening)
        if self.labels is None or not array.startswith(f"{LABELS}/"):
            return voxels
        return voxels.numbered(self.labels.numbering(file.path, file.name))

    def _arrays(self, array: str) -> AbstractContextManager[Mapping[str, Array]]:
        opening, file = self.file_of(self.detail.arrays.index(array))
        return arrays_of(file, opening)


def _ones(mask: Voxels) -> Ones:
    return cached_ones(mask, state_of([mask.file.path]))


def _is_scaled(window: Voxels) -> bool:
    """Whether a window came as floats scaled to 0…1."""
    return window.dtype.kind == "f" and _ones(window).scaled


def _count_mask(mask: Voxels) -> int:
    """Count ones of a mask, or voxels above 0 of a scaled window; raise if it is neither."""
    ones = _ones(mask)
    if ones.others and not ones.scaled:
        raise _not_a_mask(mask, ones.others)
    return int(ones.counts.sum())


def _count_classes(kind: str, label: Voxels) -> int:
    """Count voxels of a label or mask other than 0 and 1; raise if they are floats."""
    others = _ones(label).others
    if not others or label.dtype.kind != "f":
        return others
    if kind == MASKS:
        raise _not_a_mask(label, others)
    message = f"is taken for a label by its name, but is {label.dtype} and not a mask of 0 and 1"
    cure = "save classes as integers: labels.astype(np.uint8); rename it if it is a volume"
    raise label.file.problem(message, cure, "dtype")


def _not_a_mask(mask: Voxels, others: int) -> InputError:
    message = f"holds {others} values that are neither 0 nor 1: it is not a mask"
    cure = "save (values > 0).astype(np.uint8), or rename it to convert it as an image"
    return mask.file.problem(message, cure, "values")


@lru_cache(maxsize=1)
def _sparse_points(file: SourceFile, format: Format, state: State) -> tuple[NDArray[Any], NDArray[Any]]:  # noqa: ARG001
    """Points of a sparse window in C order, cached for the next shard of the same volume."""
    with arrays_of(file, format) as arrays:
        return sort_points(*load_points(arrays, SPARSE_MEMBERS), file.name)
