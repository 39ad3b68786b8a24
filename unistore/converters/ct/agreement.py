"""What the volumes of a store have in common, or the problems that keep them from being one store."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from unistore.converters.ct.options import CtOptions
from unistore.converters.ct.scan import ScannedVolume
from unistore.converters.ct.slabs import VolumeArray
from unistore.errors import AddOptions, InputError, Problem
from unistore.plugin import count_of, natural_key, promote
from unistore.schemas.ct.fields import LABELS, MASKS, SDF, WINDOWS
from unistore.schemas.ct.windows import Window

CLASSES = (MASKS, LABELS)

Volumes = Sequence[ScannedVolume]


class Agreement(NamedTuple):
    """What all volumes of one store have in common. Dtypes are native names that hold every value exactly.

    Attributes
    ----------
    image
        Dtype of the images. Empty: no volume has one.
    shape
        Largest depth, height and width.
    windows
        Windows by name: those of the options, then those of files.
    values
        Dtype of the values of each window's points, and of each ``sdf/<name>``.
    scaled
        The same of windows that files have as floats, if it turns out that these are scaled to 0…1.
    classes
        Dtype of ``masks/<name>`` and ``labels/<name>``. Floats count as bool: they may hold only 0 and 1.
    class_names
        Names of the values of labels, of the label map or of ``dataset.json``, by the number as text.
    """

    image: str
    shape: tuple[int, int, int]
    windows: Mapping[str, Window]
    values: Mapping[str, str]
    scaled: Mapping[str, str]
    classes: Mapping[str, str]
    class_names: Mapping[str, str]


def agree(volumes: Volumes, options: CtOptions) -> Agreement:
    """Return what all volumes have in common.

    Raises
    ------
    InputError
        With every contradiction between volumes.
    """
    problems = [
        *_missing_images(volumes),
        *_unlike_windows(volumes, options.windows),
        *_unlike_class_names(volumes),
    ]
    dtypes = _Dtypes(volumes)
    image = dtypes.joined(dtypes.of("image"), "volumes")
    windows = _all_windows(volumes, options.windows)
    values = dict.fromkeys(windows, image)
    scaled: dict[str, str] = {}
    if not image:
        brought = set(chain.from_iterable(volume.windows for volume in volumes))
        for name in windows:
            has_points = bool(dtypes.of(f"sparse/{name}"))
            problems += _unstorable_window(name, brought, options.sparse, has_points=has_points)
            values[name], scaled[name] = dtypes.of_window(name)
    for role in roles_of(volumes, (SDF,)):
        values[role] = dtypes.joined(dtypes.of(role), role)
    classes = {role: dtypes.of_classes(role) for role in roles_of(volumes, CLASSES)}
    problems += dtypes.problems
    if problems:
        raise InputError(problems)
    return Agreement(
        image=image,
        shape=_largest_extent(volumes),
        windows=windows,
        values=values,
        scaled={name: dtype for name, dtype in scaled.items() if dtype},
        classes=classes,
        class_names=_class_names(volumes),
    )


def arrays_of(volumes: Volumes, role: str) -> Iterator[tuple[ScannedVolume, VolumeArray]]:
    """Yield the volumes that have an array of a role, with the array."""
    for volume in volumes:
        array = volume.detail.array(role)
        if array is not None:
            yield volume, array


def roles_of(volumes: Volumes, kinds: Sequence[str]) -> list[str]:
    """Return the roles of some kinds that any volume has: by kind, then in natural order."""
    roles: list[str] = []
    arrays = list(chain.from_iterable(volume.detail.arrays for volume in volumes))
    for kind in kinds:
        roles += _in_natural_order({array.role for array in arrays if array.form == kind})
    return roles


def _in_natural_order(names: Iterable[str]) -> list[str]:
    return sorted(names, key=natural_key)


class _Dtypes:
    """Dtypes of the arrays of volumes, and those that hold the values of several."""

    def __init__(self, volumes: Volumes) -> None:
        self._volumes = volumes
        self.problems: list[Problem] = []  # of dtypes that none holds together

    def of(self, role: str) -> dict[str, str]:
        """Return the dtypes of a role, each with the name of the first volume that has it."""
        dtypes: dict[str, str] = {}
        for volume, array in arrays_of(self._volumes, role):
            dtypes.setdefault(array.dtype, volume.name)
        return dtypes

    def joined(self, dtypes: Mapping[str, str], what: str) -> str:
        """Return the smallest dtype that holds all values of others exactly. Empty: none does, or of none."""
        if not dtypes:
            return ""
        dtype = promote(list(map(np.dtype, dtypes)))
        if dtype is not None:
            return dtype.name
        shown = ", ".join([f"{np.dtype(dtype)} ({name})" for dtype, name in dtypes.items()])
        message = f"no dtype can store the values of all volumes exactly: {shown}"
        fix = "save all files with the same dtype", "convert them separately"
        self.problems.append(Problem(what, message, fix, "dtype"))
        return ""

    def of_window(self, name: str) -> tuple[str, str]:
        """Return the dtype of the points of a window without images, and that if its floats are scaled.

        The second is empty if no volume has the window as floats.
        """
        files = self.of(f"{WINDOWS}/{name}")
        points = self.of(f"sparse/{name}")
        if files:
            points["|u1"] = next(iter(files.values()))  # the points of a mask have the value 1
        values = self.joined(points, f"window {name!r}")
        floats = {dtype: volume for dtype, volume in files.items() if np.dtype(dtype).kind == "f"}
        scaled = self.joined(points | floats, f"window {name!r}") if floats else ""
        return values, scaled

    def of_classes(self, role: str) -> str:
        """Return the dtype of a mask or label."""
        dtypes = {}
        for dtype, name in self.of(role).items():
            is_float = np.dtype(dtype).kind == "f"
            dtypes["|b1" if is_float else dtype] = name
        return self.joined(dtypes, role)


def _all_windows(volumes: Volumes, chosen: Sequence[Window]) -> dict[str, Window]:
    """Return the windows that the user asks for, then those of files in natural order."""
    windows = {window.name: window for window in chosen}
    brought: dict[str, Window] = {}
    for volume in volumes:
        brought |= volume.windows
    for name in _in_natural_order(brought):
        windows.setdefault(name, brought[name])
    return windows


def _largest_extent(volumes: Volumes) -> tuple[int, int, int]:
    extents = [volume.detail.extent for volume in volumes if volume.detail.extent]
    depth, height, width = np.array(extents or [(0, 0, 0)]).max(axis=0).tolist()
    return depth, height, width


def _class_names(volumes: Volumes) -> dict[str, str]:
    names: dict[str, str] = {}
    for volume in volumes:
        names |= volume.classes
    return dict(sorted(names.items(), key=lambda item: int(item[0])))


def _missing_images(volumes: Volumes) -> Iterator[Problem]:
    without = [volume.name for volume in volumes if volume.image is None]
    if len(without) == len(volumes):
        return
    others = count_of(len(volumes) - len(without), "other volume")
    message = f"has no image, unlike {others}"
    fix = "add ct_original.npy", "convert windows without images separately"
    for name in without:
        yield Problem(name, message, fix, "missing", name)


def _unlike_windows(volumes: Volumes, chosen: Sequence[Window]) -> Iterator[Problem]:
    """Yield a problem for each window of another width or level than the first of its name."""
    first_use = {window.name: (window, "--window") for window in chosen}
    for volume in volumes:
        for name, window in volume.windows.items():
            first, owner = first_use.setdefault(name, (window, volume.name))
            if first != window:
                message = f"its files have the window {window}, but {owner} has {first}"
                fix = f"give --window {window}" if owner == "--window" else "rename one of them"
                yield Problem(volume.name, message, fix, "window")


def _unlike_class_names(volumes: Volumes) -> Iterator[Problem]:
    """Yield a problem for each dataset that gives a number another name than a dataset before it."""
    first_use: dict[str, tuple[str, str]] = {}
    refused: set[str] = set()
    for volume in volumes:
        for number, name in volume.classes.items():
            first, owner = first_use.setdefault(number, (name, volume.name))
            if first != name and volume.dataset and volume.dataset not in refused:
                refused.add(volume.dataset)
                message = f"label {number} is {name!r}, but {first!r} in {owner}"
                fix = "number the labels of both alike with --label-map", "convert these data sets separately"
                yield Problem(volume.dataset, message, fix, "label")


def _unstorable_window(
    name: str, brought: Collection[str], sparse: str, *, has_points: bool
) -> Iterator[Problem]:
    """Yield the problem of a window that cannot be stored without images."""
    if name not in brought:
        message = "no file contains it, and there are no images to compute it from"
        fix = "add ct_original.npy", "remove --window"
        yield Problem(f"window {name!r}", message, fix, "missing")
    elif has_points and sparse == "mask":
        yield lost_values(name)


def lost_values(window: str) -> Problem:
    """Return the problem of points with values that would be stored as a mask."""
    message = "its points have values, which a mask cannot store"
    fix = AddOptions(("--sparse", "auto")), AddOptions(("--sparse", "coords"))
    return Problem(f"window {window!r}", message, fix, "option")
