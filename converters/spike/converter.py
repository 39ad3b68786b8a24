"""Conversion of spike recordings: scanning the files of a frame, and reading rows, padded with zeros."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.exclusion import ProblemCollector, with_source
from unistore.converters.formats.images import ImageHeader
from unistore.converters.plugin import Problem
from unistore.converters.protocol import Facts, Finalized, Scan
from unistore.converters.scan import Part, Parts
from unistore.converters.seam.converter import SeamConverter
from unistore.converters.seam.faults import calling
from unistore.converters.seam.formats import FileArray, open_file
from unistore.converters.seam.sources import group_of
from unistore.converters.spike.family import Spike
from unistore.converters.spike.frames import IMAGE_ROLES, FrameOrigin, ScannedFrame, VoxelForm
from unistore.errors import InputError
from unistore.schemas.spike.fields import FRAMES, IMAGES, SPIKES, file_table_name, row_bytes

if TYPE_CHECKING:
    from unistore.converters.spike.spikes import Spikes, Stream, Voxels


class SpikeConverter(SeamConverter):
    """Converts spike recordings; see `SpikeOptions`."""

    plugin: Spike
    reads_in_place: ClassVar[bool] = True
    thread_safe: ClassVar[bool] = True

    def scan(self, part: Part) -> ScannedFrame:
        """Read the headers of one frame's files, and check arrays.

        Raises
        ------
        InputError
            If none of its files can be read; other problems are in the result.
        """
        # Asking about files of other families loads none of it.
        from unistore.converters.spike.config import config_of
        from unistore.converters.spike.spikes import Stream, Voxels, spikes_in, voxels_in

        needs_size = self.plugin.height is None or self.plugin.width is None
        group = group_of(part)
        spikes: Spikes | Stream | None = None
        voxels: Voxels | None = None
        images: dict[str, ImageHeader] = {}
        formats: list[str] = []
        unused: list[str] = []
        collected = ProblemCollector()
        for role, file in zip(group.roles, group.files, strict=True):
            opening = self.opening_of(file)
            formats.append(opening.name)
            with (
                collected.attempt(file.name),
                calling(opening, file.name),
                open_file(opening, file) as opened,
            ):
                if role in IMAGE_ROLES:
                    images[role] = opened.arrays["image"].values.header
                    continue
                array = FileArray(opening, file, "")
                values = voxels_in(opened, array) if role == "voxel" else spikes_in(opened, array)
                unused += [f"{file.name}: {name}" for name in opened.arrays if name != values.array.key]
                if isinstance(values, Stream) and needs_size:
                    values = replace(values, config=config_of(file))
                if isinstance(values, Voxels):
                    voxels = values
                else:
                    spikes = values
        frame = ScannedFrame(
            group=group,
            formats=tuple(formats),
            spikes=spikes,
            voxels=voxels,
            images=images,
            others=tuple(unused),
        )
        problems = with_source(part.name, [*collected.problems, *self._image_problems(frame)])
        if not (spikes or voxels or images):
            raise InputError(problems)
        return replace(frame, problems=problems)

    def _image_problems(self, frame: ScannedFrame) -> list[Problem]:
        """Images that are not 8-bit RGB, and a pair of different sizes."""
        problems = []
        for role, header in frame.images.items():
            if not header.plain and not self.plugin.convert_images:
                form = header.colour if header.colour != "rgb" else f"rgb of {header.bits} bits"
                message = f"is {form}, expected rgb of 8 bits"
                cure = "--convert-images repeats gray, drops alpha and cuts to 8 bits"
                problems.append(Problem(frame.called(role), message, cure, "colour"))
        if len(frame.images) > 1:
            blur, sharp = (frame.images[role] for role in IMAGE_ROLES)
            size = f"{sharp.height} x {sharp.width}"
            blur_size = f"{blur.height} x {blur.width}"
            if size != blur_size:
                message = f"is {size}, but its blur frame is {blur_size}"
                problems.append(Problem(frame.called("sharp"), message, "resize one of them", "shape"))
        return problems

    def gather(self, parts: Parts, scanned: Sequence[ScannedFrame]) -> Scan:  # type: ignore[override]  # as scanned
        """Find the extents of the streams, and make tables and sources of all frames."""
        from unistore.converters.spike.gather import gather_frames

        return gather_frames(scanned, self.plugin)

    def finalize(self, scan: Scan, facts: Sequence[Facts]) -> Finalized:
        """Extents, sequences, and offsets of kept images; one sample for each frame."""
        from unistore.converters.spike.tables import index_arrays

        return Finalized(
            arrays=index_arrays(scan),
            samples=len(scan.sources),
            sample_source=np.arange(len(scan.sources)),
            groups={FRAMES: self._attributes(scan)},
        )

    def _attributes(self, scan: Scan) -> dict[str, Any]:
        """How the frames were made from their sources."""
        layout = scan.options["found"]["layout"]
        flipped = layout != "arrays" and self.plugin.flip
        origins: Sequence[FrameOrigin] = scan.sources.details
        upside_down = any(origin.voxels is not None and origin.voxels.upside_down for origin in origins)
        return {
            "source_layout": layout,
            "source_rows": "bottom first" if flipped else "top first",
            "flip_undone": flipped,
            "voxel_rule": "bin = (t * B) // T, T = steps of the frame",
            "images": self.plugin.frames,
            "existing_voxels": "bottom first" if upside_down else "top first",
        }

    def read(
        self, scan: Scan, table: str, source: int, lo: int, hi: int, out: Mapping[str, NDArray[Any]]
    ) -> None:
        """Read time steps, the voxels and images of a frame, or bytes ``lo:hi`` of one of its kept images."""
        if lo == hi:
            return
        origin: FrameOrigin = scan.sources.details[source]
        paths = scan.sources.paths(source)
        arrays: dict[str, FileArray] = {}
        for number, role in enumerate(origin.roles):
            arrays[role] = FileArray(*self.file_of(origin, paths, number), origin.arrays[number])
        if table == SPIKES:
            self._read_steps(origin, arrays["spike"], lo, out["bits"])
        elif table == FRAMES:
            self._read_voxels(origin, arrays, out)
            for image, (height, width) in origin.images.items():
                if image in out:
                    _read_image(arrays[image], out[image][0, :height, :width])
        else:
            image = next(image for image in IMAGES if file_table_name(image) == table)
            with arrays[image].open() as pixels:
                # The whole file is checked before a part of it is taken.
                out["data"][...] = np.frombuffer(pixels.values.content(), np.uint8)[lo:hi]

    def _spikes(self, origin: FrameOrigin, array: FileArray) -> Spikes:
        """The spikes of a frame, to be read."""
        from unistore.converters.spike.spikes import PixelSpikes, StreamSpikes

        assert origin.spikes is not None
        layout, extent = origin.spikes
        if layout == "array":
            return PixelSpikes(array=array, extent=extent)
        return StreamSpikes(array=array, extent=extent, layout=layout, flip=self.plugin.flip)

    def _read_steps(self, origin: FrameOrigin, array: FileArray, first: int, out: NDArray[np.uint8]) -> None:
        spikes = self._spikes(origin, array)
        spikes.read(out[:, : spikes.extent.height, : row_bytes(spikes.extent.width)], first)

    def _read_voxels(
        self, origin: FrameOrigin, arrays: Mapping[str, FileArray], out: Mapping[str, NDArray[Any]]
    ) -> None:
        """Count the voxels of a frame, and read those that exist, into columns of one row of zeros."""
        if origin.counted:
            spikes = self._spikes(origin, arrays["spike"])
            _, height, width = spikes.extent
            spikes.count({bins: out[f"voxel/{bins}"][0, :, :height, :width] for bins in origin.counted})
        existing = origin.voxels
        if existing is not None and existing.bins not in origin.counted:
            _read_existing(arrays["voxel"], existing, out[f"voxel/{existing.bins}"][0])


def _read_existing(array: FileArray, form: VoxelForm, out: NDArray[Any]) -> None:
    with array.open() as voxels:
        values = voxels[:]
    out[:, : form.height, : form.width] = values[:, ::-1] if form.upside_down else values


def _read_image(array: FileArray, out: NDArray[Any]) -> None:
    with array.open() as image:
        pixels: NDArray[np.uint8] = image.values.rgb()
    if pixels.shape != out.shape:
        now, before = (f"{shape[0]} x {shape[1]}" for shape in (pixels.shape, out.shape))
        message = f"is {now} now, and was {before} when it was scanned"
        raise array.file.problem(message, "it changed during the conversion: run again", "changed")
    out[...] = pixels
