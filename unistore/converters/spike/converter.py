"""Conversion of spike recordings: scanning the files of a frame, and reading rows, padded with zeros."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from unistore.converters.common.exclusion import ProblemCollector, with_source
from unistore.converters.protocol import Facts, Finalized, Scan
from unistore.converters.scan import Parts, SourcePart
from unistore.converters.seam.converter import SeamConverter
from unistore.converters.seam.formats import FileArray, calling, group_of, open_file
from unistore.converters.spike import Spike
from unistore.converters.spike.frames import (
    RAW_ARRAY,
    Extent,
    FrameOrigin,
    FrameValues,
    ScannedFrame,
    Spikes,
    values_in,
)
from unistore.converters.spike.options import IMAGE_ROLES
from unistore.errors import AddOptions, InputError
from unistore.plugin import Problem
from unistore.schemas.spike.fields import FRAMES, SPIKES, row_bytes
from unistore.schemas.tables import Field, OwnForm, little_endian
from unistore.system.hints import AnyArray


class SpikeConverter(SeamConverter):
    """Converts spike recordings, see `SpikeOptions`."""

    plugin: Spike
    reads_in_place = True
    thread_safe = True

    def scan(self, part: SourcePart) -> ScannedFrame:
        """Read the headers of one frame's files, and check arrays."""
        # Raises only if none of its files can be read: other problems are in the result.
        # Asking about files of other families loads none of it.
        from unistore.converters.spike.streams import config_of

        group = group_of(part)
        values: dict[str, FrameValues] = {}
        images = {}
        left_out: list[str] = []
        openings = [self.opening_of(file) for file in group.files]
        collected = ProblemCollector()
        config = None
        for role, file, opening in zip(group.roles, group.files, openings, strict=True):
            with (
                collected.attempt(file.name),
                calling(opening, file.name),
                open_file(opening, file) as opened,
            ):
                if role in IMAGE_ROLES:
                    images[role] = opened.arrays["image"].values.header
                    continue
                array = values_in(opened, FileArray(opening, file, ""), role)
                left_out += [f"{file.name}: {name}" for name in opened.arrays if name != array.array.key]
                if array.is_stream and None in (self.plugin.height, self.plugin.width):
                    config = config_of(file)
                values[role] = array
        frame = ScannedFrame(
            group=group,
            formats=tuple([opening.name for opening in openings]),
            values=values,
            images=images,
            config=config,
            others=tuple(left_out),
        )
        problems = with_source(part.name, [*collected.problems, *self._image_problems(frame)])
        if not (values or images):
            raise InputError(problems)
        return replace(frame, problems=problems)

    def _image_problems(self, frame: ScannedFrame) -> list[Problem]:
        """Images that are not 8-bit RGB, and a pair of different sizes."""
        problems = []
        for role, header in frame.images.items():
            if not header.plain and not self.plugin.convert_images:
                form = header.colour if header.colour != "rgb" else f"rgb of {header.bits} bits"
                message = f"is {form}, expected rgb of 8 bits"
                fix = AddOptions(("--convert-images",), "to repeat gray, drop alpha and cut to 8 bits")
                problems.append(Problem(frame.called(role), message, fix, "colour"))
        sizes = [f"{header.height} x {header.width}" for header in frame.images.values()]
        if len(set(sizes)) > 1:
            blur_size, size = sizes
            message = f"is {size}, but its blur frame is {blur_size}"
            problems.append(Problem(frame.called("sharp"), message, "resize one of them", "shape"))
        return problems

    def gather(self, parts: Parts, scanned: Sequence[ScannedFrame]) -> Scan:  # type: ignore[override]  # as scanned
        from unistore.converters.spike.gather import gather_frames

        return gather_frames(scanned, self.plugin)

    def finalize(self, scan: Scan, facts: Sequence[Facts]) -> Finalized:
        """Extents, sequences, and offsets of kept images. One sample for each frame."""
        from unistore.converters.spike.gather import index_arrays

        layout = scan.options["found"]["layout"]
        flipped = layout != "arrays" and self.plugin.flip
        attributes = {
            "source_layout": layout,
            "source_rows": "bottom first" if flipped else "top first",
            "flip_undone": flipped,
            "voxel_rule": "bin = (t * B) // T, T = steps of the frame",
            "images": self.plugin.frames,
            "existing_voxels": "bottom first" if scan.shared["upside_down"] else "top first",
        }
        return Finalized(
            arrays=index_arrays(scan),
            samples=len(scan.sources),
            sample_source=np.arange(len(scan.sources)),
            groups={FRAMES: attributes},
        )

    def read(
        self, scan: Scan, table: str, source: int, lo: int, hi: int, out: Mapping[str, AnyArray]
    ) -> None:
        """Read time steps, the voxels and images of a frame, or bytes ``lo:hi`` of one of its kept images."""
        if lo == hi:
            return
        origin: FrameOrigin = scan.sources.details[source]
        paths = scan.sources.paths(source)
        arrays = {
            role: FileArray(*self.file_of(origin, paths, number), origin.arrays[number])
            for number, role in enumerate(origin.roles)
        }
        if table == FRAMES:
            self._read_voxels(scan, origin, arrays, out)
            for role in IMAGE_ROLES:
                if role in out:
                    height, width = origin.shapes[role]
                    with arrays[role].open() as image:
                        out[role][0, :height, :width] = image.values.rgb()
        elif table == SPIKES:
            height, width = origin.pixels
            spikes = self._spikes(scan, origin, arrays)
            spikes.read(out["bits"][:, :height, : row_bytes(width)], lo)
        else:
            role = table.removeprefix(f"{FRAMES}/").removesuffix("_file")
            with arrays[role].open() as image:
                # The whole file is checked before a part of it is taken.
                out["data"][...] = np.frombuffer(image.values.content(), np.uint8)[lo:hi]

    def own(self, scan: Scan, table: str, source: int, fields: Mapping[str, Field]) -> dict[str, OwnForm]:
        """See `SourceReader.own`: without voxels that are counted. Others are as their file has them."""
        origin: FrameOrigin = scan.sources.details[source]
        forms = {}
        for column, field in fields.items():
            if column in IMAGE_ROLES:
                if column in origin.shapes:
                    forms[column] = OwnForm("|u1", (*origin.shapes[column], 3))
            elif table == SPIKES:
                height, width = origin.pixels
                forms[column] = OwnForm("|u1", (height, row_bytes(width)))
            elif table != FRAMES:
                forms[column] = OwnForm(little_endian(field.dtype), field.row_shape)
            elif "voxel" in origin.shapes and origin.shapes["voxel"][0] not in scan.shared["counted"]:
                shape = origin.shapes["voxel"]
                restore = partial(_upside_down, height=shape[1]) if scan.shared["upside_down"] else None
                forms[column] = OwnForm("<f8", shape, restore)
        return forms

    def _spikes(self, scan: Scan, origin: FrameOrigin, arrays: Mapping[str, FileArray]) -> Spikes:
        """Return the spikes of a frame, to be read."""
        is_stream = arrays["spike"].key == RAW_ARRAY
        layout = scan.options["found"]["layout"] if is_stream else "array"
        extent = Extent(*origin.shapes["spike"])
        return Spikes(arrays["spike"], extent, layout, flip=is_stream and self.plugin.flip)

    def _read_voxels(
        self,
        scan: Scan,
        origin: FrameOrigin,
        arrays: Mapping[str, FileArray],
        out: Mapping[str, AnyArray],
    ) -> None:
        """Count the voxels of a frame, and read those that exist, into columns of one row of zeros."""
        counted = scan.shared["counted"]
        if counted:
            height, width = origin.pixels
            grids = {bins: out[f"voxel/{bins}"][0, :, :height, :width] for bins in counted}
            self._spikes(scan, origin, arrays).add_counts(grids)
        if "voxel" not in arrays:
            return
        bins, height, width = origin.shapes["voxel"]
        if bins not in counted:
            with arrays["voxel"].open() as voxels:
                values = voxels[:]
            rows = values[:, ::-1] if scan.shared["upside_down"] else values
            out[f"voxel/{bins}"][0, :, :height, :width] = rows


def _upside_down(voxels: AnyArray, height: int) -> AnyArray:
    return voxels[:, :, :height][:, :, ::-1]
