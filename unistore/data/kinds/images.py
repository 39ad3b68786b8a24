"""Reader of compressed images that are stored as in the sources."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.errors import CorruptionError
from unistore.schemas.indices import Column
from unistore.store.reader import Store

_PNG = b"\x89PNG\r\n\x1a\n"


class EncodedImages:
    """PNG or JPEG bytes of frames, ``data`` flat u1 and ``offsets`` (n + 1); decoded as in the conversion.

    Parameters
    ----------
    store, group
        The store, and the group of both arrays. The attribute ``colour`` of ``data`` is ``"swapped"`` if
        frames were compressed with red and blue exchanged, so that OpenCV's BGR output has the true colours.
    exact
        False: frames are (H, W, 3) u1 RGB; gray is repeated, alpha dropped, 16 bits reduced to the upper 8,
        EXIF rotation ignored. True: PNG frames keep their channels and depth.
    """

    def __init__(self, store: Store, group: str, *, exact: bool = False) -> None:
        self._data = store.array(f"{group}/data")
        self.path = self._data.path
        self._offsets = Column(store, f"{group}/offsets")
        self._swapped = self._data.attributes.get("colour") == "swapped"
        self._exact = exact

    def read(self, frames: NDArray[np.int64]) -> list[NDArray[Any]]:
        """Decoded frames, in the order given.

        Raises
        ------
        CorruptionError
            If a frame cannot be decoded.
        """
        lo, hi = self._offsets.ranges(frames)
        stored = self._data.read_ranges(lo, hi)
        bounds = np.concatenate(([0], np.cumsum(hi - lo)))
        return [self._decode(stored[bounds[i] : bounds[i + 1]], int(frame)) for i, frame in enumerate(frames)]

    def _decode(self, stored: NDArray[np.uint8], frame: int) -> NDArray[Any]:
        import cv2

        where = f"{self._data.path}: frame {frame}"
        flags = cv2.IMREAD_COLOR | (0 if self._exact else cv2.IMREAD_IGNORE_ORIENTATION)
        if self._exact and stored[: len(_PNG)].tobytes() == _PNG:
            flags = cv2.IMREAD_UNCHANGED
        try:
            image: NDArray[Any] | None = cv2.imdecode(stored, flags)
        except cv2.error as error:
            msg = f"{where} cannot be decoded ({error.err})"
            raise CorruptionError(msg) from error
        if image is None:
            msg = f"{where} cannot be decoded ({len(stored)} bytes)"
            raise CorruptionError(msg)
        if self._swapped or image.ndim == 2:
            return image
        return cv2.cvtColor(image, cv2.COLOR_BGR2RGB if image.shape[2] == 3 else cv2.COLOR_BGRA2RGBA)
