"""Reader of compressed images that are stored as in the sources."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.formats.images import decode
from unistore.errors import CorruptionError, InputError
from unistore.schemas.indices import Column
from unistore.store.reader import Store


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
        location = f"{self._data.path}: frame {frame}"
        try:
            return decode(stored, location, exact=self._exact, swapped=self._swapped)
        except InputError as error:
            msg = f"{location} {error.problems[0].message}"
            raise CorruptionError(msg) from error
