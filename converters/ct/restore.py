"""The files of a CT volume as a store gives them back, to be compared with those of the source."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.exported import array_values
from unistore.converters.ct.counting import scaled_tolerance
from unistore.converters.ct.export import Volume, volumes
from unistore.converters.ct.layouts import format_of
from unistore.converters.ct.layouts.npz import SDF_MEMBERS, SPARSE_MEMBERS
from unistore.converters.ct.tables import windows_of
from unistore.converters.files.comparison import Restore, Restored, RestoredArray, RestoredFile
from unistore.converters.files.libraries import ONLY, Open, Opened, open_npz
from unistore.converters.scan import Scan
from unistore.schemas.ct.fields import LABELS, MASKS, SDF, WINDOWS
from unistore.schemas.ct.windows import OWN_VALUES, Window, value_source
from unistore.schemas.indices import StoreView


def restore(store: StoreView, scan: Scan) -> Restore:
    """Restore the image, and every window, mask, label and distance field that came as a file."""
    all_volumes = list(volumes(store))
    windows = windows_of(scan)

    def source(number: int) -> Restored:
        found, volume = scan.sources[number], all_volumes[number]
        detail = found.detail
        files: list[RestoredFile] = []
        left_out: list[str] = []

        def add(file: int, *arrays: RestoredArray, opening: Open | None = None) -> None:
            path = found.files[file]
            files.append(RestoredFile(path, arrays, opening or _opener(path)))

        image = volume.image()
        if detail["image"] is not None and image is not None:
            add(detail["image"], RestoredArray(ONLY, image))
        for name, file in detail["windows"].items():
            array, is_scaled = _window(volume, f"{WINDOWS}/{name}", found.files[file], windows[name])
            add(file, array)
            if is_scaled:
                left_out.append(f"windows/{name} scaled to 0…1 (the volume gives it)")
        for family in (MASKS, LABELS):
            for name, file in detail[family].items():
                add(file, RestoredArray(ONLY, volume.label(f"{family}/{name}")))
        for name, file in detail["sparse"].items():
            points = volume.points(f"{WINDOWS}/{name}")
            add(file, *map(RestoredArray, SPARSE_MEMBERS, points), opening=_open_sorted)
        for name, file in detail["sdf"].items():
            points = volume.points(f"{SDF}/{name}")
            arrays = [*map(RestoredArray, SDF_MEMBERS, points)]
            resolution = detail["resolution"].get(name)
            if resolution:
                arrays.append(RestoredArray("resolution", array_values(np.array([resolution]))))
            add(file, *arrays, opening=_open_distances)
        return Restored(files, left_out)

    return source


def _opener(path: Path) -> Open:
    found = format_of(path)
    assert found is not None
    return found.arrays


def _window(volume: Volume, group: str, path: Path, window: Window) -> tuple[RestoredArray, bool]:
    """A window that came as a file, and whether the store has no values of it, which were scaled."""
    if value_source(volume.store.group(group)) in OWN_VALUES:
        return RestoredArray(ONLY, volume.scaled(group)), False
    image = volume.image()
    with _opener(path)(path) as opened:
        planes = opened.array(ONLY)
        if planes.dtype.kind == "f" and image is not None:
            array = RestoredArray(ONLY, image, differ=partial(_scaled_difference, window))
            is_mask = all(np.isin(planes[at : at + 1], (0, 1)).all() for at in range(len(planes)))
            return array, not is_mask
    return RestoredArray(ONLY, volume.mask(group), of_file=_as_mask), False


def _as_mask(planes: NDArray[Any]) -> NDArray[np.uint8]:
    return np.asarray(planes != 0, np.uint8)


def _scaled_difference(window: Window, image: NDArray[Any], scaled: NDArray[Any], first: int) -> str | None:
    """Where an image, limited to a window and scaled to 0…1, differs from a file, or its mask does."""
    if image.shape != scaled.shape:
        return f"shapes {image.shape} and {scaled.shape}"
    exact = image.astype(np.float64)
    expected = (np.clip(exact, window.low, window.high) - window.low) / window.width
    inside = (exact >= window.low) & (exact <= window.high)
    close = np.abs(expected - scaled) <= scaled_tolerance(scaled.dtype)
    if (close | np.isnan(expected)).all() or np.array_equal(inside, scaled):
        return None
    return f"planes {first} to {first + len(image)} differ"


@contextmanager
def _open_sorted(path: Path) -> Iterator[Opened]:
    """Open points of a window in C order of their volume, as a store has them."""
    with open_npz(path) as opened:
        index = opened.array(SPARSE_MEMBERS[0])
        order = np.lexsort(index.T[::-1])
        yield opened._replace(array=lambda name: opened.array(name)[order])


@contextmanager
def _open_distances(path: Path) -> Iterator[Opened]:
    """Open a distance field; its resolution is one number for all axes."""

    def array(name: str) -> NDArray[Any]:
        values = opened.array(name)
        return np.atleast_1d(np.max(values)) if name == "resolution" else values

    with open_npz(path) as opened:
        yield opened._replace(array=array)
