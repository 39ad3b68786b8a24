"""Export of spike recordings: streams in their own layout and orientation, arrays, images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import prod
from pathlib import PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.exported import BLOCK, File, Values, array_values
from unistore.converters.files.comparison import Restore, Restored, RestoredArray, RestoredFile
from unistore.converters.files.libraries import BY_FORMAT, ONLY, Open, open_bytes, open_image
from unistore.converters.formats.raw import Raw
from unistore.converters.plugin import Format, SourceFile
from unistore.converters.scan import Scan, Source
from unistore.converters.seam.formats import format_by_ending, formats_of
from unistore.converters.seam.stored import open_original
from unistore.converters.spike.family import Spike
from unistore.converters.spike.frames import IMAGE_ROLES, STREAM_ENDING, FrameOrigin, SpikeForm
from unistore.converters.spike.spikes import bits_of_step
from unistore.schemas.indices import Column, StoreView
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
from unistore.schemas.spike.specs import require_version_2

_ARRAY_ENDING = ".npy"
_PNG = b"\x89PNG"


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One frame of a spike store; what needs no path or layout is known without these."""

    store: StoreView
    number: int
    """The row of ``frames``."""
    path: PurePosixPath = field(default_factory=PurePosixPath)
    """Its spike (or voxel) file relative to the sources' common root, from the store."""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    """Attributes of the group ``frames``, among them the layout of the sources."""

    @property
    def format(self) -> Format:
        """Format of its spike (or voxel) file."""
        return format_by_ending(formats_of(Spike.formats), self.path.name)

    @property
    def is_stream(self) -> bool:
        """Whether its spikes came from a headerless stream."""
        return isinstance(self.format, Raw)

    def length(self) -> int:
        """Its time steps."""
        lo, hi = self._steps()
        return hi - lo

    def packed(self, start: int, stop: int) -> NDArray[np.uint8]:
        """Some time steps as packed bits, (t, H, ⌈W/8⌉) u1, row 0 = top."""
        first, _ = self._steps()
        height, width = self.extent()
        box = self.store.array(BITS).read_box([first + start, 0, 0], [first + stop, height, row_bytes(width)])
        return np.asarray(box)

    def beginning(self, most: int) -> NDArray[np.uint8]:
        """Its first steps as packed bits, (t, H, ⌈W/8⌉) u1, of at most so many bytes."""
        return self.packed(0, min(self.length(), self._steps_of(most)))

    def _steps(self) -> tuple[int, int]:
        lo, hi = Column(self.store, FRAME_OFFSETS).ranges(np.array([self.number]))
        return int(lo[0]), int(hi[0])

    def _steps_of(self, nbytes: int) -> int:
        """Time steps of so many bytes of packed bits, at least one."""
        height, width = self.extent()
        return max(1, nbytes // max(1, height * row_bytes(width)))

    def extent(self) -> tuple[int, int]:
        """Height and width of its spikes and voxels."""
        height, width = self._row(SPIKE_EXTENT).tolist()
        return height, width

    def stream(self) -> Values:
        """The bytes of its stream."""
        layout = self.attributes["source_layout"]
        height, width = self.extent()
        size = -(-self.length() * bits_of_step(layout, height, width) // 8)
        # Bits without padding are whole bytes only together.
        steps = self.length() if layout == "stream" else self._steps_of(BLOCK)

        def blocks() -> Iterator[NDArray[np.uint8]]:
            for start in range(0, self.length(), steps):
                packed = self.packed(start, min(start + steps, self.length()))
                if self.attributes["source_rows"] == "bottom first":
                    packed = packed[:, ::-1]
                packed = np.ascontiguousarray(packed)
                pixels = packed if layout == "packed" else unpack(packed, width)
                flat = pixels.reshape(-1)
                yield np.packbits(flat, bitorder="little") if layout == "stream" else flat

        return Values((size,), np.dtype(np.uint8), blocks)

    def spikes(self) -> Values:
        """Its spikes as pixels of 0 and 1, (T, H, W) u1."""
        height, width = self.extent()
        steps = self._steps_of(BLOCK // 8)

        def blocks() -> Iterator[NDArray[np.uint8]]:
            for start in range(0, self.length(), steps):
                yield unpack(self.packed(start, min(start + steps, self.length())), width)

        return Values((self.length(), height, width), np.dtype(np.uint8), blocks)

    def voxels(self, path: str) -> NDArray[Any]:
        """A voxel set in the orientation of its source, (B, H, W)."""
        array = self.store.array(path)
        height, width = self.extent()
        box = array.read_box([self.number, 0, 0, 0], [self.number + 1, array.shape[1], height, width])[0]
        upside_down = self.attributes["existing_voxels"] == "bottom first"
        return np.ascontiguousarray(box[:, ::-1]) if upside_down else box

    def image(self, image: str) -> NDArray[np.uint8]:
        """A blur or sharp frame: pixels (H, W, 3) u1 RGB, or the bytes (n,) of its file."""
        table = file_table_name(image)
        if self.store.has(f"{table}/data"):
            lo, hi = Column(self.store, f"{table}/offsets").ranges(np.array([self.number]))
            return np.asarray(self.store.array(f"{table}/data").read(int(lo[0]), int(hi[0])))
        height, width = self._row(IMAGE_EXTENT).tolist()
        array = self.store.array(f"{FRAMES}/{image}")
        return np.asarray(array.read_box([self.number, 0, 0, 0], [self.number + 1, height, width, 3])[0])

    def path_in(self, folder: str) -> str:
        """Path of its file in another folder of the sequence, without suffix."""
        return (self.path.parent.parent / folder / self.path.stem).as_posix()

    def _row(self, path: str) -> Any:
        return Column(self.store, path).take(np.array([self.number]))[0]


def frames(store: StoreView) -> Iterator[Frame]:
    """Every frame of a spike store."""
    require_version_2(store)
    attributes = store.group(FRAMES)
    for number, path in enumerate(store.text("sources/path")):
        yield Frame(store=store, number=number, path=PurePosixPath(path), attributes=attributes)


def images_in(store: StoreView) -> list[str]:
    """``"blur"``, ``"sharp"``: what the store has, as tiles or as files."""
    return [i for i in IMAGES if store.has(f"{FRAMES}/{i}") or store.has(f"{file_table_name(i)}/data")]


def restore(store: StoreView, scan: Scan) -> Restore:
    """Restore the spikes, existing voxels and images of a frame; the scan says which file is which."""
    all_frames = list(frames(store))

    def source(number: int) -> Restored:
        return _restored(all_frames[number], scan.sources[number])

    return source


def _restored(frame: Frame, source: Source) -> Restored:
    origin: FrameOrigin = source.detail
    restored: list[RestoredFile] = []
    left_out: list[str] = []
    for number, role in enumerate(origin.roles):
        path = source.files[number]
        key = origin.arrays[number]
        if role in IMAGE_ROLES:
            pixels = frame.image(role)
            is_decoded = pixels.ndim == 3
            image = RestoredArray(ONLY, array_values(pixels))
            restored.append(RestoredFile(path, [image], open_image if is_decoded else open_bytes))
            if is_decoded and role in origin.inexact:
                left_out.append(f"{role}/{path.name} (alpha or bits beyond 8)")
        elif role == "spike" and origin.spikes is not None:
            spikes = _restored_spikes(frame, origin.spikes, key)
            restored.append(RestoredFile(path, [spikes], _reader(source, number)))
        elif origin.voxels is not None:
            bins = origin.voxels.bins
            if bins in origin.counted:
                left_out.append(f"existing voxels of {bins} bins (counted from the spikes instead)")
            else:
                voxels = RestoredArray(key, array_values(frame.voxels(voxel_path(bins))))
                restored.append(RestoredFile(path, [voxels], _reader(source, number)))
    return Restored(restored, left_out)


def _reader(source: Source, number: int) -> Open:
    """How a file of spikes or voxels is read: by NumPy, or by a format of a package."""
    origin: FrameOrigin = source.detail
    name = origin.formats[number]
    if name in BY_FORMAT:
        return BY_FORMAT[name]
    by_name = {known.name: known for known in formats_of(Spike.formats)}
    file = SourceFile(source.files[number], origin.files[number], source.files)
    return partial(open_original, by_name[name], file)


def _restored_spikes(frame: Frame, form: SpikeForm, key: str) -> RestoredArray:
    if not frame.is_stream:
        return RestoredArray(key, frame.spikes())
    used = prod(form.extent) % 8

    def without_unused_bits(stream: NDArray[np.uint8]) -> NDArray[np.uint8]:
        stream = stream.copy()
        if form.layout == "stream" and used:
            stream[-1] &= (1 << used) - 1
        return stream

    return RestoredArray(key, frame.stream(), of_file=without_unused_bits)


def files(store: StoreView) -> Iterator[File]:
    """Every file of a spike store."""
    options = store.attributes["options"]
    existing = [
        path
        for path in store.paths()
        if voxel_bins(path) is not None and not store.array(path).attributes["counted"]
    ]
    images = images_in(store)
    for frame in frames(store):
        if store.has(BITS):
            yield _spikes(frame)
        for path in existing:
            name = PurePosixPath(f"{frame.path_in(options['voxel_dir'])}{_ARRAY_ENDING}")
            voxels = array_values(frame.voxels(path))
            yield _array(frame, name if store.has(BITS) else frame.path, "voxel", voxels)
        for image in images:
            yield _image(frame, image, options[f"{image}_dir"])


def _spikes(frame: Frame) -> File:
    if not frame.is_stream:
        return _array(frame, frame.path, "spk", frame.spikes())
    is_raw = type(frame.format) is Raw
    name = frame.path if is_raw else frame.path.with_suffix(STREAM_ENDING)
    values = {"": frame.stream()}
    return File(name=str(name), form="raw", source=frame.number, values=values)


def _array(frame: Frame, name: PurePosixPath, key: str, values: Values) -> File:
    """An array in a ``.npz`` file if it came in one, else in a ``.npy`` file."""
    if name.suffix.lower() == ".npz":
        inside = {key: values}
        return File(name=str(name), form="npz", source=frame.number, values=inside)
    inside = {"": values}
    name = name.with_suffix(_ARRAY_ENDING)
    return File(name=str(name), form="npy", source=frame.number, values=inside)


def _image(frame: Frame, image: str, folder: str) -> File:
    pixels = frame.image(image)
    values: Mapping[str, Values] = {"": array_values(pixels)}
    path = frame.path_in(folder)
    if pixels.ndim == 3:
        return File(name=f"{path}.png", form="png", source=frame.number, values=values)
    ending = "png" if pixels[:4].tobytes() == _PNG else "jpg"
    return File(name=f"{path}.{ending}", form="raw", source=frame.number, values=values)
