"""Frames of a camera: a text of their times, one a line, beside a folder of images, as in DSEC."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from unistore.converters.array import Array
from unistore.converters.claims import Claim, no, sure
from unistore.converters.files.paths import natural_key
from unistore.converters.formats.images import decode_file, read_header
from unistore.converters.formats.lazy import LazyRows
from unistore.converters.opened import Format, OpenFile, SourceFile
from unistore.system.types import AnyArray, Int64s

FRAMES = "frames"  # begins the names of the arrays: `frames/t` and `frames/image`
# Folders of images beside the text, of which the first one with images is taken.
_FOLDERS = ("left/rectified", "left/distorted", "left", "")
_ENDINGS = (".png", ".jpg", ".jpeg")
_FIX = "copy the missing files, or skip the frames: --exclude with the name of this file"


class FrameTimes(Format):
    """Times (n,) int64 and images (n, height, width[, channel]) of frames, in the order of their names."""

    name = "frame_times"
    suffixes = ("timestamps.txt",)
    offered = False

    def recognise(self, file: SourceFile) -> Claim:
        first, _, _ = file.head(64).partition(b"\n")
        if first.strip().isdigit():
            return sure("has a time in each line")
        if file.path.name in self.suffixes:
            raise file.wrong_beginning("with a time")
        return no("does not begin with a time")

    @contextmanager
    def open(self, file: SourceFile) -> Iterator[OpenFile]:
        """Read the times and the header of the first image. Others are checked when they are read."""
        times = _read_times(file)
        images = _images_beside(file)
        if len(images) != len(times):
            message = f"has {len(times):,} times, but its folder contains {len(images):,} images"
            raise file.problem(message, _FIX, "count")
        header = read_header(images[0].path, images[0].name)
        # EXIF may turn a JPEG
        pixels = header.shape or decode_file(images[0].path, images[0].name, exact=True).shape

        def read(lo: int, hi: int) -> AnyArray:
            frames = np.empty((hi - lo, *pixels), header.dtype)
            for frame, image in zip(frames, images[lo:hi], strict=True):
                decoded = decode_file(image.path, image.name, exact=True)
                if decoded.shape != pixels or decoded.dtype != header.dtype:
                    raise image.problem(
                        f"is {decoded.dtype} {decoded.shape}, but the first frame is {header.dtype} {pixels}",
                        "write all frames with the same size and depth",
                        "shape",
                    )
                frame[...] = decoded
            return frames

        frames = LazyRows((len(images), *pixels), header.dtype, read)
        arrays = {f"{FRAMES}/t": Array(times), f"{FRAMES}/image": Array(frames)}
        yield OpenFile(arrays, further=images, memory=2 * header.size + 4 * header.height * header.width)


def _read_times(file: SourceFile) -> Int64s:
    """Read the times, which do not fall."""
    lines = file.path.read_text("ascii", "replace").split("\n")
    times = []
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if text and not text.isdigit():
            raise file.problem(
                f"has {text[:40]!r} in line {number}, but whole microseconds are expected",
                "write one time per line",
                "values",
            )
        if text:
            times.append(int(text))
        if len(times) > 1 and times[-1] < times[-2]:
            message = f"its times decrease from {times[-2]} to {times[-1]} in line {number}"
            raise file.problem(message, "sort the frames by time", "order")
    return np.array(times, np.int64)


def _images_beside(file: SourceFile) -> list[SourceFile]:
    for folder in _FOLDERS:
        inside = file.path.parent / folder
        names = [path.name for path in inside.iterdir()] if inside.is_dir() else []
        shown = [name for name in names if name.lower().endswith(_ENDINGS) and not name.startswith(".")]
        images = sorted(shown, key=natural_key)
        if images:
            return [file.beside(f"{folder}/{name}" if folder else name) for name in images]
    folders = " or ".join(f"{folder}/" if folder else "its own folder" for folder in _FOLDERS)
    raise file.problem(f"has no images in {folders}", _FIX, "missing")
