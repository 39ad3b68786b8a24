"""One scan of all frames: extents of the streams, existing voxels, tables, sources and remarks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby, islice
from math import prod
from statistics import median_low
from typing import NamedTuple

import numpy as np

from unistore.converters.spike.frames import (
    HIGHEST_FIRST,
    Extent,
    FrameOrigin,
    FrameValues,
    ScannedFrame,
    Spikes,
    first_frames,
)
from unistore.converters.spike.options import SpikeOptions
from unistore.converters.spike.streams import ResolvedStreams, resolve_streams
from unistore.errors import AddOptions, InputError, Problem, first_few, with_source
from unistore.plugin import (
    Field,
    Finalized,
    Scan,
    Source,
    Sources,
    Table,
    count_of,
    evenly,
    left_out_notes,
    offsets_of,
    promote,
    promotion_note,
    text_arrays,
)
from unistore.schemas.spike import fields
from unistore.schemas.spike.fields import FAMILY_NAME, FRAMES, IMAGES, SPIKES, file_table_name, row_bytes
from unistore.system.types import AnyArray, Shape, UInt8s

# Recordings of which the first frame is compared
_CHECKED_RECORDINGS = 8
SATURATED = 0.9  # spikes per pixel and step above which a recording shows nothing
_LOOKED_AT = 24
_LOOKED_AT_BYTES = 16 << 10  # bytes of an array that show whether they are pixels
_MIN_SET_BITS = 16  # that are all the lowest bit of their byte in packed spikes with probability 8**-16
# Blocks of a recording that its rate is taken from: all of most frames
_BLOCKS = 8
# Bytes that reading a block takes above which a recording is not read only to look at it
LARGE = 64 << 20
# Ratio of stored to source values from which a note warns of padding
_LARGE_PADDING = 3


def gather_frames(frames: Sequence[ScannedFrame], options: SpikeOptions) -> Scan:
    """Make the scan of all frames: at least one, in order, all of the same roles.

    If some have problems, the streams are still resolved, and the scan is empty.
    """
    resolved = _resolve(frames, options)
    spikes = _spikes(frames, resolved, options)
    if any(frame.problems for frame in frames):
        return Scan(family=FAMILY_NAME, sources=Sources(), tables=(), sample_table=FRAMES, main_table=SPIKES)
    voxels = _plan_voxels(frames, spikes, options.voxel_bins)
    tables = tuple(_tables(frames, spikes, voxels, options.frames))
    return Scan(
        family=FAMILY_NAME,
        sources=Sources(_source(frame, spikes, options.frames) for frame in frames),
        units=[frame.group.unit for frame in frames],
        tables=tables,
        sample_table=FRAMES,
        main_table=tables[0].name,
        options={**options.recorded(), "found": {"layout": resolved.layout}},
        notes=(
            *resolved.notes,
            *_firing_notes(frames, spikes),
            *voxels.notes,
            *_padding_notes([source.extent for source in spikes.values()], list(spikes)),
            *_voxel_note(voxels.existing),
            *left_out_notes(_left_out(frames, options.frames)),
        ),
        shared={"counted": voxels.counted, "upside_down": voxels.upside_down},
    )


def _resolve(frames: Sequence[ScannedFrame], options: SpikeOptions) -> ResolvedStreams:
    """Find the layout and the extents of the streams, of the size that options or files beside them say."""
    by_sequence: dict[str, list[FrameValues]] = {}
    images: dict[str, tuple[int, int]] = {}
    configs = []
    for frame in frames:
        for header in frame.images.values():
            images.setdefault(frame.sequence, (header.height, header.width))
        stream = frame.values.get("spike")
        if stream is not None and stream.is_stream:
            by_sequence.setdefault(frame.sequence, []).append(stream)
            configs.append(frame.config)
    if not by_sequence:
        return ResolvedStreams({}, "arrays")
    named = [config for config in configs if config is not None]
    if not named:
        return resolve_streams(by_sequence, options, options.height, options.width, images)
    height, width, name = named[0]
    if len(named) < len(configs) or len({config[:2] for config in named}) > 1:
        message = "states the size of only some streams: others have another such file, or none"
        size = AddOptions(("--height", str(height), "--width", str(width)), "if all are of this size")
        fix = size, "convert them separately"
        raise InputError(Problem(name, message, fix, "geometry"))
    if options.height not in (None, height) or options.width not in (None, width):
        option = f"--width {options.width}" if options.height is None else f"--height {options.height}"
        message = f"states {height} x {width} pixels, which contradicts {option}"
        fixes = f"remove {option}", "give both --height and --width"
        raise InputError(Problem(name, message, fixes, "geometry"))
    resolved = resolve_streams(by_sequence, options, height, width, images)
    note = f"streams have {height} x {width} pixels, as {name} states"
    return resolved._replace(notes=[note, *resolved.notes])


def _spikes(
    frames: Sequence[ScannedFrame], resolved: ResolvedStreams, options: SpikeOptions
) -> dict[str, Spikes]:
    """Spikes by name of the frame."""
    by_name = {}
    for frame in frames:
        values = frame.values.get("spike")
        if values is None:
            continue
        if values.is_stream:
            extent = resolved.extents[frame.name]
            by_name[frame.name] = Spikes(values.array, extent, resolved.layout, options.flip)
        else:
            by_name[frame.name] = _spikes_of_array(values, options)
    return by_name


def _spikes_of_array(values: FrameValues, options: SpikeOptions) -> Spikes:
    """Return the spikes of an array, whose bytes may be eight pixels each."""
    length, height, columns = values.shape
    if options.layout not in ("packed", HIGHEST_FIRST):
        return Spikes(values.array, Extent(length, height, columns), "array", flip=False)
    width = options.width or 8 * columns
    with values.array.open() as array:
        beginning = array[: max(1, _LOOKED_AT_BYTES // (height * columns))]
    problem = ""
    if values.dtype != np.uint8 or (beginning.max() <= 1 and np.count_nonzero(beginning) >= _MIN_SET_BITS):
        problem = f"contains {values.dtype} values of 0 and 1, which are pixels, not packed bits"
        fix = "convert it separately, without --layout"
    elif row_bytes(width) != columns or options.height not in (None, height):
        problem = f"has {height} rows of {columns} bytes, which does not fit --height and --width"
        fix = "correct these options, or remove them"
    if problem:
        raise InputError(Problem(values.name, problem, fix, "layout", values.name))
    return Spikes(values.array, Extent(length, height, width), f"array {options.layout}", flip=False)


class _VoxelPlan(NamedTuple):
    """Bins of the sets that are counted from spikes, and what becomes of existing ones."""

    counted: tuple[int, ...]
    existing: Sequence[FrameValues] = ()
    upside_down: bool = False
    notes: tuple[str, ...] = ()


def _plan_voxels(
    frames: Sequence[ScannedFrame], spikes: Mapping[str, Spikes], voxel_bins: tuple[int, ...]
) -> _VoxelPlan:
    """Choose the sets that are counted, and take others over. Those of other pixels are counted again."""
    if voxel_bins and not spikes:
        message = "needs spikes, but the sources contain only existing voxels"
        raise InputError(Problem("--voxel-bins", message, "remove it", "missing"))
    existing = [frame.values["voxel"] for frame in frames if "voxel" in frame.values]
    first_of = {voxels.shape[0]: voxels.name for voxels in reversed(existing)}
    if not existing:
        return _VoxelPlan(voxel_bins)
    if len(first_of) > 1:
        listing = ", ".join(f"{bins} in {name}" for bins, name in sorted(first_of.items()))
        message = f"have different numbers of bins: {listing}"
        fix = AddOptions(("--voxel-dir", "none", "--voxel-bins", "5"), "to count them from the spikes")
        raise InputError(Problem("existing voxels", message, fix, "shape"))
    (bins,) = first_of
    if bins in voxel_bins:
        note = f"existing voxels are not stored, because voxels of {bins} bins are counted from the spikes"
        return _VoxelPlan(voxel_bins, existing, notes=(note,))
    for frame in frames:
        extent = spikes[frame.name].extent if frame.name in spikes else None
        voxels = frame.values.get("voxel")
        if extent and voxels and voxels.shape[1:] != extent[1:]:
            note = (
                f"careful: the existing voxels {voxels.name} have {voxels.shape[1]} x {voxels.shape[2]} "
                f"pixels, but their spikes have {extent.height} x {extent.width}, as if packed bytes were "
                f"read as pixels; voxels of {bins} bins are counted from the spikes instead"
            )
            return _VoxelPlan(tuple(sorted({*voxel_bins, bins})), notes=(note,))
    upside_down, note = _detect_orientation(frames, spikes)
    return _VoxelPlan(voxel_bins, existing, upside_down, (note,))


def _detect_orientation(frames: Sequence[ScannedFrame], spikes: Mapping[str, Spikes]) -> tuple[bool, str]:
    """Return whether row 0 of existing voxels is the bottom row, and a note."""
    # The first voxels of some sequences are compared with those counted from their spikes.
    first_of: dict[str, str] = {}
    for frame in first_frames(frame for frame in frames if frame.name in spikes)[:_CHECKED_RECORDINGS]:
        if frame.values["spike"].memory > LARGE:
            continue
        with frame.values["voxel"].array.open() as array:
            existing = array[:]
        counted = spikes[frame.name].counted(len(existing))
        upright = np.array_equal(existing, counted)
        flipped = np.array_equal(existing[:, ::-1], counted)
        if upright != flipped:
            first_of.setdefault("top" if upright else "bottom", frame.called("voxel"))
        elif not upright:
            first_of.setdefault("other", frame.called("voxel"))
    if first_of.keys() == {"top", "bottom"}:
        message = f"has its bottom row first, but {first_of['top']} has its top row first"
        fix = AddOptions(("--voxel-dir", "none", "--voxel-bins", "5"), "to count them from the spikes")
        raise InputError(Problem(first_of["bottom"], message, fix, "orientation"))
    if "other" in first_of:
        return (
            False,
            f"existing voxels are kept as they are; {first_of['other']} differs from the sums of its spikes",
        )
    if "bottom" in first_of:
        return (
            True,
            "existing voxels have the bottom row first, unlike the spikes; they are flipped in the store",
        )
    return False, "existing voxels are kept as they are, with row 0 at the top"


def firing_rate(blocks: Iterable[UInt8s], width: int) -> float:
    """Spikes a pixel and step of packed spikes, (t, H, bytes) each, whose padding bits are 0."""
    pixels = fired = 0
    for packed in blocks:
        pixels += packed.shape[0] * packed.shape[1] * width
        fired += int(np.bitwise_count(packed).sum(dtype=np.int64))
    return fired / max(1, pixels)


def _firing_notes(frames: Sequence[ScannedFrame], spikes: Mapping[str, Spikes]) -> list[str]:
    """Rates at the start of some sequences, and a remark on those that are dark or saturated."""
    firsts = first_frames(
        frame for frame in frames if frame.name in spikes and frame.values["spike"].memory <= LARGE
    )
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
    least = min(rates.values())
    most = max(rates.values())
    ends = dict.fromkeys([f"{least:.3g}", f"{most:.3g}"])
    start = f"at the start of {count_of(len(rates), 'sequence')}"
    notes = [f"spikes per pixel and step: {' to '.join(ends)}, {start}"]
    dark = [name for name, rate in rates.items() if not rate]
    full = [name for name, rate in rates.items() if rate > SATURATED]
    for names, what in ((dark, "no spike at all"), (full, "nearly every pixel firing at every step")):
        if names:
            fix = "look at the recordings, or skip them with --exclude"
            notes.append(f"careful: {what} at the start of {first_few(names)}: {fix}")
    return notes


def _padding_notes(extents: Sequence[Extent], names: Sequence[str]) -> Iterator[str]:
    """Yield a note if padding to the most pixels makes the store several times as large as its sources."""
    if not extents:
        return
    _, height, width = map(max, zip(*extents, strict=True))
    steps = sum(extent.length for extent in extents)
    factor = steps * height * width / sum(map(prod, extents))
    if factor >= _LARGE_PADDING:
        sizes = [extent.height * extent.width for extent in extents]
        name = names[sizes.index(max(sizes))]
        yield (
            f"careful: all frames are padded to {height} x {width} pixels, the size of {name}, which makes "
            f"{factor:.1f} times as many values as in the sources; convert it separately (--exclude {name})"
        )


def _left_out(frames: Sequence[ScannedFrame], images: str) -> Iterator[tuple[str, str]]:
    """Yield what the files of frames hold and the store does not, with the reason."""
    for frame in frames:
        for name in frame.others:
            yield name, "because it is not an array of spikes or voxels"
        for role, header in frame.images.items():
            if images == "tiles" and not header.exact:
                yield f"alpha or more than 8 bits of {frame.called(role)}", "because of --convert-images"


def _voxel_note(grids: Sequence[FrameValues]) -> Iterator[str]:
    dtype = promote([grid.dtype for grid in grids]) if grids else None
    origins: dict[str, list[str]] = {}
    for grid in grids:
        origins.setdefault(grid.dtype.name, []).append(grid.name)
    if dtype is not None and (note := promotion_note("voxels", dtype.name, origins)):
        yield note


def _tables(
    scanned: Sequence[ScannedFrame], spikes: Mapping[str, Spikes], voxels: _VoxelPlan, frames: str
) -> Iterator[Table]:
    """Yield tables of time steps, and of voxels and images if any, with kept images one each."""
    # Rows are padded to the most pixels of spikes and voxels, and of images.
    lengths = [source.extent.length for source in spikes.values()]
    sizes: list[Shape] = [source.extent[1:] for source in spikes.values()]
    sizes += [grid.shape[1:] for grid in voxels.existing]
    height, width = map(max, zip(*sizes, strict=True))
    if lengths:
        yield Table(name=SPIKES, fields=(fields.bits_field(height, width, fields.chunk_steps(lengths)),))
    columns: dict[int, Field] = {}
    dtype = promote([grid.dtype for grid in voxels.existing]) if voxels.existing else None
    if dtype is not None:
        bins = voxels.existing[0].shape[0]
        columns[bins] = fields.voxel_field(bins, dtype.name, height, width, counted=False)
    for bins in voxels.counted:
        counts = fields.count_dtype(max(lengths), bins)
        columns[bins] = fields.voxel_field(bins, counts, height, width, counted=True)
    of_frames = [columns[bins] for bins in sorted(columns)]
    kept = []
    headers = list(chain.from_iterable(frame.images.values() for frame in scanned))
    tallest = max((header.height for header in headers), default=0)
    widest = max((header.width for header in headers), default=0)
    for image in scanned[0].images:
        if frames == "tiles":
            of_frames.append(fields.image_field(image, tallest, widest))
        else:
            run = median_low([frame.images[image].size for frame in scanned])
            kept.append(fields.file_table(image, run))
    if of_frames:
        yield Table(name=FRAMES, fields=tuple(of_frames))
    yield from kept


def _source(frame: ScannedFrame, spikes: Mapping[str, Spikes], frames: str) -> Source:
    group = frame.group
    rows = {FRAMES: 1}
    shapes: dict[str, Shape] = {role: values.shape for role, values in frame.values.items()}
    memory = sum(values.memory for values in frame.values.values())
    if frame.name in spikes:
        shapes["spike"] = spikes[frame.name].extent
        rows[SPIKES] = spikes[frame.name].extent.length
    for image, header in frame.images.items():
        shapes[image] = (header.height, header.width)
        memory = max(memory, 6 * header.height * header.width + header.size)
        if frames == "keep":
            rows[file_table_name(image)] = header.size
    keys = {role: values.array.key for role, values in frame.values.items()}
    return Source(
        path=group.files[0].path,
        name=frame.name,
        files=tuple([file.path for file in group.files]),
        rows=rows,
        split=group.detail.split,
        reading=memory,
        detail=FrameOrigin(
            files=tuple([file.name for file in group.files]),
            formats=frame.formats,
            arrays=tuple([keys.get(role, "image") for role in group.roles]),
            roles=group.roles,
            sequence=frame.sequence,
            shapes=shapes,
            inexact=tuple([image for image, header in frame.images.items() if not header.exact]),
            layout=spikes[frame.name].layout if frame.name in spikes else "array",
        ),
    )


def finish_frames(options: SpikeOptions, scan: Scan) -> Finalized:
    """Extents, sequences, and offsets of kept images. One sample for each frame."""
    layout = scan.options["found"]["layout"]
    flipped = layout != "arrays" and options.flip
    attributes = {
        "source_layout": layout,
        "source_rows": "bottom first" if flipped else "top first",
        "flip_undone": flipped,
        "voxel_rule": "bin = (t * B) // T, T = steps of the frame",
        "images": options.frames,
        "existing_voxels": "bottom first" if scan.shared["upside_down"] else "top first",
    }
    return Finalized(
        arrays=index_arrays(scan),
        samples=len(scan.sources),
        sample_source=np.arange(len(scan.sources)),
        groups={FRAMES: attributes},
    )


def index_arrays(scan: Scan) -> list[tuple[Field, AnyArray]]:
    """Return all index arrays of the sources, one source for each frame."""
    origins: list[FrameOrigin] = list(scan.sources.details)
    arrays: list[tuple[Field, AnyArray]] = []
    arrays.append((fields.FRAME_SOURCE_FIELD, np.arange(len(origins), dtype=np.int32)))
    if scan.main_table == SPIKES:
        arrays.append((fields.FRAME_OFFSETS_FIELD, offsets_of(scan.sources.rows(SPIKES))))
    pixels = np.array([origin.pixels for origin in origins], np.int32)
    arrays.append((fields.extent_field(fields.SPIKE_EXTENT), pixels))
    images = [image for image in IMAGES if image in origins[0].shapes]
    if images:
        pixels = np.array([origin.shapes[images[0]] for origin in origins], np.int32)
        arrays.append((fields.extent_field(fields.IMAGE_EXTENT), pixels))
    for image in images:
        sizes = scan.sources.rows(file_table_name(image))
        if any(sizes):
            arrays.append((fields.file_offsets_field(image), offsets_of(sizes)))
    names: list[str] = []
    lengths: list[int] = []
    for name, frames in groupby(origin.sequence for origin in origins):
        names.append(name)
        lengths.append(len(list(frames)))
    arrays.append((fields.SEQUENCE_OFFSETS_FIELD, offsets_of(lengths)))
    description = "Name of the sequence"
    return arrays + text_arrays(fields.SEQUENCE_NAME, names, axis="sequence", description=description)
