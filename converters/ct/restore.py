"""The files of a CT volume as a store gives them back, to be compared with those of the source."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.exported import array_values
from unistore.converters.ct.points import MEMBERS
from unistore.converters.ct.scan import BY_FILE, Detail
from unistore.converters.ct.slabs import VolumeArray
from unistore.converters.ct.stored import Volume, volumes
from unistore.converters.ct.voxels import is_scaled_as
from unistore.converters.files.comparison import Restore, RestoredArray, RestoredFile, RestoredFiles
from unistore.converters.files.libraries import ONLY, OpenedByLibrary, open_npz
from unistore.converters.plugin import Facts
from unistore.converters.scan import Scan
from unistore.converters.seam.stored import open_original
from unistore.schemas.ct.fields import IMAGE, SDF, WINDOWS
from unistore.schemas.ct.windows import OWN_VALUES, Window, value_source
from unistore.schemas.indices import StoreView


def restore(store: StoreView, scan: Scan) -> Restore:
    """Restore the image, and every window, mask, label and distance field that came as a file."""
    all_volumes = list(volumes(store))
    windows = scan.shared["agreement"].windows

    def source(number: int) -> RestoredFiles:
        volume = all_volumes[number]
        detail: Detail = scan.sources.details[number]
        files: list[RestoredFile] = []
        left_out: list[str] = []
        for array in detail.arrays:
            kind, _, name = array.role.partition("/")
            path = Path(array.path)
            if kind in MEMBERS:
                files.append(_restored_points(volume, array, path))
                continue
            facts = _stated_facts(volume, detail) if kind == "image" else {}
            opening = partial(_open_voxels, array, facts)
            restored = RestoredArray(ONLY, volume.voxels(IMAGE if kind == "image" else array.role))
            if kind == WINDOWS and value_source(store.group(array.role)) not in OWN_VALUES:
                restored = restored._replace(of_file=_as_mask)
                if volume.dtype and array.kind.kind == "f":
                    differ = partial(_scaled_difference, windows[name])
                    restored = RestoredArray(ONLY, volume.voxels(IMAGE), differ=differ)
                    left_out.append(f"{array.role} scaled to 0…1 (the volume gives it)")
            if array.numbering is not None:
                restored = restored._replace(of_file=partial(array.numbering.stored, location=path.name))
            files.append(RestoredFile(path, [restored], opening, facts=facts))
        return RestoredFiles(files, left_out)

    return source


def _restored_points(volume: Volume, array: VolumeArray, path: Path) -> RestoredFile:
    """Return a window of points in C order, or a distance field."""
    kind, _, name = array.role.partition("/")
    group = f"{SDF if kind == SDF else WINDOWS}/{name}"
    arrays = [*map(RestoredArray, MEMBERS[kind], volume.points(group))]
    if kind != SDF:
        return RestoredFile(path, arrays, _open_sorted)
    if array.resolution:
        arrays.append(RestoredArray("resolution", array_values(np.array([array.resolution]))))
    return RestoredFile(path, arrays, _open_distances)


def _stated_facts(volume: Volume, detail: Detail) -> Facts:
    """Return what the store has of the geometry that the image's file states, and of its header."""
    facts = {name: volume.geometry.get(name) for name, by in detail.stated_by.items() if by == BY_FILE}
    return facts | {"header": volume.header} if detail.header else facts


@contextmanager
def _open_voxels(array: VolumeArray, facts: Facts, path: Path) -> Iterator[OpenedByLibrary]:
    """Open a file of voxels, whose array needs no name. Of its facts those that are stored are compared."""
    with open_original(array.opening, replace(array.file, known=None), path) as opened:
        (name,) = opened.names
        stated = {name: value for name, value in (opened.facts or {}).items() if name in facts}
        yield opened._replace(names=[ONLY], array=lambda _: opened.array(name), facts=stated)


def _as_mask(planes: NDArray[Any]) -> NDArray[np.uint8]:
    return np.asarray(planes != 0, np.uint8)


def _scaled_difference(window: Window, image: NDArray[Any], scaled: NDArray[Any], first: int) -> str | None:
    """Say where an image, limited to a window and scaled to 0…1, differs from a file, or its mask does."""
    if image.shape != scaled.shape:
        return f"shapes {image.shape} and {scaled.shape}"
    exact = image.astype(np.float64)
    expected = (np.clip(exact, window.low, window.high) - window.low) / window.width
    is_inside = (exact >= window.low) & (exact <= window.high)
    if is_scaled_as(expected, scaled).all() or np.array_equal(is_inside, scaled):
        return None
    return f"planes {first} to {first + len(image)} differ"


@contextmanager
def _open_sorted(path: Path) -> Iterator[OpenedByLibrary]:
    """Open points of a window in C order of their volume, as a store has them."""
    with open_npz(path) as opened:
        index = opened.array(MEMBERS["sparse"][0])
        order = np.lexsort(index.T[::-1])
        yield opened._replace(array=lambda name: opened.array(name)[order])


@contextmanager
def _open_distances(path: Path) -> Iterator[OpenedByLibrary]:
    """Open a distance field. Its resolution is one number for all axes."""

    def array(name: str) -> NDArray[Any]:
        values = opened.array(name)
        return np.atleast_1d(np.max(values)) if name == "resolution" else values

    with open_npz(path) as opened:
        yield opened._replace(array=array)
