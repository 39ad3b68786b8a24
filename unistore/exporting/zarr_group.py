"""Writes a Zarr v3 group: every chunk a file, since viewers do not all read shards.

Not by zarr-python: after a failed write others of its writes go on for a while.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.exported import File, Values
from unistore.exporting.naming import FileNames
from unistore.store.names import ROOT
from unistore.zarr3.metadata import ArrayMetadata
from unistore.zarr3.presets import codec_chain
from unistore.zarr3.writer import chunk_slices, pad_chunk

_EDGE = 64
"""Voxels along each axis of a chunk: a plane across any axis reads few chunks."""


def write_zarr(file: File, path: Path) -> None:
    """Write a new folder.

    Raises
    ------
    OSError
        If it cannot be written.
    StoreError
        If the store's values cannot be read, or a name inside the group is not valid.
    """
    names = FileNames(str(path))
    for name, attributes in file.attributes.items():
        group = {"zarr_format": 3, "node_type": "group", "attributes": attributes}
        folder = path.joinpath(*names.take(f"{name}/{ROOT}".lstrip("/"))).parent
        folder.mkdir(parents=True)
        (folder / ROOT).write_text(json.dumps(group, indent=2, allow_nan=False))
    for name, values in file.values.items():
        folder = path.joinpath(*names.take(f"{name}/{ROOT}")).parent
        folder.mkdir(parents=True)
        _write_array(values, folder, file.axes)


def _write_array(values: Values, folder: Path, axes: tuple[str, ...]) -> None:
    chunk = tuple(max(1, min(_EDGE, extent)) for extent in values.shape)
    blank = np.zeros(chunk, values.dtype)
    metadata = ArrayMetadata(
        shape=values.shape,
        dtype=values.dtype,
        chunk_shape=chunk,
        shard_shape=None,
        fill_value=values.dtype.type(0),
        codecs=codec_chain("balanced", values.dtype, chunk),
        index=None,
        dimension_names=axes,
    )
    (folder / ROOT).write_bytes(metadata.to_bytes())
    encode = metadata.codecs.encoder(values.dtype)
    for depth, layer in enumerate(_layers(values, chunk[0])):
        for box in chunk_slices(layer.shape, chunk):
            along = (part.start // edge for part, edge in zip(box[1:], chunk[1:], strict=True))
            file = folder.joinpath("c", str(depth), *map(str, along))
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("xb") as out:
                out.writelines(encode(pad_chunk(layer[box], blank)))


def _layers(values: Values, depth: int) -> Iterator[NDArray[Any]]:
    """Rows, `depth` at a time, in a reused buffer."""
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
