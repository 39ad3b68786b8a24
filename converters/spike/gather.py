"""One scan of all frames: extents of the streams, existing voxels, tables, sources and remarks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from math import prod

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.exclusion import with_source
from unistore.converters.common.left_out import left_out_notes
from unistore.converters.preview import evenly
from unistore.converters.protocol import Scan, Sources
from unistore.converters.spike.frames import ROLES, file_name
from unistore.converters.spike.options import SpikeOptions
from unistore.converters.spike.scan import ScannedFrame, first_frames
from unistore.converters.spike.source import LARGE, Extent, FrameSource, ShapedStream, StreamSource
from unistore.converters.spike.streams import ResolvedStreams, resolve_streams
from unistore.converters.spike.tables import make_source, make_tables, recordings_of
from unistore.errors import InputError, Problem, first_few
from unistore.schemas.spike.fields import FAMILY_NAME, FRAMES, bin_edges
from unistore.system.sizes import count_of, size

_CHECKED_RECORDINGS = 8
"""Recordings of which the first frame is compared."""
_SAME = 0.999
"""Least correlation of a grid with sums of bytes; scaled grids are recognised, too."""
SATURATED = 0.9
"""Spikes a pixel and step above which a recording shows nothing."""
_LOOKED_AT = 24
_BLOCKS = 8
"""Blocks of a recording that its rate is taken from: all of most frames."""
_LARGE_PADDING = 3
"""Ratio of stored to source values from which a note warns of padding."""


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


def detect_orientation(frames: Sequence[ScannedFrame], spikes: Mapping[str, FrameSource]) -> tuple[bool, str]:
    """Whether row 0 of existing grids is the bottom row, and a note.

    The first grid of some sequences is compared with voxels counted from its spikes, given by the frame's
    name.

    Raises
    ------
    InputError
        If it is the bottom row of some grids, and the top row of others.
    """
    seen: dict[str, str] = {}
    for each in first_frames(each for each in frames if each.frame.name in spikes)[:_CHECKED_RECORDINGS]:
        source = spikes[each.frame.name]
        assert each.voxel is not None
        if source.memory > LARGE:
            message = f"takes {size(source.memory)} of memory to be compared with its voxels"
            cure = "save it uncompressed, or in C order"
            raise InputError(Problem(source.location, message, cure, "memory"))
        counted, found = source.counted(each.voxel.bins), each.voxel.values()
        upright, flipped = np.array_equal(found, counted), np.array_equal(found[:, ::-1], counted)
        if not (upright and flipped):
            way = "top" if upright else "bottom" if flipped else "other"
            seen.setdefault(way, file_name(each.frame, "voxel"))
    if set(seen) == {"top", "bottom"}:
        message = f"holds its bottom row first, but {seen['top']} its top row"
        cure = "remove the existing voxels and use --voxel-bins"
        raise InputError(Problem(seen["bottom"], message, cure, "orientation"))
    if "other" in seen:
        note = f"existing voxels are kept as they are; {seen['other']} differs from sums of its spikes"
    elif "bottom" in seen:
        note = "existing voxels equal the spikes' upside down: flipped in the store"
    elif seen:
        note = "existing voxels equal those counted from the spikes"
    else:
        note = "existing voxels are kept as they are; row 0 is taken as the top"
    return set(seen) == {"bottom"}, note


def compare_with_spikes(frames: Sequence[ScannedFrame], extents: Mapping[str, Extent]) -> list[Problem]:
    """Problems of voxel grids of another resolution than their spikes, or with different numbers of bins.

    `extents` are those of the spikes, as far as known, by the frame's name.
    """
    problems: list[Problem] = []
    by_bins: dict[int, list[str]] = {}
    for each in frames:
        extent, voxel = extents.get(each.frame.name), each.voxel
        if voxel is None:
            continue
        name = file_name(each.frame, "voxel")
        by_bins.setdefault(voxel.bins, []).append(name)
        if extent and (voxel.height, voxel.width) != (extent.height, extent.width):
            its, theirs = f"{voxel.height} x {voxel.width}", f"{extent.height} x {extent.width}"
            cure = f"count them from the spikes: --voxel-dir none --voxel-bins {voxel.bins}"
            message = f"is {its}, but its spikes are {theirs}"
            problems.append(Problem(name, message, cure, "shape", each.frame.name))
    if len(by_bins) > 1:
        listed = "; ".join(
            f"{bins} in {names[0]} and {len(names) - 1} more" for bins, names in by_bins.items()
        )
        message = f"have different numbers of bins: {listed}"
        cure = "count them from the spikes: --voxel-dir none --voxel-bins 5"
        problems.append(Problem("existing voxels", message, cure, "shape"))
    return problems


def misread_note(frames: Sequence[ScannedFrame], extents: Mapping[str, Extent]) -> str | None:
    """A note if grids of other pixels than their spikes were counted from packed bytes taken for pixels.

    None if every grid has the pixels of its spikes (`extents`, by the frame's name), or one was made in
    another way.
    """
    differing = []
    for each in frames:
        voxel, extent = each.voxel, extents.get(each.frame.name)
        if voxel is None or extent is None or (voxel.height, voxel.width) == (extent.height, extent.width):
            continue
        if each.stream is None or each.stream.size % (voxel.height * voxel.width):
            return None
        differing.append(each)
    compared = first_frames(differing)[:_CHECKED_RECORDINGS]
    if not compared or not all(map(_is_sum_of_bytes, compared)):
        return None
    first, voxel = compared[0], compared[0].voxel
    assert voxel is not None
    name = file_name(first.frame, "voxel")
    grid, extent = f"{voxel.bins} x {voxel.height} x {voxel.width}", extents[first.frame.name]
    return (
        f"careful: existing voxels ({name}: {grid}) were counted from packed bytes "
        f"taken for pixels; sets of {voxel.bins} bins are counted from the spikes instead, "
        f"{extent.height} x {extent.width}"
    )


def _is_sum_of_bytes(frame: ScannedFrame) -> bool:
    """Whether a grid is a sum over bytes of its stream, either way up."""
    voxel, stream = frame.voxel, frame.stream
    assert voxel is not None
    assert stream is not None
    length = stream.size // (voxel.height * voxel.width)
    if length < voxel.bins:
        return False
    counted = np.zeros((voxel.bins, voxel.height, voxel.width))
    bins = np.repeat(np.arange(voxel.bins), np.diff(bin_edges(length, voxel.bins)))
    content, pixels = stream.content(), voxel.height * voxel.width
    for step, number in enumerate(bins.tolist()):
        counted[number] += content[step * pixels : (step + 1) * pixels].reshape(voxel.height, voxel.width)
    found = voxel.values().astype(np.float64)
    if not found.std() or not counted.std():
        return not found.any() and not counted.any()
    return any(
        float(np.corrcoef(each.ravel(), counted.ravel())[0, 1]) >= _SAME for each in (found, found[:, ::-1])
    )


def firing_rate(blocks: Iterable[NDArray[np.uint8]], width: int) -> float:
    """Spikes a pixel and step of packed spikes, (t, H, bytes) each, whose padding bits are 0."""
    pixels = fired = 0
    for packed in blocks:
        pixels += packed.shape[0] * packed.shape[1] * width
        fired += int(np.bitwise_count(packed).sum(dtype=np.int64))
    return fired / max(1, pixels)


def firing_notes(frames: Sequence[ScannedFrame], spikes: Mapping[str, FrameSource]) -> list[str]:
    """Rates at the start of some sequences, and a remark on those that are dark or saturated.

    `spikes` has those of each frame by its name.
    """
    small = {name for name, source in spikes.items() if source.memory <= LARGE}
    firsts = first_frames(each for each in frames if each.frame.name in small)
    rates: dict[str, float] = {}
    for at in evenly(0, len(firsts), _LOOKED_AT).tolist():
        name, source = firsts[at].frame.name, spikes[firsts[at].frame.name]
        beginning = islice(source.blocks(), _BLOCKS)  # a recording may be larger than memory
        try:
            rates[firsts[at].info.sequence] = firing_rate(beginning, source.extent.width)
        except InputError as error:
            raise InputError(with_source(name, error.problems)) from error
    if not rates:
        return []
    span = " to ".join(dict.fromkeys(f"{end(rates.values()):.3g}" for end in (min, max)))
    notes = [f"spikes a pixel and step: {span}, at the start of {count_of(len(rates), 'sequence')}"]
    dark = [name for name, rate in rates.items() if not rate]
    full = [name for name, rate in rates.items() if rate > SATURATED]
    for names, what in ((dark, "no spike at all"), (full, "nearly every pixel firing at every step")):
        if names:
            cure = "look at the recordings, or leave them out (--exclude)"
            notes.append(f"careful: {what} at the start of {first_few(names)}: {cure}")
    return notes


def size_note(frames: Sequence[ScannedFrame], extents: Mapping[str, Extent]) -> str:
    """Frames, sequences, time steps and pixels."""
    lengths = sorted({extent.length for extent in extents.values()})
    pixels = sorted({(extent.height, extent.width) for extent in extents.values()})
    sequences = count_of(len({each.info.sequence for each in frames}), "sequence")
    note = f"spikes: {count_of(len(frames), 'frame')} of {sequences}"
    if extents:
        steps = f"{lengths[0]}" if len(lengths) == 1 else f"{lengths[0]} to {lengths[-1]}"
        listed = ", ".join(f"{height} x {width}" for height, width in pixels)
        note += f", {steps} time steps of {listed} pixels"
        if len(lengths) > 1 or len(pixels) > 1:
            note += "; shorter and smaller ones are padded with zeros"
    return note


def padding_note(extents: Mapping[str, Extent]) -> list[str]:
    """A note if padding to the largest extents makes the store several times as large as its sources."""
    sizes = {name: each.length * each.height * each.width for name, each in extents.items()}
    if not sizes:
        return []
    axes = ("length", "height", "width")
    largest = prod(max(getattr(each, axis) for each in extents.values()) for axis in axes)
    factor = len(sizes) * largest / sum(sizes.values())
    if factor < _LARGE_PADDING:
        return []
    name = max(sizes, key=lambda each: sizes[each])
    note = (
        f"careful: {name} has {extents[name].length} time steps, and all frames are padded to the largest: "
        f"{factor:.1f} times the values that the sources hold; convert it apart (--exclude {name}), "
        "or cut it into frames"
    )
    return [note]


def image_size_note(scanned: Sequence[ScannedFrame], frames: str) -> list[str]:
    """Bytes of all blur and sharp frames in both ways to store them."""
    forms = [form for each in scanned for form in each.images.values()]
    if not forms:
        return []
    tiles = sum(form.height * form.width * 3 for form in forms) / 1e6
    keep = sum(form.size for form in forms) / 1e6
    note = (
        f"blur and sharp frames: at most {tiles:,.1f} MB as tiles (before compression), "
        f"{keep:,.1f} MB with --frames keep; taken: {frames}"
    )
    return [note]
