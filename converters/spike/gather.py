"""One scan of all frames: extents of the streams, tables, sources and remarks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from unistore.converters.common.left_out import left_out_notes
from unistore.converters.protocol import Scan, Sources
from unistore.converters.spike.existing_voxels import compare_with_spikes, detect_orientation, misread_note
from unistore.converters.spike.frames import ROLES, file_name
from unistore.converters.spike.notes import firing_notes, image_size_note, padding_note, size_note
from unistore.converters.spike.options import SpikeOptions
from unistore.converters.spike.resolve_streams import ResolvedStreams, resolve_streams
from unistore.converters.spike.scan import ScannedFrame
from unistore.converters.spike.source import FrameSource, ShapedStream, StreamSource
from unistore.converters.spike.tables import make_source, make_tables, recordings_of
from unistore.errors import InputError, Problem
from unistore.schemas.spike.fields import FAMILY_NAME, FRAMES


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
    sources = Sources(
        make_source(each, roles, spikes.get(each.frame.name), options.frames, upside_down, by_source)
        for each in frames
    )
    return Scan(
        family=FAMILY_NAME,
        sources=sources,
        units=recordings_of(sources),
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
            *left_out_notes(_left_out(frames, options.frames)),
        ),
    )


def _left_out(frames: Sequence[ScannedFrame], images: str) -> Iterator[tuple[str, str]]:
    """Yield what the files of frames hold and the store does not, with the reason."""
    for frame in frames:
        for arrays in (frame.spikes, frame.voxel):
            if arrays is not None:
                yield from ((f"{arrays.location}: {name}", "of another name") for name in arrays.others)
        for role, header in frame.images.items():
            if images == "tiles" and not header.exact:
                yield file_name(frame.frame, role), "alpha or bits beyond 8, which --convert-images drops"


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
