"""Read columns with any number of values in a row, columns of text, and images as in the sources."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from unistore.converters.formats.images import decode
from unistore.data.packed import Allocate, Packed, offsets_from_lengths
from unistore.errors import CorruptionError, InputError
from unistore.schemas.indices import IndexColumn, require_rule
from unistore.schemas.ragged import RAGGED_SUFFIX, TEXT_SUFFIX
from unistore.store.reader import Store
from unistore.system.extras import require
from unistore.system.types import AnyArray, Int64s, UInt8s


def row_axes(store: Store, path: str) -> tuple[str, ...]:
    """Return the names that a store records for the axes of a row of an array, empty if it records none."""
    fields = store.root.fields
    axes = fields[path].axes if path in fields else ()
    is_complete = len(axes) == len(store.array(path).shape)
    return axes[1:] if is_complete else ()


class UnevenColumn:
    """A column whose rows have any number of values, or a text.

    Parameters
    ----------
    store : Store
        The store.
    group : str
        Path of the group of the column, with ``data`` and ``offsets``.
    """

    def __init__(self, store: Store, group: str) -> None:
        self._is_text = group.endswith(TEXT_SUFFIX)
        self._data = store.array(f"{group}/data")
        self.axis_names = row_axes(store, f"{group}/data")
        require_rule(store, f"{group}/offsets", offsets_of=group)
        self._offsets = IndexColumn(store, f"{group}/offsets")

    def read(
        self, key: str, rows: Int64s, allocate: Allocate, is_wanted: NDArray[np.bool_] | None = None
    ) -> tuple[Packed, Int64s | None]:
        """Read rows.

        Parameters
        ----------
        key : str
            Group of the offsets of the values.
        rows : int64 array of shape (B, …)
            Numbers of the rows.
        allocate : callable
            Called as ``allocate(shape, dtype)`` for the memory of the values.
        is_wanted : bool array of the shape of `rows`, optional
            Rows to read. Others have no values, or an empty text. None: all rows.

        Returns
        -------
        values : Packed
            Values of the rows, one after another, with offsets (B + 1,); for a column of texts, dense
            texts of the shape of `rows`.
        counts : int64 array of the shape of `rows`, or None
            Number of values of each row. None: the column has texts.
        """
        if self._is_text:
            return Packed(self._texts(rows, is_wanted)), None
        lo, hi = self._offsets.ranges(rows.reshape(-1))
        if is_wanted is not None:
            hi = np.where(is_wanted.reshape(-1), hi, lo)
        counts = (hi - lo).reshape(rows.shape)
        out = allocate((int(counts.sum()), *self._data.shape[1:]), self._data.dtype)
        self._data.read_ranges(lo, hi, out)
        lengths = counts.sum(axis=tuple(range(1, rows.ndim)))
        return Packed(out, offsets_from_lengths(lengths), group=key), counts

    def _texts(self, rows: Int64s, is_wanted: NDArray[np.bool_] | None) -> NDArray[np.str_]:
        # Bytes that are not UTF-8 become lone surrogates, as Python has them in names of files
        flat, places = np.unique(rows, return_inverse=True)
        lo, hi = self._offsets.ranges(flat)
        raw = self._data.read_ranges(lo, hi).tobytes()
        bounds = offsets_from_lengths(hi - lo).tolist()
        texts = [raw[start:stop].decode("utf-8", "surrogateescape") for start, stop in pairwise(bounds)]
        values: NDArray[np.str_] = np.array(texts, np.str_)[places.reshape(rows.shape)]
        if is_wanted is not None:
            values[~is_wanted] = ""
        return values


def is_ragged(path: str) -> bool:
    """Return whether rows have any number of values, for a column by its path in `step_paths`."""
    return path.endswith(RAGGED_SUFFIX)


def is_uneven(path: str) -> bool:
    """Return whether rows have any number of values, or text, for a column by its path in `step_paths`."""
    return path.endswith((RAGGED_SUFFIX, TEXT_SUFFIX))


def count_key(key: str) -> str:
    """Return the key of the number of values in each row of a column."""
    return f"{key}_counts"


# Reader of compressed images that are stored as in the sources.


class EncodedImages:
    """Reads frames that are stored as PNG or JPEG files, decoded as in a conversion.

    Parameters
    ----------
    store : Store
        The store.
    group : str
        Path of the group with the bytes, ``data``, and ``offsets`` (n + 1,). The attribute ``colour`` of
        ``data`` is ``"swapped"`` if frames were compressed with red and blue exchanged, so that OpenCV's
        BGR output has the true colours.
    exact : bool, default False
        False: frames are (H, W, 3), uint8 RGB. Grey is repeated, alpha dropped, 16 bits reduced to the
        upper 8, and EXIF rotation ignored. True: PNG frames keep their channels and depth.
    blank : array, optional
        Frame for rows without bytes. None: every row has bytes.
    """

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
        require("cv2", f"{store.path}: {group}: decoding PNG and JPEG images needs", "images")
        self._data = store.array(f"{group}/data")
        self.path = self._data.path
        require_rule(store, f"{group}/offsets", offsets_of=group)
        self._offsets = IndexColumn(store, f"{group}/offsets")
        self._swapped = self._data.attributes.get("colour") == "swapped"
        self._exact = exact
        self._blank = blank

    def read(self, frames: Int64s) -> list[AnyArray]:
        """Return the frames with these numbers, each as an array of its own shape.

        Raises
        ------
        CorruptionError
            If the bytes of a frame are not an image. The message names the frame.
        """
        lo, hi = self._offsets.ranges(frames)
        stored = self._data.read_ranges(lo, hi)
        bounds = pairwise(offsets_from_lengths(hi - lo).tolist())
        images = []
        for frame, (start, stop) in zip(frames.tolist(), bounds, strict=True):
            images.append(self._decode(stored[start:stop], frame))
        return images

    def _decode(self, stored: UInt8s, frame: int) -> AnyArray:
        if self._blank is not None and not len(stored):
            return self._blank
        location = f"{self._data.path}: frame {frame}"
        try:
            return decode(stored, location, exact=self._exact, swapped=self._swapped)
        except InputError as error:
            msg = f"{location} {error.problems[0].message}"
            raise CorruptionError(msg) from error
