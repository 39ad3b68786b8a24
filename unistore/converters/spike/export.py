"""Export of spike recordings: streams in their own layout and orientation, arrays, images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from unistore.converters.spike.frames import HIGHEST_FIRST, RAW_ARRAY, REVERSED_BITS, FrameOrigin
from unistore.converters.spike.options import IMAGE_ROLES
from unistore.errors import InputError, Problem
from unistore.plugin import (
    ExportedArray,
    File,
    Form,
    IndexColumn,
    Restore,
    RestoredArray,
    RestoredFile,
    RestoredFiles,
    Scan,
    Source,
    StoreView,
    array_values,
    open_image,
)
from unistore.schemas.spike.fields import (
    BITS,
    FRAME_OFFSETS,
    FRAMES,
    IMAGE_EXTENT,
    IMAGES,
    SPIKE_EXTENT,
    file_table_name,
    row_bytes,
    unpack,
    voxel_bins,
    voxel_path,
)
from unistore.system.types import AnyArray, UInt8s

_PACKED_BYTES = 4 << 20  # of spikes that are read at a time
_STREAM_ENDINGS = (".dat", ".bin")
_PNG = b"\x89PNG"


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a spike store."""

    store: StoreView
    number: int  # the row of ``frames``

    def _row(self, path: str) -> Any:
        return IndexColumn(self.store, path).take(np.array([self.number]))[0]

    def _range(self, offsets: str) -> tuple[int, int]:
        lo, hi = IndexColumn(self.store, offsets).ranges(np.array([self.number]))
        return int(lo[0]), int(hi[0])

    def _box(self, path: str, *extent: int) -> AnyArray:
        """Row of a column of frames, without padding."""
        low = [self.number, *[0] * len(extent)]
        return np.asarray(self.store.array(path).read_box(low, [self.number + 1, *extent])[0])

    @property
    def length(self) -> int:
        lo, hi = self._range(FRAME_OFFSETS)
        return hi - lo

    @property
    def extent(self) -> tuple[int, int]:
        """Height and width of its spikes and voxels."""
        height, width = self._row(SPIKE_EXTENT).tolist()
        return height, width

    def packed(self, start: int, stop: int) -> UInt8s:
        """Some time steps as packed bits, (t, H, ⌈W/8⌉) u1, row 0 = top."""
        first, _ = self._range(FRAME_OFFSETS)
        height, width = self.extent
        low = [first + start, 0, 0]
        high = [first + stop, height, row_bytes(width)]
        return np.asarray(self.store.array(BITS).read_box(low, high))

    def beginning(self, most: int) -> UInt8s:
        """Its first steps as packed bits, (t, H, ⌈W/8⌉) u1, of at most so many bytes."""
        return self.packed(0, min(self.length, self._steps_of(most)))

    def _steps_of(self, nbytes: int) -> int:
        """Time steps of so many bytes of packed bits, at least one."""
        height, width = self.extent
        return max(1, nbytes // (height * row_bytes(width)))

    def spikes(self, layout: str, *, flip: bool = False) -> ExportedArray:
        """Its spikes as an array (T, H, W) u1 of pixels, or packed, or as the bytes of a stream."""
        length = self.length
        height, width = self.extent
        steps = self._steps_of(_PACKED_BYTES)
        is_array = layout.startswith("array")
        is_packed = "packed" in layout
        shape = (length, height, row_bytes(width) if is_packed else width)

        def blocks() -> Iterator[UInt8s]:
            for start in range(0, length, steps):
                rows = self.packed(start, min(start + steps, length))
                if not is_packed:
                    rows = unpack(rows, width)
                elif layout.endswith(HIGHEST_FIRST):
                    rows = REVERSED_BITS[rows]
                if flip:
                    rows = rows[:, ::-1]
                yield rows if is_array else rows.reshape(-1)

        return ExportedArray(shape if is_array else (prod(shape),), np.dtype(np.uint8), blocks)

    def stream(self) -> ExportedArray:
        attributes = self.store.group(FRAMES)
        layout = attributes["source_layout"]
        if layout not in ("packed", "bytes"):
            message = f"its streams have the layout {layout!r}, which cannot be exported"
            raise InputError(Problem(self.store.path, message, "read spikes/bits instead", "version"))
        return self.spikes(layout, flip=attributes["source_rows"] == "bottom first")

    def voxels(self, path: str, *, as_source: bool = True) -> AnyArray:
        """Return a voxel set, (B, H, W), in the orientation of its source, or row 0 = top."""
        rows = self._box(path, self.store.array(path).shape[1], *self.extent)
        is_turned = as_source and self.store.group(FRAMES)["existing_voxels"] == "bottom first"
        return np.ascontiguousarray(rows[:, ::-1]) if is_turned else rows

    def image(self, image: str) -> UInt8s:
        """Return a blur or sharp frame: pixels (H, W, 3) u1 RGB, or the bytes (n,) of its file."""
        table = file_table_name(image)
        if self.store.has(f"{table}/data"):
            lo, hi = self._range(f"{table}/offsets")
            return np.asarray(self.store.array(f"{table}/data").read(lo, hi))
        return self._box(f"{FRAMES}/{image}", *self._row(IMAGE_EXTENT).tolist(), 3)


def images_in(store: StoreView) -> list[str]:
    """``"blur"``, ``"sharp"``: what the store has, as tiles or as files."""
    stored = set(store.paths())
    return [image for image in IMAGES if stored & {f"{FRAMES}/{image}", f"{file_table_name(image)}/data"}]


def restore(store: StoreView, scan: Scan) -> Restore:
    """Restore the spikes, existing voxels and images of a frame. The scan says which file is which."""

    def source(number: int) -> RestoredFiles:
        return _restored(Frame(store, number), scan.sources[number])

    return source


def _restored(frame: Frame, source: Source) -> RestoredFiles:
    origin: FrameOrigin = source.detail
    restored: list[RestoredFile] = []
    left_out: list[str] = []
    for role, path, key, name in zip(origin.roles, source.files, origin.arrays, origin.formats, strict=True):
        opening = None
        if role in IMAGE_ROLES:
            pixels = frame.image(role)
            values = array_values(pixels)
            opening = open_image if pixels.ndim == 3 else None
            if pixels.ndim == 3 and role in origin.inexact:
                left_out.append(f"{role}/{path.name} (alpha, or more than 8 bits)")
        elif role == "spike":
            values = frame.stream() if key == RAW_ARRAY else frame.spikes(origin.layout)
        else:
            bins = origin.shapes[role][0]
            stored = frame.store.array(voxel_path(bins))
            if stored.attributes["counted"]:
                left_out.append(f"existing voxels of {bins} bins (counted from the spikes instead)")
                continue
            values = array_values(frame.voxels(voxel_path(bins)))
        arrays = [RestoredArray(key, values)]
        if opening is not None:
            restored.append(RestoredFile(path, arrays, opening))
        else:
            is_kept = role in IMAGE_ROLES  # the file as it stands
            restored.append(RestoredFile(path, arrays, format="raw" if is_kept else name))
    return RestoredFiles(restored, left_out)


def files(store: StoreView) -> Iterator[File]:
    """Yield every file of a spike store."""
    options = store.root.options
    sets = [path for path in store.paths() if voxel_bins(path) is not None]
    existing = [path for path in sets if not store.array(path).attributes["counted"]]
    for number, name in enumerate(store.text("sources/path")):
        frame = Frame(store, number)
        path = PurePosixPath(name)
        sequence = path.parent.parent
        if store.has(BITS):
            is_stream = path.suffix.lower() in _STREAM_ENDINGS
            packed = options["layout"] if options["layout"] in ("packed", HIGHEST_FIRST) else ""
            values = frame.stream() if is_stream else frame.spikes(f"array {packed}".rstrip())
            yield _file(frame, path, "spk", values)
        for voxels in existing:
            beside = sequence / options["voxel_dir"] / f"{path.stem}.npy"
            values = array_values(frame.voxels(voxels))
            yield _file(frame, beside if store.has(BITS) else path, "voxel", values)
        for image in images_in(store):
            pixels = frame.image(image)
            is_png = pixels.ndim == 3 or pixels[:4].tobytes() == _PNG
            ending = "png" if is_png else "jpg"
            beside = sequence / options[f"{image}_dir"] / f"{path.stem}.{ending}"
            form: Form = "png" if pixels.ndim == 3 else "raw"
            yield File(name=str(beside), form=form, source=number, values={"": array_values(pixels)})


def _file(frame: Frame, path: PurePosixPath, key: str, values: ExportedArray) -> File:
    """Return a stream as it was, an array in a ``.npz`` file if it came in one, else in a ``.npy`` file."""
    forms: Mapping[str, Form] = {".npz": "npz", ".dat": "raw", ".bin": "raw"}
    form = forms.get(path.suffix.lower(), "npy")
    inside = {key if form == "npz" else "": values}
    return File(name=str(path), form=form, source=frame.number, values=inside)
