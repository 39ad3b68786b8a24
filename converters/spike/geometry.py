"""Resolution of headerless recordings from the sizes of their files.

The size of a stream must be a whole number of frames. Their resolution is given by the user or is that of a
known camera; if several cameras fit, the recording is refused. These functions read no files.

Layouts
-------
packed
    Eight pixels a byte, least significant bit first, rows padded to whole bytes.
stream
    The same bits without padding (differs if W % 8 != 0).
bytes
    One byte a pixel, 0 or 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from unistore.errors import Problem, printable
from unistore.schemas.spike.bits import row_bytes, unpack


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
    if size <= 0:
        return None
    if layout == "stream":
        frames = size * 8 // (height * width)
        return frames if frames and -(-frames * height * width // 8) == size else None
    frame = height * (row_bytes(width) if layout == "packed" else width)
    return size // frame if size % frame == 0 else None


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
