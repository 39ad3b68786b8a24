"""Spike cameras: headerless ``.dat`` streams or arrays of spikes, with their blur and sharp frames.

Sources are folders ``<root>/{train,test}/<sequence>/{blur,sharp,spike,spike_vox}/NNN.*``, or spike files
alone. One spike file is one frame and one sample; the frames of a folder are a sequence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from numpy.typing import NDArray

from unistore.converters.common.exclusion import Exclusion
from unistore.converters.parts import Candidate, Found, Part, Verdict
from unistore.converters.protocol import Converter, Facts, Finalized, Scan, Sources
from unistore.converters.spike.existing_voxels import compare_with_spikes, detect_orientation, misread_note
from unistore.converters.spike.frames import ROLES, FrameInfo, common_roles, suffixes_of
from unistore.converters.spike.notes import firing_notes, image_size_note, padding_note, size_note
from unistore.converters.spike.options import SpikeOptions
from unistore.converters.spike.recordings import find_left_out, find_recordings
from unistore.converters.spike.resolve_streams import ResolvedStreams, resolve_streams
from unistore.converters.spike.scan import ScannedFrame, recognise, scan_frame
from unistore.converters.spike.source import FrameSource, ShapedStream, StreamSource
from unistore.converters.spike.tables import (
    index_arrays,
    make_source,
    make_tables,
    read_file_bytes,
    read_frame,
    sequence_of_frames,
)
from unistore.errors import InputError, Problem
from unistore.schemas.spike.fields import FAMILY_NAME, FRAMES, IMAGES, file_table_name


class SpikeConverter(SpikeOptions, Converter):
    """Converts spike recordings; see `SpikeOptions`."""

    family: ClassVar[str] = FAMILY_NAME
    suffixes: ClassVar[tuple[str, ...]] = tuple(dict.fromkeys(s for role in ROLES for s in suffixes_of(role)))
    thread_safe: ClassVar[bool] = True

    def look(self, file: Candidate) -> Verdict:
        """Take streams, ``.npz`` files of ``spk``, and files in the folders of a sequence."""
        return recognise(file.path, self._folders())

    def find(self, paths: Sequence[Path], exclusion: Exclusion) -> Found:
        """One part for each frame, with a `FrameInfo` as its detail."""
        folders = self._folders()
        found = find_recordings(paths, folders, exclusion)
        roles, differing = common_roles(found.recordings, folders, self.columns)
        problems = [*found.problems, *differing]
        if not {"spike", "voxel"}.intersection(*(each.roles for each in found.recordings)):
            return Found(parts=(), notes=found.notes, problems=problems)
        frames = [
            FrameInfo(frame, each.name, each.sequence, each.split, tuple(r for r in roles if r in each.roles))
            for each in found.recordings
            for frame in each.frames
        ]
        parts = [
            Part(name=info.frame.name, files=info.files, roots=tuple(paths), detail=info) for info in frames
        ]
        used = [file for part in parts for file in part.files]
        left_out = find_left_out(found, used, roles, folders, exclusion)
        return Found(parts=parts, left_out=left_out, notes=found.notes, problems=problems)

    def scan(self, part: Part) -> ScannedFrame:
        """Read headers and sizes of one frame's files, and check arrays; see `Converter.scan`."""
        return scan_frame(part.detail, convert_images=self.convert_images)

    def gather(self, parts: Sequence[Part], scanned: Sequence[ScannedFrame]) -> Scan:
        """Extents of the streams, tables and sources of all frames; see `Converter.gather`."""
        return gather_frames(scanned, self)

    def _folders(self) -> dict[str, str]:
        return dict(zip(ROLES, (self.spike_dir, self.voxel_dir, self.blur_dir, self.sharp_dir), strict=True))

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

    def finalize(self, scan: Scan, facts: Sequence[Facts]) -> Finalized:
        """Extents, sequences, and offsets of kept images; one sample for each frame.

        ``sample_source`` is the first frame of each frame's sequence, so that ``--split`` never divides a
        sequence.
        """
        return Finalized(
            arrays=index_arrays(scan.sources),
            samples=len(scan.sources),
            sample_source=sequence_of_frames(scan.sources),
            groups={FRAMES: self._attributes(scan)},
        )

    def _attributes(self, scan: Scan) -> dict[str, Any]:
        """How the frames were made from their sources."""
        layout = scan.options["found"]["layout"]
        flipped = layout != "arrays" and self.flip
        upside_down = any(each.detail.get("voxel", {}).get("upside_down", False) for each in scan.sources)
        return {
            "source_layout": layout,
            "source_rows": "bottom first" if flipped else "top first",
            "flip_undone": flipped,
            "voxel_rule": "bin = (t * B) // T, T = spike_length of the frame",
            "images": self.frames,
            "existing_voxels": "bottom first" if upside_down else "top first",
        }


def gather_frames(frames: Sequence[ScannedFrame], options: SpikeOptions) -> Scan:
    """Make the scan of all frames (at least one, in order); only roles that all frames have are converted.

    All frames have spikes, or all have voxels. If some have problems, the streams are still compared, and the
    scan is empty. Raises an `InputError` with every disagreement between frames, and every stream of unknown
    layout or resolution.
    """
    roles = tuple(role for role in ROLES if all(role in each.info.roles for each in frames))
    resolved = _resolve(frames, options)
    spikes = _spikes(frames, resolved, options.flip)
    extents = {name: each.extent for name, each in spikes.items()}
    misread = None if resolved.problems else misread_note(frames, extents)
    usable = [replace(each, voxel=None) for each in frames] if misread else frames
    problems = [*resolved.problems, *compare_with_spikes(usable, extents)]
    if options.voxel_bins and "spike" not in roles:
        message = "cannot be counted: there are no spikes, only existing voxels"
        problems.append(Problem("--voxel-bins", message, "leave it out", "missing"))
    if problems:
        raise InputError(problems)
    if any(each.problems for each in frames):
        return Scan(family=FAMILY_NAME, sources=Sources(), tables=(), sample_table=FRAMES, main_table=FRAMES)
    counted, upside_down, notes = options.voxel_bins, False, list[str]()
    if misread:
        existing = {each.voxel.bins for each in frames if each.voxel is not None}
        counted, notes = tuple(sorted({*counted, *existing})), [misread]
    elif "voxel" in roles:
        bins = {each.voxel.bins for each in frames if each.voxel is not None}
        if bins <= set(counted):
            notes = [f"existing voxels are left out: sets of {min(bins)} bins are counted from the spikes"]
        else:
            upside_down, note = detect_orientation(frames, spikes)
            notes = [note]
    by_source = counted if misread else None
    return Scan(
        family=FAMILY_NAME,
        sources=Sources(
            make_source(each, roles, spikes.get(each.frame.name), options.frames, upside_down, by_source)
            for each in frames
        ),
        tables=make_tables(usable, extents, counted, roles, options.frames),
        sample_table=FRAMES,
        main_table=FRAMES,
        options={**options.recorded(), "found": {"layout": resolved.layout}},
        notes=(
            size_note(frames, extents),
            *resolved.notes,
            *firing_notes(frames, spikes),
            *notes,
            *padding_note(extents),
            *image_size_note(frames, options.frames),
        ),
    )


def _resolve(frames: Sequence[ScannedFrame], options: SpikeOptions) -> ResolvedStreams:
    by_sequence: dict[str, list[StreamSource]] = {}
    for each in frames:
        if each.stream is not None:
            by_sequence.setdefault(each.info.sequence, []).append(each.stream)
    if not by_sequence:
        return ResolvedStreams({}, "arrays", (), ())
    return resolve_streams(by_sequence, options.layout, options.height, options.width, options.flip)


def _spikes(frames: Sequence[ScannedFrame], resolved: ResolvedStreams, flip: bool) -> dict[str, FrameSource]:
    """Spikes of known extent by name of the frame."""
    found: dict[str, FrameSource] = {}
    for each in frames:
        name = each.frame.name
        if isinstance(each.spikes, FrameSource):
            found[name] = each.spikes
        elif each.spikes is not None and name in resolved.extents:
            found[name] = ShapedStream.of(each.spikes, resolved.extents[name], resolved.layout, flip)
    return found
