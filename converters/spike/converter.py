"""Spike cameras: headerless ``.dat`` streams or arrays of spikes, with blur and sharp frames beside them.

Sources are folders ``<root>/{train,test}/<sequence>/{blur,sharp,spike,spike_vox}/NNN.*``, or spike files
alone. One spike file is one frame and one sample; a folder's frames are a sequence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.exclusion import Exclusion
from unistore.converters.protocol import Converter, Facts, Scan, Settled, Source
from unistore.converters.spike.existing import existing_orientation
from unistore.converters.spike.folders import find_recordings
from unistore.converters.spike.frames import ROLES, Recording, common_roles
from unistore.converters.spike.index import index_arrays, sequence_of_frames
from unistore.converters.spike.looking import Looked, compare, look
from unistore.converters.spike.options import SpikeOptions
from unistore.converters.spike.rows import frame_detail, read_file_bytes, read_frame, read_spikes
from unistore.converters.spike.streams import Extent, Resolved, resolve_streams
from unistore.converters.spike.tables import (
    frame_sizes,
    image_bytes,
    make_tables,
    padding_note,
    reading_memory,
    source_rows,
    voxel_sets,
)
from unistore.errors import InputError, Problem
from unistore.schemas.spike.fields import FAMILY_NAME, FRAMES, IMAGES, file_table_name

__all__ = ["SpikeConverter"]


class SpikeConverter(SpikeOptions, Converter):
    """Converts spike recordings; see `SpikeOptions`."""

    family: ClassVar[str] = FAMILY_NAME
    concurrent: ClassVar[bool] = True

    def scan(self, paths: Sequence[Path]) -> Scan:
        """Look at every frame's files: headers, sizes, and as many bytes as decide; see `Converter.scan`.

        Raises
        ------
        InputError
            With every problem of every file.
        """
        folders = self._folders()
        exclusion = Exclusion(self.exclude)
        found = find_recordings(paths, folders, exclusion)
        problems = list(found.problems)
        roles, differing = common_roles(found.recordings, folders, self.columns)
        problems += differing
        if not roles:
            raise InputError(problems)
        frames = [(number, frame) for number, each in enumerate(found.recordings) for frame in each.frames]
        looked, wrong = look(frames, roles, convert_images=self.convert_images)
        problems += wrong
        resolved = self._resolve(looked, found.recordings)
        extents = {each.frame.name: each.extent for each in looked if each.extent is not None}
        extents |= resolved.extents
        problems += [*resolved.problems, *compare(looked, extents)]
        if self.voxel_bins and "spike" not in roles:
            message = "cannot be counted: there are no spikes, only existing voxels"
            problems.append(Problem("--voxel-bins", message, "leave it out", "missing"))
        if problems:
            raise InputError(problems)
        notes = (*found.notes, *exclusion.notes())
        return self._scanned(found.recordings, notes, roles, looked, extents, resolved)

    def _folders(self) -> dict[str, str]:
        return dict(zip(ROLES, (self.spike_dir, self.voxel_dir, self.blur_dir, self.sharp_dir), strict=True))

    def _resolve(self, looked: Sequence[Looked], recordings: Sequence[Recording]) -> Resolved:
        """Extents of the headerless streams among the frames."""
        with_streams = [each for each in looked if each.stream is not None]
        if not with_streams:
            return Resolved({}, "arrays", (), ())
        by_recording = {
            recordings[number].sequence: [each.stream for each in group if each.stream is not None]
            for number, group in groupby(with_streams, key=lambda each: each.recording)
        }
        return resolve_streams(by_recording, self.layout, self.height, self.width, self.flip)

    def _scanned(
        self,
        recordings: Sequence[Recording],
        notes: Sequence[str],
        roles: tuple[str, ...],
        looked: Sequence[Looked],
        extents: Mapping[str, Extent],
        resolved: Resolved,
    ) -> Scan:
        """Sources, tables and notes of frames that have no problem."""
        upside_down, more = False, list[str]()
        if "voxel" in roles:
            upside_down, more = self._existing(looked, extents, resolved.layout)
        sources = tuple(
            Source(
                path=each.frame.files[roles[0]],
                name=each.frame.name,
                files=tuple(each.frame.files[role] for role in roles),
                rows=source_rows(each, roles, self.frames),
                split=recordings[each.recording].split,
                reading=reading_memory(each),
                detail=frame_detail(
                    each,
                    recordings[each.recording],
                    roles,
                    extents.get(each.frame.name),
                    resolved.layout,
                    upside_down,
                ),
            )
            for each in looked
        )
        sizes = frame_sizes(looked, extents)
        sets = voxel_sets(self.voxel_bins, looked, sizes.length)
        return Scan(
            family=self.family,
            sources=sources,
            tables=make_tables(sizes, sets, roles, looked, self.frames),
            sample_table=FRAMES,
            main_table=FRAMES,
            options={**self.recorded(), "found": {"layout": resolved.layout}},
            notes=(
                *_what(recordings, extents),
                *notes,
                *resolved.notes,
                *more,
                *padding_note(extents),
                *self._disk(looked),
            ),
        )

    def _existing(
        self, looked: Sequence[Looked], extents: Mapping[str, Extent], layout: str
    ) -> tuple[bool, list[str]]:
        """Whether existing voxels are upside down, and what becomes of them."""
        voxel = looked[0].voxel
        if voxel is not None and voxel.bins in self.voxel_bins:
            return False, [f"existing voxels are left: sets of {voxel.bins} bins are counted from the spikes"]

        def fill(each: Looked, out: NDArray[np.uint8]) -> None:
            form = layout if each.stream is not None else "array"
            read_spikes(each.frame, form, each.key, extents[each.frame.name].width, self.flip, out)

        upside_down, notes, problems = existing_orientation(looked, extents, fill)
        if problems:
            raise InputError(problems)
        return upside_down, notes

    def _disk(self, looked: Sequence[Looked]) -> list[str]:
        """What blur and sharp frames take on disk in either mode."""
        sizes = image_bytes(looked)
        if not sizes["keep"]:
            return []
        note = (
            f"blur and sharp frames: at most {sizes['tiles'] / 1e6:,.1f} MB as tiles (before compression), "
            f"{sizes['keep'] / 1e6:,.1f} MB with --frames keep; taken: {self.frames}"
        )
        return [note]

    def read(
        self, scan: Scan, table: str, source: int, lo: int, hi: int, out: Mapping[str, NDArray[Any]]
    ) -> None:
        """Read a frame, or bytes ``lo:hi`` of one of its kept images; see `Converter.read`."""
        if lo == hi:
            return
        if table == FRAMES:
            read_frame(scan.sources[source], self.voxel_bins, self.flip, out)
            return
        image = next(image for image in IMAGES if file_table_name(image) == table)
        read_file_bytes(scan.sources[source], image, lo, hi, out["data"])

    def settle(self, scan: Scan, facts: Sequence[Facts]) -> Settled:
        """Extents, sequences, and where kept images begin. One sample a frame.

        ``sample_source`` is the first frame of each frame's sequence, so that shares of ``--split`` deal out
        whole sequences.
        """
        return Settled(
            arrays=index_arrays(scan.sources),
            samples=len(scan.sources),
            sample_source=sequence_of_frames(scan.sources),
            groups={FRAMES: self._attributes(scan)},
        )

    def _attributes(self, scan: Scan) -> dict[str, Any]:
        """How the frames were made from their sources."""
        layout = scan.options["found"]["layout"]
        streams = layout != "arrays"
        return {
            "source_layout": layout,
            "source_rows": "bottom first" if streams and self.flip else "top first",
            "flip_undone": streams and self.flip,
            "voxel_rule": "bin = (t * B) // T, T = spike_length of the frame",
            "images": self.frames,
            "existing_voxels": "bottom first" if self._upside_down(scan) else "top first",
        }

    def _upside_down(self, scan: Scan) -> bool:
        """Whether voxels that came with the spikes were turned over."""
        return any(source.detail.get("voxel", {}).get("upside_down", False) for source in scan.sources)


def _what(recordings: Sequence[Recording], extents: Mapping[str, Extent]) -> list[str]:
    frames = sum(len(each.frames) for each in recordings)
    lengths = sorted({extent.length for extent in extents.values()})
    pixels = sorted({(extent.height, extent.width) for extent in extents.values()})
    notes = [f"spikes: {frames} frame(s) of {len(recordings)} sequence(s)"]
    if extents:
        steps = f"{lengths[0]}" if len(lengths) == 1 else f"{lengths[0]} to {lengths[-1]}"
        listed = ", ".join(f"{height} x {width}" for height, width in pixels)
        notes[0] += f", {steps} time steps of {listed} pixels"
        if len(lengths) > 1 or len(pixels) > 1:
            notes[0] += "; shorter and smaller ones are padded with zeros"
    return notes
