"""Writes one exported file: HDF5, ``.npy``, ``.npz``, PNG, raw bytes, or a Zarr group."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.exported import File, Values
from unistore.errors import ConversionError, StoreError
from unistore.exporting.hdf5 import write_hdf5
from unistore.store.names import ROOT, file_name_problem
from unistore.zarr3.codecs import codecs_document, encoder
from unistore.zarr3.metadata import json_bytes
from unistore.zarr3.presets import array_metadata
from unistore.zarr3.writer import chunk_slices, pad_chunk

_EDGE = 64
"""Voxels along each axis of a Zarr chunk: a plane across any axis reads few chunks."""


class FileNames:
    """The file names of one export: each safe, each once, none inside another; `store` is for messages."""

    def __init__(self, store: str) -> None:
        self._store = store
        self._files: set[str] = set()
        self._folders: set[str] = set()

    def take(self, name: str) -> tuple[str, ...]:
        """Register a new file name; returns its parts.

        Raises `StoreError` if the name is absolute, leaves its folder, is not a valid file name on every file
        system, was taken before, or lies inside a file.
        """
        if reason := file_name_problem(name):
            msg = f"{self._store}: the store names a file {name!r}, which is not written: {reason}"
            raise StoreError(msg)
        parts = tuple(name.split("/"))
        parents = ["/".join(parts[:depth]) for depth in range(1, len(parts))]
        if name in self._files or name in self._folders or self._files.intersection(parents):
            two = f"two files {name!r}, or one inside another"
            msg = f"{self._store}: the store names {two}: only one can be written"
            raise StoreError(msg)
        self._files.add(name)
        self._folders.update(parents)
        return parts


def _write_zarr(file: File, path: Path) -> None:
    """Write a Zarr v3 group: every chunk a file, since viewers do not all read shards.

    Not by zarr-python: after a failed write others of its writes go on for a while.
    """
    names = FileNames(str(path))
    for name in (*file.attributes, *file.values):
        document = path.joinpath(*names.take(f"{name}/{ROOT}".lstrip("/")))
        document.parent.mkdir(parents=True)
        if name in file.values:
            _write_array(file.values[name], document.parent, file.axes)
        else:
            group = {"zarr_format": 3, "node_type": "group", "attributes": file.attributes[name]}
            document.write_text(json.dumps(group, indent=2, allow_nan=False))


def _write_array(values: Values, folder: Path, axes: tuple[str, ...]) -> None:
    chunk = tuple(max(1, min(_EDGE, extent)) for extent in values.shape)
    blank = np.zeros(chunk, values.dtype)
    metadata = array_metadata(values.shape, values.dtype, chunk, chunk, "balanced", dimension_names=axes)
    document = metadata.to_json()
    document["codecs"] = codecs_document(metadata.compressor, values.dtype.itemsize)
    (folder / ROOT).write_bytes(json_bytes(document))
    encode = encoder(metadata.compressor)
    for depth, layer in enumerate(_layers(values, chunk[0])):
        for box in chunk_slices(layer.shape, chunk):
            along = (part.start // edge for part, edge in zip(box[1:], chunk[1:], strict=True))
            file = folder.joinpath("c", str(depth), *map(str, along))
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("xb") as out:
                out.writelines(encode(pad_chunk(layer[box], blank)))


def _layers(values: Values, depth: int) -> Iterator[NDArray[Any]]:
    """Layers of `depth` rows, the last one perhaps thinner, in a buffer that is reused for each."""
    layer = np.empty((depth, *values.shape[1:]), values.dtype)
    filled = 0
    for block in values.blocks():
        done = 0
        while done < len(block):
            count = min(len(block) - done, depth - filled)
            layer[filled : filled + count] = block[done : done + count]
            filled, done = filled + count, done + count
            if filled == depth:
                yield layer
                filled = 0
    if filled:
        yield layer[:filled]


def write(file: File, path: Path) -> None:
    """Write a new file.

    Raises `ConversionError` if an image cannot be encoded; `OSError` if the file cannot be written;
    `StoreError` if the store's values cannot be read, or a name inside the file is not valid.
    """
    if file.form == "hdf5":
        write_hdf5(file, path)
        return
    if file.form == "zarr":
        _write_zarr(file, path)
        return
    if file.write is not None:
        file.write(path)
        return
    with path.open("xb") as out:
        if file.form == "npz":
            _write_npz(file.values, out)
        elif file.form == "npy":
            _write_npy(file.values[""], out)
        elif file.form == "png":
            out.write(_png(file.values[""].whole(), path))
        else:
            out.writelines(map(_bytes_of, file.values[""].blocks()))


def _write_npy(values: Values, out: IO[bytes]) -> None:
    descr = np.lib.format.dtype_to_descr(values.dtype)
    header = {"descr": descr, "fortran_order": False, "shape": values.shape}
    np.lib.format.write_array_header_1_0(out, header)
    out.writelines(_bytes_of(np.asarray(block, values.dtype)) for block in values.blocks())


def _write_npz(members: Mapping[str, Values], out: IO[bytes]) -> None:
    with zipfile.ZipFile(out, "w", allowZip64=True) as archive:
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
