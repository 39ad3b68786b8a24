"""One crop, drawn in image coordinates and taken from fields of different resolutions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unistore.data.kinds.protocol import Picks

__all__ = ["Boxes", "Crop"]

_FINEST = 16
"""Largest spacing of corners, in image pixels, kept so that a crop falls on whole pixels in every field."""


@dataclass(frozen=True, slots=True)
class Boxes:
    """Where a batch of crops lies in one field.

    Attributes
    ----------
    corner
        (B, 2) int64: first row and column.
    size
        (B, 2) int64: rows and columns of the crop.
    extent
        (B, 2) int64: rows and columns of the field.
    """

    corner: NDArray[np.int64]
    size: NDArray[np.int64]
    extent: NDArray[np.int64]

    @property
    def inside(self) -> NDArray[np.int64]:
        """(B, 2) int64: rows and columns of the crop that the field has."""
        inside: NDArray[np.int64] = np.minimum(self.size, self.extent - self.corner)
        return inside


@dataclass(frozen=True, slots=True)
class Crop:
    """How clips are cropped.

    Parameters
    ----------
    size
        Rows and columns in image pixels; None: whole frames.
    random
        Uniform corners, another one each epoch; else the centre.
    """

    size: tuple[int, int] | None
    random: bool

    def sizes(self, image: NDArray[np.int64], field: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rows and columns that a crop has in a field.

        Parameters
        ----------
        image, field
            (…, 2) extents of the frame's images and of the field.

        Returns
        -------
        (…, 2) int64: the crop's share of the image, of the field's extent, rounded, at least 1.
        """
        if self.size is None:
            return field
        shares = (2 * np.array(self.size) * field + image) // (2 * np.maximum(image, 1))
        sizes: NDArray[np.int64] = np.maximum(1, shares)
        return sizes

    def corners(self, picks: Picks, image: NDArray[np.int64], field: NDArray[np.int64]) -> NDArray[np.int64]:
        """Corners (B, 2) in image pixels.

        Where another resolution is a simple ratio of the image's, only corners that are whole pixels there
        are drawn: 720 rows of image over 360 rows of spikes give even corners.

        Parameters
        ----------
        picks
            The batch.
        image, field
            (B, 2) extents of the images, and of the field of another resolution.
        """
        if self.size is None:
            return np.zeros_like(image)
        step = image // np.maximum(1, np.gcd(image, field))
        step = np.where(step <= _FINEST, np.maximum(step, 1), 1)
        places = np.maximum(image - np.array(self.size), 0) // step + 1
        chosen = picks.below(places) if self.random else (places - 1) // 2
        corners: NDArray[np.int64] = chosen * step
        return corners

    def boxes(self, corners: NDArray[np.int64], image: NDArray[np.int64], field: NDArray[np.int64]) -> Boxes:
        """The same crops in a field of extents `field`, (B, 2)."""
        size = self.sizes(image, field)
        corner = corners * field // np.maximum(image, 1)
        return Boxes(np.minimum(corner, np.maximum(field - size, 0)), size, field)
