"""Crops in image coordinates, applied to fields of different resolutions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unistore.data.kinds.protocol import Picks

_MAX_STEP = 16
"""Largest spacing of corners, in image pixels, used to have a crop begin at whole pixels in every field."""


@dataclass(frozen=True, slots=True)
class Boxes:
    """The boxes of a batch of crops in one field.

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
        """(B, 2) int64: rows and columns of the crop inside the field."""
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
        True: a uniform corner, different in each epoch. False: the centre.
    """

    size: tuple[int, int] | None
    random: bool

    def sizes(self, image: NDArray[np.int64], field: NDArray[np.int64]) -> NDArray[np.int64]:
        """Size of a crop in a field.

        Parameters
        ----------
        image, field
            (…, 2) extents of the frame's images and of the field.

        Returns
        -------
        (…, 2) int64: rows and columns, the crop's share of the image times the field's extent, at least 1.
        """
        if self.size is None:
            return field
        shares = (2 * np.array(self.size) * field + image) // (2 * np.maximum(image, 1))
        sizes: NDArray[np.int64] = np.maximum(1, shares)
        return sizes

    def corners(self, picks: Picks, image: NDArray[np.int64], field: NDArray[np.int64]) -> NDArray[np.int64]:
        """Corners (B, 2) in image pixels.

        If the ratio of the resolutions is simple, corners are at whole pixels of the other field, too: 720
        rows of image and 360 rows of spikes give even corners.

        Parameters
        ----------
        picks
            The batch.
        image, field
            (B, 2) extents of the images, and of the field with another resolution.
        """
        if self.size is None:
            return np.zeros_like(image)
        step = image // np.maximum(1, np.gcd(image, field))
        step = np.where(step <= _MAX_STEP, np.maximum(step, 1), 1)
        counts = np.maximum(image - np.array(self.size), 0) // step + 1
        number = picks.below(counts) if self.random else (counts - 1) // 2
        corners: NDArray[np.int64] = number * step
        return corners

    def boxes(self, corners: NDArray[np.int64], image: NDArray[np.int64], field: NDArray[np.int64]) -> Boxes:
        """Boxes of the crops at `corners` in a field of extents `field`, (B, 2)."""
        size = self.sizes(image, field)
        corner = corners * field // np.maximum(image, 1)
        return Boxes(np.minimum(corner, np.maximum(field - size, 0)), size, field)
