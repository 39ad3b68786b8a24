"""Layout, resolution and length of headerless recordings, from the sizes of their files and their bytes.

The size of a stream must be a whole number of frames. Their resolution is given by the user or is that of a
known camera; if several cameras fit, the recording is refused.

Layouts
-------
packed
    Eight pixels a byte, least significant bit first, rows padded to whole bytes. In real recordings, 68-93 %
    of the bytes are above 1.
stream
    The same bits without padding (differs if W % 8 != 0).
bytes
    One byte a pixel, 0 or 1. So one byte above 1 decides for all recordings of a conversion, since dark
    recordings alone do not show their layout.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.converters.spike.spikes import Extent, Stream, StreamSpikes, bits_of_step
from unistore.errors import Problem, first_few, printable
from unistore.schemas.spike.fields import row_bytes, unpack
from unistore.system.sizes import count_of

_HEAD_BYTES = 16 << 10
_BLOCK = 4 << 20
_MIN_SET_BITS = 16
"""In packed spikes, so many set bits are all the lowest bit of their byte with probability 8**-16."""
_CHECKED_FRAMES = 64
_MIN_CORRELATION = 0.5
_LAYOUT_NAMES = {
    "packed": "packed bits",
    "stream": "packed bits without padding",
    "bytes": "one byte a pixel",
}


@dataclass(frozen=True, slots=True)
class Camera:
    """A known resolution, and the layout and typical lengths of its files in frames."""

    name: str
    height: int
    width: int
    layout: str = "packed"
    lengths: tuple[int, ...] = ()

    @property
    def size(self) -> str:
        """``"360 x 640"``."""
        return f"{self.height} x {self.width}"


CAMERAS = (
    Camera("Spk-GoPro", 360, 640, lengths=(88, 56)),
    Camera("Vidar, PKU-Vidar-DVS, REDS", 250, 400),
    Camera("S-SDM GoPro", 180, 320),
    Camera("S-SDM GoPro", 720, 1280),
    Camera("optical-flow sets", 500, 800),
    Camera("Spk-X4K", 384, 384),
    Camera("Spk-X4K", 256, 256),
    Camera("BSS", 1000, 1000),
    Camera("GoPro, one byte a pixel", 396, 640, "bytes", (10,)),
    Camera("GoPro, one byte a pixel", 252, 640, "bytes", (10,)),
)
"""Cameras and simulated datasets in use. The last two come from a widely copied description of files of
2,534,400 and 1,612,800 bytes, which are also exactly 88 and 56 packed frames of 360 x 640."""


def frames_in(size: int, height: int, width: int, layout: str) -> int | None:
    """Number of frames in `size` bytes; None if it is not a whole number."""
    bits = bits_of_step(layout, height, width)
    frames = size * 8 // bits
    is_whole = frames > 0 and -(-frames * bits // 8) == size
    return frames if is_whole else None


def fitting_layouts(sizes: Sequence[int], height: int, width: int, layouts: Sequence[str]) -> list[str]:
    """Those of `layouts` in which every size is a whole number of frames."""
    return [
        layout
        for layout in layouts
        if all(frames_in(size, height, width, layout) is not None for size in sizes)
    ]


@dataclass(frozen=True, slots=True)
class Choice:
    """Resolution chosen for a recording, and why."""

    height: int
    width: int
    reason: str


def choose_resolutions(
    sizes: Mapping[str, Sequence[int]], layout: str, height: int | None = None, width: int | None = None
) -> tuple[dict[str, Choice], list[Problem]]:
    """Choose a known camera for every recording from the `sizes` of its files in bytes.

    In this order: the camera with a typical size, the only camera that fits, the only one that fits and was
    chosen for another recording. Otherwise the recording is refused, with all cameras that fit. If no camera
    fits all files of a recording, only the files of the most common size are used.
    """
    known = [
        camera
        for camera in CAMERAS
        if (height is None or camera.height == height) and (width is None or camera.width == width)
        if layout == "bytes" or camera.layout == "packed"
    ]
    sizes = {name: _most_common_size(known, each, layout) for name, each in sizes.items()}
    fitting = {
        name: [camera for camera in known if _fits_all(camera, each, layout)] for name, each in sizes.items()
    }
    chosen: dict[str, Choice] = {}
    for name, cameras in fitting.items():
        typical = [camera for camera in cameras if _has_typical_size(camera, sizes[name], layout)]
        if len(typical) == 1:
            chosen[name] = _make_choice(typical[0], sizes[name], layout, "a typical size of its files")
        elif len(cameras) == 1:
            chosen[name] = _make_choice(cameras[0], sizes[name], layout, "the only known camera that fits")
    established = {(choice.height, choice.width) for choice in chosen.values()}
    problems: list[Problem] = []
    reported: set[tuple[int, ...]] = set()
    for name, cameras in fitting.items():
        if name in chosen:
            continue
        common = [camera for camera in cameras if (camera.height, camera.width) in established]
        kind = tuple(sorted(set(sizes[name])))
        if len(common) == 1:
            chosen[name] = _make_choice(common[0], sizes[name], layout, "as other recordings here")
        elif chosen and not cameras:  # others fit, so this recording is at fault
            problems.append(replace(_undecided_problem(name, kind, cameras, layout), source=name))
        elif kind not in reported:
            reported.add(kind)
            problems.append(_undecided_problem(name, kind, cameras, layout))
    return chosen, problems


def _most_common_size(known: Sequence[Camera], sizes: Sequence[int], layout: str) -> Sequence[int]:
    """All sizes of a recording, or only the most common one if a known camera fits just that.

    Files of other sizes are then reported as not a whole number of frames.
    """
    (usual, _), *others = Counter(sorted(sizes, reverse=True)).most_common()
    if not others or any(_fits_all(camera, sizes, layout) for camera in known):
        return sizes
    return [usual] if any(_fits_all(camera, [usual], layout) for camera in known) else sizes


def find_misread_camera(height: int, width: int, sizes: Sequence[int]) -> Camera | None:
    """Camera whose packed files have these sizes, if `height` x `width` is a known misreading of them.

    396 x 640 and 252 x 640 divide the sizes of packed 360 x 640 files, so that reading bits as pixels goes
    unnoticed.
    """
    misread = any((height, width) == (each.height, each.width) for each in CAMERAS if each.layout == "bytes")
    typical = (camera for camera in CAMERAS if _has_typical_size(camera, sizes, "packed"))
    return next(typical, None) if misread else None


def row_correlation(packed: NDArray[np.uint8], width: int) -> float:
    """Correlation of vertical neighbours in the mean over time of packed spikes (T, H, bytes).

    Near 1 for a lit scene of the right resolution, near 0 for a wrong width; NaN if all pixels are equal.
    """
    mean = unpack(packed, width).mean(axis=0, dtype=np.float64)
    above, below = mean[:-1].ravel(), mean[1:].ravel()
    if not above.size or not above.std() or not below.std():
        return float("nan")
    return float(np.corrcoef(above, below)[0, 1])


def _fits_all(camera: Camera, sizes: Sequence[int], layout: str) -> bool:
    return all(frames_in(size, camera.height, camera.width, layout) is not None for size in sizes)


def _has_typical_size(camera: Camera, sizes: Sequence[int], layout: str) -> bool:
    lengths = {frames_in(size, camera.height, camera.width, layout) for size in sizes}
    return layout == camera.layout and bool(lengths & set(camera.lengths)) and None not in lengths


def _make_choice(camera: Camera, sizes: Sequence[int], layout: str, why: str) -> Choice:
    frames = frames_in(sizes[0], camera.height, camera.width, layout)
    form = "packed bits" if layout == "packed" else "one byte a pixel"
    reason = f"{sizes[0]:,} bytes are {frames} x {camera.size} in {form}: {why} ({camera.name})"
    return Choice(camera.height, camera.width, reason)


def _undecided_problem(name: str, sizes: Sequence[int], cameras: Sequence[Camera], layout: str) -> Problem:
    shown = f"{sizes[0]:,} bytes" if len(sizes) == 1 else f"{len(sizes)} sizes, as {sizes[0]:,} bytes,"
    cure = "give --height and --width of the camera"
    if not cameras:
        message = f"{shown} are not a whole number of frames of any known camera"
        return Problem(printable(name), message, cure, "unknown size")
    fit = "; ".join(
        f"{frames_in(sizes[0], camera.height, camera.width, layout)} x {camera.size} ({camera.name})"
        for camera in cameras
    )
    return Problem(printable(name), f"{shown} fit several cameras: {fit}", cure, "ambiguous")


class DetectedLayout(NamedTuple):
    """``"packed"`` or ``"bytes"``, and why."""

    layout: str
    reason: str


class _ByteCounts(NamedTuple):
    total: int
    above_one: int
    ones: int
    largest: int


def detect_layout(
    streams: Sequence[Stream], wanted: str, height: int | None, width: int | None
) -> tuple[DetectedLayout | None, list[Problem]]:
    """Detect the layout of all streams (at least one) together; None if it cannot be told.

    ``"bytes"`` is returned only after all bytes were read. The resolution given by the user decides if all
    streams are too dark.
    """
    if wanted == "packed":
        return DetectedLayout("packed", "as asked for"), []
    if wanted == "bytes":
        return DetectedLayout("bytes", "as asked for"), _not_pixel_problems(streams)
    heads = [_count_bytes(stream, _HEAD_BYTES) for stream in streams]
    bright = [(stream, seen) for stream, seen in zip(streams, heads, strict=True) if seen.above_one]
    if bright:
        stream, seen = bright[0]
        share = 100 * seen.above_one / seen.total
        reason = f"{share:.0f} % of the first bytes of {stream.name} are above 1 (up to {seen.largest})"
        message = f"holds one byte a pixel (0 or 1), but {stream.name} holds packed bits"
        return DetectedLayout("packed", f"{reason}: bits"), [
            Problem(each.name, message, "convert the two kinds apart", "layout", each.name)
            for each, counts in zip(streams, heads, strict=True)
            if not counts.above_one and counts.ones >= _MIN_SET_BITS
        ]
    return _detect_from_all_bytes(streams, height, width)


def _detect_from_all_bytes(
    streams: Sequence[Stream], height: int | None, width: int | None
) -> tuple[DetectedLayout | None, list[Problem]]:
    total = ones = 0
    for stream in streams:
        seen = _count_bytes(stream)
        if seen.above_one:
            reason = f"{stream.name} holds bytes above 1 (up to {seen.largest}): bits"
            return DetectedLayout("packed", reason), []
        total, ones = total + seen.total, ones + seen.ones
    if ones >= _MIN_SET_BITS:
        reason = f"all {total:,} bytes are 0 or 1, {ones:,} of them 1: one byte a pixel"
        return DetectedLayout("bytes", reason), []
    sizes = [stream.size for stream in streams]
    fitting = fitting_layouts(sizes, height, width, ("packed", "bytes")) if height and width else []
    if len(fitting) == 1:
        reason = f"too dark to tell, but {height} x {width} fits no other layout"
        return DetectedLayout(fitting[0], reason), []
    location = first_few([stream.name for stream in streams], 1)
    message = f"only {ones} of {total:,} bytes are not 0: too dark to tell packed bits from bytes"
    return None, [Problem(location, message, "give --layout packed or --layout bytes", "dark")]


def detect_padding(stream: Stream, width: int) -> DetectedLayout | None:
    """``"packed"`` if rows are padded to whole bytes (all padding bits are 0), or ``"stream"``.

    None if the recording is too dark to tell.
    """
    stored = row_bytes(width)
    with stream.array.open() as content:
        head = content[: _BLOCK // stored * stored]
    rows = head[: len(head) // stored * stored].reshape(-1, stored)
    filled = int(np.count_nonzero(rows[:, -1] >> (width % 8)))
    spikes = int(np.bitwise_count(rows).sum(dtype=np.int64))
    if filled:
        reason = f"rows of {width} pixels are not padded: {filled} rows have bits there"
        return DetectedLayout("stream", reason)
    if spikes < _MIN_SET_BITS * 8:
        return None
    reason = f"rows of {width} pixels are padded to {stored} bytes: all padding bits are 0"
    return DetectedLayout("packed", reason)


def _not_pixel_problems(streams: Sequence[Stream]) -> list[Problem]:
    problems = []
    for stream in streams:
        seen = _count_bytes(stream)
        if seen.above_one:
            message = f"holds bytes above 1 (up to {seen.largest}): packed bits, not one byte a pixel"
            cure = "take --layout packed or auto"
            problems.append(Problem(stream.name, message, cure, "values", stream.name))
    return problems


def _count_bytes(stream: Stream, limit: int | None = None) -> _ByteCounts:
    """Read the first `limit` bytes, or all, up to the first block with a byte above 1."""
    total = above = ones = largest = 0
    with stream.array.open() as content:
        while not above and (limit is None or total < limit):
            block = content[total : total + (limit or _BLOCK)]
            if not block.size:
                break
            total += block.size
            largest = max(largest, int(block.max()))
            above += int(np.count_nonzero(block > 1))
            ones += int(np.count_nonzero(block == 1))
    return _ByteCounts(total, above, ones, largest)


@dataclass(frozen=True, slots=True)
class ResolvedStreams:
    """Extents and layout of the streams."""

    extents: Mapping[str, Extent]
    """By name of the stream, without streams that have problems."""
    layout: str
    """``"packed"``, ``"stream"`` or ``"bytes"``."""
    notes: tuple[str, ...]
    problems: tuple[Problem, ...]


def resolve_streams(
    recordings: Mapping[str, Sequence[Stream]],
    wanted: str,
    height: int | None,
    width: int | None,
    flip: bool,
) -> ResolvedStreams:
    """Find one layout for all streams, the resolution of each recording, and the length of each file.

    There is at least one stream, by name of the recording. `wanted` is ``"auto"``, ``"packed"`` or
    ``"bytes"``; height and width are as given by the user. Rows are flipped to check their correlation.
    """
    streams = [stream for each in recordings.values() for stream in each]
    decided, problems = detect_layout(streams, wanted, height, width)
    if decided is None:
        return ResolvedStreams({}, wanted, (), tuple(problems))
    refused = {problem.file for problem in problems}
    left: dict[str, list[Stream]] = {}
    for name, each in recordings.items():
        if sound := [stream for stream in each if stream.name not in refused]:
            left[name] = sound
    padding = decided
    if height is not None and width is not None:
        suspicious = wanted == "auto"
        choices, padding, more = _with_given_resolution(left, decided, height, width, suspicious=suspicious)
    else:
        sizes = {name: [stream.size for stream in each] for name, each in left.items()}
        choices, more = choose_resolutions(sizes, decided.layout, height, width)
    notes = [f"{count_of(len(streams), 'spike stream')} in {_LAYOUT_NAMES[padding.layout]}: {decided.reason}"]
    if padding != decided:
        notes.append(padding.reason)
    notes += dict.fromkeys(choice.reason for choice in choices.values() if choice.reason)
    extents: dict[str, Extent] = {}
    firsts: dict[tuple[int, int], Stream] = {}
    for name, choice in choices.items():
        for stream in left[name]:
            frames = frames_in(stream.size, choice.height, choice.width, padding.layout)
            if frames is None:
                more.append(_remainder_problem(stream, choice, padding.layout))
                continue
            extents[stream.name] = Extent(frames, choice.height, choice.width)
            firsts.setdefault((choice.height, choice.width), stream)
    if not problems and not more:
        for stream in firsts.values():
            notes += _resolution_note(stream, extents[stream.name], padding.layout, flip)
    return ResolvedStreams(extents, padding.layout, tuple(notes), (*problems, *more))


def _with_given_resolution(
    recordings: Mapping[str, Sequence[Stream]],
    decided: DetectedLayout,
    height: int,
    width: int,
    *,
    suspicious: bool,
) -> tuple[dict[str, Choice], DetectedLayout, list[Problem]]:
    """Use the resolution given by the user: find its row padding, refuse a known misreading."""
    streams = [stream for each in recordings.values() for stream in each]
    camera = find_misread_camera(height, width, [stream.size for stream in streams])
    if camera is not None and decided.layout == "packed" and suspicious:
        frames = frames_in(streams[0].size, camera.height, camera.width, "packed")
        message = (
            f"{streams[0].size:,} bytes are {frames} x {camera.size} packed bits ({camera.name}); as "
            f"{height} x {width} they only divide by chance: {decided.reason}"
        )
        cure = f"give --height {camera.height} --width {camera.width}, or --layout packed to insist"
        return {}, decided, [Problem(streams[0].name, message, cure, "geometry")]
    choices = {name: Choice(height, width, "") for name in recordings}
    if decided.layout == "bytes" or width % 8 == 0:
        return choices, decided, []
    fitting = fitting_layouts([stream.size for stream in streams], height, width, ("packed", "stream"))
    if fitting == ["stream"]:
        reason = f"rows of {width} pixels are not padded to whole bytes: only so the sizes divide"
        return choices, DetectedLayout("stream", reason), []
    if len(fitting) < 2:
        return choices, decided, []
    detected = next((found for stream in streams if (found := detect_padding(stream, width))), None)
    if detected is not None:
        return choices, detected, []
    fits = f"{streams[0].size:,} bytes fit rows padded to whole bytes and rows without padding"
    save = f"save them as arrays (T, {height}, {width})"
    cure = f"cut or pad the recordings to a width that 8 divides, or {save}"
    return {}, decided, [Problem(streams[0].name, f"{fits}; too dark to tell", cure, "dark")]


def _remainder_problem(stream: Stream, choice: Choice, layout: str) -> Problem:
    """Problem: the size is not a whole number of frames; with the remainder, and cameras that fit."""
    bits = bits_of_step(layout, choice.height, choice.width)
    frame = bits / 8 if bits % 8 else bits // 8
    frames, over = divmod(stream.size, frame)
    message = (
        f"{stream.size:,} bytes are {frames:.0f} frames of {choice.height} x {choice.width} in "
        f"{_LAYOUT_NAMES[layout]} ({frame:,} bytes each) and {over:,} bytes over"
    )
    others = [
        f"{count} x {camera.size}"
        for camera in CAMERAS
        if camera.layout == "packed" and layout != "stream"
        if (count := frames_in(stream.size, camera.height, camera.width, layout)) is not None
    ]
    cure = "cut short? or another camera, with other --height and --width"
    cure += f"; these fit: {', '.join(others)}" if others else ""
    return Problem(stream.name, message, cure, "size", stream.name)


def _resolution_note(stream: Stream, extent: Extent, layout: str, flip: bool) -> list[str]:
    """A note if neighbouring rows of the mean image do not correlate, as they do in lit scenes."""
    frames = np.empty((min(extent.length, _CHECKED_FRAMES), extent.height, row_bytes(extent.width)), np.uint8)
    StreamSpikes(array=stream.array, extent=extent, layout=layout, flip=flip).read(frames)
    correlation = row_correlation(frames, extent.width)
    if np.isnan(correlation) or correlation >= _MIN_CORRELATION:
        return []
    note = (
        f"careful: neighbouring rows of {stream.name} hardly correlate as "
        f"{extent.height} x {extent.width} (correlation {correlation:.2f}; lit scenes reach 0.7 and more): "
        "check --height and --width"
    )
    return [note]
