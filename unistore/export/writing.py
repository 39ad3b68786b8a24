"""Writing one exported file: HDF5, ``.npy``, ``.npz``, PNG, or the bytes themselves."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from unistore.errors import ConversionError, StoreError
from unistore.export.files import File, Values

__all__ = ["write"]

_CHUNK_ROWS = 8192


def write(file: File, path: Path) -> None:
    """Write a file that does not exist yet.

    Raises
    ------
    ConversionError
        If it cannot be written.
    StoreError
        If the store's values cannot be read, or a name inside the file cannot be used.
    """
    if file.form == "hdf5":
        _write_hdf5(file, path)
    elif file.form == "npz":
        _write_npz(file.values, path)
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
            info = zipfile.ZipInfo(f"{name}.npy")  # its time is 1980: an export is the same every time
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


def _write_hdf5(file: File, path: Path) -> None:
    import h5py

    with h5py.File(path, "x", libver=("v108", "latest")) as out:  # 1.8 on: attributes above 64 KiB
        for name, values in file.values.items():
            try:
                _write_dataset(out, name, values, compressed=file.compressed)
            except (ValueError, TypeError) as error:
                msg = f"{file.name}: dataset {name!r} cannot be written ({error})"
                raise StoreError(msg) from error
        for name, attributes in file.attributes.items():
            target = out.require_group(name) if name and name not in out else out[name or "/"]
            for key, value in attributes.items():
                target.attrs[key] = _attribute(value)


def _write_dataset(out: Any, name: str, values: Values, *, compressed: bool) -> None:
    import h5py

    if values.dtype.hasobject:
        dataset = out.create_dataset(name, values.shape, h5py.vlen_dtype(np.uint8))
    elif compressed and 0 not in values.shape:
        chunks = (min(_CHUNK_ROWS, values.shape[0]), *values.shape[1:])
        dataset = out.create_dataset(
            name,
            values.shape,
            values.dtype,
            chunks=_bounded(chunks, values.dtype.itemsize),
            compression="gzip",
            compression_opts=4,
            shuffle=True,
        )
    else:
        dataset = out.create_dataset(name, values.shape, values.dtype)
    at = 0
    for block in values.blocks():
        if block.size:
            dataset[at : at + len(block)] = block[0] if values.dtype.hasobject else block
        at += len(block)


def _bounded(chunks: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Chunk of at most 16 MiB: fewer rows where rows are long."""
    row = max(1, prod(chunks[1:]) * itemsize)
    return (max(1, min(chunks[0], (16 << 20) // row)), *chunks[1:])


def _attribute(value: Any) -> Any:
    """A JSON value as an HDF5 attribute: None becomes an empty one, lists of unlike things JSON text."""
    import h5py

    if value is None:
        return h5py.Empty("f4")
    if not isinstance(value, list):
        return value
    array = np.asarray(value) if _is_array(value) else None
    if array is None or array.dtype.kind == "O":
        return json.dumps(value)
    return value if array.dtype.kind == "U" else array


def _is_array(value: list[Any]) -> bool:
    """Whether a list, nested or not, is an array: parts of one length and one kind."""
    if any(isinstance(item, list) for item in value):
        same = all(isinstance(item, list) and len(item) == len(value[0]) for item in value)
        return same and all(_is_array(item) for item in value)
    kinds = {type(item) for item in value}
    return kinds <= {int, float} or kinds in ({str}, {bool})
