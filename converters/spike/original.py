"""Comparison of a spike store with its source files, read by `Format.original` and OpenCV."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.left_out import names_without_numbers
from unistore.converters.common.originals import Compared, difference
from unistore.converters.protocol import Scan
from unistore.converters.spike.export import frames
from unistore.converters.spike.frames import IMAGE_ROLES
from unistore.converters.spike.images import read_image_header
from unistore.converters.spike.layouts import format_of
from unistore.errors import Location
from unistore.schemas.spike.fields import FRAMES, voxel_path
from unistore.schemas.store_view import StoreView


class Originals:
    """Compares the sources of a spike store, one by one."""

    def __init__(self, store: StoreView, scan: Scan) -> None:
        self._scan = scan
        self._store = store
        self._frames = list(frames(store))
        self._flip = bool(store.attributes["options"]["flip"])

    def compare(self, number: int) -> Iterator[Compared]:
        """Compare the spikes, existing voxels, blur and sharp images of a frame."""
        source, frame = self._scan.sources[number], self._frames[number]
        detail = source.detail
        files = dict(zip(detail["roles"], source.files, strict=True))

        def compared(path: Path, stored: NDArray[Any], original: NDArray[Any]) -> Compared:
            return Compared(
                Location(source.name, path.name), path, original.size, difference(stored, original)
            )

        if "spike" in files:
            yield compared(files["spike"], frame.spikes(), self._spikes(files["spike"], detail["spike"]))
        if "voxel" in files and self._is_stored(detail["voxel"]["bins"]):
            stored = frame.voxels(voxel_path(detail["voxel"]["bins"]))
            original = format_of(files["voxel"]).original(files["voxel"], detail["voxel"]["key"])
            yield compared(files["voxel"], stored, original)
        for image in ("blur", "sharp"):
            if image in files:
                stored = frame.image(image)
                yield compared(files[image], stored, _image(files[image], stored.ndim == 1))

    def left_out(self, number: int) -> list[str]:
        """Return other arrays of files, what 8-bit RGB cannot hold, and voxels that were counted instead."""
        source = self._scan.sources[number]
        detail = source.detail
        names: list[str] = []
        for role, path in zip(detail["roles"], source.files, strict=True):
            if role not in IMAGE_ROLES:
                names += _others(path, detail[role]["key"])
            elif self._store.has(f"{FRAMES}/{role}") and not read_image_header(path, path.name).exact:
                names.append(f"{role}/{path.name} (alpha or bits beyond 8)")
        names = names_without_numbers(names)
        if "voxel" in detail["roles"] and not self._is_stored(detail["voxel"]["bins"]):
            bins = detail["voxel"]["bins"]
            return [*names, f"existing voxels of {bins} bins (counted from the spikes instead)"]
        return names

    def _is_stored(self, bins: int) -> bool:
        path = voxel_path(bins)
        return self._store.has(path) and not self._store.array(path).attributes["counted"]

    def _spikes(self, path: Path, form: Mapping[str, Any]) -> NDArray[np.uint8]:
        """Spikes as pixels (T, H, W), row 0 = top."""
        length, height, width = form["extent"]
        raw = format_of(path).original(path, form["key"])
        if form["layout"] == "array":
            return np.asarray(raw != 0, np.uint8)
        pixels = raw if form["layout"] == "bytes" else np.unpackbits(raw, bitorder="little")
        if form["layout"] == "stream":
            pixels = pixels[: length * height * width]
        pixels = pixels.reshape(length, height, -1)[:, :, :width]
        return pixels[:, ::-1] if self._flip else pixels


def _others(path: Path, key: str) -> list[str]:
    """Return the arrays that a file has besides the one of a name."""
    names = format_of(path).names
    return [] if names is None else [f"{path.name}: {name}" for name in names(path) if name != key]


def _image(path: Path, as_bytes: bool) -> NDArray[np.uint8]:
    """Bytes of an image file, or its pixels (H, W, 3) RGB."""
    raw = np.fromfile(path, np.uint8)
    if as_bytes:
        return raw
    import cv2

    pixels: Any = cv2.imdecode(raw, cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
    return np.asarray(pixels[..., ::-1], np.uint8)
