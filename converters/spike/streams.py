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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.converters.spike.spikes import Extent, Stream, StreamSpikes, bits_of_step
from unistore.errors import Problem, first_few, printable
from unistore.schemas.spike.fields import row_bytes, unpack
from unistore.system.sizes import count_of

_HEAD_BYTES = 16 << 10
_BLOCK = 4 << 20
# In packed spikes, so many set bits are all the lowest bit of their byte with probability 8**-16
_MIN_SET_BITS = 16
_CHECKED_FRAMES = 64
_MIN_CORRELATION = 0.5
_LAYOUT_NAMES = {
    "packed": "packed bits",
    "stream": "packed bits without padding",
    "bytes": "one byte a pixel",
}


def frames_in(size: int, height: int, width: int, layout: str) -> int | None:
    """Number of frames in `size` bytes; None if it is not a whole number."""
    bits = bits_of_step(layout, height, width)
    frames = size * 8 // bits
    is_whole = frames > 0 and -(-frames * bits // 8) == size
    return frames if is_whole else None


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

    @property
    def pixels(self) -> tuple[int, int]:
        """Height and width."""
        return self.height, self.width

    def frames(self, size: int, layout: str) -> int | None:
        """See `frames_in`."""
        return frames_in(size, self.height, self.width, layout)

    def fits(self, sizes: Iterable[int], layout: str) -> bool:
        """Whether every size is a whole number of frames."""
        return None not in [self.frames(size, layout) for size in sizes]

    def is_typical(self, sizes: Iterable[int], layout: str) -> bool:
        """Whether it writes files of such lengths in the layout."""
        lengths = {self.frames(size, layout) for size in sizes}
        return layout == self.layout and None not in lengths and not lengths.isdisjoint(self.lengths)


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


def fitting_layouts(sizes: Sequence[int], height: int, width: int, layouts: Sequence[str]) -> list[str]:
    """Those of `layouts` in which every size is a whole number of frames."""
    camera = Camera("", height, width)
    return [layout for layout in layouts if camera.fits(sizes, layout)]


class Choice(NamedTuple):
    """Resolution chosen for a recording, and why."""

    height: int
    width: int
    reason: str = ""


def choose_resolutions(
    sizes: Mapping[str, Sequence[int]], layout: str, height: int | None = None, width: int | None = None
) -> tuple[dict[str, Choice], list[Problem]]:
    """Choose a known camera for every recording from the `sizes` of its files in bytes.

    In this order: the camera with a typical size, the only camera that fits, the only one that fits and was
    chosen for another recording. Otherwise the recording is refused, with all cameras that fit. If no camera
    fits all files of a recording, only the files of the most common size are used.
    """
    possible_cameras = [
        camera
        for camera in CAMERAS
        if camera.height == (height or camera.height)
        and camera.width == (width or camera.width)
        and (layout == "bytes" or camera.layout == "packed")
    ]
    sizes = {name: _usual_sizes(possible_cameras, all_sizes, layout) for name, all_sizes in sizes.items()}
    chosen: dict[str, Choice] = {}
    undecided: dict[str, list[Camera]] = {}
    for name, usual in sizes.items():
        fitting = [camera for camera in possible_cameras if camera.fits(usual, layout)]
        typical = [camera for camera in fitting if camera.is_typical(usual, layout)]
        if len(typical) == 1:
            chosen[name] = _choice(typical[0], usual, layout, "a typical size of its files")
        elif len(fitting) == 1:
            chosen[name] = _choice(fitting[0], usual, layout, "the only known camera that fits")
        else:
            undecided[name] = fitting
    established = {(choice.height, choice.width) for choice in chosen.values()}
    problems: list[Problem] = []
    reported: set[frozenset[int]] = set()
    for name, fitting in undecided.items():
        common = [camera for camera in fitting if camera.pixels in established]
        if len(common) == 1:
            chosen[name] = _choice(common[0], sizes[name], layout, "as other recordings here")
            continue
        problem = _undecided_problem(name, sorted(set(sizes[name])), fitting, layout)
        if chosen and not fitting:  # others fit, so this recording is at fault
            problems.append(replace(problem, source=name))
        elif frozenset(sizes[name]) not in reported:
            reported.add(frozenset(sizes[name]))
            problems.append(problem)
    return chosen, problems


def _usual_sizes(known: Sequence[Camera], sizes: Sequence[int], layout: str) -> Sequence[int]:
    """All sizes of a recording, or only the most common one if a known camera fits just that.

    Files of other sizes are then reported as not a whole number of frames.
    """
    if any(camera.fits(sizes, layout) for camera in known):
        return sizes
    usual = [Counter(sorted(sizes, reverse=True)).most_common(1)[0][0]]
    return usual if any(camera.fits(usual, layout) for camera in known) else sizes


def find_misread_camera(height: int, width: int, sizes: Sequence[int]) -> Camera | None:
    """Camera whose packed files have these sizes, if `height` x `width` is a known misreading of them.

    396 x 640 and 252 x 640 divide the sizes of packed 360 x 640 files, so that reading bits as pixels goes
    unnoticed.
    """
    if (height, width) not in [camera.pixels for camera in CAMERAS if camera.layout == "bytes"]:
        return None
    return next((camera for camera in CAMERAS if camera.is_typical(sizes, "packed")), None)


def row_correlation(packed: NDArray[np.uint8], width: int) -> float:
    """Correlation of vertical neighbours in the mean over time of packed spikes (T, H, bytes).

    Near 1 for a lit scene of the right resolution, near 0 for a wrong width; NaN if all pixels are equal.
    """
    mean = unpack(packed, width).mean(axis=0, dtype=np.float64)
    above = mean[:-1].ravel()
    below = mean[1:].ravel()
    if not above.size or not above.std() or not below.std():
        return float("nan")
    return float(np.corrcoef(above, below)[0, 1])


def _choice(camera: Camera, sizes: Sequence[int], layout: str, why: str) -> Choice:
    extent = f"{camera.frames(sizes[0], layout)} x {camera.size}"
    reason = f"{sizes[0]:,} bytes are {extent} in {_LAYOUT_NAMES[layout]}: {why} ({camera.name})"
    return Choice(camera.height, camera.width, reason)


def _undecided_problem(name: str, sizes: Sequence[int], cameras: Sequence[Camera], layout: str) -> Problem:
    shown = f"{sizes[0]:,} bytes"
    if len(sizes) > 1:
        shown = f"{len(sizes)} sizes, as {shown},"
    cure = "give --height and --width of the camera"
    if not cameras:
        message = f"{shown} are not a whole number of frames of any known camera"
        return Problem(printable(name), message, cure, "unknown size")
    fitting = "; ".join(
        [f"{camera.frames(sizes[0], layout)} x {camera.size} ({camera.name})" for camera in cameras]
    )
    return Problem(printable(name), f"{shown} fit several cameras: {fitting}", cure, "ambiguous")


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
    streams: Sequence[Stream], layout_option: str, height: int | None, width: int | None
) -> tuple[DetectedLayout | None, list[Problem]]:
    """Detect the layout of all streams (at least one) together; None if it cannot be told.

    ``"bytes"`` is returned only after all bytes were read. The resolution given by the user decides if all
    streams are too dark.
    """
    if layout_option == "packed":
        return DetectedLayout("packed", "as asked for"), []
    if layout_option == "bytes":
        return DetectedLayout("bytes", "as asked for"), _not_pixel_problems(streams)
    heads = [_count_bytes(stream, _HEAD_BYTES) for stream in streams]
    for stream, head in zip(streams, heads, strict=True):
        if head.above_one:
            share = 100 * head.above_one / head.total
            seen = f"{share:.0f} % of the first bytes of {stream.name} are above 1 (up to {head.largest})"
            return DetectedLayout("packed", f"{seen}: bits"), _other_layouts(stream.name, streams, heads)
    return _detect_from_all_bytes(streams, height, width)


def _other_layouts(name: str, streams: Sequence[Stream], heads: Sequence[_ByteCounts]) -> list[Problem]:
    """Problems of streams that are not packed bits as that of a name."""
    message = f"holds one byte a pixel (0 or 1), but {name} holds packed bits"
    cure = "convert the two kinds apart"
    return [
        Problem(stream.name, message, cure, "layout", stream.name)
        for stream, head in zip(streams, heads, strict=True)
        if not head.above_one and head.ones >= _MIN_SET_BITS
    ]


def _detect_from_all_bytes(
    streams: Sequence[Stream], height: int | None, width: int | None
) -> tuple[DetectedLayout | None, list[Problem]]:
    total = ones = 0
    for stream in streams:
        seen = _count_bytes(stream)
        if seen.above_one:
            reason = f"{stream.name} holds bytes above 1 (up to {seen.largest}): bits"
            return DetectedLayout("packed", reason), []
        total = total + seen.total
        ones = ones + seen.ones
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


class ResolvedStreams(NamedTuple):
    """Extents and layout of the streams."""

    extents: Mapping[str, Extent]  # by name of the stream, without streams that have problems
    layout: str  # "packed", "stream" or "bytes"
    notes: Sequence[str] = ()
    problems: Sequence[Problem] = ()


def resolve_streams(
    recordings: Mapping[str, Sequence[Stream]],
    layout_option: str,
    height: int | None,
    width: int | None,
    flip: bool,
) -> ResolvedStreams:
    """Find one layout for all streams, the resolution of each recording, and the length of each file.

    There is at least one stream, by name of the recording. `layout_option` is ``"auto"``, ``"packed"`` or
    ``"bytes"``; height and width are as given by the user. Rows are flipped to check their correlation.
    """
    streams = list(chain.from_iterable(recordings.values()))
    decided, problems = detect_layout(streams, layout_option, height, width)
    if decided is None:
        return ResolvedStreams({}, layout_option, problems=problems)
    refused = {problem.file for problem in problems}
    sound: dict[str, list[Stream]] = {}
    for name, recorded in recordings.items():
        for stream in recorded:
            if stream.name not in refused:
                sound.setdefault(name, []).append(stream)
    padding = decided
    if height is not None and width is not None:
        choices, padding, more = _with_given_resolution(sound, decided, height, width, layout_option)
    else:
        sizes = {name: [stream.size for stream in recorded] for name, recorded in sound.items()}
        choices, more = choose_resolutions(sizes, decided.layout, height, width)
    problems += more
    notes = [f"{count_of(len(streams), 'spike stream')} in {_LAYOUT_NAMES[padding.layout]}: {decided.reason}"]
    if padding != decided:
        notes.append(padding.reason)
    notes += dict.fromkeys(choice.reason for choice in choices.values() if choice.reason)
    extents: dict[str, Extent] = {}
    firsts: dict[tuple[int, int], Stream] = {}
    for name, (rows, columns, _) in choices.items():
        for stream in sound[name]:
            frames = frames_in(stream.size, rows, columns, padding.layout)
            if frames is None:
                problems.append(_remainder_problem(stream, rows, columns, padding.layout))
            else:
                extents[stream.name] = Extent(frames, rows, columns)
                firsts.setdefault((rows, columns), stream)
    if not problems:
        for stream in firsts.values():
            notes += _resolution_note(stream, extents[stream.name], padding.layout, flip)
    return ResolvedStreams(extents, padding.layout, notes, problems)


def _with_given_resolution(
    recordings: Mapping[str, Sequence[Stream]],
    decided: DetectedLayout,
    height: int,
    width: int,
    option: str,
) -> tuple[dict[str, Choice], DetectedLayout, list[Problem]]:
    """Use the resolution given by the user: find its row padding, refuse a known misreading."""
    streams = list(chain.from_iterable(recordings.values()))
    first = streams[0]
    sizes = [stream.size for stream in streams]
    camera = find_misread_camera(height, width, sizes)
    if camera is not None and decided.layout == "packed" and option == "auto":
        extent = f"{camera.frames(first.size, 'packed')} x {camera.size}"
        message = f"{first.size:,} bytes are {extent} packed bits ({camera.name}); as {height} x {width}"
        message += f" they only divide by chance: {decided.reason}"
        cure = f"give --height {camera.height} --width {camera.width}, or --layout packed to insist"
        return {}, decided, [Problem(first.name, message, cure, "geometry")]
    choices = dict.fromkeys(recordings, Choice(height, width))
    if decided.layout == "bytes" or width % 8 == 0:
        return choices, decided, []
    fitting = fitting_layouts(sizes, height, width, ("packed", "stream"))
    if fitting == ["stream"]:
        reason = f"rows of {width} pixels are not padded to whole bytes: only so the sizes divide"
        return choices, DetectedLayout("stream", reason), []
    if len(fitting) < 2:
        return choices, decided, []
    for stream in streams:
        detected = detect_padding(stream, width)
        if detected is not None:
            return choices, detected, []
    message = (
        f"{first.size:,} bytes fit rows padded to whole bytes and rows without padding; too dark to tell"
    )
    cure = "cut or pad the recordings to a width that 8 divides, "
    cure += f"or save them as arrays (T, {height}, {width})"
    return {}, decided, [Problem(first.name, message, cure, "dark")]


def _remainder_problem(stream: Stream, height: int, width: int, layout: str) -> Problem:
    """Problem: the size is not a whole number of frames; with the remainder, and cameras that fit."""
    bits = bits_of_step(layout, height, width)
    frame = bits / 8 if bits % 8 else bits // 8
    frames, over = divmod(stream.size, frame)
    whole = f"{frames:.0f} frames of {height} x {width} in {_LAYOUT_NAMES[layout]} ({frame:,} bytes each)"
    message = f"{stream.size:,} bytes are {whole} and {over:,} bytes over"
    cure = "cut short? or another camera, with other --height and --width"
    fitting = []
    for camera in CAMERAS:
        count = camera.frames(stream.size, layout)
        if count is not None and camera.layout == "packed" and layout != "stream":
            fitting.append(f"{count} x {camera.size}")
    if fitting:
        cure += f"; these fit: {', '.join(fitting)}"
    return Problem(stream.name, message, cure, "size", stream.name)


def _resolution_note(stream: Stream, extent: Extent, layout: str, flip: bool) -> list[str]:
    """A note if neighbouring rows of the mean image do not correlate, as they do in lit scenes."""
    frames = np.empty((min(extent.length, _CHECKED_FRAMES), extent.height, row_bytes(extent.width)), np.uint8)
    StreamSpikes(array=stream.array, extent=extent, layout=layout, flip=flip).read(frames)
    correlation = row_correlation(frames, extent.width)
    if np.isnan(correlation) or correlation >= _MIN_CORRELATION:
        return []
    size = f"{extent.height} x {extent.width}"
    note = f"careful: neighbouring rows of {stream.name} hardly correlate as {size} "
    note += f"(correlation {correlation:.2f}; lit scenes reach 0.7 and more): check --height and --width"
    return [note]
