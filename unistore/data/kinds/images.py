"""Reader of compressed images that are stored as in the sources."""

from __future__ import annotations

import numpy as np

from unistore.converters.formats.images import decode
from unistore.errors import CorruptionError, InputError
from unistore.schemas.indices import IndexColumn
from unistore.store.reader import Store
from unistore.system.hints import AnyArray, Int64s, UInt8s


class EncodedImages:
    """PNG or JPEG bytes of frames, ``data`` flat u1 and ``offsets`` (n + 1). Decoded as in the conversion."""

    def __init__(
        self,
        store: Store,
        # of both arrays. The attribute ``colour`` of ``data`` is ``"swapped"`` if frames were compressed with
        # red and blue exchanged, so that OpenCV's BGR output has the true colours
        group: str,
        *,
        # False: frames are (H, W, 3) u1 RGB; gray is repeated, alpha dropped, 16 bits reduced to the upper 8,
        # EXIF rotation ignored. True: PNG frames keep their channels and depth
        exact: bool = False,
        blank: AnyArray | None = None,  # frame of rows without any bytes. None: there are none
    ) -> None:
        self._data = store.array(f"{group}/data")
        self.path = self._data.path
        self._offsets = IndexColumn(store, f"{group}/offsets")
        self._swapped = self._data.attributes.get("colour") == "swapped"
        self._exact = exact
        self._blank = blank

    def read(self, frames: Int64s) -> list[AnyArray]:
        """Return the decoded frames, in the order given."""
        lo, hi = self._offsets.ranges(frames)
        stored = self._data.read_ranges(lo, hi)
        bounds = np.concatenate(([0], np.cumsum(hi - lo)))
        return [self._decode(stored[bounds[i] : bounds[i + 1]], int(frame)) for i, frame in enumerate(frames)]

    def _decode(self, stored: UInt8s, frame: int) -> AnyArray:
        if self._blank is not None and not len(stored):
            return self._blank
        location = f"{self._data.path}: frame {frame}"
        try:
            return decode(stored, location, exact=self._exact, swapped=self._swapped)
        except InputError as error:
            msg = f"{location} {error.problems[0].message}"
            raise CorruptionError(msg) from error
