"""Spikes as an array of pixels, (T, H, W) of 0 and 1, whatever file it is in."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.files.npy.header import NpyHeader
from unistore.converters.spike.source import Extent, FrameSource
from unistore.errors import InputError, Problem
from unistore.schemas.spike.bits import pack

__all__ = ["PixelSource", "three_axes"]

_PIECE = 8 << 20


@dataclass(frozen=True, kw_only=True)
class PixelSource(FrameSource):
    """An array of pixels; its top row first.

    Attributes
    ----------
    dtype
        As in the file: uint8 and bool are spikes.
    """

    dtype: np.dtype[Any]

    @abstractmethod
    def values(self) -> NDArray[Any]:
        """The array, (T, H, W); mapped where the file allows it."""

    def check(self) -> list[Problem]:
        """Whether the dtype is u1 or bool, and all values 0 or 1."""
        what = self.key or "the array"
        if self.dtype not in (np.dtype(np.uint8), np.dtype(np.bool_)):
            message = f"{what} has dtype {self.dtype}, expected uint8 or bool with values 0 and 1"
            return [Problem(self.location, message, "save it with .astype(np.uint8)", "dtype")]
        largest = max(int(piece.max(initial=0)) for piece in self._pieces())
        if largest > 1:
            message = f"{what} holds values up to {largest}, expected spikes of 0 and 1"
            cure = "packed bits? save them as a .dat file; counts of spikes? they belong into spike_vox/"
            return [Problem(self.location, message, cure, "values")]
        return []

    def read(self, out: NDArray[np.uint8]) -> None:
        """Pack the pixels; see `FrameSource.read`."""
        start = 0
        for piece in self._pieces():
            out[start : start + len(piece)] = pack(piece)
            start += len(piece)

    def _pieces(self) -> Iterator[NDArray[Any]]:
        values = self.values()
        step = max(1, _PIECE // max(1, values[:1].nbytes))
        return (values[start : start + step] for start in range(0, len(values), step))


def three_axes(header: NpyHeader, key: str, location: str) -> Extent:
    """Shape of an array, which must have three axes: of time or bins, height and width.

    Raises
    ------
    InputError
        It has others, or an empty one.
    """
    if len(header.shape) != 3 or 0 in header.shape:
        message = f"{key or 'the array'} has shape {header.shape}, expected three axes of at least 1"
        raise InputError(Problem(location, message, "save it as (time or bin, height, width)", "shape"))
    return Extent(*header.shape)
