"""Camera frames in trajectory files: recognising, checking, decoding and resizing them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.trajectory.options import Colour
from unistore.converters.trajectory.source import Array

_MAGIC = {"jpeg": b"\xff\xd8\xff", "png": b"\x89PNG\r\n\x1a\n"}
_END = {"jpeg": b"\xff\xd9", "png": b"IEND\xaeB`\x82"}


def encoding_of(frame: NDArray[np.uint8]) -> str | None:
    """``"jpeg"`` or ``"png"`` by the first bytes of a frame; None if it is neither."""
    head = frame[:8].tobytes()
    return next((name for name, magic in _MAGIC.items() if head.startswith(magic)), None)


def is_complete(frame: NDArray[np.uint8]) -> bool:
    """Whether a compressed frame has the beginning and end of its format (decoders accept half frames)."""
    encoding = encoding_of(frame)
    return encoding is not None and frame[-64:].tobytes().rfind(_END[encoding]) >= 0


def decode_frame(frame: NDArray[np.uint8], colour: Colour) -> NDArray[Any] | None:
    """Decode a JPEG or PNG frame.

    OpenCV's encoder expects BGR. Some recorders pass RGB arrays: their frames need ``colour="swapped"``. The
    file does not say so.

    Returns
    -------
    array or None
        (H, W, 3) u1 RGB; PNG also (H, W) or (H, W, 4) in its own depth. None if it cannot be decoded.
    """
    import cv2

    flags = cv2.IMREAD_UNCHANGED if encoding_of(frame) == "png" else cv2.IMREAD_COLOR
    image: NDArray[Any] | None = cv2.imdecode(frame, flags)
    if image is None or image.ndim == 2 or colour == "swapped":
        return image
    code = cv2.COLOR_BGR2RGB if image.shape[-1] == 3 else cv2.COLOR_BGRA2RGBA
    return cv2.cvtColor(image, code)


def resize(images: NDArray[np.uint8], size: int, out: NDArray[np.uint8]) -> None:
    """Resize frames (n, H, W, 3) u1 into ``out`` (n, size, size, 3) with OpenCV's bilinear filter."""
    import cv2

    for image, target in zip(images, out, strict=True):
        cv2.resize(image, (size, size), dst=target, interpolation=cv2.INTER_LINEAR)


def frame_of(array: Array, row: int, kind: str) -> NDArray[np.uint8] | None:
    """One compressed frame without padding; None if the row is not a byte string.

    Zero bytes that pad it to a common length are cut off: the last byte of JPEG and PNG is never zero (D9 and
    82). Lengths that recorders store are not used: they are in an order of cameras that the file does not
    state.

    Raises
    ------
    InputError
        If the row cannot be read.
    """
    if kind == "padded":
        frame: NDArray[np.uint8] = array.read(row, row + 1)[0]
        kept = np.flatnonzero(frame)
        return frame[: int(kept[-1]) + 1] if kept.size else frame[:0]
    value = array.value(row)
    if isinstance(value, np.ndarray):
        return value if value.dtype == np.uint8 and value.ndim == 1 else None
    return np.frombuffer(value, np.uint8) if isinstance(value, bytes) else None
