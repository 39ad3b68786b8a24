"""The real CT volume of tests/data as the .npy files that converters read, and a mask of its lung window."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np

VOLUME = "derived_ct_cropped_hu_int16_fortran.npy"
LUNG = "derived_ct_cropped_lung_w1500_l-600.npy"
_NIFTI = Path(__file__).parents[1] / "data" / "samples" / "ct" / "totalseg_ct_cropped.nii.gz"
_HEADER = 352  # bytes before the values of a NIfTI-1 file


def write_volume(folder: Path) -> np.ndarray:
    """Save the values of the NIfTI file, in its order of axes, and return them."""
    content = gzip.decompress(_NIFTI.read_bytes())
    values = np.frombuffer(content, "<i2", offset=_HEADER)
    volume = values.reshape((120, 126, 164), order="F")
    np.save(folder / VOLUME, volume)
    return volume


def write_lung(folder: Path, volume: np.ndarray) -> None:
    """Save the mask of the lung window, width 1500 and level -600."""
    inside = (volume >= -1350) & (volume <= 150)
    np.save(folder / LUNG, inside.astype(np.uint8, order="C"))
