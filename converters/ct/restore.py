"""The files of a CT volume as a store gives them back, to be compared with those of the source."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.exported import array_values
from unistore.converters.common.label_map import recorded_map
from unistore.converters.ct.counting import scaled_tolerance
from unistore.converters.ct.export import Volume, volumes
from unistore.converters.ct.family import Ct
from unistore.converters.ct.names import slices_of
from unistore.converters.ct.points import SDF_MEMBERS, SPARSE_MEMBERS
from unistore.converters.ct.scan import BY_FILE
from unistore.converters.ct.tables import Detail, windows_of
from unistore.converters.files.comparison import Restore, Restored, RestoredArray, RestoredFile
from unistore.converters.files.libraries import ONLY, Open, Opened, open_npz
from unistore.converters.plugin import Facts, Format, SourceFile
from unistore.converters.scan import Scan
from unistore.converters.seam.formats import formats_for
from unistore.converters.seam.stored import open_original
from unistore.schemas.ct.fields import HEADER, LABELS, SDF, WINDOWS
from unistore.schemas.ct.geometry import read_geometry
from unistore.schemas.ct.windows import OWN_VALUES, Window, value_source
from unistore.schemas.indices import StoreView


def restore(store: StoreView, scan: Scan) -> Restore:
    """Restore the image, and every window, mask, label and distance field that came as a file."""
    all_volumes = list(volumes(store))
    windows = windows_of(scan)
    labels = recorded_map(scan.options)
    headers = store.text(HEADER) if store.has(f"{HEADER}/data") else [""] * len(all_volumes)
    formats = {kind.name: kind for kind in formats_for(Ct())}

    def source(number: int) -> Restored:
        volume = all_volumes[number]
        detail: Detail = scan.sources.details[number]
        files: list[RestoredFile] = []
        left_out: list[str] = []
        read = zip(detail.arrays, detail.formats, map(Path, scan.sources.paths(number)), strict=True)
        for array, format_name, path in read:
            kind, _, name = array.partition("/")
            if kind == "sparse":
                points = volume.points(f"{WINDOWS}/{name}")
                files.append(RestoredFile(path, [*map(RestoredArray, SPARSE_MEMBERS, points)], _open_sorted))
            elif kind == SDF:
                files.append(_restored_field(volume, name, path, detail.resolutions.get(name, 0)))
            elif format_name:
                facts = _stated_facts(volume, detail, headers[number]) if array == "image" else {}
                parts = slices_of(detail.arrays, scan.sources.paths(number)) if array == "image" else ()
                opening = partial(_open_voxels, formats[format_name], facts, parts)
                if kind == WINDOWS:
                    restored, is_scaled = _window(volume, array, path, windows[name], opening)
                    left_out += [f"{array} scaled to 0…1 (the volume gives it)"] * is_scaled
                else:
                    restored = _restored_voxels(volume, array)
                    if labels is not None and kind == LABELS:
                        numbering = labels.numbering(path, path.name)
                        restored = restored._replace(of_file=partial(numbering.stored, location=path.name))
                files.append(RestoredFile(path, [restored], opening, facts=facts))
        return Restored(files, left_out)

    return source


def _restored_voxels(volume: Volume, array: str) -> RestoredArray:
    """Image, mask or label."""
    image = volume.image() if array == "image" else None
    return RestoredArray(ONLY, volume.label(array) if image is None else image)


def _restored_field(volume: Volume, name: str, path: Path, resolution: int) -> RestoredFile:
    """A distance field; `resolution`: edge of its cube, or 0."""
    arrays = [*map(RestoredArray, SDF_MEMBERS, volume.points(f"{SDF}/{name}"))]
    if resolution:
        arrays.append(RestoredArray("resolution", array_values(np.array([resolution]))))
    return RestoredFile(path, arrays, _open_distances)


def _stated_facts(volume: Volume, detail: Detail, header: str) -> Facts:
    """Return what the store has of the geometry that the image's file states, and of its header."""
    geometry = asdict(read_geometry(volume.store, volume.number))
    facts: dict[str, Any] = {name: geometry[name] for name, by in detail.stated_by.items() if by == BY_FILE}
    if detail.header:
        facts["header"] = json.loads(header)
    return facts


@contextmanager
def _open_voxels(format: Format, facts: Facts, parts: tuple[Path, ...], path: Path) -> Iterator[Opened]:
    """Open a file of voxels, whose array needs no name; of its facts those that are stored are compared."""
    with open_original(format, SourceFile(path, path.name, parts=parts), path) as opened:
        (name,) = opened.names
        stated = {name: value for name, value in (opened.facts or {}).items() if name in facts}
        yield opened._replace(names=[ONLY], array=lambda _: opened.array(name), facts=stated)


def _window(
    volume: Volume, group: str, path: Path, window: Window, opening: Open
) -> tuple[RestoredArray, bool]:
    """A window that came as a file, and whether the store has no values of it, which were scaled."""
    if value_source(volume.store.group(group)) in OWN_VALUES:
        return RestoredArray(ONLY, volume.scaled(group)), False
    image = volume.image()
    with opening(path) as opened:
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
