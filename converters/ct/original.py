"""CT volumes beside their files: voxels by the `Format.original` of each, points by ``np.load``."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.comparing import blocks_difference, difference
from unistore.converters.common.exported import Values
from unistore.converters.common.originals import Compared
from unistore.converters.ct.export import Volume, volumes
from unistore.converters.ct.layouts import format_of
from unistore.converters.ct.source import Planes
from unistore.converters.protocol import Scan
from unistore.schemas.ct.fields import LABELS, MASKS, SDF, WINDOWS
from unistore.schemas.store_view import StoreView

__all__ = ["Originals"]


class Originals:
    """Compares the sources of a CT store, one by one."""

    def __init__(self, store: StoreView, scan: Scan) -> None:
        self._scan = scan
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
            mask = volume.mask(f"{WINDOWS}/{name}")
            ones = _opened(source.files[file])
            found = _shapes(mask, ones) or _mask_difference(mask, ones)
            yield compared(file, prod(mask.shape), found)
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


def _mask_difference(mask: Values, ones: Planes) -> str | None:
    """Where a mask differs from the voxels that are not 0."""
    return blocks_difference(mask, lambda lo, hi: (ones[lo:hi] != 0).astype(np.uint8))
