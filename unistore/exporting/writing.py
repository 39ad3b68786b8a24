"""Writes one exported file: HDF5, ``.npy``, ``.npz``, PNG, raw bytes, or a Zarr group."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.exported import File, Values
from unistore.errors import ConversionError
from unistore.exporting.hdf5 import write_hdf5
from unistore.exporting.zarr_group import write_zarr


def write(file: File, path: Path) -> None:
    """Write a new file.

    Raises
    ------
    ConversionError
        If an image cannot be encoded.
    OSError
        If the file cannot be written.
    StoreError
        If the store's values cannot be read, or a name inside the file is not valid.
    """
    if file.form == "hdf5":
        write_hdf5(file, path)
    elif file.form == "npz":
        _write_npz(file.values, path)
    elif file.form == "zarr":
        write_zarr(file, path)
    else:
        values = file.values[""]
        with path.open("xb") as out:
            if file.form == "npy":
                _write_npy(values, out)
            elif file.form == "png":
                out.write(_png(values.whole(), path))
            else:
                for block in values.blocks():
                    out.write(_bytes_of(block))


def _write_npy(values: Values, out: IO[bytes]) -> None:
    header = {
        "descr": np.lib.format.dtype_to_descr(values.dtype),
        "fortran_order": False,
        "shape": values.shape,
    }
    np.lib.format.write_array_header_1_0(out, header)
    for block in values.blocks():
        out.write(_bytes_of(np.asarray(block, values.dtype)))


def _write_npz(members: Mapping[str, Values], path: Path) -> None:
    with path.open("xb") as out, zipfile.ZipFile(out, "w", allowZip64=True) as archive:
        for name, values in members.items():
            info = zipfile.ZipInfo(f"{name}.npy")  # fixed time stamp (1980): exports are reproducible
            with archive.open(info, "w", force_zip64=True) as member:
                _write_npy(values, member)


def _bytes_of(block: NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(block).reshape(-1).view(np.uint8).data


def _png(pixels: NDArray[Any], path: Path) -> bytes:
    import cv2

    done, encoded = cv2.imencode(".png", np.ascontiguousarray(pixels[..., ::-1]))
    if not done:
        msg = f"{path}: an image of {pixels.shape} could not be encoded as PNG"
        raise ConversionError(msg)
    return encoded.tobytes()
