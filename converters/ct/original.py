"""CT volumes beside their files: voxels by the `Format.original` of each, points by ``np.load``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.exported import Values
from unistore.converters.common.left_out import names_without_numbers
from unistore.converters.common.originals import Compared, blocks_difference, difference
from unistore.converters.ct.counting import scaled_tolerance
from unistore.converters.ct.export import volumes
from unistore.converters.ct.layouts import format_of
from unistore.converters.ct.layouts.npz import SDF_MEMBERS, SPARSE_MEMBERS
from unistore.converters.ct.source import Planes
from unistore.converters.ct.tables import windows_of
from unistore.converters.protocol import Scan
from unistore.errors import Location
from unistore.schemas.ct.fields import LABELS, MASKS, SDF, WINDOWS
from unistore.schemas.ct.windows import OWN_VALUES, Window, value_source
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
            return Compared(Location(source.name, path.name), path, values, found)

        image = volume.stored()
        if detail["image"] is not None and image is not None:
            found = _difference(image, _opened(source.files[detail["image"]]))
            yield compared(detail["image"], prod(image.shape), found)
        for name, file in detail["windows"].items():
            group, ones = f"{WINDOWS}/{name}", _opened(source.files[file])
            if value_source(self._store.group(group)) in OWN_VALUES:
                found = _difference(volume.scaled(group), ones)
            elif ones[:0].dtype.kind == "f" and image is not None:
                found = _scaled_difference(image, ones, windows_of(self._scan)[name])
            else:
                found = _difference(volume.mask(group), ones, lambda block: (block != 0).astype(np.uint8))
            yield compared(file, prod(volume.extent), found)
        for family in (MASKS, LABELS):
            for name, file in detail[family].items():
                found = _difference(volume.stored_label(f"{family}/{name}"), _opened(source.files[file]))
                yield compared(file, prod(volume.extent), found)
        for family, kind, members in ((WINDOWS, "sparse", SPARSE_MEMBERS), (SDF, "sdf", SDF_MEMBERS)):
            for name, file in detail[kind].items():
                with np.load(source.files[file], allow_pickle=False) as archive:
                    coords, values = archive[members[0]], archive[members[1]].reshape(-1)
                if family == WINDOWS:
                    order = np.lexsort(coords.T[::-1])
                    coords, values = coords[order], values[order]
                stored_coords, stored_values = (each.whole() for each in volume.points(f"{family}/{name}"))
                found = difference(stored_coords, coords) or difference(stored_values, values)
                yield compared(file, coords.size + values.size, found)

    def left_out(self, number: int) -> list[str]:
        """Return arrays of files of points that are not stored, and windows that the image gives scaled."""
        source = self._scan.sources[number]
        detail = source.detail
        names = []
        for kind, members in (("sparse", SPARSE_MEMBERS), ("sdf", SDF_MEMBERS)):
            for name, file in detail[kind].items():
                path = source.files[file]
                resolved = kind == "sdf" and detail["resolution"].get(name)
                stored = {*members, *(["resolution"] if resolved else [])}
                with np.load(path, allow_pickle=False) as archive:
                    names += [f"{path.name}: {member}" for member in archive.files if member not in stored]
        if detail["image"] is not None:
            for name, file in detail["windows"].items():
                if _is_scaled(_opened(source.files[file])):
                    names.append(f"windows/{name} scaled to 0…1 (the volume gives it)")
        return names_without_numbers(names)


def _is_scaled(window: Planes) -> bool:
    """Return whether a window has other values than 0 and 1."""
    if window[:0].dtype.kind != "f":
        return False
    planes = (window[at : at + 1] for at in range(window.shape[0]))
    return any(not np.isin(plane, (0, 1)).all() for plane in planes)


def _opened(path: Path) -> Planes:
    found = format_of(path)
    assert found is not None
    return found.original(path)


def _difference(
    values: Values, original: Planes, convert: Callable[[NDArray[Any]], NDArray[Any]] = np.asarray
) -> str | None:
    if values.shape != original.shape:
        return f"shapes {values.shape} and {original.shape}"
    return blocks_difference(values, lambda lo, hi: convert(original[lo:hi]))


def _scaled_difference(image: Values, scaled: Planes, window: Window) -> str | None:
    """Where an image, limited to a window and scaled to 0…1, differs from a file, or its mask does."""
    if image.shape != scaled.shape:
        return f"shapes {image.shape} and {scaled.shape}"
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
