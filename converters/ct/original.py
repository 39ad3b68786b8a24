"""CT volumes beside their files: voxels by the `Format.original` of each, points by ``np.load``."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.exported import Values
from unistore.converters.common.originals import Compared, blocks_difference, difference
from unistore.converters.ct.export import Volume, volumes
from unistore.converters.ct.layouts import format_of
from unistore.converters.ct.source import Planes
from unistore.converters.ct.survey import scaled_tolerance
from unistore.converters.ct.tables import windows_of
from unistore.converters.protocol import Scan
from unistore.schemas.ct.fields import LABELS, MASKS, SDF, WINDOWS
from unistore.schemas.ct.windows import Window
from unistore.schemas.store_view import StoreView


class Originals:
    """Compares the sources of a CT store, one by one."""

    def __init__(self, store: StoreView, scan: Scan) -> None:
        self._store, self._scan = store, scan
        self._volumes = list(volumes(store))

    def compare(self, number: int) -> Iterator[Compared]:
        """The image, and every window, mask, label and distance field that came as a file."""
        source, volume = self._scan.sources[number], self._volumes[number]
        detail = source.detail

        def compared(file: int, values: int, found: str | None) -> Compared:
            path = source.files[file]
            return Compared(f"{source.name}: {path.name}", path, values, found)

        image = volume.stored()
        if detail["image"] is not None and image is not None:
            original = _opened(source.files[detail["image"]])
            found = blocks_difference(image, lambda lo, hi: original[lo:hi])
            yield compared(detail["image"], prod(image.shape), _shapes(image, original) or found)
        for name, file in detail["windows"].items():
            group, ones = f"{WINDOWS}/{name}", _opened(source.files[file])
            mask = volume.mask(group)
            if str(self._store.group(group)["values"]).startswith("as in"):
                found = blocks_difference(volume.scaled(group), partial(_planes, ones))
            elif ones[:0].dtype.kind == "f" and image is not None:
                found = _scaled_difference(image, ones, windows_of(self._scan)[name])
            else:
                found = _mask_difference(mask, ones)
            yield compared(file, prod(mask.shape), _shapes(mask, ones) or found)
        for family in (MASKS, LABELS):
            for name, file in detail[family].items():
                label, given = volume.stored_label(f"{family}/{name}"), _opened(source.files[file])
                found = _shapes(label, given) or blocks_difference(label, partial(_planes, given))
                yield compared(file, prod(label.shape), found)
        for name, file in detail["sparse"].items():
            coords, values = _points(source.files[file], "indices", "values")
            order = np.lexsort(coords.T[::-1])
            yield self._points(volume, f"{WINDOWS}/{name}", compared, file, coords[order], values[order])
        for name, file in detail["sdf"].items():
            coords, values = _points(source.files[file], "sparse_index", "sparse_sdf")
            yield self._points(volume, f"{SDF}/{name}", compared, file, coords, values)

    def left_out(self, number: int) -> list[str]:
        """Nothing: every array of a volume's files is in the store, and ``info.json`` as its text."""
        return []

    @staticmethod
    def _points(
        volume: Volume, group: str, compared: Any, file: int, coords: NDArray[Any], values: NDArray[Any]
    ) -> Compared:
        stored_coords, stored_values = (each.whole() for each in volume.points(group))
        found = difference(stored_coords, coords) or difference(stored_values, values)
        result: Compared = compared(file, coords.size + values.size, found)
        return result


def _opened(path: Path) -> Planes:
    found = format_of(path)
    assert found is not None
    return found.original(path)


def _points(path: Path, first: str, second: str) -> tuple[NDArray[Any], NDArray[Any]]:
    with np.load(path, allow_pickle=False) as members:
        return members[first], members[second].reshape(-1)


def _shapes(values: Values, original: Planes) -> str | None:
    if values.shape == original.shape:
        return None
    return f"shapes {values.shape} and {original.shape}"


def _planes(original: Planes, lo: int, hi: int) -> NDArray[Any]:
    return original[lo:hi]


def _scaled_difference(image: Values, scaled: Planes, window: Window) -> str | None:
    """Where an image, limited to a window and scaled to 0…1, differs from a file, or its mask does."""
    at = 0
    for block in image.blocks():
        given, exact = scaled[at : at + len(block)], block.astype(np.float64)
        expected = (np.clip(exact, window.low, window.high) - window.low) / window.width
        inside = (exact >= window.low) & (exact <= window.high)
        close = np.abs(expected - given) <= scaled_tolerance(given.dtype)
        if not (close | np.isnan(expected)).all() and not np.array_equal(inside, given):
            return f"planes {at} to {at + len(block)} differ"
        at += len(block)
    return None


def _mask_difference(mask: Values, ones: Planes) -> str | None:
    """Where a mask differs from the voxels that are not 0."""
    return blocks_difference(mask, lambda lo, hi: (ones[lo:hi] != 0).astype(np.uint8))
