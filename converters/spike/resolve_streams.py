"""Layout, resolution and length of all headerless streams of a conversion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from unistore.converters.spike.geometry import (
    CAMERAS,
    Choice,
    choose_resolutions,
    find_misread_camera,
    fitting_layouts,
    frames_in,
    row_correlation,
)
from unistore.converters.spike.layout_detection import DetectedLayout, detect_layout, detect_padding
from unistore.converters.spike.source import Extent, ShapedStream, StreamSource
from unistore.errors import Problem
from unistore.schemas.spike.bits import row_bytes
from unistore.system.sizes import count_of

_CHECKED_FRAMES = 64
_MIN_CORRELATION = 0.5
_LAYOUT_NAMES = {
    "packed": "packed bits",
    "stream": "packed bits without padding",
    "bytes": "one byte a pixel",
}


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
    recordings: Mapping[str, Sequence[StreamSource]],
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
    left: dict[str, list[StreamSource]] = {}
    for name, each in recordings.items():
        if sound := [stream for stream in each if stream.location not in refused]:
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
    firsts: dict[tuple[int, int], StreamSource] = {}
    for name, choice in choices.items():
        for stream in left[name]:
            frames = frames_in(stream.size, choice.height, choice.width, padding.layout)
            if frames is None:
                more.append(_remainder_problem(stream, choice, padding.layout))
                continue
            extents[stream.location] = Extent(frames, choice.height, choice.width)
            firsts.setdefault((choice.height, choice.width), stream)
    if not problems and not more:
        for stream in firsts.values():
            notes += _resolution_note(stream, extents[stream.location], padding.layout, flip)
    return ResolvedStreams(extents, padding.layout, tuple(notes), (*problems, *more))


def _with_given_resolution(
    recordings: Mapping[str, Sequence[StreamSource]],
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
        return {}, decided, [Problem(streams[0].location, message, cure, "geometry")]
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
    return {}, decided, [Problem(streams[0].location, f"{fits}; too dark to tell", cure, "dark")]


def _remainder_problem(stream: StreamSource, choice: Choice, layout: str) -> Problem:
    """Problem: the size is not a whole number of frames; with the remainder, and cameras that fit."""
    pixels = choice.height * choice.width
    frame = {"packed": choice.height * row_bytes(choice.width), "stream": pixels / 8, "bytes": pixels}[layout]
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
    return Problem(stream.location, message, cure, "size", stream.location)


def _resolution_note(stream: StreamSource, extent: Extent, layout: str, flip: bool) -> list[str]:
    """A note if neighbouring rows of the mean image do not correlate, as they do in lit scenes."""
    frames = np.empty((min(extent.length, _CHECKED_FRAMES), extent.height, row_bytes(extent.width)), np.uint8)
    ShapedStream.of(stream, extent, layout, flip).read(frames)
    correlation = row_correlation(frames, extent.width)
    if np.isnan(correlation) or correlation >= _MIN_CORRELATION:
        return []
    note = (
        f"careful: neighbouring rows of {stream.location} hardly correlate as "
        f"{extent.height} x {extent.width} (correlation {correlation:.2f}; lit scenes reach 0.7 and more): "
        "check --height and --width"
    )
    return [note]
