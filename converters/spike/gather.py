"""One scan of all frames: extents of the streams, existing voxels, tables, sources and remarks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.exclusion import with_source
from unistore.converters.common.left_out import left_out_notes
from unistore.converters.preview import evenly
from unistore.converters.protocol import Scan, Sources
from unistore.converters.spike.frames import ROLES, ScannedFrame, first_frames
from unistore.converters.spike.options import SpikeOptions
from unistore.converters.spike.spikes import Extent, Spikes, Stream, StreamSpikes
from unistore.converters.spike.streams import ResolvedStreams, resolve_streams
from unistore.converters.spike.tables import make_source, make_tables
from unistore.errors import InputError, Problem, first_few
from unistore.schemas.spike.fields import FAMILY_NAME, FRAMES, SPIKES, bin_edges
from unistore.system.sizes import count_of, size

# Recordings of which the first frame is compared
_CHECKED_RECORDINGS = 8
# Least correlation of a grid with sums of bytes; scaled grids are recognised, too
_SAME = 0.999
SATURATED = 0.9
"""Spikes a pixel and step above which a recording shows nothing."""
_LOOKED_AT = 24
# Blocks of a recording that its rate is taken from: all of most frames
_BLOCKS = 8
# Ratio of stored to source values from which a note warns of padding
_LARGE_PADDING = 3


def gather_frames(frames: Sequence[ScannedFrame], options: SpikeOptions) -> Scan:
    """Make the scan of all frames (at least one, in order); only roles that all frames have are converted.

    All frames have spikes, or all have voxels. If some have problems, the streams are still compared, and the
    scan is empty. Raises an `InputError` with every disagreement between frames, and every stream of unknown
    layout or resolution.
    """
    roles = tuple(role for role in ROLES if all(role in frame.group.roles for frame in frames))
    resolved = _resolve(frames, options)
    spikes = _spikes(frames, resolved, options.flip)
    extents = {name: source.extent for name, source in spikes.items()}
    misread = None if resolved.problems else misread_note(frames, extents)
    problems = [*resolved.problems, *compare_with_spikes([] if misread else frames, extents)]
    if options.voxel_bins and "spike" not in roles:
        message = "cannot be counted: there are no spikes, only existing voxels"
        problems.append(Problem("--voxel-bins", message, "leave it out", "missing"))
    if problems:
        raise InputError(problems)
    if any(frame.problems for frame in frames):
        return Scan(family=FAMILY_NAME, sources=Sources(), tables=(), sample_table=FRAMES, main_table=SPIKES)
    voxels = _plan_voxels(frames, spikes, options.voxel_bins, misread)
    existing = [] if misread else [frame.voxels for frame in frames if frame.voxels is not None]
    sources = Sources(
        make_source(frame, roles, spikes.get(frame.name), options.frames, voxels.upside_down, voxels.counted)
        for frame in frames
    )
    tables = make_tables(frames, extents, voxels.counted, existing, roles, options.frames)
    return Scan(
        family=FAMILY_NAME,
        sources=sources,
        units=[frame.group.unit for frame in frames],
        tables=tables,
        sample_table=FRAMES,
        main_table=tables[0].name,
        options={**options.recorded(), "found": {"layout": resolved.layout}},
        notes=(
            size_note(frames, extents),
            *resolved.notes,
            *firing_notes(frames, spikes),
            *voxels.notes,
            *padding_note(extents),
            *image_size_note(frames, options.frames),
            *left_out_notes(_left_out(frames, options.frames)),
        ),
    )


class _VoxelPlan(NamedTuple):
    """Bins of the sets that are counted from spikes, and what becomes of existing ones."""

    counted: tuple[int, ...]
    upside_down: bool = False
    notes: tuple[str, ...] = ()


def _plan_voxels(
    frames: Sequence[ScannedFrame],
    spikes: Mapping[str, Spikes],
    voxel_bins: tuple[int, ...],
    misread: str | None,
) -> _VoxelPlan:
    existing = {frame.voxels.bins for frame in frames if frame.voxels is not None}
    if misread is not None:
        return _VoxelPlan(tuple(sorted(existing.union(voxel_bins))), notes=(misread,))
    if not existing:
        return _VoxelPlan(voxel_bins)
    if existing <= set(voxel_bins):
        note = f"existing voxels are left out: sets of {min(existing)} bins are counted from the spikes"
        return _VoxelPlan(voxel_bins, notes=(note,))
    upside_down, note = detect_orientation(frames, spikes)
    return _VoxelPlan(voxel_bins, upside_down, (note,))


def _left_out(frames: Sequence[ScannedFrame], images: str) -> Iterator[tuple[str, str]]:
    """Yield what the files of frames hold and the store does not, with the reason."""
    for frame in frames:
        for name in frame.others:
            yield name, "of another name"
        for role, header in frame.images.items():
            if images == "tiles" and not header.exact:
                yield frame.called(role), "alpha or bits beyond 8, which --convert-images drops"


def _resolve(frames: Sequence[ScannedFrame], options: SpikeOptions) -> ResolvedStreams:
    by_sequence: dict[str, list[Stream]] = {}
    for frame in frames:
        if frame.stream is not None:
            by_sequence.setdefault(frame.sequence, []).append(frame.stream)
    if not by_sequence:
        return ResolvedStreams({}, "arrays")
    height, width, notes = _size_of_streams(list(chain.from_iterable(by_sequence.values())), options)
    resolved = resolve_streams(by_sequence, options.layout, height, width, options.flip)
    return resolved._replace(notes=[*notes, *resolved.notes])


def _size_of_streams(
    streams: Sequence[Stream], options: SpikeOptions
) -> tuple[int | None, int | None, list[str]]:
    """Height and width of all streams by the options or the files beside them, and a remark on these."""
    height = options.height
    width = options.width
    named = [stream.config for stream in streams if stream.config is not None]
    if not named:
        return height, width, []
    name = named[0].name
    cure = "convert them apart, or give --height and --width"
    if len(named) < len(streams) or len({(config.height, config.width) for config in named}) > 1:
        message = "says the size of some streams, and of others another file does, or none"
        raise InputError(Problem(name, message, cure, "geometry"))
    rows, columns, _ = named[0]
    if height not in (None, rows) or width not in (None, columns):
        message = f"says {rows} x {columns} pixels, unlike the one of --height and --width that is given"
        raise InputError(Problem(name, message, "give both, or none", "geometry"))
    return rows, columns, [f"streams are {rows} x {columns} pixels, as {name} says"]


def _spikes(frames: Sequence[ScannedFrame], resolved: ResolvedStreams, flip: bool) -> dict[str, Spikes]:
    """Spikes of known extent by name of the frame."""
    by_name: dict[str, Spikes] = {}
    for frame in frames:
        if isinstance(frame.spikes, Spikes):
            by_name[frame.name] = frame.spikes
        elif frame.spikes is not None and frame.name in resolved.extents:
            extent = resolved.extents[frame.name]
            stream = frame.spikes.array
            by_name[frame.name] = StreamSpikes(array=stream, extent=extent, layout=resolved.layout, flip=flip)
    return by_name


def detect_orientation(frames: Sequence[ScannedFrame], spikes: Mapping[str, Spikes]) -> tuple[bool, str]:
    """Whether row 0 of existing grids is the bottom row, and a note.

    The first grid of some sequences is compared with voxels counted from its spikes, given by the frame's
    name.

    Raises
    ------
    InputError
        If it is the bottom row of some grids, and the top row of others.
    """
    seen: dict[str, str] = {}
    compared = first_frames(frame for frame in frames if frame.name in spikes)[:_CHECKED_RECORDINGS]
    for frame in compared:
        way = _way_up(frame, spikes[frame.name])
        if way:
            seen.setdefault(way, frame.called("voxel"))
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


def _way_up(frame: ScannedFrame, spikes: Spikes) -> str:
    """Which row the grid of a frame begins with, ``"other"`` if it differs; empty: both ways are alike."""
    assert frame.voxels is not None
    if spikes.is_large:
        message = f"takes {size(spikes.memory)} of memory to be compared with its voxels"
        cure = "save it uncompressed, or in C order"
        raise InputError(Problem(spikes.name, message, cure, "memory"))
    counted = spikes.counted(frame.voxels.bins)
    existing = frame.voxels.values()
    upright = np.array_equal(existing, counted)
    flipped = np.array_equal(existing[:, ::-1], counted)
    if upright and flipped:
        return ""
    if upright:
        return "top"
    return "bottom" if flipped else "other"


def compare_with_spikes(frames: Sequence[ScannedFrame], extents: Mapping[str, Extent]) -> list[Problem]:
    """Problems of voxel grids of another resolution than their spikes, or with different numbers of bins.

    `extents` are those of the spikes, as far as known, by the frame's name.
    """
    problems: list[Problem] = []
    by_bins: dict[int, list[str]] = {}
    for frame in frames:
        extent = extents.get(frame.name)
        voxels = frame.voxels
        if voxels is None:
            continue
        by_bins.setdefault(voxels.bins, []).append(voxels.name)
        if extent and (voxels.height, voxels.width) != (extent.height, extent.width):
            cure = f"count them from the spikes: --voxel-dir none --voxel-bins {voxels.bins}"
            message = (
                f"is {voxels.height} x {voxels.width}, but its spikes are {extent.height} x {extent.width}"
            )
            problems.append(Problem(voxels.name, message, cure, "shape", frame.name))
    if len(by_bins) > 1:
        listing = "; ".join(
            f"{bins} in {names[0]} and {len(names) - 1} more" for bins, names in by_bins.items()
        )
        message = f"have different numbers of bins: {listing}"
        cure = "count them from the spikes: --voxel-dir none --voxel-bins 5"
        problems.append(Problem("existing voxels", message, cure, "shape"))
    return problems


def misread_note(frames: Sequence[ScannedFrame], extents: Mapping[str, Extent]) -> str | None:
    """A note if grids of other pixels than their spikes were counted from packed bytes taken for pixels.

    None if every grid has the pixels of its spikes (`extents`, by the frame's name), or one was made in
    another way.
    """
    differing = []
    for frame in frames:
        voxels = frame.voxels
        extent = extents.get(frame.name)
        if voxels is None or extent is None:
            continue
        if (voxels.height, voxels.width) == (extent.height, extent.width):
            continue
        if frame.stream is None or frame.stream.size % (voxels.height * voxels.width):
            return None
        differing.append(frame)
    compared = first_frames(differing)[:_CHECKED_RECORDINGS]
    if not compared or not all(map(_is_sum_of_bytes, compared)):
        return None
    voxels = compared[0].voxels
    assert voxels is not None
    extent = extents[compared[0].name]
    return (
        f"careful: existing voxels ({voxels.name}: {voxels.bins} x {voxels.height} x {voxels.width}) were "
        f"counted from packed bytes taken for pixels; sets of {voxels.bins} bins are counted from the spikes "
        f"instead, {extent.height} x {extent.width}"
    )


def _is_sum_of_bytes(frame: ScannedFrame) -> bool:
    """Whether a grid is a sum over bytes of its stream, either way up."""
    voxels = frame.voxels
    stream = frame.stream
    assert voxels is not None
    assert stream is not None
    pixels = voxels.height * voxels.width
    length = stream.size // pixels
    if length < voxels.bins:
        return False
    counted = np.zeros((voxels.bins, voxels.height, voxels.width))
    bins = np.repeat(np.arange(voxels.bins), np.diff(bin_edges(length, voxels.bins)))
    with stream.array.open() as content:
        for step, number in enumerate(bins.tolist()):
            step_bytes = content[step * pixels : (step + 1) * pixels]
            counted[number] += step_bytes.reshape(voxels.height, voxels.width)
    existing = voxels.values().astype(np.float64)
    if not existing.std() or not counted.std():
        return not existing.any() and not counted.any()
    return any(_correlation(grid, counted) >= _SAME for grid in (existing, existing[:, ::-1]))


def _correlation(grid: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    return float(np.corrcoef(grid.ravel(), other.ravel())[0, 1])


def firing_rate(blocks: Iterable[NDArray[np.uint8]], width: int) -> float:
    """Spikes a pixel and step of packed spikes, (t, H, bytes) each, whose padding bits are 0."""
    pixels = fired = 0
    for packed in blocks:
        pixels += packed.shape[0] * packed.shape[1] * width
        fired += int(np.bitwise_count(packed).sum(dtype=np.int64))
    return fired / max(1, pixels)


def firing_notes(frames: Sequence[ScannedFrame], spikes: Mapping[str, Spikes]) -> list[str]:
    """Rates at the start of some sequences, and a remark on those that are dark or saturated.

    `spikes` has those of each frame by its name.
    """
    small = {name for name, source in spikes.items() if not source.is_large}
    firsts = first_frames(frame for frame in frames if frame.name in small)
    rates: dict[str, float] = {}
    for number in evenly(0, len(firsts), _LOOKED_AT).tolist():
        frame = firsts[number]
        source = spikes[frame.name]
        beginning = islice(source.blocks(), _BLOCKS)  # a recording may be larger than memory
        try:
            rates[frame.sequence] = firing_rate(beginning, source.extent.width)
        except InputError as error:
            raise InputError(with_source(frame.name, error.problems)) from error
    if not rates:
        return []
    ends = dict.fromkeys([f"{min(rates.values()):.3g}", f"{max(rates.values()):.3g}"])
    start = f"at the start of {count_of(len(rates), 'sequence')}"
    notes = [f"spikes a pixel and step: {' to '.join(ends)}, {start}"]
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
    sequences = count_of(len({frame.sequence for frame in frames}), "sequence")
    note = f"spikes: {count_of(len(frames), 'frame')} of {sequences}"
    if extents:
        steps = f"{lengths[0]}" if len(lengths) == 1 else f"{lengths[0]} to {lengths[-1]}"
        listing = ", ".join(f"{height} x {width}" for height, width in pixels)
        note += f", {steps} time steps of {listing} pixels"
        if len(pixels) > 1:
            note += "; smaller ones are padded with zeros"
    return note


def padding_note(extents: Mapping[str, Extent]) -> list[str]:
    """A note if padding to the most pixels makes the store several times as large as its sources."""
    if not extents:
        return []
    steps = sum(extent.length for extent in extents.values())
    height = max(extent.height for extent in extents.values())
    width = max(extent.width for extent in extents.values())
    factor = steps * height * width / sum(prod(extent) for extent in extents.values())
    if factor < _LARGE_PADDING:
        return []
    name = max(extents, key=lambda name: extents[name].height * extents[name].width)
    note = (
        f"careful: {name} has {extents[name].height} x {extents[name].width} pixels, and all frames are "
        f"padded to the largest: {factor:.1f} times the values that the sources hold; convert it apart "
        f"(--exclude {name})"
    )
    return [note]


def image_size_note(scanned: Sequence[ScannedFrame], frames: str) -> list[str]:
    """Bytes of all blur and sharp frames in both ways to store them."""
    headers = list(chain.from_iterable(frame.images.values() for frame in scanned))
    if not headers:
        return []
    tiles = sum(header.height * header.width * 3 for header in headers) / 1e6
    keep = sum(header.size for header in headers) / 1e6
    note = (
        f"blur and sharp frames: at most {tiles:,.1f} MB as tiles (before compression), "
        f"{keep:,.1f} MB with --frames keep; taken: {frames}"
    )
    return [note]
