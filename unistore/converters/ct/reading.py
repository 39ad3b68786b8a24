"""Read a volume from its files: counts of all its voxels, and rows of each table, padded with zeros."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from unistore.converters.ct.scan import Detail
from unistore.converters.ct.slabs import (
    VolumeFile,
    check_range,
    point_blocks,
    read_image,
    sorted_points,
)
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
from unistore.errors import AddOptions, Fix, InputError, Problem
from unistore.plugin import (
    Emit,
    Field,
    Openable,
    OwnForm,
    ProblemCollector,
    Scan,
    SourceArrays,
    count_of,
    little_endian,
)
from unistore.schemas.ct.fields import FOREGROUND, LABELS, MASKS, SDF, VOLUMES, WINDOWS
from unistore.schemas.ct.voxels import VoxelTest, inside
from unistore.schemas.ct.windows import Window, parse_window
from unistore.system.types import AnyArray

Extent = tuple[int, int, int]


class VolumeReader:
    """Reads the volume of one source."""

    def __init__(self, scan: Scan, source: int, files: Sequence[Openable]) -> None:
        detail: Detail = scan.sources.details[source]
        self._name = scan.sources.names[source]
        self._extent = detail.extent
        self._windows: Mapping[str, Window] = scan.shared["agreement"].windows  # of the store
        self._options = scan.options
        self._arrays: dict[str, VolumeFile] = {}  # by role
        for array, file in zip(detail.arrays, files, strict=True):
            self._arrays[array.role] = VolumeFile.of(array, file)

    def prepared(self) -> SourceArrays:
        """Read everything once and return counts.

        Returns
        -------
        mapping of str to int64 array
            ``points/<window>`` (); ``nan`` (); ``extent`` (3,); ``scaled/<window>`` () for windows that
            came as floats scaled to 0…1; ``others/<group>`` (), the voxels of a label or mask that are
            neither 0 nor 1.

        Raises
        ------
        InputError
            If values have problems. It contains all problems of the volume.
        """
        collected = ProblemCollector()
        numbers = {f"points/{name}": 0 for name in self._windows} | {"nan": 0}
        image = self._arrays.get("image")
        if image is not None:
            counts = self._count(image)
            numbers |= {f"points/{name}": int(planes.sum()) for name, planes in counts.planes.items()}
            numbers["nan"] = counts.nan
            collected.problems += self._value_problems(image.name, counts.unlike_hu)
        for array in self._arrays.values():
            name = array.role.partition("/")[2]
            with collected.attempt(array.name):
                if array.form == WINDOWS:
                    numbers |= self._check_window(name, array, image)
                elif array.form in (MASKS, LABELS):
                    numbers[f"others/{array.role}"] = _count_classes(array)
                elif array.is_points:
                    edge = array.resolution
                    check_range(array, (edge, edge, edge) if edge else self._extent)
                if array.form == "sparse":
                    numbers[f"points/{name}"] = len(sorted_points(array)[0])
        collected.check()
        prepared: dict[str, AnyArray] = {name: np.array(count, np.int64) for name, count in numbers.items()}
        return prepared | {"extent": np.array(self.extent())}

    def locations(self, most: int, emit: Emit) -> SourceArrays:
        """Find and emit locations of every window, mask and label.

        Returns
        -------
        SourceArrays
            Of each group that has voxels, ``classes/<group>`` (K,) and ``locations/<group>`` (K,), how many.
        """
        image = self._arrays.get("image")
        located: dict[str, Locations] = {}
        if image is not None and self._windows:
            tests: dict[str, VoxelTest] = {}
            for name, window in self._windows.items():
                tests[f"{WINDOWS}/{name}"] = inside(window, image.kind)
            located |= locations_of(image, tests, most)
        for array in self._arrays.values():
            if array.form in (WINDOWS, MASKS, LABELS) and array.role not in located:
                is_mask = array.form == WINDOWS or array.kind.kind == "f"
                test = inside(None, array.kind) if is_mask else None
                located |= locations_of(array, {array.role: test}, most)
        prepared: dict[str, AnyArray] = {}
        for group, (classes, lengths, coords) in located.items():
            prepared |= {f"classes/{group}": classes, f"locations/{group}": lengths}
            if len(classes) <= MOST_CLASSES:
                dtype = np.uint16 if max(self.extent()) <= 1 << 16 else np.int32
                emit(f"{FOREGROUND}/{group}", "coords", coords.astype(dtype))
        return prepared

    def extent(self) -> Extent:
        """D, H, W: of the image or a mask, else of the cube that point files state, else of all points."""
        if self._extent is not None:
            return self._extent
        stated = max(array.resolution for array in self._arrays.values())
        if stated:
            return stated, stated, stated
        longest = np.zeros(3, np.int64)
        for array in self._arrays.values():
            for index, _ in point_blocks(array):
                longest = np.maximum(longest, index.max(axis=0).astype(np.int64) + 1)
        depth, height, width = longest.tolist()
        return depth, height, width

    def read_rows(self, table: str, lo: int, hi: int, out: Mapping[str, AnyArray]) -> None:
        """Read the row of a table of volumes, masks, labels or windows, or points of a window or field."""
        if hi <= lo:
            return
        kind, _, name = table.partition("/")
        if not name:
            self.read_planes(table, 0, None, out)
        elif kind == SDF:
            self._read_distances(name, lo, hi, out)
        else:
            self._read_window_points(name, lo, hi, out)

    def read_planes(self, table: str, lo: int, hi: int | None, out: Mapping[str, AnyArray]) -> None:
        """Read planes ``lo:hi`` of this volume's row of ``volumes``, ``masks``, ``labels`` or ``windows``.

        Arrays that the volume does not have, and planes beyond its depth, stay zero. Windows that are
        files are read from them; `prepared` has compared these with the image. All others are computed in
        one pass of the image.
        """
        if "extent" in out:
            out["extent"][0] = self.extent()
            return
        depth = self.extent()[0]
        hi = depth if hi is None else min(hi, depth)
        if hi <= lo:
            return
        image = self._arrays.get("image")
        computed: dict[str, AnyArray] = {}
        for column, (block,) in out.items():
            name, _, form = column.rpartition("/")
            array = self._arrays.get("image" if table == VOLUMES else f"{table}/{name}")
            is_scaled = table == WINDOWS and array is not None and array.kind.kind == "f"
            if array is not None and form != "mask":
                read_image(array, block, lo, hi)
            elif array is not None and (image is None or not is_scaled):
                read_bits(array, {name: inside(None, array.kind)}, {name: block}, lo, hi)
            elif table == WINDOWS:
                computed[name] = block
        if computed and image is not None:
            tests = {name: inside(self._windows[name], image.kind) for name in computed}
            read_bits(image, tests, computed, lo, hi)

    def _read_window_points(self, name: str, lo: int, hi: int, out: Mapping[str, AnyArray]) -> None:
        """Read points ``lo:hi`` of a window, in C order."""
        sparse = self._arrays.get(f"sparse/{name}")
        if sparse is not None:
            index, values = sorted_points(sparse)
            out["coords"][...] = index[lo:hi]
            out["values"][...] = values[lo:hi]
            return
        array = self._arrays.get("image")
        counts = None
        if array is not None:
            test = inside(self._windows[name], array.kind)
            counts = self._count(array).planes[name] if lo else None
        else:
            array = self._arrays.get(f"{WINDOWS}/{name}")
            if array is None:
                return
            test = inside(None, array.kind)
            counts = count_mask(array).planes if lo else None
        for part, first, flat, values in read_points(array, test, lo, hi, counts):
            point_coords(flat, first, array.shape, out["coords"][part])
            out["values"][part] = values

    def _read_distances(self, name: str, lo: int, hi: int, out: Mapping[str, AnyArray]) -> None:
        """Read points ``lo:hi`` of a distance field, in the file's order."""
        first = 0
        for index, values in point_blocks(self._arrays[f"{SDF}/{name}"], lo, hi):
            rows = slice(first, first + len(index))
            out["coords"][rows] = index
            out["values"][rows] = values
            first = rows.stop

    def _count(self, image: VolumeFile) -> ImageCounts:
        files = [array for array in self._arrays.values() if array.form == WINDOWS]
        by_window = {array.role.removeprefix(f"{WINDOWS}/"): array for array in files}
        return count_image(image, self._windows, by_window)

    def _check_window(self, name: str, array: VolumeFile, image: VolumeFile | None) -> dict[str, int]:
        """The counts of a window's file, and raise if it is not a mask, or differs from the image."""
        if image is None:
            ones = count_mask(array)
            if ones.others and not ones.is_scaled:
                raise _not_a_mask(array, ones.others)
            count = {f"points/{name}": int(ones.planes.sum())}
            return count | {f"scaled/{name}": 1} if ones.is_scaled else count
        differing = self._count(image).differing[name]
        is_scaled = differing > 0 and count_mask(array).is_scaled
        window = self._windows[name]
        if is_scaled:
            differing = scaled_differences(image, array, window)
        if differing:
            message = f"differs from the window {window} of {image.name} in {count_of(differing, 'voxel')}"
            fix = "remove it, as the window is computed anyway", "make it again from this volume"
            raise array.file.problem(message, fix, "window")
        return {f"scaled/{name}": 1} if is_scaled else {}

    def _value_problems(self, location: str, unlike_hu: str | None) -> list[Problem]:
        """Return a problem if a window is cut of an image that is not of HU, and no file confirms it."""
        windows = [name for name in self._windows if self._arrays.get(f"{WINDOWS}/{name}") is None]
        if unlike_hu is None or not windows or self._options["values"] == "hu":
            return []
        message = f"{unlike_hu}; windows need HU: {', '.join(windows)}"
        # Windows that other volumes have as files are cut without the option, too
        otherwise: Fix = AddOptions(("--exclude", self._name), "if it is a mask or was scaled")
        if {parse_window(text).name for text in self._options["window"]}.issuperset(windows):
            otherwise = "remove --window if it is a mask or was scaled"
        return [
            Problem(location, message, (otherwise, AddOptions(("--values", "hu"), "if it is HU")), "values")
        ]


def own_forms(detail: Detail, table: str, fields: Mapping[str, Field]) -> dict[str, OwnForm]:
    """Return the forms of the voxels and distances that a volume has itself, see `SourceReader.own`.

    Windows are its own where it has no image that they are cut of.
    """
    kind, _, of_points = table.partition("/")
    forms: dict[str, OwnForm] = {}
    if kind == FOREGROUND or (kind == WINDOWS and detail.array("image") is not None):
        return forms
    for column, field in fields.items():
        name, _, form = column.rpartition("/")
        role = {VOLUMES: "image"}.get(kind, table if of_points else f"{table}/{name}")
        array = detail.array(role) or detail.array(f"sparse/{of_points}")
        if column in ("extent", "coords"):
            forms[column] = OwnForm("<i4", field.row_shape)
        elif array is not None:
            # classes that are numbered anew may not fit the dtype of the file
            dtype = little_endian(array.kind.name if array.numbering is None else "int64")
            shape = () if of_points else array.shape
            restore = _voxels if form == "mask" else None
            forms[column] = OwnForm(dtype, shape, restore, f"{table}/{name}" if name else "")
    return forms


def _voxels(bits: AnyArray) -> AnyArray:
    return np.unpackbits(bits, axis=-1, bitorder="little")


def _count_classes(label: VolumeFile) -> int:
    """Count voxels of a label or mask other than 0 and 1, and raise if they are floats."""
    foreign_voxels = count_mask(label).others
    if not foreign_voxels or label.kind.kind != "f":
        return foreign_voxels
    if label.form == MASKS:
        raise _not_a_mask(label, foreign_voxels)
    message = f"is read as a label because of its name, but contains {label.kind} values other than 0 and 1"
    fix = "save classes as integers, for example labels.astype(np.uint8)", "rename it if it is a volume"
    raise label.file.problem(message, fix, "dtype")


def _not_a_mask(mask: VolumeFile, others: int) -> InputError:
    message = f"is not a mask: {count_of(others, 'value')} differ from 0 and 1"
    fix = "save (values > 0).astype(np.uint8)", "rename it to convert it as an image"
    return mask.file.problem(message, fix, "values")
