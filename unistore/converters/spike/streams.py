"""Find layout, resolution and length of headerless recordings from their sizes and bytes."""

# The size must be a whole number of frames. Packed: eight pixels a byte, least significant bit first, rows
# padded to whole bytes; in real recordings, 68-93 % of the bytes are above 1. Bytes: one byte a pixel, 0 or
# 1. So one byte above 1 decides for all recordings, since dark ones alone do not show their layout.

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from unistore.converters.spike.frames import HIGHEST_FIRST, Config, Extent, FrameValues, Spikes
from unistore.converters.spike.options import SpikeOptions
from unistore.errors import AddOptions, Fix, GiveOptions, InputError, Problem, first_few, printable
from unistore.plugin import SourceFile, count_of, is_inside
from unistore.schemas.spike.fields import row_bytes, unpack
from unistore.system.types import UInt8s

_HEAD_BYTES = 16 << 10
# In packed spikes, so many set bits are all the lowest bit of their byte with probability 8**-16
_MIN_SET_BITS = 16
_CHECKED_FRAMES = 64
_FEW = 3
_MIN_CORRELATION = 0.5
_LAYOUT_NAMES = {"packed": "packed bits", "bytes": "one byte per pixel"}
_SIZE_FIX = GiveOptions(("--height", "--width"), "of the camera")


def frames_in(size: int, height: int, width: int, layout: str) -> int | None:
    """Number of frames in `size` bytes, or None if it is not a whole number."""
    row = row_bytes(width) if layout == "packed" else width
    frames, beyond = divmod(size, height * row)
    return frames if frames and not beyond else None


class Camera(NamedTuple):
    """A known resolution, and the layout and typical lengths of its files in frames."""

    name: str
    height: int
    width: int
    lengths: tuple[int, ...] = ()
    layout: str = "packed"

    def extent(self, size: int, layout: str) -> str:
        """``"88 x 360 x 640"``."""
        return f"{self.frames(size, layout)} x {self.height} x {self.width}"

    def frames(self, size: int, layout: str) -> int | None:
        return frames_in(size, self.height, self.width, layout)

    def is_typical(self, sizes: Sequence[int], layout: str) -> bool:
        """Return whether it writes files of such lengths in the layout."""
        return layout == self.layout and any(self.frames(size, layout) in self.lengths for size in sizes)


# Cameras and simulated datasets in use. The last two come from a widely copied description of files of
# 2,534,400 and 1,612,800 bytes, which are also exactly 88 and 56 packed frames of 360 x 640.
CAMERAS = (
    Camera("Spk-GoPro", 360, 640, (88, 56)),
    Camera("Vidar, PKU-Vidar-DVS, REDS", 250, 400),
    Camera("S-SDM GoPro", 180, 320),
    Camera("S-SDM GoPro", 720, 1280),
    Camera("optical-flow sets", 500, 800),
    Camera("Spk-X4K", 384, 384),
    Camera("Spk-X4K", 256, 256),
    Camera("BSS", 1000, 1000),
    Camera("GoPro, one byte a pixel", 396, 640, (10,), "bytes"),
    Camera("GoPro, one byte a pixel", 252, 640, (10,), "bytes"),
)

_MISREAD = ((396, 640), (252, 640))


class Resolution(NamedTuple):
    """Height and width of a recording, and why."""

    height: int
    width: int
    reason: str = ""


def choose_resolutions(
    sizes: Mapping[str, Sequence[int]], layout: str, height: int | None = None, width: int | None = None
) -> tuple[dict[str, Resolution], list[Problem]]:
    """Choose a known camera for every recording.

    Of the cameras that fit most files, this is the one with a typical size, or the only one. Otherwise
    the recording is a problem that lists the cameras that fit.

    Parameters
    ----------
    sizes : mapping of str to sequence of int
        Sizes of the files of each recording, in bytes.
    layout : str
        Layout of the files.
    height, width : int, optional
        Resolution that the user gave. None: unknown.

    Returns
    -------
    resolutions : dict of str to Resolution
        Resolution of each recording.
    problems : list of Problem
        Recordings without one.
    """
    possible = [
        camera
        for camera in CAMERAS
        if height in (None, camera.height)
        and width in (None, camera.width)
        and layout in ("bytes", camera.layout)
    ]
    chosen: dict[str, Resolution] = {}
    problems: dict[str, Problem] = {}
    for name, own_sizes in sizes.items():
        counts: Counter[Camera] = Counter()
        for size in own_sizes:
            counts.update([camera for camera in possible if camera.frames(size, layout)])
        most = max(counts.values(), default=0)
        fitting = [camera for camera in counts if counts[camera] == most]
        candidates = [camera for camera in fitting if camera.is_typical(own_sizes, layout)] or fitting
        if not candidates:
            message = f"{own_sizes[0]:,} bytes are not a whole number of frames of any known camera"
            problems[name] = Problem(printable(name), message, _SIZE_FIX, "unknown size", name)
            continue
        size = next(size for size in own_sizes if candidates[0].frames(size, layout))
        listing = "; ".join([f"{camera.extent(size, layout)} ({camera.name})" for camera in candidates])
        if len(candidates) == 1:
            reason = f"{size:,} bytes are {listing} in {_LAYOUT_NAMES[layout]}"
            chosen[name] = Resolution(candidates[0].height, candidates[0].width, reason)
        else:
            message = f"{size:,} bytes fit several cameras: {listing}"
            sizes_of_cameras = dict.fromkeys((camera.height, camera.width) for camera in candidates)
            fixes = [
                AddOptions(("--height", str(rows), "--width", str(columns)))
                for rows, columns in sizes_of_cameras
            ]
            problems.setdefault(message, Problem(printable(name), message, tuple(fixes), "ambiguous"))
    return chosen, list(problems.values())


class _BytesSeen(NamedTuple):
    largest: int
    ones: int


def _look_at(stream: FrameValues, *, whole: bool) -> _BytesSeen:
    """Read the first bytes, or all, up to the first block with a byte above 1."""
    ones = 0
    with stream.array.open() as content:
        for _, block in content.blocks() if whole else [(0, content[:_HEAD_BYTES])]:
            if block.max() > 1:
                return _BytesSeen(int(block.max()), ones)
            ones += int(np.count_nonzero(block))
    return _BytesSeen(1, ones)


def detect_layout(streams: Sequence[FrameValues]) -> tuple[str, str]:
    """Return the layout of all streams together, and why.

    ``"bytes"`` is returned only after all bytes were read.
    """
    heads = [_look_at(stream, whole=False) for stream in streams]
    for stream, head in zip(streams, heads, strict=True):
        if head.largest > 1:
            _check_alike(stream.name, streams, heads)
            return "packed", f"{stream.name} contains bytes up to {head.largest}"
    ones = 0
    for stream in streams:
        whole = _look_at(stream, whole=True)
        if whole.largest > 1:
            return "packed", f"{stream.name} contains bytes up to {whole.largest}"
        ones += whole.ones
    total = sum(stream.shape[0] for stream in streams)
    if ones >= _MIN_SET_BITS:
        return "bytes", f"all {total:,} bytes are 0 or 1, {ones:,} of them 1"
    location = first_few([stream.name for stream in streams], 1)
    message = f"only {ones} of {total:,} bytes are not 0: too dark to tell packed bits from bytes"
    raise InputError(
        Problem(
            location, message, (AddOptions(("--layout", "packed")), AddOptions(("--layout", "bytes"))), "dark"
        )
    )


def _check_alike(name: str, streams: Sequence[FrameValues], heads: Sequence[_BytesSeen]) -> None:
    """Refuse streams that are not packed bits as that of a name."""
    message = f"contains one byte per pixel (0 or 1), but {name} contains packed bits"
    problems = [
        Problem(stream.name, message, "convert the two layouts separately", "layout", stream.name)
        for stream, head in zip(streams, heads, strict=True)
        if head.largest <= 1 and head.ones >= _MIN_SET_BITS
    ]
    if problems:
        raise InputError(problems)


class ResolvedStreams(NamedTuple):
    """Extents and layout of the streams, and remarks."""

    extents: Mapping[str, Extent]  # by name of the stream
    layout: str  # "packed", "bytes", or "arrays" where there are no streams
    notes: Sequence[str] = ()


def resolve_streams(
    recordings: Mapping[str, Sequence[FrameValues]],
    options: SpikeOptions,
    height: int | None,
    width: int | None,
    images: Mapping[str, tuple[int, int]],
) -> ResolvedStreams:
    """Find one layout for all streams, the resolution of each recording, and the length of each file.

    `images`: height and width of the frames beside the streams of a recording.
    """
    streams = list(chain.from_iterable(recordings.values()))
    layout: str = options.layout
    reason = "given by --layout"
    if layout == HIGHEST_FIRST:
        message = f"is a stream, but --layout {HIGHEST_FIRST} is only for arrays"
        packed = AddOptions(("--layout", "packed"))
        fixes = packed, "convert arrays and streams separately"
        raise InputError(Problem(streams[0].name, message, fixes, "layout"))
    if layout == "auto":
        layout, reason = detect_layout(streams)
    problems: list[Problem] = []
    if height is None or width is None:
        choices = _choose_by_images(recordings, images, layout, height, width)
        sizes = {
            name: [stream.shape[0] for stream in recorded]
            for name, recorded in recordings.items()
            if name not in choices
        }
        by_size, problems = choose_resolutions(sizes, layout, height, width)
        choices |= by_size
    else:
        choices = dict.fromkeys(recordings, Resolution(height, width))
        is_misread = (height, width) in _MISREAD and (height, width) not in images.values()
        if options.layout == "auto" and layout == "packed" and is_misread:
            message = f"{height} x {width} fits only by chance; these are packed bits of 360 x 640: {reason}"
            camera = AddOptions(("--height", "360", "--width", "640"))
            fix = camera, AddOptions(("--layout", "packed"), "if the size is right")
            problems = [Problem(streams[0].name, message, fix, "geometry")]
    notes = [f"{count_of(len(streams), 'spike stream')} in {_LAYOUT_NAMES[layout]}: {reason}"]
    notes += dict.fromkeys(choice.reason for choice in choices.values() if choice.reason)
    extents: dict[str, Extent] = {}
    firsts: dict[tuple[int, int], Spikes] = {}
    for name, (rows, columns, _) in choices.items():
        for stream in recordings[name]:
            frames = frames_in(stream.shape[0], rows, columns, layout)
            if frames is None:
                problems.append(_remainder_problem(stream, rows, columns, layout))
                continue
            extents[stream.name] = Extent(frames, rows, columns)
            spikes = Spikes(stream.array, extents[stream.name], layout, options.flip)
            firsts.setdefault((rows, columns), spikes)
    if problems:
        raise InputError(problems)
    for spikes in firsts.values():
        notes += _resolution_notes(spikes)
    return ResolvedStreams(extents, layout, notes)


def _choose_by_images(
    recordings: Mapping[str, Sequence[FrameValues]],
    images: Mapping[str, tuple[int, int]],
    layout: str,
    height: int | None,
    width: int | None,
) -> dict[str, Resolution]:
    """Choose the size of the frames beside streams, or half of it, where that divides most of the files.

    Of both, and of known cameras whose rows are alike where those of neither are, the one whose neighbouring
    rows are most alike. Recordings of one form are alike: the first one decides.
    """
    chosen: dict[str, Resolution] = {}
    of_form: dict[tuple[tuple[int, int], int], Resolution | None] = {}
    for name, (rows, columns) in images.items():
        streams = recordings.get(name, ())
        halves = [] if rows % 2 or columns % 2 else [(rows // 2, columns // 2)]
        candidates = [
            size
            for size in [(rows, columns), *halves]
            if height in (None, size[0])
            and width in (None, size[1])
            and 2 * sum(frames_in(stream.shape[0], *size, layout) is not None for stream in streams)
            > len(streams)
        ]
        if not candidates:
            continue
        form = (rows, columns), streams[0].shape[0]
        if form not in of_form:
            of_form[form] = _most_alike(streams, candidates, layout)
        resolution = of_form[form]
        if resolution is not None:
            chosen[name] = resolution
    return chosen


def _most_alike(
    streams: Sequence[FrameValues], candidates: Sequence[tuple[int, int]], layout: str
) -> Resolution | None:
    """Return the size whose rows are most alike. None: those of a known camera are alike, and these not."""
    fitting: dict[tuple[int, int], float] = {}
    for size in candidates:
        fitting[size] = _correlation(streams, size, layout)
    best = max(fitting, key=lambda size: np.nan_to_num(fitting[size], nan=-1.0))
    first = streams[0].shape[0]
    if not fitting[best] >= _MIN_CORRELATION:
        best = candidates[0]
        cameras = [camera for camera in CAMERAS if layout in ("bytes", camera.layout)]
        others = [camera for camera in cameras if camera.frames(first, layout)]
        if any(_correlation(streams, one[1:3], layout) >= _MIN_CORRELATION for one in others):
            return None
    what = "the size of its frames" if best == candidates[0] and len(candidates) > 1 else "as its frames show"
    extent = f"{frames_in(first, *best, layout)} x {best[0]} x {best[1]}"
    reason = f"{first:,} bytes are {extent} in {_LAYOUT_NAMES[layout]}, {what}"
    return Resolution(*best, reason)


def _correlation(streams: Sequence[FrameValues], size: tuple[int, int], layout: str) -> float:
    """Return how alike neighbouring rows of the first file of this size are, see `row_correlation`."""
    for stream in streams:
        length = frames_in(stream.shape[0], *size, layout)
        if length is not None:
            spikes = Spikes(stream.array, Extent(length, *size), layout, flip=False)
            frames = np.empty((min(length, _CHECKED_FRAMES), size[0], row_bytes(size[1])), np.uint8)
            try:
                spikes.read(frames)
            except InputError as error:  # bits behind the last pixel: of no such size
                if {problem.kind for problem in error.problems} != {"values"}:
                    raise
                return -1.0
            return row_correlation(frames, size[1])
    return float("nan")


def _remainder_problem(stream: FrameValues, height: int, width: int, layout: str) -> Problem:
    """Problem: the size is not a whole number of frames. With the remainder, and cameras that fit."""
    size = stream.shape[0]
    frame = height * (row_bytes(width) if layout == "packed" else width)
    frames, beyond = divmod(size, frame)
    whole = f"{frames:,} frames of {frame:,} bytes ({_LAYOUT_NAMES[layout]}) leave {beyond:,} bytes"
    message = f"{size:,} bytes are not a whole number of {height} x {width} frames: {whole}"
    of_cameras = [
        AddOptions(
            ("--height", str(camera.height), "--width", str(camera.width)), f"if it is of {camera.name}"
        )
        for camera in CAMERAS
        if layout in ("bytes", camera.layout) and camera.frames(size, layout)
    ]
    fixes: tuple[Fix, ...] = (
        *of_cameras[:_FEW],
        "copy it again if it is truncated",
        "correct --height and --width",
    )
    return Problem(stream.name, message, fixes, "size", stream.name)


def _resolution_notes(spikes: Spikes) -> list[str]:
    """Return a note if neighbouring rows of the mean image do not correlate, as they do in lit scenes."""
    length, height, width = spikes.extent
    frames = np.empty((min(length, _CHECKED_FRAMES), height, row_bytes(width)), np.uint8)
    spikes.read(frames)
    correlation = row_correlation(frames, width)
    if np.isnan(correlation) or correlation >= _MIN_CORRELATION:
        return []
    note = f"careful: neighbouring rows of {spikes.array.file.name} hardly correlate at {height} x {width} "
    note += f"(correlation {correlation:.2f}; lit scenes reach 0.7 and more): check --height and --width"
    return [note]


def row_correlation(packed: UInt8s, width: int) -> float:
    """Return the correlation of vertical neighbours in the mean over time of packed spikes (T, H, bytes).

    It is near 1 for a lit scene in the right resolution, near 0 for a wrong width, and NaN if all pixels
    are equal.
    """
    mean = unpack(packed, width).mean(axis=0, dtype=np.float64)
    above = mean[:-1].ravel()
    below = mean[1:].ravel()
    if not above.size or not above.std() or not below.std():
        return float("nan")
    return float(np.corrcoef(above, below)[0, 1])


CONFIG = "config.yaml"
# Bytes of a file that is read
_LARGEST = 1 << 16
_SIZE_LINE = re.compile(r"^(spike_[hw])(?:: *([1-9][0-9]*))?", re.MULTILINE | re.ASCII)


def config_of(stream: SourceFile) -> Config | None:
    """Read the nearest ``config.yaml`` of SpikeCV beside or above a stream, inside the given paths."""
    parts = stream.name.split("/")
    for level in range(len(parts)):
        path = stream.path.parents[level] / CONFIG
        if not path.is_file() or not is_inside(path, stream.roots):
            continue
        file = SourceFile(path, "/".join([*parts[: len(parts) - level - 1], CONFIG]))
        sizes = dict(_SIZE_LINE.findall(file.head(_LARGEST).decode("utf-8", "replace")))
        if sizes and not (sizes.get("spike_h") and sizes.get("spike_w")):
            message = "does not state spike_h and spike_w as whole numbers"
            raise file.problem(message, ("correct it", GiveOptions(("--height", "--width"))))
        if sizes:
            return Config(int(sizes["spike_h"]), int(sizes["spike_w"]), file.name)
    return None
